"""Where damage of the CommitLog ends: the next record that is sound and in its place.

In this order: where the damaged record itself says that it ends, if the log goes on there; where the lowest
ConsumeQueue unit behind it points, if a record of that queue is there, or at a record in front of that which a search
finds, because its own unit is lost; else by a search through the bytes. A body may hold what looks like records, so
whatever lies inside of a record that a unit knows is none, and what a search finds must go on: record after record,
each queue's offsets rising, never over the place that a unit points at, up to where the hole may reach at most, or for
longer than any message is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ....protocol.storage.layout import MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN, RECORD_STRUCT, SysFlag
from ...kernels import dispatch as kernel
from ..damage.tombstones import HOLE_BYTES_MIN
from ..files.mapped_file import MappedFile
from ..log.commitlog import CommitLog
from ..queue.consume_queue import ConsumeQueue
from ..queue.queue_check import RECORD_BYTES_MAX, count_units, is_filling, read_units

WINDOW_BYTES = 8 * 1024 * 1024
FORGERY_BYTES_MAX = 4 * 1024 * 1024 + 256 * 1024
"""No record of RocketMQ's or FlintMQ's is larger, so what a body can forge reaches no further than this."""
CHAIN_RECORDS_MAX = 65_536


RecordIsSound = Callable[[int, int, bytes, int, int], bool]
"""Whether a record lies at a physical offset with this size, topic, queue and queue offset, and is sound."""


@dataclass(frozen=True, slots=True)
class Hole:
    """A stretch of the log without a sound record. ``reason``: what is wrong at its beginning; ``store_ms``: store time
    of the last record in front of it, 0 where none was looked at."""

    begin: int
    end: int
    reason: str
    store_ms: int


class KnownRecord(NamedTuple):
    """A record as a ConsumeQueue unit speaks of it."""

    physical_offset: int
    size: int
    queue: ConsumeQueue
    queue_offset: int


class UnitEvidence:
    """What the units of queues say of a stretch of the log. ``queues``: gives those whose files can be used."""

    def __init__(self, queues: Callable[[], Iterable[ConsumeQueue]]) -> None:
        self.queues = queues
        self._begin = self._end = 0
        self._window: list[KnownRecord] = []

    def between(self, begin: int, end: int) -> list[KnownRecord]:
        """The records that begin in ``[begin, end)``, by physical offset."""
        if begin < self._begin or end > self._end:
            self._begin, self._end = begin, max(end, begin + WINDOW_BYTES)
            self._window = sorted(
                (each for queue in self.queues() for each in self.of_queue(queue, self._begin, self._end)),
                key=lambda each: each.physical_offset,
            )
        return [each for each in self._window if begin <= each.physical_offset < end]

    @staticmethod
    def of_queue(queue: ConsumeQueue, begin: int, end: int) -> list[KnownRecord]:
        """The same of one queue, in its order."""
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
    """Finds ends of holes; changes nothing."""

    def __init__(self, commitlog: CommitLog, evidence: UnitEvidence, record_is_sound: RecordIsSound) -> None:
        self._files = commitlog.queue
        self._evidence = evidence
        self._record_is_sound = record_is_sound
        self._parts = np.zeros(kernel.PARTS, np.int64)

    def end_of(self, begin: int, limit: int, store_ms: int) -> int:
        """Where the hole at ``begin`` ends: at ``limit`` at the latest, which lies in the same file.

        ``store_ms``: the store time of the last record in front of it.
        """
        file = self._files.find(begin)
        assert file is not None
        known = self._lowest_sound_unit(begin, limit)
        own = self._end_by_itself(file, begin, limit, store_ms)
        if own is not None and (known is None or own <= known) and not self._is_inside(begin, own):
            return own
        return self._search(file, begin, limit, store_ms, known)

    def _end_by_itself(self, file: MappedFile, begin: int, limit: int, store_ms: int) -> int | None:
        """Where the damaged record says it ends, if the log goes on, or ends, there."""
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
        """Whether a sound record or the file's blank record begins at ``at``."""
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
        """Whether the place lies strictly inside of a record that a unit knows of, which begins in the hole."""
        return any(
            each.physical_offset < physical_offset < each.physical_offset + each.size
            for each in self._evidence.between(begin, physical_offset)
        )

    # Search.

    def _search(self, file: MappedFile, begin: int, limit: int, store_ms: int, known: int | None) -> int:
        """The first sound record behind ``begin``: ``known``, which a unit points at, or one in front of it. Of the
        records between them no unit is left, as where a queue was lost too."""
        from ...kernels import search  # here alone: who has no damage need not compile it

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
        """The last record of the chain that begins at ``candidate`` that cannot be one; -1 where all can.

        ``border``: a place where a record begins, or the log ends; a chain that passes over it is none.

        A body can hold a chain of records, and even one that ends where its own record does, so that the log goes on.
        But a forged message takes the queue offset of another, which comes behind it; and a chain that breaks off may
        all lie in one body.
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
            fields = RECORD_STRUCT.unpack(array[position : position + RECORD_STRUCT.size].tobytes())
            name = array[self._parts[kernel.R_TOPIC_AT] : self._parts[kernel.R_TOPIC_END]].tobytes()
            queue, queue_offset = (name, fields[3]), fields[5]
            if fields[7] & SysFlag.TRANSACTION_MASK not in (
                SysFlag.TRANSACTION_PREPARED,
                SysFlag.TRANSACTION_ROLLBACK,
            ):
                before = seen.get(queue) or (self._last_offset(queue, begin), at)
                if queue_offset <= before[0]:
                    forged = max(forged, before[1])
                seen[queue] = (queue_offset, at)
            if at < border < at + fields[0]:
                return at
            at += fields[0]
            count += 1
        return forged

    def _last_offset(self, queue: tuple[bytes, int], below: int) -> int:
        """The last queue offset of the queue in front of a physical offset, as its units say; -1 where they do not."""
        for known in self._evidence.queues():
            if (known.topic.encode(), known.queue_id) == queue:
                return count_units(known, below) - 1
        return -1


def _ends_file(array: np.ndarray, position: int) -> bool:
    """Whether a blank record at ``position`` reaches to the file's end, and no further than a message that did not fit
    makes it."""
    size = int.from_bytes(array[position : position + 4].tobytes(), "big")
    return size == len(array) - position and size <= FORGERY_BYTES_MAX


__all__ = ["Hole", "HoleFinder", "KnownRecord", "RecordIsSound", "UnitEvidence"]
