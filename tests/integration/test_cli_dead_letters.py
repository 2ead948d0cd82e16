"""``flintmq dlq`` against a real broker: it shows dead letters and sends them again without losing one."""

from __future__ import annotations

import base64
import signal
from collections import Counter
from pathlib import Path

import pytest

from flintmq.client import Consumer, GroupConsumer, Message, MessageIllegal, Producer, StoredMessage
from flintmq.client.cli.failures import EXIT_ERROR, EXIT_OK
from flintmq.client.operator.dead_letters import BATCH_COUNT, PROPERTY_DLQ_ORIGIN_MESSAGE_ID
from flintmq.protocol.commands import UPDATE_AND_CREATE_TOPIC
from tests.cli_tools import Cli
from tests.conftest import BrokerFactory, ConnectionFactory, RawConnection, RunningBroker
from tests.dead_letter_tools import bury
from tests.delivery_tools import fill, receive
from tests.group_tools import joined


@pytest.fixture
def connection(shared_broker: RunningBroker, connect: ConnectionFactory) -> RawConnection:
    """A connection to the shared broker."""
    return connect(shared_broker)


@pytest.fixture
def group(shared_broker: RunningBroker, connection: RawConnection, topic: str) -> str:
    """A group with four dead letters of one topic, bodies 0 to 3."""
    group = f"{topic}-g"
    bury(shared_broker, connection, group, [Message(topic, b"%d" % n, keys=[f"k-{n}"]) for n in range(4)])
    return group


def stored(running: RunningBroker, topic: str) -> list[StoredMessage]:
    """Return all messages of a topic in the order of their storage."""
    with Consumer(running.address) as consumer:
        found = list(consumer.iter(topic, until="latest"))
    return sorted(found, key=lambda message: message.physical_offset)


def bodies(running: RunningBroker, topic: str) -> list[bytes]:
    return [message.body for message in stored(running, topic)]


def waiting(cli: Cli, group: str) -> tuple[int, int]:
    """Return the numbers of waiting dead letters and of all stored ones."""
    (row,) = [row for row in cli.run("dlq", "list", "-o", "json").rows if row["group"] == group]
    return row["waiting"], row["messages"]


class TestShow:
    def test_a_dead_letter_is_shown_as_it_was_sent(
        self, cli: Cli, topic: str, shared_broker: RunningBroker, connection: RawConnection
    ) -> None:
        group = f"{topic}-g"
        sent = Message(
            topic, b"\xff\x1b[31m", keys=["a", "b"], tags="t", properties={"colour": "red"}, sharding_key="s"
        )
        (receipt,) = bury(shared_broker, connection, group, [sent])
        (row,) = cli.run("dlq", "show", group, "-o", "json").rows
        assert base64.b64decode(row["body_base64"]) == sent.body
        assert (row["keys"], row["tag"], row["sharding_key"], row["properties"]) == (
            ["a", "b"],
            "t",
            "s",
            {"colour": "red"},
        )
        assert (row["original_topic"], row["topic"], row["message_id"]) == (topic, f"%DLQ%{group}", receipt.message_id)
        assert (row["reconsume_times"], row["queue_offset"]) == (1, 0)
        shown = cli.run("dlq", "show", group, "-o", "plain").out
        assert shown.endswith(f"\t0\t{receipt.message_id}\t{topic}\ta b\t1\t\\xff\\x1b[31m\t\t\n")


class TestResend:
    @pytest.mark.parametrize("alone", [False, True], ids=["to the topic", "to the group"])
    def test_those_of_a_work_group_come_again_while_its_consumers_run(
        self, cli: Cli, topic: str, shared_broker: RunningBroker, alone: bool
    ) -> None:
        fill(shared_broker.address, topic, 2)
        with GroupConsumer(shared_broker.address, topic, topic, mode="work", start="first") as consumer:
            held, bad = receive(consumer, 2)
            bad.dead("no such account")
            consumer.commit()
            resend = ["dlq", "resend", topic, *(["--to-group"] if alone else [])]
            assert cli.run(*resend).err == "sent 1 message again; 0 still waiting\n"
            (again,) = receive(consumer, 1)
            assert (again.message.body, again.message.reconsume_times) == (bad.message.body, 0)
            assert again.message.user_properties.keys() == {PROPERTY_DLQ_ORIGIN_MESSAGE_ID}
            again.ack()
            held.ack()
        assert len(stored(shared_broker, topic)) == (2 if alone else 3)

    def test_a_producer_cannot_choose_the_topic_of_a_resend(
        self, cli: Cli, topic: str, shared_broker: RunningBroker, connection: RawConnection
    ) -> None:
        group, other = f"{topic}-g", f"{topic}-payments"
        connection.call(UPDATE_AND_CREATE_TOPIC, {"topic": other}).raise_for_error()
        chosen = {"RETRY_TOPIC": other, "ORIGIN_MESSAGE_ID": "chosen"}
        bury(shared_broker, connection, group, [Message(topic, b"x", properties=chosen)])
        (row,) = cli.run("dlq", "show", group, "-o", "json").rows
        assert row["original_topic"] == topic
        assert row["origin_message_id"] != "chosen"
        cli.run("dlq", "resend", group)
        assert bodies(shared_broker, other) == []
        assert bodies(shared_broker, topic) == [b"x"] * 2

    def test_one_with_a_topic_that_its_group_never_read_is_not_sent(
        self, cli: Cli, topic: str, shared_broker: RunningBroker, connection: RawConnection
    ) -> None:
        """A broker of an earlier release kept such a property if the producer had set it."""
        group, other = f"{topic}-g", f"{topic}-payments"
        bury(shared_broker, connection, group, [Message(topic, b"first")])
        connection.call(UPDATE_AND_CREATE_TOPIC, {"topic": other}).raise_for_error()
        joined(connection, group, "m", topic).leave()
        connection.produce(f"%DLQ%{group}", b"kept", queue=0, common=f"RETRY_TOPIC\x01{other}\x02").raise_for_error()
        done = cli.run("dlq", "resend", group)
        assert done.code == EXIT_ERROR
        assert f"its recorded topic is {other}, which group {group} has never read" in done.err
        assert bodies(shared_broker, other) == []
        assert waiting(cli, group) == (1, 2)
        assert cli.run("dlq", "resend", group, "--to-topic", other).code == EXIT_OK
        assert bodies(shared_broker, other) == [b"kept"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_resend_sends_at_most_one_batch_twice_and_loses_none(
    broker: BrokerFactory, connect: ConnectionFactory, tmp_path: Path, number: signal.Signals
) -> None:
    running, count = broker(), 12 * BATCH_COUNT
    keys = [f"k-{n}" for n in range(count)]
    bury(running, connect(running), "billing", [Message("orders", b"x", keys=[key]) for key in keys])
    with Cli(tmp_path, running.address) as cli, Consumer(running.address) as consumer:
        process = cli.start("dlq", "resend", "billing")
        while not consumer.committed("billing", "%DLQ%billing").get(0) and process.poll() is None:
            pass
        process.send_signal(number)
        process.communicate()
        rest = cli.run("dlq", "resend", "billing")
        assert rest.code == EXIT_OK
        assert waiting(cli, "billing") == (0, count)
    times = Counter(message.keys[0] for message in stored(running, "orders"))
    assert times.keys() == set(keys)
    assert min(times.values()) == 2, "once as it was sent at first, once again"
    assert sum(times.values()) <= 2 * count + BATCH_COUNT


@pytest.mark.parametrize("to_group", [False, True])
def test_a_dead_letter_without_room_for_another_property_is_sent_again(
    cli: Cli, topic: str, shared_broker: RunningBroker, connection: RawConnection, to_group: bool
) -> None:
    group = f"{topic}-g"

    def with_property(chars: int) -> Message:
        return Message(topic, b"full", properties={"p": "x" * chars})

    with Producer(shared_broker.address) as producer:
        low, high = 1, 40_000
        while high - low > 1:
            middle = (low + high) // 2
            try:
                producer.send(with_property(middle), queue=0)
                low = middle
            except MessageIllegal:
                high = middle
    bury(shared_broker, connection, group, [Message(topic, b"before"), with_property(low), Message(topic, b"after")])
    old = len(stored(shared_broker, topic))
    done = cli.run("dlq", "resend", group, *(["--to-group"] if to_group else []))
    if to_group:
        assert (done.code, waiting(cli, group)) == (EXIT_ERROR, (2, 3))
        assert "leave no room for RETRY_TOPIC" in done.err
        assert cli.run("dlq", "purge", group, "--before", "2", "--yes").code == EXIT_OK
        assert cli.run("dlq", "resend", group, "--to-group").code == EXIT_OK
        assert bodies(shared_broker, f"%RETRY%{group}")[-2:] == [b"before", b"after"]
        return
    assert (done.code, waiting(cli, group)) == (EXIT_OK, (0, 3)), done.err
    again = stored(shared_broker, topic)[old:]
    assert [message.body for message in again] == [b"before", b"full", b"after"]
    noted = [message.properties.get(PROPERTY_DLQ_ORIGIN_MESSAGE_ID) for message in again]
    assert [note is None for note in noted] == [False, True, False]
