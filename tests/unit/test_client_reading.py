"""Start and end of reading, and the turns of a topic's queues, with a topic in memory."""

from __future__ import annotations

import struct
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from flintmq.client import InvalidArgument, InvalidArgumentType, OffsetOutOfRange
from flintmq.client.core.consume.batch import EVERYTHING, parse_tags
from flintmq.client.core.consume.positions import Span, ends_at, resolve_span
from flintmq.client.core.consume.queue_reader import HOLD_MS, TURN, TopicReader
from flintmq.client.core.rpc.operation import Operation, Plan
from flintmq.client.core.rpc.session import Answer
from flintmq.protocol.commands import (
    GET_TOPIC_STATS_INFO,
    PULL,
    QUEUE_STATS_STRUCT,
    SEARCH_OFFSET_BY_TIMESTAMP,
    QueueStats,
)
from flintmq.protocol.errors import PULL_NOT_FOUND
from flintmq.protocol.storage.record import Record
from flintmq.protocol.times import from_millis

START_MS = 1_795_000_000_000


class MemoryTopic:
    """A topic with messages stored in the given order, each as ``(queue, ms since START_MS)``."""

    def __init__(self, stored: list[tuple[int, int]], queues: int = 2, first_offset: int = 0) -> None:
        self.first_offset = first_offset
        self.queues: dict[int, list[Record]] = {queue: [] for queue in range(queues)}
        for place, (queue, millis) in enumerate(stored):
            record = Record(b"t", b"%d" % place, queue_id=queue)
            record.queue_offset = first_offset + len(self.queues[queue])
            record.physical_offset = 1000 * place
            record.store_timestamp = START_MS + millis
            self.queues[queue].append(record)
        self.asked = 0

    def answer(self, operation: Operation[Any]) -> Answer:
        """Return a broker's response."""
        self.asked += 1
        fields = operation.fields
        if operation.command is GET_TOPIC_STATS_INFO:
            rows = [
                QUEUE_STATS_STRUCT.pack(
                    queue, self.first_offset, self.end(queue), records[-1].store_timestamp if records else -1
                )
                for queue, records in self.queues.items()
            ]
            return Answer(1, 0, {"count": len(rows)}, b"".join(rows))
        if operation.command is SEARCH_OFFSET_BY_TIMESTAMP:
            records = self.queues[fields["queue"]]
            before = sum(record.store_timestamp < fields["timestamp_ms"] for record in records)
            left_ms = max(0, fields["timestamp_ms"] - time.time_ns() // 1_000_000)
            return Answer(1, 0, {"offset": self.first_offset + before, "left_ms": left_ms}, b"")
        assert operation.command is PULL
        offset = fields["offset"] - self.first_offset
        found = self.queues[fields["queue"]][offset : offset + fields.get("max_count", 32)]
        blobs = [record.encode() for record in found]
        head = {
            "count": len(blobs),
            "next_offset": fields["offset"] + len(blobs),
            "min_offset": self.first_offset,
            "max_offset": self.end(fields["queue"]),
        }
        body = struct.pack(f">{len(blobs)}I", *map(len, blobs)) + b"".join(blobs)
        return Answer(1, 0 if blobs else PULL_NOT_FOUND, head, body)

    def end(self, queue: int) -> int:
        return self.first_offset + len(self.queues[queue])

    def run(self, plan: Plan[Any]) -> Any:
        """Run a plan and return its result."""
        try:
            operations = next(plan)
            while True:
                operations = plan.send([operation.result(self.answer(operation)) for operation in operations])
        except StopIteration as stop:
            return stop.value

    def span(self, from_: Any = "earliest", until: Any = None) -> Span:
        span: Span = self.run(resolve_span("t", from_, until))
        return span

    def read(self, span: Span, tags: Any = EVERYTHING) -> list[int]:
        """Return the places of all messages that a bounded reading returns."""
        reading = TopicReader("t", span, tags)
        places = []
        while not reading.finished:
            for queue, operation in reading.pulls():
                assert operation.hold_seconds == 0, "a bounded reading must not wait"
                reading.take_batch(queue, operation.result(self.answer(operation)))
            places += [int(message.body) for message in reading.turn()]
        return places


def moment(millis: int) -> datetime:
    return from_millis(START_MS + millis)


@pytest.fixture
def topic() -> MemoryTopic:
    """Return a topic with 20 messages, one second apart, two of three in queue 0, offsets from 5 on."""
    return MemoryTopic([(0 if place % 3 else 1, 1000 * place) for place in range(20)], first_offset=5)


class TestPositions:
    def test_earliest_and_latest_are_the_ends_of_each_queue(self, topic: MemoryTopic) -> None:
        assert topic.span("earliest", "latest").starts == {0: 5, 1: 5}
        assert topic.span("earliest", "latest").ends == {0: 18, 1: 12}

    def test_first_and_last_mean_the_same(self, topic: MemoryTopic) -> None:
        assert topic.span("first", "last") == topic.span("earliest", "latest")
        assert topic.span("last") == topic.span("latest")
        assert topic.span("latest").starts == {0: 18, 1: 12}
        assert topic.span("latest").ends is None

    def test_a_time_means_the_first_message_stored_at_or_after_it(self, topic: MemoryTopic) -> None:
        assert topic.read(topic.span(moment(10_000), "latest")) == pytest.approx(
            [10, 11, 13, 14, 16, 17, 19, 12, 15, 18]
        )
        assert sorted(topic.read(topic.span(moment(9001), moment(12_001)))) == [10, 11, 12]
        assert sorted(topic.read(topic.span("earliest", moment(3000)))) == [0, 1, 2]

    @pytest.mark.parametrize("count", [1, 2, 3, 7, 19, 20, 21, 1000])
    def test_the_last_n_messages_are_counted_in_the_order_of_storage(self, topic: MemoryTopic, count: int) -> None:
        assert sorted(topic.read(topic.span(-count, "latest"))) == list(range(max(0, 20 - count), 20))

    @pytest.mark.parametrize("count", [1, 5, 30, 99, 100])
    def test_the_last_n_messages_are_found_among_many_of_the_same_millisecond(self, count: int) -> None:
        topic = MemoryTopic([(place % 3, 0) for place in range(100)], queues=4)
        assert sorted(topic.read(topic.span(-count, "latest"))) == list(range(100 - count, 100))

    def test_the_last_n_messages_are_found_without_reading_everything(self) -> None:
        topic = MemoryTopic([(place % 2, 10 * place) for place in range(10_000)])
        topic.span(-100, "latest")
        assert topic.asked < 150

    def test_a_negative_until_leaves_the_last_messages_out(self, topic: MemoryTopic) -> None:
        assert sorted(topic.read(topic.span("earliest", -3))) == list(range(17))

    def test_offsets_can_be_given_by_queue(self, topic: MemoryTopic) -> None:
        assert topic.span({0: 10, 1: 7}, {0: 12, 1: 8}).starts == {0: 10, 1: 7}
        assert topic.span([10, 7], [12, 8]).ends == {0: 12, 1: 8}
        assert len(topic.read(topic.span({0: 10, 1: 7}, {0: 12, 1: 8}))) == 3

    def test_a_queue_left_out_is_read_from_its_beginning_to_its_end(self, topic: MemoryTopic) -> None:
        span = topic.span({0: 10}, {0: 12})
        assert (span.starts, span.ends) == ({0: 10, 1: 5}, {0: 12, 1: 12})

    @pytest.mark.parametrize("offset", [4, 19])
    def test_a_start_outside_the_queue_is_out_of_range(self, topic: MemoryTopic, offset: int) -> None:
        with pytest.raises(OffsetOutOfRange) as raised:
            topic.span({0: offset})
        assert (raised.value.min_offset, raised.value.max_offset) == (5, 18)

    def test_a_missing_queue_is_named(self, topic: MemoryTopic) -> None:
        with pytest.raises(InvalidArgument, match="queue 7"):
            topic.span({7: 0})

    @pytest.mark.parametrize("position", ["middle", 0, 5, {0: -1}, {"0": 1}, {0: "1"}, {0: True}])
    def test_an_invalid_position_is_refused(self, topic: MemoryTopic, position: Any) -> None:
        with pytest.raises(InvalidArgument):
            topic.span(position)
        with pytest.raises(InvalidArgument):
            topic.span("earliest", position)
        assert topic.asked == 0

    @pytest.mark.parametrize("position", [None, 1.5, b"earliest", True])
    def test_the_type_of_a_position_is_checked(self, topic: MemoryTopic, position: Any) -> None:
        with pytest.raises(InvalidArgumentType):
            topic.span(position)

    def test_a_naive_datetime_is_refused(self, topic: MemoryTopic) -> None:
        with pytest.raises(InvalidArgument, match="time zone"):
            topic.span(datetime(2026, 1, 1))  # noqa: DTZ001

    def test_a_future_time_is_not_resolved_to_offsets_yet(self, topic: MemoryTopic) -> None:
        span = topic.span("earliest", datetime.now(UTC) + timedelta(hours=1))
        assert span.until_ms is not None
        assert span.until_left_ms > 3_000_000

    def test_ends_at_returns_the_offsets_of_a_time(self, topic: MemoryTopic) -> None:
        assert topic.run(ends_at("t", START_MS + 10_000)) == ({0: 11, 1: 9}, 0)

    def test_every_position_in_an_empty_topic_reads_nothing(self) -> None:
        topic = MemoryTopic([])
        for position in ("earliest", "latest", -5, moment(0), {0: 0}):
            assert topic.read(topic.span(position, "latest")) == []


class TestTurns:
    def test_a_long_queue_does_not_delay_the_others(self) -> None:
        topic = MemoryTopic([(0, 0)] * 5000 + [(1, 1)] * 10 + [(2, 2)] * 10, queues=3)
        places = topic.read(topic.span("earliest", "latest"))
        assert sorted(places) == list(range(5020))
        assert all(place in places[: 2 * TURN + 20] for place in range(5000, 5020))

    def test_equal_queues_advance_together(self) -> None:
        topic = MemoryTopic([(place % 4, 0) for place in range(4000)], queues=4)
        places = topic.read(topic.span("earliest", "latest"))
        for taken in range(4 * TURN, 4000, 4 * TURN):
            counts = Counter(place % 4 for place in places[:taken])
            assert max(counts.values()) - min(counts.values()) <= TURN

    def test_messages_of_a_queue_keep_their_order(self) -> None:
        topic = MemoryTopic([(place % 3, 0) for place in range(3000)], queues=3)
        places = topic.read(topic.span("earliest", "latest"))
        for queue in range(3):
            mine = [place for place in places if place % 3 == queue]
            assert mine == sorted(mine)


class TestFollowing:
    def following(self, topic: MemoryTopic, **more: Any) -> TopicReader:
        return TopicReader("t", topic.span(more.get("from_", "latest")), more.get("tags", EVERYTHING))

    def test_every_followed_queue_has_one_held_pull(self, topic: MemoryTopic) -> None:
        reading = self.following(topic)
        pulls = reading.pulls()
        assert [(queue, operation.hold_seconds) for queue, operation in pulls] == [
            (0, HOLD_MS / 1000),
            (1, HOLD_MS / 1000),
        ]
        assert reading.pulls() == []
        assert not reading.finished

    def test_after_a_pull_without_messages_the_next_continues_at_its_end(self, topic: MemoryTopic) -> None:
        reading = self.following(topic)
        (queue, operation), _ = reading.pulls()
        answer = topic.answer(operation)
        answer.fields["next_offset"] = 25  # no message before this offset matches the tags
        answer.fields["max_offset"] = 25
        reading.take_batch(queue, operation.result(answer))
        ((again, operation),) = reading.pulls()
        assert (again, operation.fields["offset"]) == (queue, 25)

    def test_after_a_lost_connection_every_queue_is_pulled_again(self, topic: MemoryTopic) -> None:
        reading = self.following(topic)
        first = [(queue, operation.fields) for queue, operation in reading.pulls()]
        reading.forget_pulls()
        assert [(queue, operation.fields) for queue, operation in reading.pulls()] == first

    def test_new_queues_are_read_from_their_beginning(self, topic: MemoryTopic) -> None:
        reading = self.following(topic)
        reading.pulls()
        reading.found_queues([QueueStats(0, 5, 18, 0), QueueStats(2, 0, 3, 0)])
        ((queue, operation),) = reading.pulls()
        assert (queue, operation.fields["offset"]) == (2, 0)

    def test_reading_ends_at_the_offsets_of_the_end_time(self, topic: MemoryTopic) -> None:
        reading = self.following(topic, from_="earliest")
        reading.end_at({0: 7, 1: 5})
        assert not reading.finished
        ((queue, operation),) = reading.pulls()
        reading.take_batch(queue, operation.result(topic.answer(operation)))
        assert [message.queue_offset for message in reading.turn()] == [5, 6]
        assert reading.turn() == []
        assert reading.finished

    def test_what_is_stored_after_the_end_time_is_not_read_before_the_end_is_known(self) -> None:
        ahead = 10**12  # the time has come for the broker, and not yet for the client
        topic = MemoryTopic([(0, ahead), (0, ahead + 1)], queues=1)
        reading = TopicReader("t", topic.span("earliest", moment(ahead + 1)), EVERYTHING)
        ((queue, operation),) = reading.pulls()
        reading.take_batch(queue, operation.result(topic.answer(operation)))
        assert [message.body for message in reading.turn()] == [b"0"]
        reading.end_at({0: 1})
        assert reading.turn() == []
        assert reading.finished

    def test_reading_waits_for_an_end_that_is_not_reached_yet(self, topic: MemoryTopic) -> None:
        reading = TopicReader("t", topic.span("latest", {0: 20, 1: 12}), EVERYTHING)
        ((queue, operation),) = reading.pulls()
        assert operation.hold_seconds == 0
        reading.take_batch(queue, operation.result(topic.answer(operation)))
        ((_, operation),) = reading.pulls()
        assert operation.hold_seconds > 0

    def test_an_implicit_start_moves_after_retention_expired_it(self, topic: MemoryTopic) -> None:
        reading = TopicReader("t", topic.span("earliest", "latest"), EVERYTHING)
        (queue, _), _ = reading.pulls()
        assert reading.pull_refused(queue, OffsetOutOfRange("gone", min_offset=9, max_offset=18))
        ((_, operation),) = reading.pulls()
        assert operation.fields["offset"] == 9

    def test_an_explicit_start_does_not_move(self, topic: MemoryTopic) -> None:
        reading = TopicReader("t", topic.span({0: 6, 1: 6}, "latest"), EVERYTHING)
        (queue, _), _ = reading.pulls()
        assert not reading.pull_refused(queue, OffsetOutOfRange("gone", min_offset=9, max_offset=18))

    def test_tags_are_sent_to_the_broker(self, topic: MemoryTopic) -> None:
        (_, operation), _ = self.following(topic, tags=parse_tags("b||a")).pulls()
        assert operation.fields["tags"] == "a || b"
