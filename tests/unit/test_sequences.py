"""Frames that are known to be stored: new ones, duplicates, partly stored ones; and when they are forgotten."""

from __future__ import annotations

import pytest

from flintmq.broker.delivery.deduplication import SEQUENCE_WEIGHT, ProducerSequences, StoredBefore
from flintmq.broker.store import StoredRun
from flintmq.protocol.errors import PartlyStored

PREFIX = "7F00000155A738209801"
EXPIRY_S = 900.0


@pytest.fixture
def sequences() -> ProducerSequences:
    return ProducerSequences(runs_max=10_000, producer_runs_max=100, expiry_s=EXPIRY_S)


def store(
    sequences: ProducerSequences,
    first: int,
    count: int,
    queue_offset: int | None = None,
    *,
    prefix: str = PREFIX,
    asked: str = "orders",
    topic: str = "orders",
    queue: int = 0,
    now: float = 0.0,
) -> None:
    """Store a frame; the default queue offset is the one that its counter implies."""
    offset = first if queue_offset is None else queue_offset
    sequences.stored(prefix, asked, first, count, topic, queue, offset, now)


def find(sequences: ProducerSequences, first: int, count: int, prefix: str = PREFIX) -> StoredBefore | None:
    """Return where the frame is stored."""
    return sequences.find(prefix, "orders", first, count)


def cut(sequences: ProducerSequences, first: int, count: int) -> tuple[int, int]:
    """Return how many of the first messages are stored, and where the frame must be cut."""
    with pytest.raises(PartlyStored) as raised:
        find(sequences, first, count)
    assert f"Resend the first {raised.value.cut_at} " in str(raised.value)
    return raised.value.stored, raised.value.cut_at


class TestFind:
    def test_a_frame_of_an_unknown_producer_is_new(self, sequences: ProducerSequences) -> None:
        assert find(sequences, 0, 5) is None

    def test_a_duplicate_has_the_place_of_the_first(self, sequences: ProducerSequences) -> None:
        store(sequences, 100, 5, 70, queue=3)
        assert find(sequences, 100, 5) == StoredBefore("orders", 3, 70)
        assert find(sequences, 102, 2) == StoredBefore("orders", 3, 72)
        assert find(sequences, 104, 1) == StoredBefore("orders", 3, 74)

    def test_adjacent_frames_are_new(self, sequences: ProducerSequences) -> None:
        store(sequences, 100, 5)
        store(sequences, 200, 5)
        for first, count in ((105, 95), (0, 100), (205, 1), (99, 1), (150, 10)):
            assert find(sequences, first, count) is None

    def test_other_producers_and_topics_are_not_concerned(self, sequences: ProducerSequences) -> None:
        store(sequences, 100, 5)
        assert find(sequences, 100, 5, prefix=PREFIX[:-1] + "2") is None
        assert sequences.find(PREFIX, "payments", 100, 5) is None

    def test_a_message_that_waits_elsewhere_is_found_by_the_topic_that_it_was_sent_to(
        self, sequences: ProducerSequences
    ) -> None:
        store(sequences, 5, 1, 9, topic="SCHEDULE_TOPIC_XXXX", queue=2)
        assert find(sequences, 5, 1) == StoredBefore("SCHEDULE_TOPIC_XXXX", 2, 9)
        assert sequences.find(PREFIX, "SCHEDULE_TOPIC_XXXX", 5, 1) is None


class TestPartlyStored:
    def test_a_torn_frame_is_cut_after_the_stored_messages(self, sequences: ProducerSequences) -> None:
        store(sequences, 100, 3)
        assert cut(sequences, 100, 5) == (3, 3)
        assert cut(sequences, 102, 5) == (1, 1)

    def test_a_frame_that_overlaps_stored_messages_is_cut_before_them(self, sequences: ProducerSequences) -> None:
        store(sequences, 100, 3)
        assert cut(sequences, 98, 3) == (0, 2)
        assert cut(sequences, 90, 50) == (0, 10)

    def test_messages_in_two_queues_are_not_in_one_piece(self, sequences: ProducerSequences) -> None:
        store(sequences, 100, 3, 7, queue=0)
        store(sequences, 103, 3, 7, queue=1)
        assert cut(sequences, 100, 6) == (3, 3)
        assert find(sequences, 103, 3) == StoredBefore("orders", 1, 7)

    def test_messages_in_two_topics_are_not_in_one_piece(self, sequences: ProducerSequences) -> None:
        store(sequences, 100, 3, 7, topic="SCHEDULE_TOPIC_XXXX")
        store(sequences, 103, 3, 10)
        assert cut(sequences, 100, 6) == (3, 3)

    def test_messages_with_others_between_them_are_not_in_one_piece(self, sequences: ProducerSequences) -> None:
        store(sequences, 100, 3, 7)
        store(sequences, 103, 3, 11)
        assert cut(sequences, 100, 6) == (3, 3)

    def test_cutting_again_and_again_settles_any_frame(self, sequences: ProducerSequences) -> None:
        store(sequences, 10, 5, 0, queue=1)
        store(sequences, 20, 5, 0, queue=2)
        store(sequences, 25, 5, 0, queue=3)
        frames, settled = [(0, 40)], []
        while frames:
            first, count = frames.pop(0)
            try:
                found = find(sequences, first, count)
            except PartlyStored as error:
                frames[:0] = [(first, error.cut_at), (first + error.cut_at, count - error.cut_at)]
            else:
                settled.append((first, count, found and found.queue))
        assert settled == [(0, 10, None), (10, 5, 1), (15, 5, None), (20, 5, 2), (25, 5, 3), (30, 10, None)]


class TestRuns:
    def test_frames_that_follow_each_other_in_a_queue_are_one_run(self, sequences: ProducerSequences) -> None:
        for first in range(0, 1000, 10):
            store(sequences, first, 10)
        assert sequences.runs == 1
        assert find(sequences, 0, 1000) == StoredBefore("orders", 0, 0)

    def test_out_of_order_they_are_one_run_as_well(self, sequences: ProducerSequences) -> None:
        for first in (30, 10, 0, 20, 40):
            store(sequences, first, 10)
        assert sequences.runs == 1
        assert find(sequences, 5, 44) == StoredBefore("orders", 0, 5)

    def test_the_first_occurrence_counts(self, sequences: ProducerSequences) -> None:
        store(sequences, 10, 10, 100, queue=0)
        store(sequences, 0, 30, 500, queue=1)
        assert find(sequences, 10, 10) == StoredBefore("orders", 0, 100)
        assert find(sequences, 0, 10) == StoredBefore("orders", 1, 500)
        assert find(sequences, 20, 10) == StoredBefore("orders", 1, 520)
        assert sequences.runs == 3


class TestBounds:
    def test_a_producer_forgets_its_oldest_runs(self, sequences: ProducerSequences) -> None:
        for first in range(500):
            store(sequences, first, 1, queue=first % 2)
            assert sequences.runs <= 100
        assert find(sequences, 0, 1) is None
        assert all(find(sequences, first, 1) is not None for first in range(420, 500))

    def test_the_least_recently_active_producers_go_first(self) -> None:
        sequences = ProducerSequences(runs_max=20 * (1 + SEQUENCE_WEIGHT), producer_runs_max=10, expiry_s=EXPIRY_S)
        for number in range(20):
            store(sequences, 0, 1, prefix=f"{number:020X}", now=10.0 * number)
        store(sequences, 1, 1, prefix=f"{0:020X}", now=300.0)
        store(sequences, 0, 1, prefix=f"{77:020X}", now=310.0)
        known = [number for number in range(20) if find(sequences, 0, 1, prefix=f"{number:020X}") is not None]
        assert known == [0, *range(2, 20)]
        assert find(sequences, 0, 1, prefix=f"{77:020X}") is not None

    def test_active_producers_lose_their_older_runs_and_none_of_their_last(self) -> None:
        sequences = ProducerSequences(runs_max=100, producer_runs_max=100, expiry_s=EXPIRY_S)
        prefixes = [f"{number:020X}" for number in range(10)]
        for first in range(200):
            for queue, prefix in enumerate(prefixes):  # between each other in one queue: every frame is a run
                store(sequences, first, 1, 20 * first + queue, prefix=prefix)
        assert len(sequences) == 10
        assert all(find(sequences, first, 1, prefix=prefix) for prefix in prefixes for first in (198, 199))

    def test_all_together_are_bounded(self) -> None:
        sequences = ProducerSequences(runs_max=1000, producer_runs_max=100, expiry_s=EXPIRY_S)
        for number in range(5000):
            store(sequences, number, 1, queue=number % 3, prefix=f"{number * number % 700:020X}")
            assert sequences.runs + SEQUENCE_WEIGHT * len(sequences) <= 1000
            assert find(sequences, number, 1, prefix=f"{number * number % 700:020X}") is not None

    def test_a_producer_that_was_silent_for_long_is_forgotten(self, sequences: ProducerSequences) -> None:
        store(sequences, 0, 1, now=0.0)
        store(sequences, 0, 1, prefix=PREFIX[:-1] + "2", now=0.0)
        store(sequences, 1, 1, prefix=PREFIX[:-1] + "2", now=EXPIRY_S - 1)
        sequences.expire(EXPIRY_S - 0.001)
        assert len(sequences) == 2
        sequences.expire(EXPIRY_S)
        assert find(sequences, 0, 1) is None
        assert find(sequences, 0, 1, prefix=PREFIX[:-1] + "2") is not None
        sequences.expire(3 * EXPIRY_S)
        assert (len(sequences), sequences.runs) == (0, 0)

    def test_a_deleted_topic_is_forgotten(self, sequences: ProducerSequences) -> None:
        store(sequences, 0, 1)
        store(sequences, 1, 1, asked="payments")
        sequences.forget_topic("orders")
        assert find(sequences, 0, 1) is None
        assert sequences.find(PREFIX, "payments", 1, 1) is not None
        assert sequences.runs == 1


class TestRestore:
    def test_runs_in_the_log_are_known_again(self, sequences: ProducerSequences) -> None:
        sequences.restore(
            [
                StoredRun(PREFIX, "orders", 100, 5, "orders", 1, 7),
                StoredRun(PREFIX, "orders", 105, 5, "orders", 1, 12),
                StoredRun(PREFIX, "orders", 100, 5, "orders", 2, 3),
                StoredRun(PREFIX, "orders", 200, 1, "RMQ_SYS_TRANS_HALF_TOPIC", 0, 8),
            ],
            now=5000.0,
        )
        assert find(sequences, 100, 10) == StoredBefore("orders", 1, 7)
        assert find(sequences, 200, 1) == StoredBefore("RMQ_SYS_TRANS_HALF_TOPIC", 0, 8)
        assert sequences.runs == 2
        sequences.expire(5000.0 + EXPIRY_S - 1)
        assert len(sequences) == 1

    def test_the_producers_that_sent_last_are_kept(self) -> None:
        sequences = ProducerSequences(runs_max=10 * (1 + SEQUENCE_WEIGHT), producer_runs_max=10, expiry_s=EXPIRY_S)
        order = [*range(10), 0, 10]
        sequences.restore(
            [StoredRun(f"{number:020X}", "orders", at, 1, "orders", 0, 2 * at) for at, number in enumerate(order)], 0.0
        )
        known = {order[at] for at in range(12) if sequences.find(f"{order[at]:020X}", "orders", at, 1) is not None}
        assert known == {0, *range(2, 11)}

    def test_far_more_producers_than_there_is_room_for_leave_those_that_sent_last(self) -> None:
        sequences = ProducerSequences(runs_max=10 * (1 + SEQUENCE_WEIGHT), producer_runs_max=10, expiry_s=EXPIRY_S)
        runs = [StoredRun(f"{at % 1000:020X}", "orders", at, 1, "orders", 0, 2 * at) for at in range(3000)]
        sequences.restore(runs, 0.0)
        known = {run.first for run in runs if sequences.find(run.prefix, "orders", run.first, 1) is not None}
        assert max(known) == 2999
        assert len({first % 1000 for first in known}) == len(sequences) > 0
        assert {first % 1000 for first in known} == {*range(1000 - len(sequences), 1000)}
