"""Which messages lay in a hole of the CommitLog: those whose ConsumeQueue units point into it, and those that are
missing between the records around it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ....protocol.storage.layout import PRE_BLANK_SIZE, UNIT_BYTES
from ..damage.tombstones import LostRange
from ..dispatch.dispatcher import GAP_MAX, Dispatcher
from ..log.commitlog import CommitLog
from ..queue.consume_queue import ConsumeQueue
from ..queue.queue_check import count_units
from ..queue.queue_table import ConsumeQueueTable
from .derived_check import derive
from .hole_finder import Hole, KnownRecord, RecordIsSound, UnitEvidence


class LostMessages:
    """``holes``: all that there are between ``dispatched``, below which every record has its unit, and the log's
    ``end``, and others before. ``begins_at(topic, queue)``: the queue offset of a queue's first message, where no unit
    says. Changes nothing but the table of queues, in memory."""

    def __init__(
        self, commitlog: CommitLog, queues: ConsumeQueueTable, dispatcher: Dispatcher, evidence: UnitEvidence,
        record_is_sound: RecordIsSound, begins_at: Callable[[str, int], int], holes: Iterable[Hole],
        dispatched: int, end: int,
    ) -> None:  # fmt: skip
        self._record_is_sound = record_is_sound
        self._begins_at = begins_at
        self._commitlog = commitlog
        self._queues = queues
        self._dispatcher = dispatcher
        self._evidence = evidence
        self._holes = sorted(holes, key=lambda hole: hole.begin)
        self._dispatched = dispatched
        self._end = end
        self._next: dict[tuple[str, int], int] = {}
        """The queue offset that comes next, by queue, at the point of the log that was reached."""

    def find(self) -> list[list[LostRange]]:
        """The messages of each hole, in the order of the holes. In each come the queues first whose units name them,
        for what is merely missing may have been elsewhere; of a queue the oldest message is first."""
        if not self._holes:
            return []
        by_units = [self._by_units(hole) for hole in self._holes]
        begin = max(self._dispatched, self._commitlog.start_offset)
        if any(not lost and hole.begin < begin for hole, lost in zip(self._holes, by_units, strict=True)):
            begin = self._commitlog.start_offset  # it may be that its units are damaged too: what is missing says it
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
        """The queue offsets of units that point into a hole, and of damaged ones between them: a queue's messages lie
        in the log in its order."""
        pointing = {each.queue_offset for each in known}
        return [
            queue_offset
            for queue_offset in range(known[0].queue_offset, known[-1].queue_offset + 1)
            if queue_offset in pointing or not _is_filling(*queue.unit(queue_offset, hot=False)[:2])
        ]

    def _is_right(self, queue: ConsumeQueue, *beside: int) -> bool:
        """Whether the units beside those that point into a hole are right, if the log still has their records: a queue
        that is damaged too must not take other messages for lost."""
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
        """(first queue offset, the one behind the last) of every queue with a record in ``[begin, end)``."""
        spans: dict[tuple[str, int], tuple[int, int]] = {}
        # A record whose topic or queue offset cannot be one is contained later, when it is compared or dispatched.
        for derived in derive(self._commitlog, self._queues, self._dispatcher, begin, end, set(), []):
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
        """What is missing in front of the records that follow the hole."""
        ranges = []
        for (topic, queue), (first, _) in behind.items():
            known = self._next.get((topic, queue), -1)
            if known < 0 and self._commitlog.start_offset == 0:
                known = self._begins_at(topic, queue)
            if 0 <= known < first <= known + GAP_MAX:
                ranges.append(LostRange(topic, queue, known, first - known))
        return ranges


def _is_filling(physical_offset: int, size: int) -> bool:
    """Whether a unit stands for no message: what was there before the queue began, or a gap."""
    return size == PRE_BLANK_SIZE and physical_offset == 0


def _joined(by_units: Sequence[LostRange], by_gaps: Sequence[LostRange]) -> list[LostRange]:
    """The ranges by queue, those that touch or overlap as one."""
    joined: list[LostRange] = []
    for each in sorted([*by_units, *by_gaps]):
        last = joined[-1] if joined else None
        if last is not None and last[:2] == each[:2] and each.first <= last.first + last.messages:
            end = max(last.first + last.messages, each.first + each.messages)
            joined[-1] = last._replace(messages=end - last.first)
        else:
            joined.append(each)
    return joined
