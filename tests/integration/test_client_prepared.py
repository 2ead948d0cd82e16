"""Prepared messages with the SDK: sent with ``prepare=``, committed and dropped by an ``Admin``."""

from __future__ import annotations

import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from flintmq.client import (
    Admin,
    Committed,
    Consumer,
    DeliveryFailed,
    InvalidArgument,
    InvalidArgumentType,
    InvalidParameter,
    Message,
    PreparedIncomplete,
    Producer,
)
from tests.cli_tools import Cli
from tests.client_drivers import Clients
from tests.conftest import BrokerFactory, RunningBroker
from tests.integration.test_cli_transcripts import documented


def bodies(broker: RunningBroker, topic: str) -> Counter[bytes]:
    with Consumer(broker.address) as consumer:
        return Counter(message.body for message in consumer.iter(topic, from_="earliest", until="latest"))


def metrics(broker: RunningBroker) -> dict[str, float]:
    """Return the metrics by name and labels."""
    address = next(line for line in broker.output if "/metrics" in line).split("http://")[1].split("/metrics")[0]
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as page:
        lines = page.read().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def test_a_staged_transaction_is_committed_or_dropped(
    clients: Clients, shared_broker: RunningBroker, topic: str
) -> None:
    with clients.Producer(shared_broker.address) as producer, clients.Admin(shared_broker.address) as admin:
        admin.create_topic(topic, queues=2)
        first, second, lost = (f"{topic}/{name}" for name in ("first", "second", "lost"))
        of_others = admin.prepared(f"{topic}/").open
        few = [Message(topic, b"%d" % number, keys=["k"]) for number in range(5)]
        receipts = producer.send_many(few, prepare=first)
        producer.send_bulk(topic, [b"%d" % number for number in range(5, 5_000)], queue=1, prepare=second)
        producer.send_bulk(topic, [b"lost"], prepare=lost)
        assert not bodies(shared_broker, topic)
        listed = admin.prepared(f"{topic}/")
        assert [(each.attempt, each.messages, each.topics) for each in listed.attempts] == [
            (first, 5, (topic,)),
            (second, 4_995, (topic,)),
            (lost, 1, (topic,)),
        ]
        assert (listed.open - of_others, list(listed.copying)) == (3, [])
        assert [each.attempt for each in admin.prepared(f"{topic}/", max_count=1).attempts] == [first]
        with pytest.raises(PreparedIncomplete) as raised:
            admin.commit_prepared(topic, 0, {first: 6, second: 4_995})
        assert raised.value.details == {"attempt": first, "prepared": 5}
        assert admin.commit_prepared(topic, 0, {first: 5, second: 4_995}, drop=f"{topic}/") == Committed(False, 5_000)
        assert admin.commit_prepared(topic, 0, {first: 5}, flush="sync") == Committed(True, 0)
        assert bodies(shared_broker, topic) == {b"%d" % number: 1 for number in range(5_000)}
        assert admin.abort_prepared(f"{topic}/") == 0
        with clients.Consumer(shared_broker.address) as consumer:
            assert len(consumer.query(topic, key="k")) == 5
            (found,) = consumer.query(topic, key=receipts[0].message_id)
            assert found.body == b"0"


@pytest.mark.parametrize(
    ("attempt", "error"), [*((name, InvalidArgument) for name in ("", "x" * 201, "é", "a\n")), (7, InvalidArgumentType)]
)
def test_a_name_that_cannot_be_is_refused_before_anything_is_sent(
    clients: Clients, shared_broker: RunningBroker, topic: str, attempt: Any, error: type[Exception]
) -> None:
    with clients.Producer(shared_broker.address) as producer, clients.Admin(shared_broker.address) as admin:
        with pytest.raises(error, match="prepare"):
            producer.send_bulk(topic, [b"x"], prepare=attempt)
        with pytest.raises(error, match="prepare"):
            admin.commit_prepared(topic, 0, {attempt: 1})
        assert topic not in admin.topics()


def test_a_delayed_message_cannot_be_prepared(shared_broker: RunningBroker, topic: str) -> None:
    with Producer(shared_broker.address) as producer, pytest.raises(DeliveryFailed) as raised:
        producer.send_many([Message(topic, b"x", delay_level=3)], prepare="a")
    assert isinstance(raised.value.errors[0], InvalidParameter)


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_broker_that_is_killed_while_it_copies_continues_at_its_start(broker: BrokerFactory, flush: str) -> None:
    count = 120_000
    running = broker("--flush", flush)
    with Producer(running.address) as producer, Admin(running.address) as admin, ThreadPoolExecutor(1) as other:
        admin.create_topic("t", queues=1)
        for name in ("a", "b"):
            producer.send_bulk("t", [b"%s %d" % (name.encode(), number) for number in range(count // 2)], prepare=name)
        committing = other.submit(admin.commit_prepared, "q", 0, {"a": count // 2, "b": count // 2}, timeout=120)
        with Consumer(running.address) as consumer:
            assert consumer.pull("t", queue=0, offset=0, wait_ms=60_000).messages  # the first copies exist
        running.kill()
        running = broker("--flush", flush, "--listen", running.address, store=running.store)
        assert committing.result(120) in (Committed(True, 0), Committed(False, count))
        found = bodies(running, "t")
    assert len(found) == count
    assert set(found.values()) == {1}
    figures = metrics(running)
    assert (figures["flintmq_prepared_messages"], figures["flintmq_prepared_attempts"]) == (0, 0)


def test_an_attempt_without_a_commit_expires(broker: BrokerFactory) -> None:
    running = broker(settings={"transactions.prepared_timeout_ms": 300})
    with Producer(running.address) as producer, Admin(running.address) as admin:
        producer.send_bulk("t", [b"one"], prepare="a")
        while metrics(running)['flintmq_prepared_attempts_ended_total{outcome="expire"}'] == 0:
            pass
        with pytest.raises(PreparedIncomplete, match=r"stage a does not exist.*prepared_timeout_ms is 300"):
            admin.commit_prepared("q", 0, {"a": 1})
    assert "expired: a;" in running.log


def test_the_shell_shows_and_drops_staged_messages(broker: BrokerFactory, tmp_path: Path) -> None:
    running = broker()
    with Producer(running.address) as producer, Cli(tmp_path, running.address) as cli:
        assert cli.run("tx", "prepared").rows == []
        for attempt in ("q/1/a", "q/1/b", "r/1/a"):
            producer.send_many([Message(name, b"x") for name in ("t", "u", "t")], prepare=attempt)
        rows = cli.run("tx", "prepared", "q/", "-o", "json").rows
        assert set(rows[0]) == documented("tx prepared")
        assert [(row["attempt"], row["topics"], row["messages"]) for row in rows] == [
            ("q/1/a", "t u", 3),
            ("q/1/b", "t u", 3),
        ]
        assert "dropped 2 stages" in cli.run("tx", "drop", "q/").err
        assert [row["attempt"] for row in cli.run("tx", "prepared", "-o", "json").rows] == ["r/1/a"]
