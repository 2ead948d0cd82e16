"""Pulls: reading the records of a queue from an offset on, chosen by tags and filters.

``hot`` means the same as in ``LogReads``.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from ....protocol.errors import PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY, SUCCESS, OffsetOutOfRange
from ....protocol.storage.arrays.record_positions import locate_records
from ....protocol.storage.layout import MAGIC_V1, MAGIC_V2, RECORD, RECORD_BYTES_MIN, UNIT_BYTES
from ....protocol.storage.record import PROPERTY_SEPARATOR
from ...kernels import gather as kernel
from ...kernels.short_sends import NEWEST_BYTES_MAX
from ..errors import CorruptLog, DamagedRecord, WouldBlock
from .queue_reads import ANSWER_BYTES_MAX

if TYPE_CHECKING:
    from ..log.commitlog import CommitLog
    from ..log.produce_batch import Appended
    from ..queues import ConsumeQueue
    from .queue_reads import LogReads, QueueReads


# ---- Applying a consumer's filter to the records that a pull has read.

LOOK_S = 0.0005
"""Maximum time of filtering in one pull, because other work waits for the event loop or for the GIL."""
CHUNK_RECORDS = 32
CHUNK_BYTES = 16 * 1024
"""Approximate bytes, and ``CHUNK_RECORDS`` the number of records, that are filtered between two checks of the clock."""


class RecordFilter(Protocol):
    """The filter that ``Pulls.pull`` takes; ``broker.filters.Filter`` implements it."""

    def select(self, sources: Sequence[bytes]) -> list[int]:
        """Return the numbers of the matching messages, in their order.

        ``sources``: each message's properties as in its record, with a leading 0x02, so that 0x02 precedes every name.
        """


@dataclass(slots=True)
class Kept:
    """``body``: count × u32 sizes, then the records; ``looked``: number of examined records, from the first on."""

    count: int
    looked: int
    body: bytearray


def keep_matching(
    body: bytearray,
    count: int,
    records: RecordFilter,
    max_count: int,
    max_bytes: int,
    *,
    one_at_least: bool,
    clock: Callable[[], float] = time.monotonic,
) -> Kept:
    """Return the matching records of a response's ``body``, in their order.

    Stops at ``max_count`` or ``max_bytes``, or after ``LOOK_S``; examines at least one chunk. ``one_at_least``: keep
    the first match, however large it is. A record whose parts do not add up is kept, because its properties cannot be
    located; the client's decoder reports the damage.
    """
    began = clock()
    properties = _Properties(body, count)
    sizes = properties.sizes
    kept: list[int] = []
    kept_bytes = 0
    looked = count
    chunk = max(1, min(CHUNK_RECORDS, CHUNK_BYTES * count // len(body)))
    for first in range(0, count, chunk):
        if first and clock() - began >= LOOK_S:
            looked = first
            break
        end = min(first + chunk, count)
        found = properties.select(first, end, records)
        # Nearly always the whole chunk fits, so its matches need not be counted one by one.
        if len(kept) + len(found) < max_count and kept_bytes + properties.span_bytes(first, end) <= max_bytes:
            kept += found
            kept_bytes += sum([sizes[number] for number in found])
            continue
        for number in found:  # a limit may be reached within this chunk
            if kept_bytes + sizes[number] > max_bytes and (kept or not one_at_least):
                return Kept(len(kept), number, properties.joined(kept))
            kept.append(number)
            kept_bytes += sizes[number]
            if len(kept) == max_count:
                return Kept(len(kept), number + 1, properties.joined(kept))
    return Kept(len(kept), looked, properties.joined(kept))


class _Properties:
    """Positions of the properties in a response's records."""

    def __init__(self, body: bytearray, count: int) -> None:
        self._body = body
        octets = np.frombuffer(body, np.uint8)
        sizes = np.frombuffer(body, ">u4", count).astype(np.int64)
        ends = 4 * count + np.cumsum(sizes)
        self._starts: list[int] = (ends - sizes).tolist()
        self._ends: list[int] = ends.tolist()
        self.sizes: list[int] = sizes.tolist()
        located = locate_records(body, ends - sizes, ends)
        begins = np.where(located.sound, located.properties_at, ends)
        self._broken: frozenset[int] = frozenset(np.flatnonzero(~located.sound).tolist())
        self._begins: list[int] = (begins - 1).tolist()
        # ``RecordFilter.select`` wants a 0x02 before the properties. Setting that byte in one copy of the whole body is
        # cheaper than prepending it to each record's properties.
        were = octets[begins - 1]
        octets[begins - 1] = PROPERTY_SEPARATOR[0]
        self._marked = bytes(body)
        octets[begins - 1] = were

    def span_bytes(self, first: int, end: int) -> int:
        """Return the bytes of the records in ``[first, end)``."""
        return self._ends[end - 1] - self._starts[first]

    def select(self, first: int, end: int, records: RecordFilter) -> list[int]:
        """Return the numbers of the records in ``[first, end)`` to keep."""
        marked = self._marked
        bounds = zip(self._begins[first:end], self._ends[first:end], strict=True)
        found = [first + place for place in records.select([marked[begin:end] for begin, end in bounds])]
        if self._broken:
            found = sorted({*found, *self._broken.intersection(range(first, end))})
        return found

    def joined(self, numbers: list[int]) -> bytearray:
        """Return a response body with these records."""
        if len(numbers) == len(self.sizes):
            return self._body
        view = memoryview(self._body)
        parts: list[bytes | memoryview] = [
            struct.pack(f">{len(numbers)}I", *[self.sizes[number] for number in numbers])
        ]
        parts += [view[self._starts[number] : self._ends[number]] for number in numbers]
        return bytearray().join(parts)


UNITS_A_STEP = 4096
FILTERED_UNITS_MAX = 65_536
"""Maximum number of units that a pull with tags examines before it answers."""
FILTERED_RECORDS_MAX = 512
FILTERED_RECORDS_MIN = 256
"""Minimum number of records that a pull with a filter reads, even if fewer are wanted: few of them may match."""
FILTERED_BYTES_MAX = 512 * 1024
"""Maximum bytes (with ``FILTERED_RECORDS_MAX`` records) that a pull with a filter reads before it answers; a single
larger record is read anyway."""

_NO_TAGS = np.zeros(1, np.int64)
_SIZE = struct.Struct(">I")
_PHYSICAL = struct.Struct(">q")
_IDENTITY = struct.Struct(">ii4xi4xqq")
"""First fields of a record: total_size, magic, queue_id, queue_offset, physical_offset."""
assert _IDENTITY.size == RECORD.at["physical_offset"] + 8


class PullSelection(NamedTuple):
    """Limits and conditions of a pull. ``tags``: tag codes, one of which a record must have (None: all); ``records``: a
    filter that it must match too; ``one_at_least``: return one record even if it is larger than ``max_bytes``."""

    # A tuple, because every pull makes one: a frozen dataclass takes twice as long.
    max_count: int
    max_bytes: int
    tags: frozenset[int] | None = None
    records: RecordFilter | None = None
    one_at_least: bool = True


@dataclass(slots=True)
class PullResult:
    """The response to a pull. ``body``: count × u32 sizes, then the records, in a buffer of its own."""

    code: int
    count: int
    next_offset: int
    min_offset: int
    max_offset: int
    body: bytearray


class ArchivedPull(NamedTuple):
    """A pull of records that are not on the disk any more.

    ``end``: the first offset on the disk; ``min_offset``, ``max_offset``: those of the response.
    """

    topic: str
    queue_id: int
    offset: int
    end: int
    min_offset: int
    max_offset: int
    selection: PullSelection


class ArchivedRecords(Protocol):
    """The records that only the archive has. Raises ``InArchive`` outside of the archive's threads."""

    def pull(self, wanted: ArchivedPull) -> PullResult:
        """Return records of a queue that are not on the disk any more, as ``Pulls.pull`` does."""


class Pulls:
    """Reads of consumers. Any thread may call them, except ``appended``."""

    def __init__(self, commitlog: CommitLog, queues: QueueReads, log: LogReads) -> None:
        self._commitlog = commitlog
        self._queues = queues
        self._log = log
        self.archived: ArchivedRecords | None = None
        """The records that the disk no longer has; None: there is no archive."""

    def pull(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        selection: PullSelection,
        *,
        hot: bool,
        queue: ConsumeQueue | None = None,
    ) -> PullResult:
        """Return the records of a queue from ``offset`` on that ``selection`` wants. ``queue``: what
        ``QueueReads.queue`` has just returned for it, if the caller has asked.

        If no examined record matches, the code is ``PULL_RETRY_IMMEDIATELY``. Raises ``OffsetOutOfRange``,
        ``TopicNotExist``, ``QueueNotExist``, ``CorruptLog`` if a unit's record is damaged, and ``WouldBlock`` with
        ``hot``.
        """
        while True:
            log_start = self._commitlog.start_offset
            try:
                return self._pull(topic, queue_id, offset, selection, hot, queue)
            except CorruptLog:
                if self._commitlog.start_offset == log_start:
                    raise
                # Retention deleted the file after its unit was read. Pull again from the log as it is now.

    def newest(self, topic: str, queue_id: int, offset: int) -> PullResult | None:
        """Return what ``pull`` returns without tags or a filter, if ``offset`` is that of the queue's last message.

        That is what nearly every held pull gets. None: call ``pull``, because there is more than one message, or it is
        not simply a small, sound one in the page cache.
        """
        queue = self._queues.queue(topic, queue_id)
        if queue is None or queue.max_offset != offset + 1:
            return None
        try:
            physical_offset, size, _ = queue.unit(offset, hot=True)
        except (WouldBlock, CorruptLog):
            return None
        return self._single(queue, offset, physical_offset, size)

    def appended(self, topic: str, queue_id: int, appended: Appended) -> PullResult | None:
        """Return what ``pull`` at the offset of an appended message will return after its dispatch; None as ``newest``,
        and if there are several.

        Only for the thread that appends. The caller makes sure that the message may be dispatched, and that those
        before it in the queue are.
        """
        if len(appended.physical_offsets) != _PHYSICAL.size:
            return None
        queue = self._queues.queue(topic, queue_id)
        if queue is None or queue.max_offset != appended.queue_offset:
            return None
        (physical_offset,) = _PHYSICAL.unpack(appended.physical_offsets)
        offset, size = appended.queue_offset, appended.end_offset - physical_offset
        record = self._commitlog.writer.written(physical_offset, size)
        if record is None or size > NEWEST_BYTES_MAX or self._log.quarantine:
            return self._single(queue, offset, physical_offset, size)
        try:
            min_offset = self._queues.first_offset(queue, hot=True)
        except (WouldBlock, CorruptLog):
            return None
        if min_offset > offset:
            return None
        min_offset = self._queues.shown_first(topic, queue_id, min_offset)
        return PullResult(SUCCESS, 1, offset + 1, min_offset, offset + 1, bytearray(_SIZE.pack(size)) + record)

    def _single(self, queue: ConsumeQueue, offset: int, physical_offset: int, size: int) -> PullResult | None:
        """Return the result of a pull for one record; None if it is not simply a small, sound one in the page cache."""
        if self._log.quarantine:
            return None
        try:
            min_offset = self._queues.first_offset(queue, hot=True)
            if not (min_offset <= offset and RECORD_BYTES_MIN <= size <= NEWEST_BYTES_MAX):
                return None
            body = bytearray(_SIZE.size + size)
            self._commitlog.queue.read(physical_offset, memoryview(body)[_SIZE.size :], hot=True)
        except (WouldBlock, CorruptLog):
            return None
        total_size, magic, record_queue, queue_offset, record_offset = _IDENTITY.unpack_from(body, _SIZE.size)
        if (
            (total_size, record_queue, queue_offset, record_offset) != (size, queue.queue_id, offset, physical_offset)
            or magic not in (MAGIC_V1, MAGIC_V2)
            or physical_offset + size > self._commitlog.write_offset
        ):
            return None
        _SIZE.pack_into(body, 0, size)
        min_offset = self._queues.shown_first(queue.topic, queue.queue_id, min_offset)
        return PullResult(SUCCESS, 1, offset + 1, min_offset, offset + 1, body)

    def _pull(
        self, topic: str, queue_id: int, offset: int, selection: PullSelection, hot: bool, queue: ConsumeQueue | None
    ) -> PullResult:
        queue = queue or self._queues.queue(topic, queue_id)
        max_offset = self._queues.end_of(topic, queue_id, queue)
        first = self._queues.first_offset(queue, hot=hot) if queue is not None else max_offset
        min_offset = self._queues.shown_first(topic, queue_id, first)
        if offset < first and self.archived is not None:
            min_offset = self._queues.min_offset(topic, queue_id, hot=hot)
            if min_offset <= offset:
                wanted = ArchivedPull(topic, queue_id, offset, first, min_offset, max_offset, selection)
                return self.archived.pull(wanted)
        if not first <= offset <= max_offset:
            raise OffsetOutOfRange(
                f"offset {offset} of queue {queue_id} of {topic!r} is outside of [{min_offset}, {max_offset}]; pull "
                "from one of these on",
                min_offset=min_offset,
                max_offset=max_offset,
            )
        if queue is None or offset == max_offset:
            return PullResult(PULL_NOT_FOUND, 0, offset, min_offset, max_offset, bytearray())
        max_count, max_bytes, tags, records, one_at_least = selection
        # The u32 sizes before the records need room too: one for each record that can fit.
        max_bytes = min(max_bytes, ANSWER_BYTES_MAX - 4 * min(max_count, max_bytes // RECORD_BYTES_MIN + 1))
        read_count, read_bytes = max_count, max_bytes
        if records is not None:
            read_count = min(max(max_count, FILTERED_RECORDS_MIN), FILTERED_RECORDS_MAX)
            read_bytes = FILTERED_BYTES_MAX
        chosen, count, size, next_offset = self._choose(queue, offset, max_offset, read_count, read_bytes, tags, hot)
        body = bytearray()
        if count:
            body, sound = self._read_chosen(chosen, count, size, queue, hot)
            if sound < count:  # deliver the records before the damaged one; the next pull begins at it and raises
                next_offset = int(chosen[sound * kernel.CHOSEN_ROW + kernel.C_QUEUE_OFFSET])
                count = sound
        if records is not None and count:
            kept = keep_matching(body, count, records, max_count, max_bytes, one_at_least=one_at_least)
            if kept.looked < count:
                next_offset = int(chosen[kept.looked * kernel.CHOSEN_ROW + kernel.C_QUEUE_OFFSET])
            count, body = kept.count, kept.body
        if count == 0:
            code = PULL_RETRY_IMMEDIATELY if next_offset < max_offset else PULL_NOT_FOUND
            return PullResult(code, 0, next_offset, min_offset, max_offset, bytearray())
        return PullResult(SUCCESS, count, next_offset, min_offset, max_offset, body)

    def _choose(
        self,
        queue: ConsumeQueue,
        offset: int,
        max_offset: int,
        max_count: int,
        max_bytes: int,
        tags: frozenset[int] | None,
        hot: bool,
    ) -> tuple[np.ndarray, int, int, int]:
        """Return (chosen records, their number, their bytes, queue offset to continue from)."""
        commitlog = self._commitlog
        codes = np.array(sorted(tags), np.int64) if tags else _NO_TAGS
        looked_max = FILTERED_UNITS_MAX if tags else min(max_count, max_bytes // RECORD_BYTES_MIN + 1)
        looked = 0
        while True:
            step = min(
                UNITS_A_STEP if tags else looked_max, max_offset - offset, looked_max - looked, UNITS_A_STEP * 16
            )
            units = queue.read_units(offset, step, hot=hot)
            unit_count = len(units) // UNIT_BYTES
            if unit_count == 0:
                raise CorruptLog(f"{queue.folder} has no unit {offset:,} although it should reach to {max_offset:,}")
            chosen = np.empty(min(unit_count, max_count) * kernel.CHOSEN_ROW, np.int64)
            seen, count, size = kernel.choose(
                np.frombuffer(units, np.uint8),
                unit_count,
                offset,
                codes,
                len(tags) if tags else 0,
                commitlog.start_offset,
                commitlog.write_offset,
                max_count,
                max_bytes,
                chosen,
            )
            offset += seen
            looked += seen
            if self._log.quarantine and count:
                chosen, count, size = self._without_quarantined(chosen, count)
            if count or offset >= max_offset or looked >= looked_max:
                return chosen, count, size, offset

    def _without_quarantined(self, chosen: np.ndarray, count: int) -> tuple[np.ndarray, int, int]:
        """Return the chosen records that are not tombstones, their number and their bytes."""
        rows = chosen[: count * kernel.CHOSEN_ROW].reshape(-1, kernel.CHOSEN_ROW)
        kept = np.ascontiguousarray(rows[~self._log.quarantine.mask(rows[:, kernel.C_PHYSICAL_OFFSET])])
        return kept.reshape(-1), len(kept), int(kept[:, kernel.C_SIZE].sum())

    def _read_chosen(
        self, chosen: np.ndarray, count: int, size: int, queue: ConsumeQueue, hot: bool
    ) -> tuple[bytearray, int]:
        """Return the chosen records before the first damaged one, and their number.

        Raises ``DamagedRecord`` if the first record is damaged.
        """
        records_at = 4 * count
        body = bytearray(records_at + size)
        self._log.copy(chosen, count, body, records_at, hot=hot)
        bad = kernel.finish(np.frombuffer(body, np.uint8), records_at, chosen, count, queue.queue_id)
        if bad == kernel.SOUND:
            return body, count
        if bad:
            # Read again, because with fewer sizes before them the records have other positions in the body.
            return self._read_chosen(chosen, bad, int(chosen[1 : 3 * bad : 3].sum()), queue, hot)
        physical_offset, queue_offset = int(chosen[kernel.C_PHYSICAL_OFFSET]), int(chosen[kernel.C_QUEUE_OFFSET])
        raise DamagedRecord(
            f"message {queue_offset:,} of queue {queue.queue_id} of {queue.topic!r} is damaged: no sound record is "
            f"at physical offset {physical_offset:,}, where the queue points. Stop the broker and run `flintmq-broker "
            f"repair --apply` on its store, which keeps the bytes aside; or continue from offset {queue_offset + 1:,}",
            physical_offset,
            "no sound record where a queue points",
            queue_offset,
        )
