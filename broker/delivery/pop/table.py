"""The messages in flight of all groups and queues: bounds, committed offsets, and the order in which times end.

Without I/O and without a clock: callers pass the time, and the table of committed offsets.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from ...store import PopEntry


# ---- The messages of one queue that one group has in flight: a state machine without I/O and without a clock.
#
#     not handed out ──take──▶ in flight ──settle───────────────────────────────────────▶ settled
#                               ▲   │  └─ its time is over, or it is returned: moving ──moved──▶ settled
#                               └───┘ renew
#
# Offsets below ``next_offset`` have been handed out or passed over; those of them that are not in ``open``
# are settled. So the committed offset is the first one in ``open``. In an ordered queue a message never
# moves: the queue gives nothing until all messages of the last take are settled or their time is over; then
# it continues at the committed offset.

Ranges = Sequence[tuple[int, int]]
"""Half-open ranges of queue offsets, ascending."""


@dataclass(slots=True, eq=False)
class InFlight:
    """A delivery: the messages of a queue that one take handed out, or one that was changed since. ``pop_ms``: the time
    that a receipt must name; ``visible_ms``: the end of the messages' time; ``count``: number of those in flight.

    ``moving``: the broker is storing it again, because its time is over or its consumer gave it back, so nothing can
    settle or renew it any more.
    """

    pop_ms: int
    visible_ms: int
    moving: bool = False
    count: int = 1


class Take(NamedTuple):
    """How a consumer takes messages. All times are ms since 1970 UTC.

    ``ordered``: one batch at a time, in the queue's order; ``attempt``: id of the request. A consumer that lost the
    answer repeats the id and gets the same messages at once.
    """

    # A tuple, because every pop makes one: a frozen dataclass takes longer.
    now_ms: int
    invisible_ms: int
    ordered: bool = False
    attempt: str = ""


class QueueInFlight:
    """The state of one queue for one group. ``settled``: ranges from ``committed`` on that are settled already."""

    __slots__ = ("_ahead", "attempt", "counts", "next_offset", "open", "ordered", "stored")

    def __init__(self, committed: int, settled: Ranges = ()) -> None:
        self.next_offset = committed
        self.stored = committed
        """Committed offset that the table of offsets has."""
        self.open: dict[int, InFlight] = {}
        """Deliveries of the messages in flight by offset, ascending: they are added in the order of the queue and
        replaced in place."""
        self.ordered = False
        """The messages in flight were taken in order."""
        self.attempt = ""
        self.counts: dict[int, int] = {}
        """For each message of the last ordered take: how often it had been delivered before."""
        self._ahead = deque((max(first, committed), end) for first, end in settled if end > committed)
        """Settled ranges from ``next_offset`` on, known from an earlier run of the broker."""
        self._pass_settled()

    @property
    def committed(self) -> int:
        """Offset of the first message that is not settled."""
        return next(iter(self.open), self.next_offset)

    @property
    def is_idle(self) -> bool:
        """Return whether the committed offset describes the whole state, so that there is nothing else to keep."""
        return not self.open and not self._ahead and not self.counts

    @property
    def takes_all(self) -> bool:
        """Return whether a take that is not ordered gets every message that it finds."""
        return not (self.ordered or self._ahead)

    def blocked_until(self, take: Take) -> int | None:
        """Return when the queue gives messages again, in ms: None for now, -1 for no known time.

        Messages that were taken in order, and messages that were not, are never in flight together.
        """
        if not self.open or (not self.ordered and not take.ordered):
            return None
        # A consumer that lost its answer asks again for the very messages that block the others.
        if self.ordered and take.ordered and take.attempt and take.attempt == self.attempt:
            return None
        # All must be settled or stored again first, and no time is known for that.
        if not self.ordered:
            return -1
        # The queue gives all of them again together, when the last one's time is over.
        until = max(delivery.visible_ms for delivery in self.open.values())
        return until if until > take.now_ms else None

    def start(self) -> int:
        """Return the offset at which a take begins unless the queue is blocked."""
        return self.committed if self.ordered else self.next_offset

    def take(self, offsets: Iterable[int], end: int, take: Take, pop_ms: int) -> list[int]:
        """Hand out the messages at ``offsets``, which a read of ``start()`` up to ``end`` found; return those taken.

        The others are settled. Offsets up to ``end`` that were not found are passed over: no consumer wants them.
        """
        # A take that is not blocked by messages in flight repeats its attempt, or their time is over.
        if self.ordered and self.open:
            self._rewind()

        taken = self._without_settled(offsets) if self._ahead else list(offsets)
        if take.ordered:
            # A repeated attempt does not count as another delivery.
            again = 0 if take.attempt and take.attempt == self.attempt else 1
            before = self.counts
            self.counts = {offset: before[offset] + again if offset in before else 0 for offset in taken}
        else:
            self.counts = {}
        self.ordered, self.attempt = take.ordered, take.attempt if take.ordered else ""
        self.open.update(dict.fromkeys(taken, InFlight(pop_ms, pop_ms + take.invisible_ms, count=len(taken))))
        self.pass_over(end)
        return taken

    def _without_settled(self, offsets: Iterable[int]) -> list[int]:
        """Return the offsets that were not settled before a restart."""
        # Both are in the order of offsets, so one pass finds them.
        settled = self._ahead
        left = []
        at = 0
        for offset in offsets:
            while at < len(settled) and settled[at][1] <= offset:
                at += 1
            if at == len(settled) or offset < settled[at][0]:
                left.append(offset)
        return left

    def pass_over(self, end: int) -> None:
        """Note that no message below ``end`` is left to hand out."""
        self.next_offset = max(self.next_offset, end)
        self._pass_settled()

    def _pass_settled(self) -> None:
        settled = self._ahead
        while settled and settled[0][0] <= self.next_offset:
            self.next_offset = max(self.next_offset, settled.popleft()[1])

    def _rewind(self) -> None:
        """Continue at the first message that is not settled; receipts of the last take become void."""
        self.next_offset = self.committed
        self.clear()

    def clear(self) -> None:
        """Forget what is in flight; its receipts become void."""
        for delivery in self.open.values():
            delivery.count -= 1
        self.open.clear()

    def settle_all(self, receipts: Iterable[tuple[int, int]]) -> list[bool]:
        """Settle messages by (offset, pop time); return for each whether its receipt is its current delivery's."""
        valid = []
        for offset, pop_ms in receipts:
            delivery = self.open.get(offset)
            is_valid = delivery is not None and delivery.pop_ms == pop_ms and not delivery.moving
            valid.append(is_valid)
            if is_valid:
                self._close(offset)
        return valid

    def _close(self, offset: int) -> None:
        self.open.pop(offset).count -= 1
        if not self.open:
            self.counts = {}

    def _replace(self, offset: int, pop_ms: int, visible_ms: int, *, moving: bool = False) -> InFlight:
        """Give one message a delivery of its own."""
        self.open[offset].count -= 1
        self.open[offset] = delivery = InFlight(pop_ms, visible_ms, moving)
        return delivery

    def renew(self, offset: int, pop_ms: int, take: Take, *, keep: bool) -> InFlight | None:
        """Give a message new time from ``take.now_ms`` on; return None if the receipt is not its current delivery's.

        ``keep``: the receipt stays valid, as it always does in an ordered queue. Otherwise the returned delivery has a
        new ``pop_ms``.
        """
        delivery = self.open.get(offset)
        if delivery is None or delivery.pop_ms != pop_ms or delivery.moving:
            return None
        if not (keep or self.ordered):
            # Later in any case, even if the clock was set back: no two deliveries have the same receipt.
            pop_ms = max(take.now_ms, pop_ms + 1)
        return self._replace(offset, pop_ms, take.now_ms + take.invisible_ms)

    def begin_move(self, offset: int) -> None:
        """Let an expired message move."""
        delivery = self.open[offset]
        self._replace(offset, delivery.pop_ms, delivery.visible_ms, moving=True)

    def begin_return(self, offset: int, pop_ms: int) -> InFlight | None:
        """Let a message move because its consumer gives it back; return None if the receipt is not its delivery's."""
        delivery = self.open.get(offset)
        if delivery is None or delivery.pop_ms != pop_ms or delivery.moving or self.ordered:
            return None
        return self._replace(offset, pop_ms, delivery.visible_ms, moving=True)

    def moved(self, offset: int) -> None:
        """Settle a message that has been stored again."""
        # After a reset meanwhile, the offset may be gone, or handed out again.
        if offset in self.open and self.open[offset].moving:
            self._close(offset)

    def keep(self, offset: int, visible_ms: int) -> bool:
        """Let a message that could not be stored again try at ``visible_ms``; return whether it is still in flight."""
        delivery = self.open.get(offset)
        if delivery is None or not delivery.moving:
            return False
        self._replace(offset, delivery.pop_ms, visible_ms)
        return True

    def advance(self, committed: int) -> None:
        self.open = {offset: delivery for offset, delivery in self.open.items() if offset >= committed}
        self.pass_over(committed)

    def clip(self, end: int) -> None:
        """Forget what is at ``end`` or beyond: after a crash, new messages get these offsets."""
        self.open = {offset: delivery for offset, delivery in self.open.items() if offset < end}
        self.next_offset = min(self.next_offset, end)
        self._ahead = deque((first, min(last, end)) for first, last in self._ahead if first < end)

    def settled(self) -> list[tuple[int, int]]:
        """Return the ranges from the committed offset on that are settled."""
        ranges = []
        at = self.committed
        # All messages between two that are in flight are settled.
        for offset in self.open:
            if offset > at:
                ranges.append((at, offset))
            at = offset + 1
        if at < self.next_offset:
            ranges.append((at, self.next_offset))
        return [*ranges, *self._ahead]


IN_FLIGHT_MAX = 200_000
"""Maximum number of messages in flight, in all queues of all groups; 0.5 KiB each."""
OF_QUEUE_MAX = 10_000
"""Maximum number of messages of one queue that a group has in flight."""
STALE_ENTRIES_MIN = 256
"""The heap of times is cleaned when it has more entries than this and more than twice the messages in flight."""


class QueueKey(NamedTuple):
    """One queue as one group sees it. ``topic`` may be a retry topic of the group."""

    group: str
    topic: str
    queue: int


class Offsets(Protocol):
    """The committed offsets of all groups, as ``ConsumerOffsetTable`` keeps them."""

    def committed_of(self, group: str, topic: str, queue: int) -> int | None:
        """Return the group's committed offset of a queue, or None."""

    def commit(self, group: str, topic: str, queue: int, next_offset: int) -> None:
        """Set the group's committed offset of a queue."""


class Expired(NamedTuple):
    """A message whose time is over. ``pop_ms``: when its delivery began."""

    key: QueueKey
    offset: int
    pop_ms: int


class Due(NamedTuple):
    """The messages and queues that are due.

    ``expired``: messages to be stored again, then ``moved``; ``free``: ordered queues that give messages again.
    """

    expired: list[Expired]
    free: list[QueueKey]


class InFlightTable:
    """The queues with messages in flight. ``in_flight_max``: maximum number of messages in flight, in all queues;
    ``forgotten``: called with a queue whose state is forgotten.

    A committed offset that differs from the one that this table stored was set by someone else, such as an operator who
    reset the group: then the group continues there, and receipts of what it had in flight are void.
    """

    def __init__(
        self, offsets: Offsets, in_flight_max: int, forgotten: Callable[[QueueKey], None] = lambda key: None
    ) -> None:
        self._forgotten = forgotten
        self.in_flight_max = in_flight_max
        self.in_flight = 0
        """Number of messages in flight."""
        self.changes = 0
        """Number of changes of what is settled."""
        self._offsets = offsets
        self._queues: dict[QueueKey, QueueInFlight] = {}
        self._ends: list[tuple[int, int, QueueKey, InFlight, Sequence[int]]] = []
        """Heap of (end of time, number of the entry, queue, delivery, its offsets); a delivery of which nothing is left
        is stale."""
        self._ends_added = 0
        self._pop_ms_min = 0

    def __len__(self) -> int:
        return len(self._queues)

    def restore(self, rows: Iterable[tuple[QueueKey, int, Ranges]]) -> None:
        """Take over (queue, committed offset, settled ranges from it on) of an earlier run."""
        for key, committed, settled in rows:
            state = QueueInFlight(committed, settled)
            self._store_committed(key, state)
            if not state.is_idle:
                self._queues[key] = state

    def adopt(self, key: QueueKey, state: QueueInFlight) -> None:
        """Take over the state of a queue from an earlier run, with its messages in flight."""
        self._offsets.commit(*key, state.committed)
        state.stored = state.committed
        if state.is_idle:
            return
        self._queues[key] = state
        self.in_flight += len(state.open)
        offsets: dict[InFlight, list[int]] = {}
        for offset, delivery in state.open.items():
            offsets.setdefault(delivery, []).append(offset)
        for delivery, each in offsets.items():
            delivery.count = len(each)
            self._add_end(delivery, key, each)

    def states(self) -> Iterator[tuple[QueueKey, QueueInFlight]]:
        """Yield each queue whose committed offset does not say everything. Any thread."""
        yield from list(self._queues.items())

    def in_flight_of(self, group: str, topics: Collection[str] = ()) -> int:
        """Return the number of messages that a group has in flight, in ``topics`` if given."""
        return sum(
            len(state.open)
            for key, state in self._queues.items()
            if key.group == group and (not topics or key.topic in topics)
        )

    def in_flight_in(self, key: QueueKey) -> int:
        """Return the number of messages of a queue that a group has in flight."""
        state = self._queues.get(key)
        return len(state.open) if state is not None else 0

    def is_in_flight(self, key: QueueKey, offset: int, pop_ms: int) -> bool:
        """Return whether the receipt is the one of a delivery."""
        state = self._queues.get(key)
        delivery = state.open.get(offset) if state is not None else None
        return delivery is not None and delivery.pop_ms == pop_ms

    def look_at(self, group: str) -> None:
        """Notice that someone else set the group's committed offsets."""
        for key in [key for key in self._queues if key.group == group]:
            self._find(key)

    def _find(self, key: QueueKey) -> QueueInFlight | None:
        """Return the state of a queue, which begins again if its committed offset was set by someone else."""
        state = self._queues.get(key)
        if state is not None and self._offsets.committed_of(*key) != state.stored:
            self.forget(key)
            return None
        return state

    def forget(self, key: QueueKey) -> None:
        """Forget what is in flight in a queue; receipts of it become void."""
        state = self._queues.pop(key, None)
        if state is not None:
            self._void(state)
            self.in_flight -= len(state.open)
            state.clear()
            self.changes += 1
            self._forgotten(key)

    def forget_topic(self, topic: str) -> None:
        for key in [key for key in self._queues if key.topic == topic]:
            self.forget(key)

    def _void(self, state: QueueInFlight) -> None:
        """Let later takes have other times than the deliveries of ``state``, so that no old receipt fits them."""
        newest = max((delivery.pop_ms for delivery in state.open.values()), default=0)
        self._pop_ms_min = max(self._pop_ms_min, newest + 1)

    def takes_all(self, key: QueueKey) -> bool:
        """Return whether the group has begun with a queue, and a take that is not ordered gets every message that it
        finds."""
        state = self._find(key)
        return state.takes_all if state is not None else self._offsets.committed_of(*key) is not None

    def start(self, key: QueueKey) -> int | None:
        """Return the offset at which the next take begins; None if the group has not begun with the queue."""
        state = self._find(key)
        return state.start() if state is not None else self._offsets.committed_of(*key)

    def blocked_until(self, key: QueueKey, take: Take) -> int | None:
        """Return when the queue gives messages again, as ``QueueInFlight.blocked_until`` does."""
        state = self._find(key)
        return state.blocked_until(take) if state is not None else None

    def room(self, key: QueueKey) -> int:
        state = self._queues.get(key)
        of_queue = len(state.open) if state is not None else 0
        if state is not None and state.ordered:
            return self.in_flight_max - self.in_flight + of_queue  # the next take replaces the last one
        return min(OF_QUEUE_MAX - of_queue, self.in_flight_max - self.in_flight)

    def look(self, key: QueueKey, take: Take) -> tuple[int | None, int, bool]:
        """Return what ``start`` and ``room`` do, and whether the queue is blocked, with one look at its state."""
        state = self._find(key)
        if state is None:
            free = min(OF_QUEUE_MAX, self.in_flight_max - self.in_flight)
            return self._offsets.committed_of(*key), free, False
        return state.start(), self.room(key), state.blocked_until(take) is not None

    def pop_ms(self, key: QueueKey, now_ms: int, other: QueueKey | None = None) -> int:
        """Return the time that receipts of a take from the queue name: later than those of every earlier delivery, and
        of those in flight in ``other``, a queue that its receipts do not tell from this one.

        ``look`` comes first, in the same turn of the loop.
        """
        state = self._queues.get(key)
        if state is not None and state.ordered and state.open:
            self._void(state)
        if other is not None and (alike := self._queues.get(other)) is not None:
            self._void(alike)
        return max(now_ms, self._pop_ms_min)

    def take(self, key: QueueKey, start: int, offsets: Iterable[int], end: int, take: Take, pop_ms: int) -> list[int]:
        """Hand out messages as ``QueueInFlight.take`` does. ``start``: what ``start`` returned, still valid."""
        state = self._find(key)
        if state is None:
            state = self._queues[key] = QueueInFlight(start)
            if self._offsets.committed_of(*key) != start:
                self._offsets.commit(*key, start)
        before = len(state.open)
        taken = state.take(offsets, end, take, pop_ms)
        self.in_flight += len(state.open) - before
        if taken:
            self._add_end(state.open[taken[0]], key, taken)
        self._store(key, state)
        return taken

    def counts(self, key: QueueKey) -> dict[int, int]:
        """Return how often each message of the queue's last ordered take had been delivered before."""
        state = self._queues.get(key)
        return state.counts if state is not None else {}

    def settle(self, key: QueueKey, offset: int, pop_ms: int) -> bool:
        return self.settle_all(key, [(offset, pop_ms)])[0]

    def settle_all(self, key: QueueKey, receipts: Sequence[tuple[int, int]]) -> list[bool]:
        """Settle messages of a queue by (offset, pop time); return for each whether the receipt is that of its current
        delivery."""
        state = self._find(key)
        if state is None:
            return [False] * len(receipts)
        valid = state.settle_all(receipts)
        if any(valid):
            self.in_flight -= sum(valid)
            self._store(key, state)
        return valid

    def renew(self, key: QueueKey, offset: int, pop_ms: int, take: Take, *, keep: bool = False) -> InFlight | None:
        state = self._find(key)
        delivery = state.renew(offset, pop_ms, take, keep=keep) if state is not None else None
        if delivery is not None:
            self._add_end(delivery, key, (offset,))
        return delivery

    def is_free(self, key: QueueKey, now_ms: int) -> bool:
        """Return whether an ordered take would get messages of the queue, if there are any."""
        return self.blocked_until(key, Take(now_ms, 0, ordered=True)) is None

    # ---- times that end

    def _add_end(self, delivery: InFlight, key: QueueKey, offsets: Sequence[int]) -> None:
        self._ends_added += 1
        heapq.heappush(self._ends, (delivery.visible_ms, self._ends_added, key, delivery, offsets))
        if len(self._ends) > max(STALE_ENTRIES_MIN, 2 * self.in_flight):
            self._ends = [entry for entry in self._ends if entry[3].count]
            heapq.heapify(self._ends)

    def next_end_ms(self) -> int | None:
        """Return when the next time ends, at the earliest."""
        return self._ends[0][0] if self._ends else None

    def due(self, now_ms: int, count: int) -> Due:
        """Return messages whose time is over, at most ``count``; those to be stored again are moving from now on."""
        expired: list[Expired] = []
        free: dict[QueueKey, None] = {}
        while self._ends and self._ends[0][0] <= now_ms and len(expired) + len(free) < count:
            visible_ms, number, key, delivery, offsets = heapq.heappop(self._ends)
            state = self._find(key)
            if state is None or not delivery.count:
                continue
            left = [offset for offset in offsets if state.open.get(offset) is delivery]
            if state.ordered:
                if left and self.is_free(key, now_ms):
                    free[key] = None
                continue
            room = count - len(expired) - len(free)
            for offset in left[:room]:
                state.begin_move(offset)
                expired.append(Expired(key, offset, delivery.pop_ms))
            if left[room:]:
                heapq.heappush(self._ends, (visible_ms, number, key, delivery, left[room:]))
        return Due(expired, list(free))

    def begin_return(self, key: QueueKey, offset: int, pop_ms: int) -> InFlight | None:
        state = self._find(key)
        return state.begin_return(offset, pop_ms) if state is not None else None

    def moved(self, key: QueueKey, offset: int) -> None:
        """Settle a message that has been stored again."""
        state = self._find(key)
        if state is not None and offset in state.open:
            state.moved(offset)
            self.in_flight -= offset not in state.open
            self._store(key, state)

    def keep(self, key: QueueKey, offset: int, visible_ms: int) -> None:
        """Let a message move at ``visible_ms`` that could not be stored again."""
        state = self._find(key)
        if state is not None and state.keep(offset, visible_ms):
            self._add_end(state.open[offset], key, (offset,))

    # ---- what is on disk

    def _store(self, key: QueueKey, state: QueueInFlight) -> None:
        self.changes += 1
        self._store_committed(key, state)
        if state.is_idle:
            del self._queues[key]

    def _store_committed(self, key: QueueKey, state: QueueInFlight) -> None:
        committed = state.committed
        if committed != state.stored:
            self._offsets.commit(*key, committed)
            state.stored = committed

    def settled(self) -> Iterator[tuple[QueueKey, int, list[tuple[int, int]]]]:
        """Yield (queue, committed offset, settled ranges from it on) of each queue that has settled ones."""
        for key, state in self._queues.items():
            if ranges := state.settled():
                yield key, state.committed, ranges


# ---- The journal of popped messages: the entry for each change, and the state that the entries add up to.
#
# Ordered queues are left out, because their consumers begin again at the committed offset.

QUEUE, TAKEN, SETTLED, RENEWED, FORGOTTEN = "q", "t", "s", "r", "f"


def runs_of(offsets: Sequence[int]) -> list[list[int]]:
    """Return ascending offsets as half-open ranges."""
    if offsets and offsets[-1] - offsets[0] == len(offsets) - 1:  # as nearly always after a take
        return [[offsets[0], offsets[-1] + 1]]
    runs: list[list[int]] = []
    for offset in offsets:
        if runs and runs[-1][1] == offset:
            runs[-1][1] = offset + 1
        else:
            runs.append([offset, offset + 1])
    return runs


def taken(key: QueueKey, start: int, end: int, offsets: Sequence[int], take: Take, pop_ms: int) -> PopEntry:
    """Return the entry for a take, as ``InFlightTable.take`` did it."""
    # The queue's state from before the ordered take must not come back at a start.
    if take.ordered:
        return forgotten(key)
    return [TAKEN, *key, start, end, runs_of(offsets), pop_ms, pop_ms + take.invisible_ms]


def settled(key: QueueKey, offsets: Sequence[int]) -> PopEntry:
    return [SETTLED, *key, runs_of(offsets)]


def renewed(key: QueueKey, offset: int, delivery: InFlight) -> PopEntry:
    """Return the entry for a message whose time now ends later or sooner."""
    return [RENEWED, *key, offset, delivery.pop_ms, delivery.visible_ms]


def forgotten(key: QueueKey) -> PopEntry:
    """Return the entry that makes a queue's state void."""
    return [FORGOTTEN, *key]


def everything(table: InFlightTable, touched: Iterable[tuple[QueueKey, int]]) -> Iterator[PopEntry]:
    """Yield entries for the state of all queues. ``touched``: the queues that changed since the journal began, with
    their committed offsets, because the file of committed offsets may be older."""
    for key, committed in touched:
        yield [QUEUE, *key, committed, [], []]
    for key, state in table.states():
        if not state.ordered:
            yield [QUEUE, *key, state.committed, state.settled(), list(_leases(state))]


def _leases(state: QueueInFlight) -> Iterator[list[int]]:
    """Yield runs of messages in flight with equal times: first offset, end offset, pop time, end of their time."""
    run: list[int] = []
    for offset, delivery in state.open.items():
        if run and run[1:] == [offset, delivery.pop_ms, delivery.visible_ms]:
            run[1] += 1
            continue
        if run:
            yield run
        run = [offset, offset + 1, delivery.pop_ms, delivery.visible_ms]
    if run:
        yield run


def replayed(entries: Iterable[PopEntry]) -> dict[QueueKey, QueueInFlight]:
    """Return the state of each queue after all changes. Raises ``ValueError`` or ``TypeError`` for other entries."""
    states: dict[QueueKey, QueueInFlight] = {}
    for kind, group, topic, queue, *content in entries:
        key = QueueKey(group, topic, queue)
        if kind == QUEUE:
            states[key] = _restored(*content)
        elif kind == TAKEN:
            start, end, runs, pop_ms, visible_ms = content
            state = states.get(key)
            # The offset was set by someone else in between. The take itself says where the queue stood.
            if state is None or state.start() != start:
                state = states[key] = QueueInFlight(start)
            state.take(_each(runs), end, Take(pop_ms, visible_ms - pop_ms), pop_ms)
        elif kind == FORGOTTEN:
            states.pop(key, None)
        elif (state := states.get(key)) is None:
            continue
        elif kind == SETTLED:
            # Without a receipt: it was compared before the entry was written.
            for offset in _each(content[0]):
                state.open.pop(offset, None)
        elif kind == RENEWED and content[0] in state.open:
            state.open[content[0]] = InFlight(content[1], content[2])
    return states


def _each(runs: Ranges) -> Iterator[int]:
    for first, end in runs:
        yield from range(first, end)


def _restored(committed: int, ranges: Ranges, leases: Iterable[Sequence[int]]) -> QueueInFlight:
    """Return the state in an entry of ``everything``."""
    # Ascending, as ``open`` must be.
    in_flight = sorted(
        (offset, pop_ms, visible_ms) for first, end, pop_ms, visible_ms in leases for offset in range(first, end)
    )
    if not in_flight:
        return QueueInFlight(committed, ranges)

    # Below the last message in flight, everything that is not in ``open`` is settled; only ranges beyond it say more.
    end = in_flight[-1][0] + 1
    state = QueueInFlight(committed, [(max(first, end), last) for first, last in ranges if last > end])
    state.open = {offset: InFlight(pop_ms, visible_ms) for offset, pop_ms, visible_ms in in_flight}
    state.pass_over(end)
    return state
