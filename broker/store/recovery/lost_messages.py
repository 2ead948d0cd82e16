"""Search for the messages that were lost in a hole of the CommitLog.

These are the messages whose ConsumeQueue units point into it, and those missing between the records around it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ....protocol.storage.layout import PRE_BLANK_SIZE, UNIT_BYTES
from ..damage.tombstones import LostRange
from ..dispatch.dispatcher import GAP_MAX
from ..queue.queue_check import count_units
from .derived_check import derive

if TYPE_CHECKING:
    from ..queue.consume_queue import ConsumeQueue
    from .hole_finder import Hole, KnownRecord, RecordIsSound, UnitEvidence
    from .loaded_store import LoadedStore


class LostMessages:
    """Finds the messages that were lost in ``holes``. Changes only the table of queues in memory.

    ``holes`` must include all holes between ``dispatched``, below which every record has its unit, and ``end``, the end
    of the log; it may include earlier ones.
    """

    def __init__(
        self,
        store: LoadedStore,
        evidence: UnitEvidence,
        record_is_sound: RecordIsSound,
        holes: Iterable[Hole],
        dispatched: int,
        end: int,
    ) -> None:
        self._store = store
        self._commitlog = store.commitlog
        self._queues = store.queues
        self._state = store.state
        self._record_is_sound = record_is_sound
        self._evidence = evidence
        self._holes = sorted(holes, key=lambda hole: hole.begin)
        self._dispatched = dispatched
        self._end = end
        self._next: dict[tuple[str, int], int] = {}
        """Next queue offset of each queue at the current position in the log."""

    def find(self) -> list[list[LostRange]]:
        """Return the lost messages of each hole, by physical offset of the holes.

        Each list begins with the queues whose units point into the hole, because messages that are merely missing may
        have been elsewhere; the messages of a queue are in ascending order.
        """
        if not self._holes:
            return []
        by_units = [self._by_units(hole) for hole in self._holes]
        begin = max(self._dispatched, self._commitlog.start_offset)
        if any(not lost and hole.begin < begin for hole, lost in zip(self._holes, by_units, strict=True)):
            # The units of this hole may be damaged too. Only the gaps between records show its messages then, and
            # these must be counted from the beginning of the log.
            begin = self._commitlog.start_offset
        for queue in self._evidence.queues():
            count = count_units(queue, begin)
            if count:
                self._next[queue.topic, queue.queue_id] = count
        found, at = [], begin
        for number, hole in enumerate(self._holes):
            lost = by_units[number]
            if hole.end > begin:
                self._move_on(self._spans(at, hole.begin))
                self._move_on({(each.topic, each.queue): (each.first, each.first + each.messages) for each in lost})
                at = max(hole.end, begin)
                following = self._holes[number + 1].begin if number + 1 < len(self._holes) else self._end
                named = {(each.topic, each.queue) for each in lost}
                lost = _joined(lost, self._by_gaps(self._spans(at, following)))
                lost.sort(key=lambda each: ((each.topic, each.queue) not in named, each))
            found.append(lost)
        return found

    def _by_units(self, hole: Hole) -> list[LostRange]:
        ranges: list[LostRange] = []
        for queue in self._evidence.queues():
            known = self._evidence.of_queue(queue, hole.begin, hole.end)
            if known and self._is_right(queue, known[0].queue_offset - 1, known[-1].queue_offset + 1):
                ranges += [LostRange(queue.topic, queue.queue_id, at, 1) for at in self._from_to(queue, known)]
        return _joined(ranges, [])

    def _from_to(self, queue: ConsumeQueue, known: Sequence[KnownRecord]) -> list[int]:
        """Return the queue offsets of the units that point into a hole, and of damaged units between them.

        The damaged ones count because the log has a queue's messages in the order of their queue offsets.
        """
        pointing = {each.queue_offset for each in known}
        return [
            queue_offset
            for queue_offset in range(known[0].queue_offset, known[-1].queue_offset + 1)
            if queue_offset in pointing or not _is_filling(*queue.unit(queue_offset, hot=False)[:2])
        ]

    def _is_right(self, queue: ConsumeQueue, *beside: int) -> bool:
        """Return whether the units beside those that point into a hole are right, if the log still has their records.

        Without this check, a queue that is damaged too would report messages as lost that are not.
        """
        for queue_offset in beside:
            physical_offset, size, _ = queue.unit(queue_offset, hot=False) if queue_offset >= 0 else (0, 0, 0)
            if (
                size <= 0
                or _is_filling(physical_offset, size)
                or not self._commitlog.start_offset <= physical_offset < self._end
            ):
                continue
            if any(hole.begin <= physical_offset < hole.end for hole in self._holes):
                continue
            place = (physical_offset, size, queue.topic.encode(), queue.queue_id, queue_offset)
            if not self._record_is_sound(*place):
                return False
        return True

    def _spans(self, begin: int, end: int) -> dict[tuple[str, int], tuple[int, int]]:
        """Return (first queue offset, end) of every queue with a record in ``[begin, end)``."""
        spans: dict[tuple[str, int], tuple[int, int]] = {}
        # Records with an impossible topic or queue offset are ignored here: they are contained later, when they are
        # compared or dispatched.
        for derived in derive(self._store, begin, end, set(), []):
            for row, first, units in derived.units:
                queue = self._queues.rows[row]
                name = queue.topic, queue.queue_id
                behind = first + len(units) // UNIT_BYTES
                spans[name] = (spans[name][0] if name in spans else first, behind)
        return spans

    def _move_on(self, spans: dict[tuple[str, int], tuple[int, int]]) -> None:
        for name, (_, behind) in spans.items():
            self._next[name] = max(self._next.get(name, 0), behind)

    def _by_gaps(self, behind: dict[tuple[str, int], tuple[int, int]]) -> list[LostRange]:
        """Return the messages that are missing before the records that follow the hole."""
        ranges = []
        for (topic, queue), (first, _) in behind.items():
            known = self._next.get((topic, queue), -1)
            if known < 0 and self._commitlog.start_offset == 0:
                known = self._first_queue_offset(topic, queue)
            if 0 <= known < first <= known + GAP_MAX:
                ranges.append(LostRange(topic, queue, known, first - known))
        return ranges

    def _first_queue_offset(self, topic: str, queue_id: int) -> int:
        """Return a queue's first offset: the one after those that it had before its topic was deleted."""
        deleted = self._state.deleted.get(topic)
        return deleted.next_offsets.get(queue_id, 0) if deleted is not None else 0


def _is_filling(physical_offset: int, size: int) -> bool:
    """Return whether a unit has no message: it fills the space before the queue's beginning, or a gap."""
    return size == PRE_BLANK_SIZE and physical_offset == 0


def _joined(by_units: Sequence[LostRange], by_gaps: Sequence[LostRange]) -> list[LostRange]:
    """Return the ranges by queue, with those that touch or overlap joined."""
    joined: list[LostRange] = []
    for each in sorted([*by_units, *by_gaps]):
        last = joined[-1] if joined else None
        if last is not None and last[:2] == each[:2] and each.first <= last.first + last.messages:
            end = max(last.first + last.messages, each.first + each.messages)
            joined[-1] = last._replace(messages=end - last.first)
        else:
            joined.append(each)
    return joined
