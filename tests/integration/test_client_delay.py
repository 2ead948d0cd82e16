"""Delayed messages through the clients and the command line: sent, listed while they wait, received."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgpack
import pytest

from flintmq.broker.kernels.dispatch import DELAY_LEVELS_MS
from flintmq.client import Consumer, DeliveryFailed, Message
from flintmq.client.delay import DELAY_LEVEL_SECONDS
from flintmq.protocol.commands import PRODUCE
from flintmq.protocol.errors import DelayIllegal, MessageIllegal
from tests.cli_tools import Cli
from tests.client_drivers import Clients
from tests.conftest import RunningBroker


def receive(consumer: Any, topic: str, count: int) -> list[Any]:
    """Wait for ``count`` messages of queue 0 and return them."""
    messages: list[Any] = []
    while len(messages) < count:
        batch = consumer.pull(topic, 0, len(messages), wait_ms=30_000)
        messages += batch.messages
    return messages


def in_seconds(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def test_messages_of_one_call_come_each_at_its_time_as_they_were_sent(
    shared_broker: RunningBroker, clients: Clients, topic: str
) -> None:
    with clients.Producer(shared_broker.address) as producer, clients.Consumer(shared_broker.address) as consumer:
        at = in_seconds(1.2)
        sent = [
            Message(topic, b"level", keys="a", tags="t", properties={"x": "y"}, delay_level=1),
            Message(topic, b"now", keys="a", tags="t", properties={"x": "y"}),
            Message(topic, b"timed", keys="a", tags="t", properties={"x": "y"}, deliver_at=at),
            Message(topic, b"later", keys="a", tags="t", properties={"x": "y"}, delay=timedelta(seconds=3)),
        ]
        receipts = producer.send_many(sent, queue=0)
        assert [receipt.queue for receipt in receipts] == [0] * 4
        messages = receive(consumer, topic, 4)
        assert [messages[0].body, messages[3].body] == [b"now", b"later"]
        ids = {message.body: message.message_id for message in messages}
        assert [ids[message.body] for message in sent] == [receipt.message_id for receipt in receipts]
        for message in messages:
            assert (message.topic, message.keys, message.tags, dict(message.user_properties)) == (
                topic,
                ("a",),
                "t",
                {"x": "y"},
            )
        assert next(message for message in messages if message.body == b"timed").stored_at >= at


def test_single_messages_and_bulks_take_the_same_delays(
    shared_broker: RunningBroker, clients: Clients, topic: str
) -> None:
    with clients.Producer(shared_broker.address) as producer, clients.Consumer(shared_broker.address) as consumer:
        producer.send_bulk(topic, [b"bulk"] * 3, queue=0, deliver_at=in_seconds(2))
        producer.send_bulk(topic, [b"level"], queue=0, delay_level=1)
        producer.send(Message(topic, b"single", delay=timedelta(seconds=4)), queue=0)
        producer.send(Message(topic, b"now"), queue=0)
        bodies = [message.body for message in receive(consumer, topic, 6)]
        assert (bodies[0], bodies[-1], sorted(bodies)) == (
            b"now",
            b"single",
            sorted([b"now", b"level", b"bulk", b"bulk", b"bulk", b"single"]),
        )


@pytest.mark.parametrize(
    ("delay", "why"),
    [
        ({"deliver_at": datetime.now(UTC) - timedelta(hours=2)}, "has passed: the broker's clock says"),
        ({"deliver_at": datetime.now(UTC) + timedelta(days=41)}, "delivery.delay_max_days"),
        ({"delay": timedelta(days=4000)}, "delivery.delay_max_days"),
    ],
)
def test_a_delay_that_cannot_be_has_its_error_and_the_others_are_stored(
    shared_broker: RunningBroker, clients: Clients, topic: str, delay: dict[str, Any], why: str
) -> None:
    with clients.Producer(shared_broker.address) as producer, clients.Consumer(shared_broker.address) as consumer:
        with pytest.raises(DelayIllegal, match=why):
            producer.send(Message(topic, b"x", **delay))
        with pytest.raises(DeliveryFailed) as raised:
            producer.send_many([Message(topic, b"a"), Message(topic, b"x", **delay), Message(topic, b"b")], queue=0)
        assert raised.value.failed == [1]
        assert isinstance(raised.value.errors[1], DelayIllegal)
        assert [message.body for message in receive(consumer, topic, 2)] == [b"a", b"b"]


def test_a_delay_given_to_a_single_call_is_refused_with_its_right_place(
    shared_broker: RunningBroker, connect: Callable[..., Any], topic: str
) -> None:
    connection = connect(shared_broker)
    answer = connection.call(PRODUCE, {"topic": topic, "count": 1}, msgpack.packb([b"x", {"DELAY": "3"}]))
    with pytest.raises(MessageIllegal, match="common properties"):
        answer.raise_for_error()


def test_waiting_messages_are_shown_by_level_and_hour(
    broker: Callable[..., RunningBroker], clients: Clients, tmp_path: Path
) -> None:
    running = broker()
    with clients.Producer(running.address) as producer, clients.Admin(running.address) as admin:
        producer.send_bulk("t", [b"x"] * 3, delay_level=18)
        for hours in (1, 2, 30):
            producer.send_bulk("t", [b"x"] * 2, delay=timedelta(hours=hours))
        stats = admin.delays(max_hours=2)
        assert {level: waiting.messages for level, waiting in stats.levels.items()} == {18: 3}
        due_at = stats.levels[18].next_due_at
        assert due_at is not None
        assert timedelta(minutes=115) < due_at - datetime.now(UTC) <= timedelta(hours=2)
        assert ([waiting.messages for _, waiting in stats.hours], stats.timed + stats.behind) == ([2, 4], 6)
        assert stats.parked == 0
    with Cli(tmp_path, running.address) as cli:
        shown = cli.run("delay", "list", "-o", "table")
        assert "level 18 (2 h)" in shown.out
        rows = cli.run("delay", "list", "-o", "json").rows
    assert [(row["kind"], row["level"], row["messages"]) for row in rows] == [
        ("level", 18, 3),
        ("hour", None, 2),
        ("hour", None, 2),
        ("hour", None, 2),
    ]


def test_a_receipt_says_when_the_message_is_delivered(
    shared_broker: RunningBroker, clients: Clients, topic: str
) -> None:
    at = (datetime.now(UTC) + timedelta(hours=3)).replace(microsecond=0)
    with clients.Producer(shared_broker.address) as producer:
        now = producer.send(Message(topic, b"x"))
        level = producer.send(Message(topic, b"x", delay_level=18))
        timed = producer.send(Message(topic, b"x", deliver_at=at))
        past = producer.send(Message(topic, b"x", deliver_at=datetime.now(UTC) - timedelta(seconds=5)))
        later = producer.send_many([Message(topic, b"x", delay=timedelta(hours=2)), Message(topic, b"x")])
        bulk = producer.send_bulk(topic, [b"x"] * 2, tags="t", delay=timedelta(minutes=90))
    assert (now.deliver_at, past.deliver_at, later[1].deliver_at) == (None, None, None)
    assert level.deliver_at == level.stored_at + timedelta(hours=2)
    assert timed.deliver_at == at
    assert later[0].deliver_at == later[0].stored_at + timedelta(hours=2)
    assert [receipt.deliver_at for receipt in bulk] == [bulk[0].stored_at + timedelta(minutes=90)] * 2


def test_the_shell_sends_delayed_messages(shared_broker: RunningBroker, tmp_path: Path, topic: str) -> None:
    with Cli(tmp_path, shared_broker.address) as cli:
        for option in (["--delay", "1s"], ["--deliver-at", "+1s"], ["--delay-level", "1"]):
            done = cli.run("send", topic, "hello", "--queue", "0", *option)
            assert done.code == 0, done.err
        with Consumer(shared_broker.address) as consumer:
            assert [message.body for message in receive(consumer, topic, 3)] == [b"hello"] * 3
        failed = cli.run("send", topic, "hello", "--delay", "41d")
        assert (failed.code, "delay_max_days" in failed.err) == (1, True), failed.err
        assert "pass only one of them" in cli.run("send", topic, "hello", "--delay", "1s", "--delay-level", "3").err


def test_the_shell_says_when_a_message_is_delivered(shared_broker: RunningBroker, tmp_path: Path, topic: str) -> None:
    with Cli(tmp_path, shared_broker.address) as cli:
        shown = cli.run("send", topic, "hello", "--delay", "2h", "-o", "table")
        assert re.fullmatch(
            rf"sent to {topic}  id=[0-9A-F]{{32}}  delivery (\d{{4}}-\d\d-\d\d )?\d\d:\d\d:\d\d, in 2 h\n", shown.out
        )
        row = cli.run("send", topic, "hello", "--deliver-at", "+3h", "-o", "json").rows[0]
        assert (
            timedelta(hours=2.9) < datetime.fromisoformat(row["deliver_at"]) - datetime.now(UTC) < timedelta(hours=3.1)
        )
        assert cli.run("send", topic, "hello", "-o", "json").rows[0]["deliver_at"] is None
        assert len(cli.run("send", topic, "hello", "--delay", "2h").out.split("\t")) == 6, "for scripts as it was"
        failed = cli.run("send", topic, "hello", "--deliver-at", "-2h")
        assert "the delivery time, " in failed.err
        assert "TIMER_DELIVER_MS" not in failed.err


def test_the_levels_are_those_of_the_broker() -> None:
    assert [1000 * seconds for seconds in DELAY_LEVEL_SECONDS] == DELAY_LEVELS_MS[1:].tolist()
