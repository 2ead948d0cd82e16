"""The state machine of popped messages under any order of pops, acknowledgements, renewals, expiries and restarts."""

from __future__ import annotations

from collections import defaultdict
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flintmq.broker.delivery.pop import table as journal
from flintmq.broker.delivery.pop.table import InFlightTable, QueueInFlight, QueueKey, Take
from flintmq.broker.store import PopEntry

KEYS = [QueueKey("g", "t", 0), QueueKey("h", "t", 1)]
TIMES = st.integers(0, 50)
RARELY = st.sampled_from([False, False, False, False, True])


class Offsets:
    """Committed offsets in memory."""

    def __init__(self) -> None:
        self.rows: dict[QueueKey, int] = {}

    def committed_of(self, group: str, topic: str, queue: int) -> int | None:
        return self.rows.get(QueueKey(group, topic, queue))

    def commit(self, group: str, topic: str, queue: int, next_offset: int) -> None:
        self.rows[QueueKey(group, topic, queue)] = next_offset


class Pops(RuleBasedStateMachine):
    """Consumers of two groups on two queues; a message that moves is delivered again as another message elsewhere."""

    ordered = False

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000
        self.offsets = Offsets()
        self.entries: list[PopEntry] = []
        """The journal."""
        self.kept: set[tuple[QueueKey, int]] = set()
        self.table = self.new_table()
        self.ends = dict.fromkeys(KEYS, 20)
        """Number of messages in each queue."""
        self.receipts: dict[QueueKey, list[tuple[int, int]]] = defaultdict(list)
        """Every receipt (offset, pop time) that a consumer ever got."""
        self.current: dict[tuple[QueueKey, int], tuple[int, int]] = {}
        """By queue and offset: receipt's time and end of the time of what is in flight."""
        self.settled: dict[QueueKey, set[int]] = {key: set() for key in KEYS}
        self.moving: set[tuple[QueueKey, int]] = set()

    def new_table(self) -> InFlightTable:
        return InFlightTable(
            self.offsets, in_flight_max=20, forgotten=lambda key: self.entries.append(journal.forgotten(key))
        )

    @rule(key=st.sampled_from(KEYS), count=st.integers(1, 8))
    def store(self, key: QueueKey, count: int) -> None:
        self.ends[key] += count

    @rule(ms=TIMES)
    def wait(self, ms: int) -> None:
        self.now += ms

    def take_of(self, invisible_ms: int, attempt: str = "") -> Take:
        return Take(self.now, invisible_ms, ordered=self.ordered, attempt=attempt)

    @rule(
        key=st.sampled_from(KEYS),
        count=st.integers(1, 6),
        invisible_ms=st.integers(0, 40),
        unwanted=st.sets(st.integers(0, 40), max_size=5),
        attempt=st.sampled_from(["", "a", "b"]),
    )
    def pop(self, key: QueueKey, count: int, invisible_ms: int, unwanted: set[int], attempt: str) -> None:
        take = self.take_of(invisible_ms, attempt)
        if self.table.blocked_until(key, take) is not None:
            return
        start = self.table.start(key)
        begin = 0 if start is None else start
        room = min(self.table.room(key), count)
        found: list[int] = []
        end = begin
        while end < self.ends[key] and len(found) < room:
            if end not in unwanted:
                found.append(end)
            else:
                self.settled[key].add(end)  # passed over by the filter
            end += 1
        pop_ms = self.table.pop_ms(key, self.now)
        taken = self.table.take(key, begin, found, end, take, pop_ms)
        self.entries.append(journal.taken(key, begin, end, taken, take, pop_ms))
        assert set(found) - set(taken) <= self.settled[key]
        if self.ordered:
            for each in [each for each in self.current if each[0] == key]:
                del self.current[each]
        for offset in taken:
            in_flight = self.current.get((key, offset))
            assert in_flight is None, "a message is at one consumer at a time"
            assert (key, offset) not in self.moving
            if not self.ordered:
                assert offset not in self.settled[key], "a settled message is not delivered again"
            self.settled[key].discard(offset)
            self.current[key, offset] = pop_ms, pop_ms + invisible_ms
            assert (offset, pop_ms) not in self.receipts[key], "no two deliveries have the same receipt"
            self.receipts[key].append((offset, pop_ms))

    @precondition(lambda self: any(self.receipts.values()))
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from([key for key in KEYS if self.receipts[key]]))
        offset, pop_ms = data.draw(st.sampled_from(self.receipts[key]))
        current = self.current.get((key, offset))
        expected = current is not None and current[0] == pop_ms and (key, offset) not in self.moving
        assert self.table.settle(key, offset, pop_ms) == expected
        if expected:
            self.entries.append(journal.settled(key, (offset,)))
            del self.current[key, offset]
            self.settled[key].add(offset)

    @precondition(lambda self: any(self.receipts.values()))
    @rule(data=st.data(), invisible_ms=st.integers(0, 40), keep=st.booleans())
    def renew(self, data: st.DataObject, invisible_ms: int, keep: bool) -> None:
        key = data.draw(st.sampled_from([key for key in KEYS if self.receipts[key]]))
        offset, pop_ms = data.draw(st.sampled_from(self.receipts[key]))
        current = self.current.get((key, offset))
        expected = current is not None and current[0] == pop_ms and (key, offset) not in self.moving
        renewed = self.table.renew(key, offset, pop_ms, self.take_of(invisible_ms), keep=keep)
        assert (renewed is not None) == expected
        if renewed is not None:
            self.entries.append(journal.renewed(key, offset, renewed))
            assert (renewed.pop_ms == pop_ms) == (keep or self.ordered)
            self.current[key, offset] = renewed.pop_ms, self.now + invisible_ms
            if not (keep or self.ordered):
                self.receipts[key].append((offset, renewed.pop_ms))

    @precondition(lambda self: any(self.receipts.values()))
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from([key for key in KEYS if self.receipts[key]]))
        offset, pop_ms = data.draw(st.sampled_from(self.receipts[key]))
        current = self.current.get((key, offset))
        expected = current is not None and current[0] == pop_ms and (key, offset) not in self.moving
        returned = self.table.begin_return(key, offset, pop_ms)
        assert (returned is not None) == (expected and not self.ordered)
        if returned is not None:
            self.moving.add((key, offset))

    @rule(count=st.integers(1, 10))
    def expire(self, count: int) -> None:
        due = self.table.due(self.now, count)
        for key, offset, pop_ms in due.expired:
            assert self.current[key, offset][0] == pop_ms
            assert self.current[key, offset][1] <= self.now, "no message moves within its time"
            self.moving.add((key, offset))
        assert not (self.ordered and due.expired), "ordered messages never move"
        for key in due.free:
            assert all(end <= self.now for (other, _), (_, end) in self.current.items() if other == key)

    @precondition(lambda self: self.moving)
    @rule(data=st.data(), works=st.booleans())
    def move(self, data: st.DataObject, works: bool) -> None:
        key, offset = data.draw(st.sampled_from(sorted(self.moving)))
        self.moving.discard((key, offset))
        if works:
            self.table.moved(key, offset)
            self.entries.append(journal.settled(key, (offset,)))
            del self.current[key, offset]
            self.settled[key].add(offset)
        else:
            self.table.keep(key, offset, self.now + 5)
            self.current[key, offset] = self.current[key, offset][0], self.now + 5
            # The journal has the end of its time as it was: a start lets it move at once.
            self.kept.add((key, offset))

    @rule(key=st.sampled_from(KEYS), data=st.data(), now=RARELY)
    def reset(self, key: QueueKey, data: st.DataObject, now: bool) -> None:
        """Let an operator set the committed offset, now and then."""
        if not now:
            return
        to = data.draw(st.integers(0, self.ends[key]))
        if to == self.offsets.rows.get(key):
            return
        self.offsets.commit(*key, to)
        self.table.start(key)
        for each in [each for each in self.current if each[0] == key]:
            del self.current[each]
            self.moving.discard(each)
        self.settled[key] = set(range(to))

    @rule(with_file=st.booleans(), now=RARELY)
    def restart(self, with_file: bool, now: bool) -> None:
        if not now:
            return
        rows = list(self.table.settled()) if with_file else []
        self.table = self.new_table()
        self.table.restore(rows)
        self.entries = list(journal.everything(self.table, []))
        self.current.clear()
        self.moving.clear()
        self.receipts.clear()
        # Without the file, what was settled beyond the committed offset is delivered again.
        for key, settled in self.settled.items():
            committed = self.offsets.rows.get(key, 0)
            known = {
                offset
                for row_key, _, ranges in rows
                if row_key == key
                for first, end in ranges
                for offset in range(first, end)
            }
            self.settled[key] = {offset for offset in settled if offset < committed or offset in known}

    @precondition(lambda self: not self.ordered)
    @rule(again=st.booleans())
    def replay(self, again: bool) -> None:
        """Begin again with the journal, as after a kill: nothing changes. ``again``: the journal begins again first."""
        self.now += 1  # no start is faster, so no receipt comes twice
        if again:
            self.entries = list(journal.everything(self.table, []))
        before = {key: (state.next_offset, state.settled()) for key, state in self.table.states()}
        states = journal.replayed(self.entries)
        self.table = self.new_table()
        for key, state in states.items():
            self.table.adopt(key, state)
        assert {key: (state.next_offset, state.settled()) for key, state in self.table.states()} == before
        in_flight = {
            (key, offset): (delivery.pop_ms, delivery.visible_ms)
            for key, state in self.table.states()
            for offset, delivery in state.open.items()
        }
        for each in self.kept & in_flight.keys():
            self.current[each] = in_flight[each]
        assert in_flight == self.current
        self.kept.clear()
        self.moving.clear()
        self.entries = list(journal.everything(self.table, []))

    @invariant()
    def nothing_is_lost(self) -> None:
        assert self.table.in_flight == len(self.current) <= 20
        for key in KEYS:
            committed = self.offsets.rows.get(key, 0)
            for offset in range(committed):
                assert offset in self.settled[key], "the committed offset never passes a message that is not settled"
            start = self.table.start(key) or 0
            for offset in range(committed, min(start, self.ends[key])):
                assert offset in self.settled[key] or (key, offset) in self.current, "every message is somewhere"

    @invariant()
    def times_are_known(self) -> None:
        ends = [end for key_offset, (_, end) in self.current.items() if key_offset not in self.moving]
        next_end = self.table.next_end_ms()
        assert not ends or (next_end is not None and next_end <= min(ends)) or self.ordered


class OrderedPops(Pops):
    """The same, in order."""

    ordered = True


TestPops = Pops.TestCase
TestOrderedPops = OrderedPops.TestCase
TestPops.settings = TestOrderedPops.settings = settings(max_examples=50, stateful_step_count=50, deadline=None)


def test_times_end_in_their_order_after_many_were_settled() -> None:
    table = InFlightTable(Offsets(), in_flight_max=400, forgotten=lambda key: None)
    key, random = KEYS[0], Random(3)
    ends: dict[int, tuple[int, int]] = {}
    for offset in range(301):
        if offset == 300:  # what is settled is sorted out with the next message
            for each in random.sample(range(300), 250):
                assert table.settle(key, each, ends.pop(each)[1])
        invisible_ms, pop_ms = random.randrange(1, 10_000), table.pop_ms(key, 1_000)
        taken = table.take(key, offset, [offset], offset + 1, Take(1_000, invisible_ms), pop_ms)
        assert taken == [offset]
        ends[offset] = pop_ms + invisible_ms, pop_ms
    for offset, (end, _) in sorted(ends.items(), key=lambda item: item[1]):
        assert table.next_end_ms() == end
        assert [each.offset for each in table.due(end, 1).expired] == [offset]


def test_a_move_settles_only_what_still_moves() -> None:
    """After a reset meanwhile, the offset may be gone, or handed out again."""
    state = QueueInFlight(0)
    assert state.take([0], 1, Take(1_000, 100), 5) == [0]
    assert state.begin_return(0, 5) is not None
    assert state.keep(0, 2_000)
    state.moved(0)
    state.moved(7)
    assert list(state.open) == [0]


def test_a_repeated_attempt_in_order_is_no_further_delivery() -> None:
    state = QueueInFlight(0)
    counts = []
    for attempt in ("a", "a", "b", ""):
        state.take([0], 1, Take(1_000, 100, ordered=True, attempt=attempt), 5)
        counts.append(state.counts[0])
    assert counts == [0, 0, 1, 2]
