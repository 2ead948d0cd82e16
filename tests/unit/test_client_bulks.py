"""``Outbox``: bulks, their windows and deadlines, and abandoned messages."""

from __future__ import annotations

import msgpack
import pytest

from flintmq.client import DeliveryFailed, FlintError, NoPermission, RequestTimeout
from flintmq.client.core.produce.accumulator import BULK_WINDOW, BatchGroup, Bulk
from flintmq.client.core.produce.packer import ColumnSource
from flintmq.client.core.produce.receipts import settle
from tests.twins.answering import NO_COMPRESSION, PREFIX, AnsweringBroker, failures


@pytest.fixture
def broker() -> AnsweringBroker:
    return AnsweringBroker()


class TestBulks:
    def test_frames_are_sent_up_to_the_window(self, broker: AnsweringBroker) -> None:
        bulk = broker.bulk([b"x" * 100] * 100_000)
        frames = broker.take()
        assert len(frames) == BULK_WINDOW
        assert all("queue" not in broker.fields[frame] for frame in frames)
        while frames:
            for frame in frames:
                broker.store(frame)
            frames = broker.take()
        receipts = settle(bulk.parts, DeliveryFailed)
        assert len(receipts) == 100_000
        assert receipts[99_999].message_id == f"{PREFIX}{1000 + 99_999:012X}"
        assert len({receipt.message_id for receipt in receipts}) == 100_000

    def test_one_message_may_be_larger_than_the_bound(self) -> None:
        broker = AnsweringBroker(in_flight_bytes_max=1000)
        bulk = broker.bulk([b"x" * 5000, b"y" * 5000])
        while frames := broker.take():
            broker.store(frames[0])
        assert len(settle(bulk.parts, DeliveryFailed)) == 2
        assert broker.delivery.has_room(5000)
        broker.single(b"z")
        assert not broker.delivery.has_room(5000)

    def test_bulks_take_turns(self, broker: AnsweringBroker) -> None:
        first = broker.bulk([b"x" * 1000] * 20_000)
        second = broker.bulk([b"y" * 1000] * 4)
        frames = broker.take()
        broker.store(frames[1])
        assert (first.done, second.done) == (False, True)

    def test_waiting_for_another_bulk_is_not_a_failure(self, broker: AnsweringBroker) -> None:
        broker.bulk([b"%d" % number for number in range(20_000)], queue=0)
        patient = broker.bulk([b"last"], queue=0)
        while frames := broker.take():
            broker.now += 9
            if broker.delivery.expire_due(broker.now):
                broker.delivery.expire(broker.now)
            broker.store(frames[0])
        assert len(settle(patient.parts, DeliveryFailed)) == 1

    def test_a_timeout_ends_the_whole_bulk(self, broker: AnsweringBroker) -> None:
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

    def test_the_callers_timeout_covers_the_whole_call(self, broker: AnsweringBroker) -> None:
        bulk = broker.bulk([b"x" * 1000] * 10_000, seconds=3)
        for _ in range(2):
            broker.store(broker.take()[0])
            broker.now += 1
        assert broker.delivery.seconds_to_wait(broker.now) <= 1
        broker.now += 1
        broker.delivery.expire(broker.now)
        assert bulk.done
        assert 0 < len(failures(bulk).failed) < 10_000

    def test_an_error_of_the_topic_fails_the_whole_bulk_at_once(self, broker: AnsweringBroker) -> None:
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

    def test_columns_carry_keys_and_common_properties(self, broker: AnsweringBroker) -> None:
        bulk = Bulk(2, broker.now)
        source = ColumnSource([b"a", b"b"], ["k1", None], NO_COMPRESSION)
        broker.delivery.add_bulk(bulk, "t", -1, BatchGroup(bulk, source, range(2), "TAGS\x01eu\x02", "sync"))
        (frame,) = broker.take()
        fields = broker.fields[frame]
        assert (fields["layout"], fields["common"], fields["flush"]) == (1, "TAGS\x01eu\x02", "sync")
        unpacker = msgpack.Unpacker()
        unpacker.feed(frame.body)
        assert list(unpacker) == [[b"a", b"b"], ["k1", None]]

    def test_an_empty_bulk_is_done_at_once(self) -> None:
        bulk = Bulk(0, 0.0)
        assert bulk.done
        assert list(settle(bulk.parts, DeliveryFailed)) == []


class TestGivingUp:
    def test_an_abandoned_message_is_not_sent(self, broker: AnsweringBroker) -> None:
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

    def test_fail_all_fails_everything(self, broker: AnsweringBroker) -> None:
        bulk, single = broker.bulk([b"x" * 1000] * 100_000), broker.single(future="future")
        broker.take()
        late = broker.single(queue=4)
        broker.delivery.fail_all(FlintError("closed"))
        assert bulk.done
        assert single.done
        assert late.done
        assert (broker.delivery.pending_bytes, broker.delivery.idle) == (0, True)
        assert broker.delivery.settled == [single]
