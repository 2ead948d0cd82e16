"""``Outbox``: the order of sending, retries, and the effect of an illegal message on others."""

from __future__ import annotations

from itertools import pairwise

import pytest

from flintmq.broker.config import PRODUCER_RUNS_MAX
from flintmq.client import (
    BrokerError,
    ConnectionFailed,
    DeliveryFailed,
    MessageIllegal,
    NoPermission,
    NotEnoughReplicas,
    PartlyStored,
    RemoteProtocolError,
    RequestTimeout,
    SystemBusy,
)
from flintmq.client.core.produce.accumulator import BULK_WINDOW
from flintmq.client.core.produce.delivery import IN_FLIGHT_FRAMES_MAX
from flintmq.client.core.produce.receipts import settle
from flintmq.client.core.rpc.session import Answer
from tests.twins.answering import PREFIX, AnsweringBroker, bodies_of, failures


@pytest.fixture
def broker() -> AnsweringBroker:
    return AnsweringBroker()


class TestSingles:
    def test_a_message_is_acknowledged(self, broker: AnsweringBroker) -> None:
        single = broker.single(b"hello")
        (frame,) = broker.take()
        assert broker.fields[frame] == {
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

    def test_messages_sent_while_a_frame_is_in_flight_go_as_one_frame(self, broker: AnsweringBroker) -> None:
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

    def test_topics_and_queues_do_not_wait_for_each_other(self, broker: AnsweringBroker) -> None:
        for topic, queue in (("a", -1), ("b", -1), ("a", 1), ("a", 2)):
            broker.single(topic=topic, queue=queue)
        assert [(frame.lane.topic, broker.fields[frame].get("queue")) for frame in broker.take()] == [
            ("a", None),
            ("b", None),
            ("a", 1),
            ("a", 2),
        ]

    def test_messages_of_different_flush_modes_go_in_different_frames(self, broker: AnsweringBroker) -> None:
        for mode in ("", "sync", "sync", ""):
            broker.single(flush=mode, queue=3)
        sent = []
        while frames := broker.take():
            sent += [(len(frame.content), broker.fields[frame].get("flush")) for frame in frames]
            broker.store(frames[0])
        assert sent == [(1, None), (2, "sync"), (1, None)]

    def test_a_frame_ends_at_its_target_size(self, broker: AnsweringBroker) -> None:
        for _ in range(10):
            broker.single(b"x" * 60_000, queue=0)
        counts = []
        while frames := broker.take():
            counts.append(len(frames[0].content))
            broker.store(frames[0])
        assert sum(counts) == 10
        assert max(counts) == 3

    def test_only_messages_with_a_future_are_reported(self, broker: AnsweringBroker) -> None:
        with_future = broker.single(future="future")
        without = broker.single()
        broker.store(broker.take()[0])
        assert without.done
        assert broker.delivery.settled == [with_future]


class TestRetries:
    @pytest.mark.parametrize("kind", [SystemBusy, NotEnoughReplicas])
    def test_a_busy_broker_is_retried_after_the_pause_it_asks_for(
        self, broker: AnsweringBroker, kind: type[BrokerError]
    ) -> None:
        single = broker.single()
        (frame,) = broker.take()
        broker.refuse(frame, kind("busy", retry_after_ms=300))
        assert broker.take() == []
        assert 0.3 <= broker.delivery.seconds_to_wait(broker.now) <= 0.4
        broker.now += 0.4
        (again,) = broker.take()
        assert broker.fields[again]["unique_first"] == 1000
        broker.store(again)
        assert single.receipt().message_id == f"{PREFIX}{1000:012X}"

    def test_on_retry_gets_the_error_for_which_a_frame_is_resent(self, broker: AnsweringBroker) -> None:
        told: list[str] = []
        broker.delivery.on_retry = lambda error: told.append(str(error))
        single = broker.single()
        for reason in ("busy", "still busy"):
            broker.refuse(broker.take()[0], SystemBusy(reason))
            broker.now += 1.0
        broker.store(broker.take()[0])
        assert single.done
        assert told == ["busy", "still busy"]

    def test_pauses_grow_while_the_broker_stays_busy(self, broker: AnsweringBroker) -> None:
        broker.single(seconds=1000)
        pauses = []
        for _ in range(12):
            (frame,) = broker.take()
            broker.refuse(frame, SystemBusy("busy"))
            pauses.append(broker.delivery.hold_seconds(broker.now))
            broker.now += pauses[-1] + 0.001
        assert 0.02 <= pauses[0] <= 0.024
        assert all(later > earlier for earlier, later in pairwise(pauses[:6]))
        assert max(pauses) <= 1.2

    def test_many_simultaneous_refusals_count_as_one_failure(self, broker: AnsweringBroker) -> None:
        broker.bulk([b"x" * 1000] * 10_000)
        frames = broker.take()
        assert len(frames) == BULK_WINDOW
        for frame in frames:
            broker.refuse(frame, SystemBusy("busy"))
        assert broker.delivery.hold_seconds(broker.now) < 0.03

    def test_frames_are_resent_at_once_after_a_lost_connection(self, broker: AnsweringBroker) -> None:
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

    def test_a_permanent_error_is_not_retried(self, broker: AnsweringBroker) -> None:
        single = broker.single()
        broker.refuse(broker.take()[0], NoPermission("no"))
        assert isinstance(single.error, NoPermission)
        assert broker.delivery.idle

    def test_at_the_deadline_the_last_error_is_raised(self, broker: AnsweringBroker) -> None:
        single = broker.single(seconds=2)
        broker.refuse(broker.take()[0], SystemBusy("busy", retry_after_ms=5000))
        assert broker.delivery.seconds_to_wait(broker.now) == pytest.approx(2)
        broker.now += 2
        assert broker.delivery.expire_due(broker.now)
        broker.delivery.expire(broker.now)
        assert isinstance(single.error, SystemBusy)
        with pytest.raises(SystemBusy, match="busy"):
            single.receipt()

    def test_a_silent_broker_causes_a_timeout(self, broker: AnsweringBroker) -> None:
        single = broker.single(seconds=2)
        (frame,) = broker.take()
        broker.now += 2
        broker.delivery.expire(broker.now)
        assert isinstance(single.error, RequestTimeout)
        assert broker.delivery.pending_bytes == 0
        broker.store(frame)  # a late response is ignored
        assert isinstance(single.error, RequestTimeout)

    def test_each_message_of_a_frame_has_its_own_deadline(self, broker: AnsweringBroker) -> None:
        hasty, patient = broker.single(seconds=1), broker.single(seconds=5)
        (frame,) = broker.take()
        broker.now += 2
        broker.delivery.expire(broker.now)
        assert (hasty.done, patient.done) == (True, False)
        broker.store(frame)
        assert patient.receipt().queue_offset == 1

    def test_a_broker_that_is_never_reachable_fails_the_message_at_its_deadline(self, broker: AnsweringBroker) -> None:
        single, bulk = broker.single(), broker.bulk([b"a", b"b"])
        broker.lose_connection()
        broker.now += 10
        broker.delivery.expire(broker.now)
        assert isinstance(single.error, ConnectionFailed)
        assert bulk.done
        assert {type(error) for error in failures(bulk).errors.values()} == {ConnectionFailed}
        assert broker.delivery.idle

    def test_a_response_that_does_not_match_loses_no_message(self, broker: AnsweringBroker) -> None:
        single = broker.single()
        (frame,) = broker.take()
        ((request_id, _),) = broker.in_flight.items()
        with pytest.raises(RemoteProtocolError, match="does not match"):
            broker.delivery.answered(Answer(request_id, 0, {"queue": 0}, b""), broker.now)
        broker.lose_connection()
        (again,) = broker.take()
        assert again is frame
        broker.store(again)
        assert single.receipt().queue == 0


class TestStoredBefore:
    """Frames that may be stored are resent while the broker still remembers them; partly stored ones are cut."""

    def test_a_frame_that_is_stored_in_part_is_cut_there(self, broker: AnsweringBroker) -> None:
        bulk = broker.bulk([b"%d" % number for number in range(10)], queue=2)
        (frame,) = broker.take()
        broker.refuse(frame, PartlyStored("torn", stored=3, cut_at=3))
        sent = []
        while frames := broker.take():
            sent += [(broker.fields[each]["unique_first"], bodies_of(each)) for each in frames]
            for each in frames:
                broker.store(each)
        assert sent == [(1000, [b"0", b"1", b"2"]), (1003, [b"%d" % number for number in range(3, 10)])]
        receipts = settle(bulk.parts, DeliveryFailed)
        assert [receipt.message_id for receipt in receipts] == [f"{PREFIX}{1000 + n:012X}" for n in range(10)]
        assert broker.delivery.pending_bytes == 0

    @pytest.mark.parametrize("cut_at", [0, 3, 4, -1, 2**40, "1", None])
    def test_an_impossible_cut_is_an_error(self, broker: AnsweringBroker, cut_at: object) -> None:
        bulk = broker.bulk([b"a", b"b", b"c"])
        broker.refuse(broker.take()[0], PartlyStored("strange", cut_at=cut_at))
        assert {type(error) for error in failures(bulk).errors.values()} == {PartlyStored}
        assert broker.delivery.idle

    def test_frames_that_were_in_flight_are_sent_before_new_ones(self, broker: AnsweringBroker) -> None:
        for queue in range(5):
            broker.single(b"old", queue=queue)
        broker.bulk([b"x" * 100_000] * 40)
        in_flight = broker.take()
        for queue in range(5, 40):
            broker.single(b"new", queue=queue)
        broker.lose_connection()
        again = broker.take()
        assert set(again[: len(in_flight)]) == set(in_flight)
        assert [broker.fields[frame]["unique_first"] for frame in in_flight] == sorted(
            broker.fields[frame]["unique_first"] for frame in again[: len(in_flight)]
        )
        assert len(again) > len(in_flight)

    def test_no_more_frames_are_in_flight_than_a_broker_remembers(self, broker: AnsweringBroker) -> None:
        singles = [broker.single(b"x", queue=queue) for queue in range(IN_FLIGHT_FRAMES_MAX + 50)]
        frames = broker.take()
        assert len(frames) == IN_FLIGHT_FRAMES_MAX < PRODUCER_RUNS_MAX
        assert broker.take() == []
        for frame in frames[:10]:
            broker.store(frame)
        assert len(broker.take()) == 10
        for frame in list(broker.in_flight.values()):
            broker.store(frame)
        for frame in broker.take():
            broker.store(frame)
        assert all(single.done for single in singles)


class TestBlame:
    """The broker refuses a whole frame, but only the illegal messages in it may fail."""

    def test_the_illegal_message_of_a_bulk_is_found(self, broker: AnsweringBroker) -> None:
        bulk = broker.bulk([b"%d" % number for number in range(100)])
        self.refuse_bad(broker, {b"7", b"42"})
        error = failures(bulk)
        assert error.failed == [7, 42]
        assert isinstance(error.errors[7], MessageIllegal)
        assert "message 7: MessageIllegal: bad" in str(error)
        assert [receipt is None for receipt in error.receipts] == [number in (7, 42) for number in range(100)]
        assert error.receipts[8] is not None
        assert error.receipts[8].message_id == f"{PREFIX}{1008:012X}"

    def test_order_in_a_pinned_queue_survives_a_busy_broker_in_the_search(self, broker: AnsweringBroker) -> None:
        broker.bulk([b"%d" % number for number in range(8)], queue=2)
        broker.refuse(broker.take()[0], MessageIllegal("bad"))
        broker.refuse(broker.take()[0], SystemBusy("busy"))
        broker.now += 1
        while frames := broker.take():
            broker.store(frames[0])
        assert broker.stored["t", 2] == [b"%d" % number for number in range(8)]

    def test_a_message_longer_than_any_frame_fails_alone(self) -> None:
        broker = AnsweringBroker(produce_frame_bytes_max=10_000)
        bulk = broker.bulk([b"a", b"x" * 20_000, b"b"])
        self.refuse_bad(broker, set())
        error = failures(bulk)
        assert error.failed == [1]
        assert isinstance(error.errors[1], MessageIllegal)
        assert "at most 10000" in str(error)
        assert all(len(frame.body or b"") <= 10_000 for frame in broker.sent)

    def refuse_bad(self, broker: AnsweringBroker, bad: set[bytes]) -> None:
        while frames := broker.take():
            for frame in frames:
                if bad & set(bodies_of(frame)):
                    broker.refuse(frame, MessageIllegal("bad"))
                else:
                    broker.store(frame)
