"""The table of stored producer runs against a model that keeps every single message."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from flintmq.broker.delivery.deduplication import SEQUENCE_WEIGHT, ProducerSequences, StoredBefore
from flintmq.protocol.errors import PartlyStored

PREFIXES = ("AA" * 10, "BB" * 10)
TOPICS = ("orders", "payments")
Place = tuple[str, int, int]
"""Topic, queue and queue offset of a message."""

prefixes, topics = st.sampled_from(PREFIXES), st.sampled_from(TOPICS)
stored_topics = st.sampled_from(["", "SCHEDULE_TOPIC_XXXX"])
firsts, counts, queues = st.integers(0, 60), st.integers(1, 20), st.integers(0, 1)


class SequencesMachine(RuleBasedStateMachine):
    """A table with unlimited room, and the place where each message was first stored."""

    def __init__(self) -> None:
        super().__init__()
        self.sequences = ProducerSequences(runs_max=100_000, producer_runs_max=10_000, expiry_s=1e9)
        self.model: dict[tuple[str, str], dict[int, Place]] = {}
        self.ends: dict[tuple[str, int], int] = {}

    @rule(prefix=prefixes, asked=topics, first=firsts, count=counts, queue=queues, other=stored_topics, gap=queues)
    def send(self, prefix: str, asked: str, first: int, count: int, queue: int, other: str, gap: int) -> None:
        """Send a producer's frame, split where the table says; the broker stores the new messages."""
        frames = [(first, count)]
        while frames:
            begin, size = frames.pop(0)
            model = self.model.setdefault((prefix, asked), {})
            places = [model.get(counter) for counter in range(begin, begin + size)]
            before, error = self.find(prefix, asked, begin, size)
            if error is not None:
                assert 0 < error.cut_at < size
                assert error.stored in (0, error.cut_at)
                assert all((place is not None) == (error.stored > 0) for place in places[: error.cut_at])
                assert not self.is_one_piece(places)
                frames[:0] = [(begin, error.cut_at), (begin + error.cut_at, size - error.cut_at)]
                continue
            if before is None:
                assert places == [None] * size
                self.store(prefix, asked, begin, size, other or asked, queue, gap)
            else:
                assert places == [(before.topic, before.queue, before.queue_offset + k) for k in range(size)]

    def find(self, prefix: str, asked: str, first: int, count: int) -> tuple[StoredBefore | None, PartlyStored | None]:
        try:
            return self.sequences.find(prefix, asked, first, count), None
        except PartlyStored as error:
            return None, error

    @rule(prefix=prefixes, asked=topics, first=firsts, count=counts, queue=queues)
    def find_again_in_the_log(self, prefix: str, asked: str, first: int, count: int, queue: int) -> None:
        """Store messages a second time, as a log may contain them: the first places stay."""
        self.store(prefix, asked, first, count, asked, queue, 0)

    @rule(asked=topics)
    def delete_topic(self, asked: str) -> None:
        self.sequences.forget_topic(asked)
        self.model = {key: messages for key, messages in self.model.items() if key[1] != asked}

    def store(self, prefix: str, asked: str, first: int, count: int, topic: str, queue: int, gap: int) -> None:
        offset = self.ends.get((topic, queue), 0) + gap
        self.ends[topic, queue] = offset + count
        self.sequences.stored(prefix, asked, first, count, topic, queue, offset, 0.0)
        model = self.model.setdefault((prefix, asked), {})
        for k in range(count):
            model.setdefault(first + k, (topic, queue, offset + k))

    @staticmethod
    def is_one_piece(places: list[Place | None]) -> bool:
        """Return whether the places are consecutive, or all missing."""
        first = places[0]
        if first is None:
            return places == [None] * len(places)
        return places == [(first[0], first[1], first[2] + k) for k in range(len(places))]

    @invariant()
    def there_are_as_few_runs_as_can_be(self) -> None:
        runs = 0
        for messages in self.model.values():
            for counter, (topic, queue, offset) in messages.items():
                runs += messages.get(counter - 1) != (topic, queue, offset - 1)
        assert self.sequences.runs == runs

    @invariant()
    def every_message_is_found(self) -> None:
        for (prefix, asked), messages in self.model.items():
            for counter, place in messages.items():
                before = self.sequences.find(prefix, asked, counter, 1)
                assert before is not None
                assert (before.topic, before.queue, before.queue_offset) == place


class BoundedMachine(RuleBasedStateMachine):
    """A small table: it may forget, but it never returns a wrong place, and keeps its bounds."""

    RUNS_MAX, PRODUCER_RUNS_MAX = 60, 10

    def __init__(self) -> None:
        super().__init__()
        self.sequences = ProducerSequences(
            runs_max=self.RUNS_MAX, producer_runs_max=self.PRODUCER_RUNS_MAX, expiry_s=100.0
        )
        self.now = 0.0
        self.offset = 0
        self.places: dict[tuple[str, int], set[int]] = {}
        """Every queue offset that a message ever had: a forgotten message is stored again."""

    @rule(prefix=st.integers(0, 15), first=firsts, count=counts, seconds=st.sampled_from([0.0, 0.1, 2.0, 60.0]))
    def store(self, prefix: int, first: int, count: int, seconds: float) -> None:
        self.now += seconds
        name = f"{prefix:020X}"
        try:
            before = self.sequences.find(name, "orders", first, count)
        except PartlyStored:
            return
        if before is not None:
            assert all(before.queue_offset + k in self.places[name, first + k] for k in range(count))
            return
        self.offset += 1000
        self.sequences.stored(name, "orders", first, count, "orders", 0, self.offset, self.now)
        for k in range(count):
            self.places.setdefault((name, first + k), set()).add(self.offset + k)

    @rule()
    def expire(self) -> None:
        self.sequences.expire(self.now)

    @invariant()
    def it_keeps_its_bounds(self) -> None:
        assert self.sequences.runs >= len(self.sequences)
        assert self.sequences.runs + SEQUENCE_WEIGHT * len(self.sequences) <= self.RUNS_MAX
        assert self.sequences.runs == sum(len(one) for one in self.sequences._sequences.values())
        assert all(len(one) <= self.PRODUCER_RUNS_MAX for one in self.sequences._sequences.values())


TestSequences = SequencesMachine.TestCase
TestSequences.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestBounded = BoundedMachine.TestCase
TestBounded.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
