"""``Delivery``: what is sent when, what is tried again, and that every message is settled exactly once."""

from __future__ import annotations

import struct
from math import inf
from typing import Any

import msgpack
import pytest

from flintmq.client import (
    ConnectionFailed,
    DeliveryFailed,
    FlintError,
    MessageIllegal,
    NoPermission,
    RemoteProtocolError,
    RequestTimeout,
    SystemBusy,
)
from flintmq.client.core.compression import Compressor
from flintmq.client.core.delivery import Delivery
from flintmq.client.core.lanes import BULK_WINDOW, Bulk, Group, ProduceFrame, Single
from flintmq.client.core.packing import ColumnSource, RowSource
from flintmq.client.core.receipts import settle
from flintmq.client.core.session import Answer
from flintmq.protocol.commands import HelloAnswer
from flintmq.protocol.errors import BrokerError

PREFIX = "7F00000155A7382098"
NO_COMPRESSION = Compressor(None)


class FakeBroker:
    """Takes the frames of a ``Delivery`` and answers them when told; time is what the test says."""

    def __init__(self, *, in_flight_bytes_max: int = 1 << 25, produce_frame_bytes_max: int = 1 << 20) -> None:
        self.delivery = Delivery(10.0, in_flight_bytes_max, PREFIX, 1000)
        self.limits = HelloAnswer(1, "fake", "0", "async", 1 << 24, produce_frame_bytes_max, 1 << 19)
        self.delivery.connected(self.limits)
        self.now = 1000.0
        self.in_flight: dict[int, ProduceFrame] = {}
        self.sent: list[ProduceFrame] = []
        self.stored: dict[tuple[str, int], list[bytes]] = {}
        self._next_id = 1
        self._physical_offset = 0

    def take(self) -> list[ProduceFrame]:
        """Everything that the delivery sends now."""
        frames = []
        while (frame := self.delivery.next_frame(self.now)) is not None:
            assert frame.body is not None
            self.delivery.sent(frame, self._next_id)
            self.in_flight[self._next_id] = frame
            self._next_id += 1
            frames.append(frame)
        self.sent += frames
        return frames

    def store(self, frame: ProduceFrame) -> None:
        """Answer a frame with success."""
        queue = max(frame.lane.queue, 0)
        log = self.stored.setdefault((frame.lane.topic, queue), [])
        bodies = bodies_of(frame)
        fields = {"queue": queue, "queue_offset": len(log), "store_ms": 5}
        offsets = range(self._physical_offset, self._physical_offset + 100 * len(bodies), 100)
        self._physical_offset += 100 * len(bodies)
        log += bodies
        self._answer(frame, 0, fields, struct.pack(f">{len(bodies)}q", *offsets))

    def refuse(self, frame: ProduceFrame, error: BrokerError) -> None:
        """Answer a frame with an error."""
        self._answer(frame, error.code, error.fields(), b"")

    def _answer(self, frame: ProduceFrame, code: int, fields: dict[str, Any], body: bytes) -> None:
        (request_id,) = [number for number, one in self.in_flight.items() if one is frame]
        del self.in_flight[request_id]
        self.delivery.answered(Answer(request_id, code, fields, body), self.now)

    def lose_connection(self) -> None:
        self.in_flight.clear()
        self.delivery.connection_lost(ConnectionFailed("gone"), self.now)

    def reconnect(self) -> None:
        self.delivery.connected(self.limits)

    def single(self, body: bytes = b"x", topic: str = "t", queue: int = -1, seconds: float = 10.0, **more: Any) -> Single:
        return self.delivery.add_single(topic, queue, (body, {}), more.get("flush", ""), self.now + seconds, more.get("future"))

    def bulk(self, bodies: list[bytes], queue: int = -1, seconds: float = inf, topic: str = "t") -> Bulk:
        bulk = Bulk(len(bodies), self.now, self.now + seconds)
        source = RowSource([(body, {}) for body in bodies], NO_COMPRESSION)
        self.delivery.add_bulk(bulk, topic, queue, Group(bulk, source, range(len(bodies)), "", ""))
        return bulk


def bodies_of(frame: ProduceFrame) -> list[bytes]:
    """The bodies in a frame, unpacked by msgpack itself."""
    unpacker = msgpack.Unpacker()
    unpacker.feed(frame.body)
    items = list(unpacker)
    if frame.content.layout == 1:
        return items[0]  # type: ignore[no-any-return]
    return [row[0] for row in items]


def failures(bulk: Bulk) -> DeliveryFailed:
    with pytest.raises(DeliveryFailed) as raised:
        settle(bulk.parts, DeliveryFailed)
    return raised.value


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


class TestSingles:
    def test_a_message_is_acknowledged(self, broker: FakeBroker) -> None:
        single = broker.single(b"hello")
        (frame,) = broker.take()
        assert frame.fields(PREFIX) == {
            "topic": "t",
            "count": 1,
            "unique_prefix": PREFIX,
            "unique_first": 1000,
            "born_ms": frame.born_ms,
        }
        assert not single.done
        broker.store(frame)
        assert single.done
        receipt = single.receipt()
        assert receipt.message_id == f"{PREFIX}{1000:012X}"
        assert (receipt.queue, receipt.queue_offset, receipt.physical_offset, receipt.stored_ms) == (0, 0, 0, 5)
        assert broker.delivery.idle
        assert broker.delivery.pending_bytes == 0

    def test_what_is_sent_meanwhile_goes_as_one_frame(self, broker: FakeBroker) -> None:
        first = broker.single(b"0")
        (frame,) = broker.take()
        others = [broker.single(b"%d" % number) for number in range(1, 50)]
        assert broker.take() == []
        broker.store(frame)
        (batch,) = broker.take()
        assert len(batch.content) == 49
        broker.store(batch)
        assert [one.receipt().queue_offset for one in [first, *others]] == list(range(50))
        assert len({one.receipt().message_id for one in [first, *others]}) == 50

    def test_topics_and_queues_do_not_wait_for_each_other(self, broker: FakeBroker) -> None:
        for topic, queue in (("a", -1), ("b", -1), ("a", 1), ("a", 2)):
            broker.single(topic=topic, queue=queue)
        assert [(frame.lane.topic, frame.fields(PREFIX).get("queue")) for frame in broker.take()] == [
            ("a", None),
            ("b", None),
            ("a", 1),
            ("a", 2),
        ]

    def test_messages_of_different_flush_modes_go_in_different_frames(self, broker: FakeBroker) -> None:
        for mode in ("", "sync", "sync", ""):
            broker.single(flush=mode, queue=3)
        sent = []
        while frames := broker.take():
            sent += [(len(frame.content), frame.fields(PREFIX).get("flush")) for frame in frames]
            broker.store(frames[0])
        assert sent == [(1, None), (2, "sync"), (1, None)]

    def test_a_frame_is_cut_at_its_size(self, broker: FakeBroker) -> None:
        for _ in range(10):
            broker.single(b"x" * 60_000, queue=0)
        counts = []
        while frames := broker.take():
            counts.append(len(frames[0].content))
            broker.store(frames[0])
        assert sum(counts) == 10
        assert max(counts) == 3

    def test_only_those_with_a_future_are_reported(self, broker: FakeBroker) -> None:
        with_future = broker.single(future="future")
        without = broker.single()
        broker.store(broker.take()[0])
        assert without.done
        assert broker.delivery.settled == [with_future]


class TestRetries:
    def test_busy_is_tried_again_after_the_pause_asked_for(self, broker: FakeBroker) -> None:
        single = broker.single()
        (frame,) = broker.take()
        broker.refuse(frame, SystemBusy("busy", retry_after_ms=300))
        assert broker.take() == []
        assert 0.3 <= broker.delivery.seconds_to_wait(broker.now) <= 0.4
        broker.now += 0.4
        (again,) = broker.take()
        assert again.fields(PREFIX)["unique_first"] == 1000
        broker.store(again)
        assert single.receipt().message_id == f"{PREFIX}{1000:012X}"

    def test_pauses_grow_while_the_broker_stays_busy(self, broker: FakeBroker) -> None:
        broker.single(seconds=1000)
        pauses = []
        for _ in range(12):
            (frame,) = broker.take()
            broker.refuse(frame, SystemBusy("busy"))
            pauses.append(broker.delivery.hold_seconds(broker.now))
            broker.now += pauses[-1] + 0.001
        assert 0.02 <= pauses[0] <= 0.024
        assert all(later > earlier for earlier, later in zip(pauses[:5], pauses[1:6], strict=True))
        assert max(pauses) <= 1.2

    def test_many_refusals_at_once_are_one_failure(self, broker: FakeBroker) -> None:
        broker.bulk([b"x" * 1000] * 10_000)
        frames = broker.take()
        assert len(frames) == BULK_WINDOW
        for frame in frames:
            broker.refuse(frame, SystemBusy("busy"))
        assert broker.delivery.hold_seconds(broker.now) < 0.03

    def test_a_lost_connection_is_tried_again_at_once(self, broker: FakeBroker) -> None:
        single = broker.single()
        broker.take()
        broker.lose_connection()
        assert broker.delivery.hold_seconds(broker.now) == 0
        broker.lose_connection()
        assert broker.delivery.hold_seconds(broker.now) > 0
        broker.now += 0.1
        broker.reconnect()
        broker.store(broker.take()[0])
        assert single.receipt().message_id == f"{PREFIX}{1000:012X}"

    def test_what_cannot_succeed_is_not_tried_again(self, broker: FakeBroker) -> None:
        single = broker.single()
        broker.refuse(broker.take()[0], NoPermission("no"))
        assert isinstance(single.error, NoPermission)
        assert broker.delivery.idle

    def test_at_the_deadline_the_last_error_is_raised(self, broker: FakeBroker) -> None:
        single = broker.single(seconds=2)
        broker.refuse(broker.take()[0], SystemBusy("busy", retry_after_ms=5000))
        assert broker.delivery.seconds_to_wait(broker.now) == pytest.approx(2)
        broker.now += 2
        assert broker.delivery.expire_due(broker.now)
        broker.delivery.expire(broker.now)
        assert isinstance(single.error, SystemBusy)
        with pytest.raises(SystemBusy, match="busy"):
            single.receipt()

    def test_silence_is_a_timeout(self, broker: FakeBroker) -> None:
        single = broker.single(seconds=2)
        (frame,) = broker.take()
        broker.now += 2
        broker.delivery.expire(broker.now)
        assert isinstance(single.error, RequestTimeout)
        assert broker.delivery.pending_bytes == 0
        broker.store(frame)  # the answer comes after all: nobody minds
        assert isinstance(single.error, RequestTimeout)

    def test_each_message_of_a_frame_has_its_own_deadline(self, broker: FakeBroker) -> None:
        hasty, patient = broker.single(seconds=1), broker.single(seconds=5)
        (frame,) = broker.take()
        broker.now += 2
        broker.delivery.expire(broker.now)
        assert (hasty.done, patient.done) == (True, False)
        broker.store(frame)
        assert patient.receipt().queue_offset == 1

    def test_unreachable_from_the_beginning(self, broker: FakeBroker) -> None:
        single, bulk = broker.single(), broker.bulk([b"a", b"b"])
        broker.lose_connection()
        broker.now += 10
        broker.delivery.expire(broker.now)
        assert isinstance(single.error, ConnectionFailed)
        assert bulk.done
        assert {type(error) for error in failures(bulk).errors.values()} == {ConnectionFailed}
        assert broker.delivery.idle

    def test_an_answer_that_does_not_fit_loses_no_message(self, broker: FakeBroker) -> None:
        single = broker.single()
        (frame,) = broker.take()
        ((request_id, _),) = broker.in_flight.items()
        with pytest.raises(RemoteProtocolError, match="does not fit"):
            broker.delivery.answered(Answer(request_id, 0, {"queue": 0}, b""), broker.now)
        broker.lose_connection()
        (again,) = broker.take()
        assert again is frame
        broker.store(again)
        assert single.receipt().queue == 0


class TestBlame:
    """A frame is all or nothing; only the messages that are to blame must fail."""

    def test_the_bad_message_of_a_bulk_is_found(self, broker: FakeBroker) -> None:
        bulk = broker.bulk([b"%d" % number for number in range(100)])
        self.refuse_bad(broker, {b"7", b"42"})
        error = failures(bulk)
        assert error.failed == [7, 42]
        assert isinstance(error.errors[7], MessageIllegal)
        assert "message 7: MessageIllegal: bad" in str(error)
        assert [receipt is None for receipt in error.receipts] == [number in (7, 42) for number in range(100)]
        assert error.receipts[8] is not None
        assert error.receipts[8].message_id == f"{PREFIX}{1008:012X}"

    def test_order_in_a_pinned_queue_survives_the_search(self, broker: FakeBroker) -> None:
        broker.bulk([b"%d" % number for number in range(100)], queue=2)
        broker.bulk([b"%d" % number for number in range(100, 200)], queue=2)
        self.refuse_bad(broker, {b"7", b"42", b"150"})
        stored = [int(body) for body in broker.stored["t", 2]]
        assert stored == [number for number in range(200) if number not in (7, 42, 150)]

    def test_other_threads_messages_in_the_frame_are_stored(self, broker: FakeBroker) -> None:
        broker.single(b"first")
        (frame,) = broker.take()
        singles = [broker.single(b"%d" % number) for number in range(10)]
        broker.store(frame)
        self.refuse_bad(broker, {b"3"})
        assert [type(single.error) for single in singles] == [
            MessageIllegal if number == 3 else type(None) for number in range(10)
        ]

    def test_a_message_longer_than_any_frame_fails_alone(self) -> None:
        broker = FakeBroker(produce_frame_bytes_max=10_000)
        bulk = broker.bulk([b"a", b"x" * 20_000, b"b"])
        self.refuse_bad(broker, set())
        error = failures(bulk)
        assert error.failed == [1]
        assert isinstance(error.errors[1], MessageIllegal)
        assert "at most 10000" in str(error)
        assert all(len(frame.body or b"") <= 10_000 for frame in broker.sent)

    def refuse_bad(self, broker: FakeBroker, bad: set[bytes]) -> None:
        while frames := broker.take():
            for frame in frames:
                if bad & set(bodies_of(frame)):
                    broker.refuse(frame, MessageIllegal("bad"))
                else:
                    broker.store(frame)


class TestBulks:
    def test_frames_go_out_up_to_the_window(self, broker: FakeBroker) -> None:
        bulk = broker.bulk([b"x" * 100] * 100_000)
        frames = broker.take()
        assert len(frames) == BULK_WINDOW
        assert all("queue" not in frame.fields(PREFIX) for frame in frames)
        while frames:
            for frame in frames:
                broker.store(frame)
            frames = broker.take()
        receipts = settle(bulk.parts, DeliveryFailed)
        assert len(receipts) == 100_000
        assert receipts[99_999].message_id == f"{PREFIX}{1000 + 99_999:012X}"
        assert len({receipt.message_id for receipt in receipts}) == 100_000

    def test_to_a_pinned_queue_one_frame_at_a_time(self, broker: FakeBroker) -> None:
        broker.bulk([b"%d" % number for number in range(50_000)], queue=1)
        broker.single(b"last", queue=1)
        while frames := broker.take():
            assert len(frames) == 1
            broker.store(frames[0])
        assert broker.stored["t", 1] == [b"%d" % number for number in range(50_000)] + [b"last"]

    def test_a_retry_to_a_pinned_queue_does_not_reorder(self, broker: FakeBroker) -> None:
        broker.bulk([b"%d" % number for number in range(30_000)], queue=1)
        rounds = 0
        while frames := broker.take():
            rounds += 1
            if rounds % 3 == 0:
                broker.lose_connection()
                broker.now += 0.1
                broker.reconnect()
            elif rounds % 3 == 1:
                broker.refuse(frames[0], SystemBusy("busy"))
                broker.now += 2
            else:
                broker.store(frames[0])
        assert broker.stored["t", 1] == [b"%d" % number for number in range(30_000)]

    def test_bytes_in_flight_are_bounded(self) -> None:
        broker = FakeBroker(in_flight_bytes_max=1 << 20, produce_frame_bytes_max=1 << 18)
        broker.bulk([b"x" * 10_000] * 1000)
        while frames := broker.take():
            assert sum(len(frame.body or b"") for frame in broker.in_flight.values()) <= 1 << 20
            assert broker.delivery.pending_bytes <= 1 << 20
            for frame in frames:
                broker.store(frame)
        assert len(broker.stored["t", 0]) == 1000
        assert broker.delivery.pending_bytes == 0

    def test_one_message_may_be_larger_than_the_bound(self) -> None:
        broker = FakeBroker(in_flight_bytes_max=1000)
        bulk = broker.bulk([b"x" * 5000, b"y" * 5000])
        while frames := broker.take():
            broker.store(frames[0])
        assert len(settle(bulk.parts, DeliveryFailed)) == 2
        assert broker.delivery.has_room(5000)
        broker.single(b"z")
        assert not broker.delivery.has_room(5000)

    def test_bulks_take_turns(self, broker: FakeBroker) -> None:
        first = broker.bulk([b"x" * 1000] * 20_000)
        second = broker.bulk([b"y" * 1000] * 20)
        frames = broker.take()
        broker.store(frames[1])
        assert (first.done, second.done) == (False, True)

    def test_waiting_behind_another_bulk_is_no_failure(self, broker: FakeBroker) -> None:
        broker.bulk([b"%d" % number for number in range(20_000)], queue=0)
        patient = broker.bulk([b"last"], queue=0)
        while frames := broker.take():
            broker.now += 9
            if broker.delivery.expire_due(broker.now):
                broker.delivery.expire(broker.now)
            broker.store(frames[0])
        assert len(settle(patient.parts, DeliveryFailed)) == 1

    def test_a_timeout_ends_the_whole_bulk(self, broker: FakeBroker) -> None:
        bulk = broker.bulk([b"x" * 1000] * 100_000)
        frames = broker.take()
        broker.store(frames[0])
        broker.now += 10
        broker.delivery.expire(broker.now)
        assert bulk.done
        error = failures(bulk)
        assert error.failed == list(range(len(frames[0].content), 100_000))
        assert all(isinstance(one, RequestTimeout) for one in error.errors.values())
        assert error.retriable
        assert broker.delivery.idle

    def test_the_callers_timeout_is_for_the_whole_call(self, broker: FakeBroker) -> None:
        bulk = broker.bulk([b"x" * 1000] * 10_000, seconds=3)
        for _ in range(2):
            broker.store(broker.take()[0])
            broker.now += 1
        assert broker.delivery.seconds_to_wait(broker.now) <= 1
        broker.now += 1
        broker.delivery.expire(broker.now)
        assert bulk.done
        assert 0 < len(failures(bulk).failed) < 10_000

    def test_an_error_of_the_topic_ends_the_bulk_at_once(self, broker: FakeBroker) -> None:
        bulk = broker.bulk([b"x" * 1000] * 100_000)
        frames = broker.take()
        broker.refuse(frames[0], NoPermission("read only"))
        assert broker.take() == []
        for frame in frames[1:]:
            broker.store(frame)
        assert bulk.done
        error = failures(bulk)
        assert not error.retriable
        assert len(error.failed) == 100_000 - sum(len(frame.content) for frame in frames[1:])

    def test_columns_carry_keys_and_what_is_common(self, broker: FakeBroker) -> None:
        bulk = Bulk(2, broker.now)
        source = ColumnSource([b"a", b"b"], ["k1", None], NO_COMPRESSION)
        broker.delivery.add_bulk(bulk, "t", -1, Group(bulk, source, range(2), "TAGS\x01eu\x02", "sync"))
        (frame,) = broker.take()
        fields = frame.fields(PREFIX)
        assert (fields["layout"], fields["common"], fields["flush"]) == (1, "TAGS\x01eu\x02", "sync")
        unpacker = msgpack.Unpacker()
        unpacker.feed(frame.body)
        assert list(unpacker) == [[b"a", b"b"], ["k1", None]]

    def test_nothing_to_send_is_done(self) -> None:
        bulk = Bulk(0, 0.0)
        assert bulk.done
        assert list(settle(bulk.parts, DeliveryFailed)) == []


class TestGivingUp:
    def test_what_nobody_waits_for_is_not_sent(self, broker: FakeBroker) -> None:
        in_flight = broker.bulk([b"x" * 1000] * 100_000)
        (single, kept) = (broker.single(), broker.single())
        broker.delivery.abandon(single, FlintError("interrupted"))
        frames = broker.take()
        assert sum(len(frame.content) for frame in frames if frame.singles) == 1
        broker.delivery.abandon(in_flight, FlintError("interrupted"))
        for frame in frames:
            broker.store(frame)
        assert broker.take() == []
        assert (kept.error, broker.delivery.pending_bytes, broker.delivery.idle) == (None, 0, True)

    def test_at_the_end_everything_fails(self, broker: FakeBroker) -> None:
        bulk, single = broker.bulk([b"x" * 1000] * 100_000), broker.single(future="future")
        broker.take()
        late = broker.single(queue=4)
        broker.delivery.fail_all(FlintError("closed"))
        assert bulk.done
        assert single.done
        assert late.done
        assert (broker.delivery.pending_bytes, broker.delivery.idle) == (0, True)
        assert broker.delivery.settled == [single]
