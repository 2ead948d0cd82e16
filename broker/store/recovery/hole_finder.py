"""Search for the end of damage in the CommitLog: the next record that is sound and in its place.

The finder tries, in this order: the end that the damaged record itself states, if the log continues there; the lowest
ConsumeQueue unit after it that points at a sound record of its queue, or an earlier record, without a unit, that a byte
search finds; then the byte search alone.

A body may contain bytes that look like records. Bytes inside a record that a unit points at are therefore never taken
for one, and a record found by the search must begin a chain: record after record, with ascending offsets in each queue,
never across a position that a unit points at, up to the furthest possible end of the hole or for longer than any
message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ....protocol.storage.layout import MAGIC_V1, MAGIC_V2, RECORD, RECORD_BYTES_MIN, SysFlag
from ...kernels import dispatch as kernel
from ..damage.tombstones import HOLE_BYTES_MIN
from ..queue.queue_check import RECORD_BYTES_MAX, count_units, is_filling, read_units

if TYPE_CHECKING:
    from ..files.mapped_file import MappedFile
    from ..log.commitlog import CommitLog
    from ..queue.consume_queue import ConsumeQueue

WINDOW_BYTES = 8 * 1024 * 1024
"""Bytes of the log whose units are looked up in the queues together."""
FORGERY_BYTES_MAX = 4 * 1024 * 1024 + 256 * 1024
"""Maximum length of a forged chain: no record of RocketMQ or FlintMQ is larger, so no body can contain more."""
CHAIN_RECORDS_MAX = 65_536
"""Number of records after which a chain counts as real."""


RecordIsSound = Callable[[int, int, bytes, int, int], bool]
"""Predicate: is there a sound record at a physical offset with this size, topic, queue and queue offset?"""


@dataclass(frozen=True, slots=True)
class Hole:
    """A range of the log without a sound record.

    ``reason``: what is wrong at its beginning; ``store_ms``: store time of the last record before it, 0 if none was
    read.
    """

    begin: int
    end: int
    reason: str
    store_ms: int


class KnownRecord(NamedTuple):
    """A record as its ConsumeQueue unit describes it."""

    physical_offset: int
    size: int
    queue: ConsumeQueue
    queue_offset: int


class UnitEvidence:
    """The records of a range of the log according to the units of queues. ``queues``: returns the usable queues."""

    def __init__(self, queues: Callable[[], Iterable[ConsumeQueue]]) -> None:
        self.queues = queues
        self._begin = self._end = 0
        self._window: list[KnownRecord] = []

    def between(self, begin: int, end: int) -> list[KnownRecord]:
        """Return the records that begin in ``[begin, end)``, by physical offset."""
        if begin < self._begin or end > self._end:
            self._begin, self._end = begin, max(end, begin + WINDOW_BYTES)
            self._window = sorted(
                (each for queue in self.queues() for each in self.of_queue(queue, self._begin, self._end)),
                key=lambda each: each.physical_offset,
            )
        return [each for each in self._window if begin <= each.physical_offset < end]

    @staticmethod
    def of_queue(queue: ConsumeQueue, begin: int, end: int) -> list[KnownRecord]:
        """Return the records of one queue that begin in ``[begin, end)``, by queue offset."""
        first, behind = count_units(queue, begin), count_units(queue, end)
        if not 0 < behind - first <= (end - begin) // RECORD_BYTES_MIN + 1:
            return []
        units = read_units(queue, first, behind - first)
        offsets, sizes = units["physical_offset"], units["size"]
        can_be = ~is_filling(units) & (offsets >= begin) & (offsets < end)
        can_be &= (sizes >= RECORD_BYTES_MIN) & (sizes <= RECORD_BYTES_MAX)
        return [
            KnownRecord(int(offsets[number]), int(sizes[number]), queue, first + number)
            for number in np.flatnonzero(can_be).tolist()
        ]


class HoleFinder:
    """Finds the ends of holes. Changes nothing."""

    def __init__(self, commitlog: CommitLog, evidence: UnitEvidence, record_is_sound: RecordIsSound) -> None:
        self._files = commitlog.queue
        self._evidence = evidence
        self._record_is_sound = record_is_sound
        self._parts = np.zeros(kernel.PARTS, np.int64)

    def end_of(self, begin: int, limit: int, store_ms: int) -> int:
        """Return the end of the hole at ``begin``, at most ``limit``, which must be in the same file.

        ``store_ms``: the store time of the last record before it.
        """
        file = self._files.find(begin)
        assert file is not None
        known = self._lowest_sound_unit(begin, limit)
        own = self._end_by_itself(file, begin, limit, store_ms)
        if own is not None and (known is None or own <= known) and not self._is_inside(begin, own):
            return own
        return self._search(file, begin, limit, store_ms, known)

    def _end_by_itself(self, file: MappedFile, begin: int, limit: int, store_ms: int) -> int | None:
        """Return the end that the damaged record states, if the log continues or ends there; otherwise None."""
        array, position = file.array(), begin - file.start_offset
        head = array[position : position + 8].tobytes()
        size, magic = int.from_bytes(head[:4], "big", signed=True), int.from_bytes(head[4:], "big", signed=True)
        end = begin + size
        if size < HOLE_BYTES_MIN or end > limit:
            return None
        if end == limit and magic in (MAGIC_V1, MAGIC_V2):
            return end
        return end if self._goes_on(file, end, store_ms) else None

    def _goes_on(self, file: MappedFile, at: int, store_ms: int) -> bool:
        """Return whether a sound record or the file's blank begins at ``at``."""
        array, position = file.array(), at - file.start_offset
        status = kernel.locate(array, position, len(array), at, self._parts)
        if status == kernel.DONE:
            return bool(self._parts[kernel.R_STORE_MS] >= store_ms)
        return status == kernel.BLANK and _ends_file(array, position)

    def _lowest_sound_unit(self, begin: int, limit: int) -> int | None:
        at, width = begin + HOLE_BYTES_MIN, WINDOW_BYTES // 8
        while at < limit:
            for each in self._evidence.between(at, min(at + width, limit)):
                name = each.queue.topic.encode()
                place = (each.physical_offset, each.size, name, each.queue.queue_id, each.queue_offset)
                if self._record_is_sound(*place):
                    return each.physical_offset
            at, width = at + width, 4 * width
        return None

    def _is_inside(self, begin: int, physical_offset: int) -> bool:
        """Return whether the position is strictly inside a record that a unit points at and that begins in the hole."""
        return any(
            each.physical_offset < physical_offset < each.physical_offset + each.size
            for each in self._evidence.between(begin, physical_offset)
        )

    # Search.

    def _search(self, file: MappedFile, begin: int, limit: int, store_ms: int, known: int | None) -> int:
        """Return the first sound record after ``begin``: ``known``, which a unit points at, or an earlier one.

        Earlier records may have no unit left, for example because a queue was lost too.
        """
        from ...kernels import search  # imported only here, so that a start without damage need not compile it

        # If a unit points at the damaged record itself, it tells the record's size: nothing inside of it is a record.
        extents = {each.physical_offset: each.size for each in self._evidence.between(begin, begin + 1)}
        last = limit if known is None else known
        array, base, end = file.array(), file.start_offset, last - file.start_offset
        position = begin - base + max(HOLE_BYTES_MIN, extents.get(begin, 0))
        while position < end:
            position = search.find_record(array, position, end, base, store_ms, self._parts)
            if position >= end:
                break
            if self._is_inside(begin, base + position):
                position += 1
                continue
            forged_up_to = self._forged_up_to(file, begin, base + position, limit, last)
            if forged_up_to < 0:
                return base + position
            position = forged_up_to + 1 - base
        return last

    def _forged_up_to(self, file: MappedFile, begin: int, candidate: int, limit: int, border: int) -> int:
        """Return the last record of the chain from ``candidate`` that cannot be a real one; -1 if all can.

        ``border``: a position where a record begins or the log ends; a chain that crosses it is not real.

        A body can contain a chain of records, even one that ends exactly at the end of its own record, so that the log
        continues after it. But a forged message has the queue offset of a later, real message; and a chain that breaks
        off may be entirely in one body.
        """
        array, forged, at, count = file.array(), -1, candidate, 0
        seen: dict[tuple[bytes, int], tuple[int, int]] = {}
        while at < limit and at - begin <= FORGERY_BYTES_MAX and count < CHAIN_RECORDS_MAX:
            position = at - file.start_offset
            status = kernel.locate(array, position, len(array), at, self._parts)
            if status == kernel.BLANK and _ends_file(array, position):
                break
            if status != kernel.DONE:
                return at - 1
            head = RECORD.unpack(array.data, position)
            name = array[self._parts[kernel.R_TOPIC_AT] : self._parts[kernel.R_TOPIC_END]].tobytes()
            queue, queue_offset = (name, head.queue_id), head.queue_offset
            transaction = head.sys_flag & SysFlag.TRANSACTION_MASK
            if transaction not in (SysFlag.TRANSACTION_PREPARED, SysFlag.TRANSACTION_ROLLBACK):
                before = seen.get(queue) or (self._last_offset(queue, begin), at)
                if queue_offset <= before[0]:
                    forged = max(forged, before[1])
                seen[queue] = (queue_offset, at)
            if at < border < at + head.total_size:
                return at
            at += head.total_size
            count += 1
        return forged

    def _last_offset(self, queue: tuple[bytes, int], below: int) -> int:
        """Return the last queue offset of the queue below a physical offset from its units; -1 if it has none."""
        for known in self._evidence.queues():
            if (known.topic.encode(), known.queue_id) == queue:
                return count_units(known, below) - 1
        return -1


def _ends_file(array: np.ndarray, position: int) -> bool:
    """Return whether a blank at ``position`` covers the rest of the file and is no longer than the longest message."""
    size = int.from_bytes(array[position : position + 4].tobytes(), "big")
    return size == len(array) - position and size <= FORGERY_BYTES_MAX


__all__ = ["Hole", "HoleFinder", "KnownRecord", "RecordIsSound", "UnitEvidence"]
