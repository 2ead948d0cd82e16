"""The journal of popped messages: the entry for each change, and the state that the entries add up to.

Ordered queues are left out, because their consumers begin again at the committed offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from .in_flight import InFlight, QueueInFlight, Take
from .table import QueueKey

if TYPE_CHECKING:
    from ...store import PopEntry
    from .in_flight import Ranges
    from .table import InFlightTable

QUEUE, TAKEN, SETTLED, RENEWED, FORGOTTEN = "q", "t", "s", "r", "f"


def runs_of(offsets: Iterable[int]) -> list[list[int]]:
    """Return ascending offsets as half-open ranges."""
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


def settled(key: QueueKey, offsets: Iterable[int]) -> PopEntry:
    """Return the entry for settled messages."""
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
