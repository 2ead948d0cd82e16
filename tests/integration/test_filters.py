"""Filters through a real broker: the passing messages, their order, the next offset, and errors for bad filters."""

from __future__ import annotations

import select
import signal
import threading
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from flintmq.client import Consumer, FilterIllegal, InvalidArgument, InvalidArgumentType, Message, Producer
from flintmq.protocol.commands import GET_MAX_OFFSET, PRODUCE, PULL
from flintmq.protocol.errors import PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY, SUCCESS, SystemBusy
from flintmq.protocol.frames import REQUEST, encode_frame
from flintmq.protocol.storage.record import Record, decode_record
from tests.store_tools import split_answer

if TYPE_CHECKING:
    from tests.conftest import Answer, BrokerFactory, ConnectionFactory, RunningBroker

REGIONS = ("eu", "us", "asia", None)


def order(topic: str, number: int) -> Message:
    """Return the message with this number; its tag says whether the number is even."""
    properties = {"amount": str(number), "half": str(number / 2)}
    region = REGIONS[number % 4]
    if region is not None:
        properties["region"] = region
    return Message(topic, b"%d" % number, tags="odd" if number % 2 else "even", properties=properties)


def fill(producer: Producer, topic: str, count: int, queues: int = 1) -> None:
    """Send orders 0 to ``count``, to the queues in turn."""
    for queue in range(queues):
        producer.send_many([order(topic, number) for number in range(queue, count, queues)], queue=queue)


def numbers(messages: Any) -> list[int]:
    return [int(message.body) for message in messages]


def pulled(consumer: Consumer, topic: str, first: int = 0, **arguments: Any) -> list[int]:
    """Return what pulls of queue 0 find from ``first`` to its end.

    It takes several pulls: each looks only so far, and on a busy machine less far.
    """
    found: list[int] = []
    offset, end = first, consumer.max_offset(topic, 0)
    while offset < end:
        batch = consumer.pull(topic, 0, offset, **arguments)
        assert len(batch) <= arguments.get("max_count", 1000)
        assert len(batch.raw) <= arguments.get("max_bytes", 1 << 20) or len(batch) == 1
        assert all(offset <= message.queue_offset < batch.next_offset for message in batch)
        found += numbers(batch)
        offset = batch.next_offset
    return found


def records(answer: Answer) -> list[Record]:
    return [decode_record(blob) for blob in split_answer(answer.body, answer.fields["count"])]


class TestPull:
    @pytest.mark.parametrize(
        ("condition", "wanted"),
        [
            ("amount > 5 AND region IN ('eu', 'us')", lambda n: n > 5 and n % 4 < 2),
            ("region IS NULL", lambda n: n % 4 == 3),
            ("half BETWEEN 10 AND 20.5 OR amount = 3", lambda n: 20 <= n <= 41 or n == 3),
            ("NOT region = 'eu'", lambda n: n % 4 in (1, 2)),
            ("TAGS = 'odd' AND NOT (region CONTAINS 's')", lambda n: False),
            ("TRUE", lambda n: True),
        ],
    )
    def test_the_messages_that_pass_are_those_that_the_condition_selects(
        self, producer: Producer, consumer: Consumer, topic: str, condition: str, wanted: Any
    ) -> None:
        fill(producer, topic, 100)
        batch = consumer.pull(topic, 0, 0, filter=condition)
        assert numbers(batch) == [number for number in range(100) if wanted(number)]
        assert (batch.next_offset, batch.max_offset) == (100, 100)

    def test_with_tags_both_must_hold(self, producer: Producer, consumer: Consumer, topic: str) -> None:
        fill(producer, topic, 3000)
        assert pulled(consumer, topic, tags="even", filter="region = 'eu' AND amount >= 100") == [*range(100, 3000, 4)]
        assert pulled(consumer, topic, tags="odd", filter="region = 'eu'") == []

    def test_limits_apply_to_the_response_and_nothing_is_lost_or_repeated(
        self, producer: Producer, consumer: Consumer, topic: str
    ) -> None:
        fill(producer, topic, 5000)
        us = list(range(1, 5000, 4))
        assert pulled(consumer, topic, filter="region = 'us'", max_count=5000) == us
        assert pulled(consumer, topic, filter="region = 'us'", max_count=7) == us
        assert pulled(consumer, topic, filter="region = 'us'", max_count=700) == us
        assert pulled(consumer, topic, filter="region = 'us'", max_bytes=50_000) == us
        assert pulled(consumer, topic, 4000, filter="region = 'us'", max_bytes=1) == us[1000:]

    def test_a_rare_message_is_found_in_one_call(self, producer: Producer, consumer: Consumer, topic: str) -> None:
        producer.send_bulk(topic, [b"x"] * 30_000, queue=0)
        producer.send(Message(topic, b"7", properties={"amount": "7"}), queue=0)
        assert numbers(consumer.pull(topic, 0, 0, filter="amount = 7")) == [7]

    def test_a_held_pull_gets_a_matching_message(self, producer: Producer, consumer: Consumer, topic: str) -> None:
        fill(producer, topic, 10)
        timer = threading.Timer(0.2, producer.send_many, [[order(topic, n) for n in (1, 2, 4)]], {"queue": 0})
        timer.start()
        batch = consumer.pull(topic, 0, 10, filter="region = 'eu'", wait_ms=20_000)
        timer.join()
        assert numbers(batch) == [4]
        assert batch.next_offset == 13


class TestIter:
    def test_all_queues_each_in_its_order(self, producer: Producer, consumer: Consumer, topic: str) -> None:
        fill(producer, topic, 8000, queues=4)
        found = numbers(consumer.iter(topic, until="latest", filter="half < 1000 OR amount >= 7990"))
        assert sorted(found) == [*range(2000), *range(7990, 8000)]
        for queue in range(4):
            mine = [number for number in found if number % 4 == queue]
            assert mine == sorted(mine)

    def test_it_ends_although_nothing_passes(self, producer: Producer, consumer: Consumer, topic: str) -> None:
        fill(producer, topic, 2000, queues=4)
        assert numbers(consumer.iter(topic, until="latest", tags="even", filter="amount < 0")) == []

    def test_it_follows(self, producer: Producer, consumer: Consumer, topic: str) -> None:
        fill(producer, topic, 20)
        messages = consumer.iter(topic, from_="latest", filter="region = 'asia'")
        timer = threading.Timer(0.2, fill, [producer, topic, 12])
        timer.start()
        assert numbers(islice(messages, 3)) == [2, 6, 10]
        timer.join()


class TestBadFilters:
    @pytest.mark.parametrize(
        ("condition", "column"), [("amount >", 9), ("amount LIKE 'x'", 8), ("a = 'x", 5), ("(a = 1", 7), ("a", 1)]
    )
    def test_the_error_points_at_the_column(
        self, producer: Producer, consumer: Consumer, topic: str, condition: str, column: int
    ) -> None:
        fill(producer, topic, 3)
        with pytest.raises(FilterIllegal, match=f"column {column}: ") as raised:
            consumer.pull(topic, 0, 0, filter=condition)
        assert raised.value.column == column
        with pytest.raises(FilterIllegal) as raised:
            list(consumer.iter(topic, until="latest", filter=condition))
        assert raised.value.column == column
        assert numbers(consumer.pull(topic, 0, 0)) == [0, 1, 2]

    def test_a_filter_that_is_no_text_or_too_long_is_refused_by_the_client(
        self, consumer: Consumer, topic: str
    ) -> None:
        for wrong, error in ((5, InvalidArgumentType), ("a = 1 OR " * 500, InvalidArgument)):
            with pytest.raises(error, match="filter"):
                consumer.pull(topic, 0, 0, filter=wrong)  # type: ignore[arg-type]  # the wrong argument is the test
            with pytest.raises(error, match="filter"):
                consumer.iter(topic, filter=wrong)  # type: ignore[arg-type]  # the wrong argument is the test


class TestFrames:
    def test_a_pull_looks_at_a_bounded_number_of_records_and_names_the_next_offset(
        self, shared_broker: RunningBroker, connect: ConnectionFactory, topic: str
    ) -> None:
        connection = connect(shared_broker)
        for _ in range(10):
            connection.produce(topic, *[b"x"] * 1000, queue=0).raise_for_error()
        offset, answers = 0, []
        while (answer := connection.pull(topic, 0, offset, filter="a = 1")).code == PULL_RETRY_IMMEDIATELY:
            assert offset < answer.fields["next_offset"] < 10_000
            offset = answer.fields["next_offset"]
            answers.append(answer)
        assert answers
        assert (answer.code, answer.fields["next_offset"]) == (PULL_NOT_FOUND, 10_000)

    def test_a_held_pull_is_answered_empty_at_its_deadline(
        self, shared_broker: RunningBroker, connect: ConnectionFactory, topic: str
    ) -> None:
        consumer, producer = connect(shared_broker), connect(shared_broker)
        producer.produce(topic, b"x", queue=0)
        consumer.send(PULL, {"topic": topic, "queue": 0, "offset": 0, "wait_ms": 300, "filter": "a = 1"})
        producer.produce(topic, b"y", queue=0)
        answer = consumer.receive()
        assert answer.code == PULL_NOT_FOUND
        assert answer.fields["next_offset"] == answer.fields["max_offset"] == 2

    def test_later_requests_of_a_connection_do_not_wait_for_a_filter(
        self, shared_broker: RunningBroker, connect: ConnectionFactory, topic: str
    ) -> None:
        connection = connect(shared_broker)
        for _ in range(5):
            connection.produce(topic, *[b"x"] * 1000, queue=0).raise_for_error()
        slow = encode_frame(REQUEST, PULL.code, 1001, {"topic": topic, "queue": 0, "offset": 0, "filter": "a = 1"})
        quick = encode_frame(REQUEST, GET_MAX_OFFSET.code, 1002, {"topic": topic, "queue": 0})
        connection.send_bytes(slow + quick)
        assert [connection.receive().request_id, connection.receive().request_id] == [1002, 1001]

    def test_a_client_that_sends_nothing_more_still_gets_its_answers(
        self, shared_broker: RunningBroker, connect: ConnectionFactory, topic: str
    ) -> None:
        connection = connect(shared_broker)
        connection.produce(topic, *[b"x"] * 3000, queue=0).raise_for_error()
        for _ in range(10):
            connection.send(PULL, {"topic": topic, "queue": 0, "offset": 0, "filter": "a IS NULL", "max_count": 300})
        connection.sock.shutdown(1)  # SHUT_WR
        assert [connection.receive().fields["count"] for _ in range(10)] == [300] * 10
        assert connection.is_closed()

    def test_pulls_that_wait_for_their_turn_are_bounded(
        self, broker: BrokerFactory, connect: ConnectionFactory, topic: str
    ) -> None:
        connection = connect(broker(settings={"limits.held_pulls_per_connection_max": 8}))
        count = 3000  # six steps for each pull: the first takes its last step long after the last pull has arrived
        connection.produce(topic, *[b"x"] * count, queue=0).raise_for_error()
        connection.pull(topic, 0, count - 1, wait_ms=10_000)
        fields = {"topic": topic, "queue": 0, "offset": 0, "filter": "a IS NULL", "max_count": count}
        connection.send_bytes(b"".join(encode_frame(REQUEST, PULL.code, 1000 + number, fields) for number in range(20)))
        codes = sorted(connection.receive().code for _ in range(20))
        assert codes == [SUCCESS] * 8 + [SystemBusy.code] * 12
        assert connection.pull(topic, 0, 0, filter="a IS NULL", max_count=count).fields["count"] == count

    def test_a_client_that_leaves_while_its_filter_runs_affects_no_other(
        self, shared_broker: RunningBroker, connect: ConnectionFactory, topic: str
    ) -> None:
        staying = connect(shared_broker)
        staying.produce(topic, *[b"x"] * 3000, queue=0).raise_for_error()
        fields = {"topic": topic, "queue": 0, "offset": 0, "wait_ms": 60_000}
        for condition in ("a IS NULL", "a IS NOT NULL"):
            going = connect(shared_broker)
            for _ in range(20):
                going.send(PULL, {**fields, "max_count": 3000, "filter": condition})
            going.close()
        staying.send(PULL, {**fields, "filter": "a = 1", "offset": 3000})
        produced = [connect(shared_broker).produce(topic, b"y", queue=0) for _ in range(3)]
        assert [answer.code for answer in produced] == [SUCCESS] * 3
        frame = {"topic": topic, "queue": 0, "count": 1, "common": "a\x011\x02"}
        connect(shared_broker).call(PRODUCE, frame, msgpack.packb([b"found", {}])).raise_for_error()
        answer = staying.receive()
        assert [record.body for record in records(answer)] == [b"found"]
        assert answer.fields["next_offset"] == 3004

    def test_messages_read_from_disk_are_filtered_too(
        self, broker: BrokerFactory, connect: ConnectionFactory, topic: str
    ) -> None:
        connection = connect(broker(program=("-c", NOTHING_IN_THE_PAGE_CACHE)))
        for first in (0, 1500):
            messages = [b"%d" % number for number in range(first, first + 1500)]
            connection.produce(topic, *messages, queue=0).raise_for_error()
        found: list[int] = []
        offset = 0
        while offset < 3000:
            answer = connection.pull(topic, 0, offset, filter="a IS NULL", max_count=3000)
            assert answer.code == SUCCESS
            found += [int(record.body) for record in records(answer)]
            offset = answer.fields["next_offset"]
        assert found == list(range(3000))


NOTHING_IN_THE_PAGE_CACHE = """
from flintmq.broker.app.daemon import main
from flintmq.broker.store.files.file_system import Files

read = Files.read
Files.read = lambda self, fd, buffer, at, *, wait: read(self, fd, buffer, at, wait=wait) if wait else 0
main()
"""
"""A daemon whose every read has to wait for the disk."""


def test_long_filters_of_many_connections_are_parsed_between_the_requests_of_others(
    broker: BrokerFactory, connect: ConnectionFactory
) -> None:
    """Parsing each filter takes a broker some 2 ms. All of them arrive in one turn of its loop, and another request
    after them.
    """
    running = broker(settings={"topics.auto_create": True})
    other = connect(running)
    other.produce("orders", b"x", queue=0).raise_for_error()
    many = [connect(running) for _ in range(300)]
    running.process.send_signal(signal.SIGSTOP)
    for number, connection in enumerate(many):
        text = f"a = {number} OR " + " OR ".join(["aaaa = bbbb"] * 250)
        connection.send(PULL, {"topic": "orders", "queue": 0, "offset": 0, "filter": text})
    asked = other.send(GET_MAX_OFFSET, {"topic": "orders", "queue": 0})
    running.process.send_signal(signal.SIGCONT)
    other.receive_for(asked).raise_for_error()
    answered, _, _ = select.select([connection.sock for connection in many], [], [], 0)
    assert len(answered) < 200
    for connection in many:
        assert connection.receive().code in (PULL_RETRY_IMMEDIATELY, PULL_NOT_FOUND)
