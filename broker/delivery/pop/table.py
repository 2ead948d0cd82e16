"""The messages in flight of all groups and queues: bounds, committed offsets, and the order in which times end.

Without I/O and without a clock: callers pass the time, and the table of committed offsets.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

from .in_flight import QueueInFlight, Take

if TYPE_CHECKING:
    from .in_flight import InFlight, Ranges

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
        self._ends: list[tuple[int, QueueKey, int]] = []
        """Heap of (end of time, queue, offset); entries of settled and renewed messages are stale."""
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
        for offset, delivery in state.open.items():
            self._add_end(delivery, key, offset)

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
            self.changes += 1
            self._forgotten(key)

    def forget_topic(self, topic: str) -> None:
        """Forget what is in flight in a deleted topic."""
        for key in [key for key in self._queues if key.topic == topic]:
            self.forget(key)

    def _void(self, state: QueueInFlight) -> None:
        """Let later takes have other times than the deliveries of ``state``, so that no old receipt fits them."""
        newest = max((delivery.pop_ms for delivery in state.open.values()), default=0)
        self._pop_ms_min = max(self._pop_ms_min, newest + 1)

    def start(self, key: QueueKey) -> int | None:
        """Return the offset at which the next take begins; None if the group has not begun with the queue."""
        state = self._find(key)
        return state.start() if state is not None else self._offsets.committed_of(*key)

    def blocked_until(self, key: QueueKey, take: Take) -> int | None:
        """Return when the queue gives messages again, as ``QueueInFlight.blocked_until`` does."""
        state = self._find(key)
        return state.blocked_until(take) if state is not None else None

    def room(self, key: QueueKey) -> int:
        """Return how many more messages of the queue the group may have in flight."""
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
        for offset in taken:
            self._add_end(state.open[offset], key, offset)
        self._store(key, state)
        return taken

    def counts(self, key: QueueKey) -> dict[int, int]:
        """Return how often each message of the queue's last ordered take had been delivered before."""
        state = self._queues.get(key)
        return state.counts if state is not None else {}

    def settle(self, key: QueueKey, offset: int, pop_ms: int) -> bool:
        """Settle a message as ``QueueInFlight.settle`` does."""
        state = self._find(key)
        if state is None or not state.settle(offset, pop_ms):
            return False
        self.in_flight -= 1
        self._store(key, state)
        return True

    def renew(self, key: QueueKey, offset: int, pop_ms: int, take: Take, *, keep: bool = False) -> InFlight | None:
        """Give a message new time as ``QueueInFlight.renew`` does."""
        state = self._find(key)
        delivery = state.renew(offset, pop_ms, take, keep=keep) if state is not None else None
        if delivery is not None:
            self._add_end(delivery, key, offset)
        return delivery

    def is_free(self, key: QueueKey, now_ms: int) -> bool:
        """Return whether an ordered take would get messages of the queue, if there are any."""
        return self.blocked_until(key, Take(now_ms, 0, ordered=True)) is None

    # ---- times that end

    def _add_end(self, delivery: InFlight, key: QueueKey, offset: int) -> None:
        heapq.heappush(self._ends, (delivery.visible_ms, key, offset))
        if len(self._ends) > max(STALE_ENTRIES_MIN, 2 * self.in_flight):
            self._ends = [entry for entry in self._ends if self._is_current(*entry)]
            heapq.heapify(self._ends)

    def _is_current(self, visible_ms: int, key: QueueKey, offset: int) -> bool:
        state = self._queues.get(key)
        delivery = state.open.get(offset) if state is not None else None
        return delivery is not None and delivery.visible_ms == visible_ms and not delivery.moving

    def next_end_ms(self) -> int | None:
        """Return when the next time ends, at the earliest."""
        return self._ends[0][0] if self._ends else None

    def due(self, now_ms: int, count: int) -> Due:
        """Return messages whose time is over, at most ``count``; those to be stored again are moving from now on."""
        expired: list[Expired] = []
        free: dict[QueueKey, None] = {}
        while self._ends and self._ends[0][0] <= now_ms and len(expired) + len(free) < count:
            visible_ms, key, offset = heapq.heappop(self._ends)
            state = self._find(key)
            if state is None or not self._is_current(visible_ms, key, offset):
                continue
            if state.ordered:
                if self.is_free(key, now_ms):
                    free[key] = None
            elif state.begin_move(offset, visible_ms):
                expired.append(Expired(key, offset, state.open[offset].pop_ms))
        return Due(expired, list(free))

    def begin_return(self, key: QueueKey, offset: int, pop_ms: int) -> InFlight | None:
        """Let a message move as ``QueueInFlight.begin_return`` does."""
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
            self._add_end(state.open[offset], key, offset)

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
