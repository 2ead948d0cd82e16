"""Damage in the CommitLog at a start: the search for its end, and its containment."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ....protocol.storage.layout import MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN, UNIT, SysFlag
from ....protocol.storage.record import decode_record, without_record_crc
from ...kernels import dispatch as kernel
from ..damage import HOLE_BYTES_MIN, LostRange, QuarantinedRange, blank, plan, that_fit
from ..derivation import RecordAt
from ..files.file_system import zero
from ..queues import RECORD_BYTES_MAX, count_units, is_filling, read_units

if TYPE_CHECKING:
    from ..damage import Quarantine, Tombstone
    from ..files.mapped_file import MappedFile
    from ..log.commitlog import CommitLog
    from ..queues import ConsumeQueue, ConsumeQueueTable
    from ..tables.store_state import ChecksummedRanges


# ---- Search for the end of damage in the CommitLog: the next record that is sound and in its place.
#
# The finder tries, in this order: the end that the damaged record itself states, if the log continues there;
# the lowest ConsumeQueue unit after it that points at a sound record of its queue, or an earlier record,
# without a unit, that a byte search finds; then the byte search alone.
#
# A body may contain bytes that look like records. Bytes inside a record that a unit points at are therefore
# never taken for one, and a record found by the search must begin a chain: record after record, with
# ascending offsets in each queue, never across a position that a unit points at, up to the furthest possible
# end of the hole or for longer than any message.

WINDOW_BYTES = 8 * 1024 * 1024
"""Bytes of the log whose units are looked up in the queues together."""
FORGERY_BYTES_MAX = 4 * 1024 * 1024 + 256 * 1024
"""Maximum length of a forged chain: no record of RocketMQ or FlintMQ is larger, so no body can contain more."""
CHAIN_RECORDS_MAX = 65_536
"""Number of records after which a chain counts as real."""


HasRecordOf = Callable[["ConsumeQueue", tuple[int, int, int]], bool]
"""Predicate: does a unit of the queue (queue offset, physical offset, size) point at its own sound record?"""


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

    def __init__(self, commitlog: CommitLog, evidence: UnitEvidence, has_record_of: HasRecordOf) -> None:
        self._files = commitlog.queue
        self._evidence = evidence
        self._has_record_of = has_record_of

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
        record = RecordAt(file, at)
        return record.store_ms >= store_ms if record.is_sound else record.is_blank(FORGERY_BYTES_MAX)

    def _lowest_sound_unit(self, begin: int, limit: int) -> int | None:
        at, width = begin + HOLE_BYTES_MIN, WINDOW_BYTES // 8
        while at < limit:
            for each in self._evidence.between(at, min(at + width, limit)):
                if self._has_record_of(each.queue, (each.queue_offset, each.physical_offset, each.size)):
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
        parts = np.zeros(kernel.PARTS, np.int64)
        position = begin - base + max(HOLE_BYTES_MIN, extents.get(begin, 0))
        while position < end:
            position = search.find_record(array, position, end, base, store_ms, parts)
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
        forged, at, count = -1, candidate, 0
        seen: dict[tuple[bytes, int], tuple[int, int]] = {}
        while at < limit and at - begin <= FORGERY_BYTES_MAX and count < CHAIN_RECORDS_MAX:
            record = RecordAt(file, at)
            if record.is_blank(FORGERY_BYTES_MAX):
                break
            if not record.is_sound:
                return at - 1
            topic, queue_id, queue_offset = record.message
            queue, size = (topic, queue_id), record.size
            if record.transaction not in (SysFlag.TRANSACTION_PREPARED, SysFlag.TRANSACTION_ROLLBACK):
                before = seen.get(queue) or (self._last_offset(queue, begin), at)
                if queue_offset <= before[0]:
                    forged = max(forged, before[1])
                seen[queue] = (queue_offset, at)
            if at < border < at + size:
                return at
            at += size
            count += 1
        return forged

    def _last_offset(self, queue: tuple[bytes, int], below: int) -> int:
        """Return the last queue offset of the queue below a physical offset from its units; -1 if it has none."""
        for known in self._evidence.queues():
            if (known.topic.encode(), known.queue_id) == queue:
                return count_units(known, below) - 1
        return -1


# ---- Containment of damage in the CommitLog: copy the damaged bytes to the quarantine, and write tombstones
# over them.
#
# The order of writing makes a crash at any point harmless: first the copies, then the quarantine's index with
# the planned tombstones, the tombstones, queues and index, and last the ``filled`` flag. The next start
# completes what is missing.

WRITE_BYTES = 1 << 20
"""Approximate size of one write to a hole."""
SHOWN_LOST = 5
"""Maximum number of ranges of lost messages that a log line names."""

log = logging.getLogger(__name__)


class HoleFiller:
    """Fills holes of a log after copying their bytes to the quarantine. Used by recovery."""

    def __init__(self, commitlog: CommitLog, quarantine: Quarantine, checksummed: ChecksummedRanges) -> None:
        self._commitlog = commitlog
        self._checksummed = checksummed
        self._quarantine = quarantine
        self.pending: list[QuarantinedRange] = []
        """Ranges of the quarantine's index that are not known to be filled."""
        self.restored: list[QuarantinedRange] = []
        """Ranges of the quarantine's index where the log has sound content again."""
        self.expired: list[QuarantinedRange] = []
        """Ranges of the quarantine's index that retention has deleted from the log."""
        self.unlisted: list[QuarantinedRange] = []
        """Ranges with a copy and tombstones that the quarantine's index lacks."""

    def look(self) -> None:
        """Compare the quarantine's index with the log; changes no file.

        Fills ``pending``, ``restored``, ``expired`` and ``unlisted``.
        """
        self.find_unlisted()
        for each in self._quarantine:
            file = self._file(each)
            if each.end_offset <= self._commitlog.start_offset:
                self.expired.append(each)
            if file is None or each.end_offset > file.end_offset:
                continue
            if not each.filled and self._is_half_filled(each):
                self.pending.append(each)
            elif not each.filled or not self._is_filled(file, each):
                self.restored.append(each)

    def find_unlisted(self) -> None:
        """Fill ``unlisted`` with the tombstones that have a copy but no row in the index. Changes no file."""
        newer = [(each.physical_offset, each.end_offset) for each in self._quarantine]
        newest_first = sorted(self._quarantine.unlisted(), key=lambda copy: copy[3], reverse=True)
        for name, physical_offset, size, found_ms in newest_first:
            # Later damage may have hit the tombstones themselves: its own tombstones then replace a part of the range.
            for begin, end in _without(physical_offset, physical_offset + size, newer):
                found = self._tombstones_at(begin, end - begin)
                if found is not None:
                    lost, store_ms, ends_file = found
                    self.unlisted.append(
                        QuarantinedRange(
                            begin,
                            end - begin,
                            "unknown: the index was lost",
                            found_ms,
                            store_ms,
                            tuple(lost),
                            ends_file,
                            self._checksummed.at(begin)[0],
                            name,
                            filled=True,
                        )
                    )
            newer.append((physical_offset, physical_offset + size))

    def _tombstones_at(self, begin: int, size: int) -> tuple[list[LostRange], int, bool] | None:
        """Return (messages, store time, whether a blank follows) of the tombstones that fill a range exactly.

        Returns None if the range contains anything else.
        """
        file = self._commitlog.queue.find(begin)
        if file is None or begin + size > file.end_offset:
            return None
        array, at, end = self._held(file), begin, begin + size
        lost: list[LostRange] = []
        store_ms = 0
        while at < end:
            if at - file.start_offset >= len(array):
                return None
            found = RecordAt(file, at, array)
            if found.status == kernel.BLANK and end == file.end_offset:
                return lost, store_ms, True
            if not found.is_sound:
                return None
            record = decode_record(found.blob)
            if any(record.body) or without_record_crc(record.properties):
                return None
            store_ms = record.store_timestamp
            if not record.sys_flag:
                each = LostRange(record.topic.decode("utf-8", "replace"), record.queue_id, record.queue_offset, 1)
                last = lost[-1] if lost else None
                if last is not None and last[:2] == each[:2] and last.first + last.messages == each.first:
                    lost[-1] = last._replace(messages=last.messages + 1)
                else:
                    lost.append(each)
            at += found.size
        return (lost, store_ms, False) if at == end else None

    def _file(self, each: QuarantinedRange) -> MappedFile | None:
        return self._commitlog.queue.find(each.physical_offset)

    def _is_half_filled(self, each: QuarantinedRange) -> bool:
        """Return whether every byte is that of the copy or of the tombstones: otherwise the file was changed since."""
        path = self._quarantine.folder / each.file
        if not path.is_file():
            return True
        files = self._commitlog.os
        with files.opened(path) as fd:
            for at, blob in _pieces(each):
                held, kept = bytearray(len(blob)), bytearray(len(blob))
                self.read(at, memoryview(held))
                files.read(fd, memoryview(kept), at - each.physical_offset, wait=True)
                now, before, after = (np.frombuffer(each_blob, np.uint8) for each_blob in (held, kept, blob))
                if not ((now == before) | (now == after)).all():
                    return False
            return True

    def _is_filled(self, file: MappedFile, each: QuarantinedRange) -> bool:
        """Return whether the range has its first tombstone, or no sound record: then the scan finds the new damage."""
        _, blob = next(_pieces(each))
        size = min(int.from_bytes(blob[:4], "big"), len(blob))
        held = bytearray(size)
        self.read(each.physical_offset, memoryview(held))
        if held == blob[:size]:
            return True
        array = self._held(file)
        beyond = each.physical_offset - file.start_offset >= len(array)
        return beyond or not RecordAt(file, each.physical_offset, array).is_sound

    def _held(self, file: MappedFile) -> np.ndarray:
        """Return the bytes of a log file; only the existing ones if it was cut short and is not extended yet."""
        files = self._commitlog.os
        size = files.size(file.fd)
        if size >= file.size:
            return file.array()
        return np.frombuffer(files.map(file.fd, size), np.uint8) if size else np.zeros(0, np.uint8)

    def read(self, physical_offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from the log, within one file."""
        self._commitlog.queue.read(physical_offset, buffer, hot=False)

    # Changes.

    def contain(
        self, holes: Iterable[Hole], lost: Iterable[list[LostRange]], next_store_ms: Iterable[int]
    ) -> list[QuarantinedRange]:
        """Copy and fill the holes, and fill the pending ranges; returns all of them by physical offset.

        ``lost``: the messages of each hole; ``next_store_ms``: the store time of the record after each hole, used if
        no record precedes it. The ranges count as filled after ``Quarantine.set_filled``.
        """
        if self.restored:
            for each in self.restored:
                log.warning(
                    "the log is sound again at physical offset %s, where it was damaged: the messages are delivered "
                    "again; the damaged bytes are still in %s",
                    f"{each.physical_offset:,}",
                    self._quarantine.folder / each.file,
                )
            self._quarantine.drop(self.restored)
            self.restored = []
        if self.unlisted:
            log.warning("%s had lost %s ranges; they are added again", self._quarantine.path, f"{len(self.unlisted):,}")
            self._quarantine.enter(self.unlisted)
            self.unlisted = []
        if self.expired:
            self._quarantine.forget(self.expired)
            self.expired = []
        found_ms = int(time.time() * 1000)
        added = []
        for hole, messages, next_ms in zip(holes, lost, next_store_ms, strict=True):
            file = self._commitlog.queue.find(hole.begin)
            assert file is not None
            size, ends_file = hole.end - hole.begin, hole.end == file.end_offset
            is_checksummed, border = self._checksummed.at(hole.begin)
            # Even if only a later part of the hole is in a range in which every record must have a checksum.
            checksum = is_checksummed or border < hole.end
            fitting = tuple(that_fit(messages, size, ends_file=ends_file, checksum=checksum))
            store_ms = hole.store_ms or next_ms
            added.append(
                QuarantinedRange(hole.begin, size, hole.reason, found_ms, store_ms, fitting, ends_file, checksum)
            )
        if added:
            added = self._quarantine.add(added, self.read)
        for each in added:
            self._say(each)
        ranges = sorted([*self.pending, *added], key=lambda each: each.physical_offset)
        for each in ranges:
            self._fill(each)
        self.pending = []
        return ranges

    def _fill(self, each: QuarantinedRange) -> None:
        file = self._file(each)
        assert file is not None
        reached = each.physical_offset
        for at, blob in _records_of(each):
            file.files.write(file.fd, blob, at - file.start_offset)
            reached = at + len(blob)
        zero(file.files, file.fd, reached - file.start_offset, each.end_offset - file.start_offset)
        file.files.sync_data(file.fd)

    def _say(self, each: QuarantinedRange) -> None:
        file = self._file(each)
        assert file is not None
        log.error(
            "%s is damaged: %s at byte %s (physical offset %s), %s bytes. %s. The bytes are kept in %s; the log "
            "continues after them. Restore the file from a backup to get the messages back, or let producers send them",
            file.path,
            each.reason,
            f"{each.physical_offset - file.start_offset:,}",
            f"{each.physical_offset:,}",
            f"{each.bytes:,}",
            lost_text(each.lost),
            self._quarantine.folder / each.file,
        )

    def patch_units(self, queues: ConsumeQueueTable, ranges: Iterable[QuarantinedRange]) -> None:
        """Point the existing units of lost messages at their tombstones, so that the queues need not be refilled."""
        for each in ranges:
            run: list[Tombstone] = []
            for tombstone in _plan(each):
                last = run[-1] if run else None
                if last is not None and tombstone[:3] != (last.topic, last.queue, last.queue_offset + 1):
                    _patch(queues, run)
                    run = []
                if tombstone.has_unit:
                    run.append(tombstone)
            _patch(queues, run)


def _patch(queues: ConsumeQueueTable, run: list[Tombstone]) -> None:
    """Write the units of tombstones with consecutive queue offsets."""
    queue = queues.get(run[0].topic.decode("utf-8", "replace"), run[0].queue) if run else None
    if queue is None:
        return
    first = run[0].queue_offset
    held = queue.read_units(first, len(run), hot=False)
    units = b"".join(UNIT.pack(each.physical_offset, each.size, 0) for each in run)[: len(held)]
    if units and any(held) and held != units:
        queue.write_at(first, memoryview(units))


def _without(begin: int, end: int, taken: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the parts of ``[begin, end)``, in ascending order, that no range of ``taken`` covers."""
    for other_begin, other_end in sorted(taken):
        if begin < min(other_begin, end):
            yield begin, min(other_begin, end)
        begin = max(begin, other_end)
    if begin < end:
        yield begin, end


def _plan(each: QuarantinedRange) -> Iterator[Tombstone]:
    return plan(each.physical_offset, each.bytes, each.lost, ends_file=each.ends_file, checksum=each.checksum)


def _pieces(each: QuarantinedRange) -> Iterator[tuple[int, bytes]]:
    """Yield (physical offset, bytes) of everything that fills a range: its records, then zeros."""
    reached = each.physical_offset
    for at, blob in _records_of(each):
        yield at, blob
        reached = at + len(blob)
    for at in range(reached, each.end_offset, WRITE_BYTES):
        yield at, bytes(min(WRITE_BYTES, each.end_offset - at))


def _records_of(each: QuarantinedRange) -> Iterator[tuple[int, bytes]]:
    """Yield (physical offset, bytes) of the records that fill a range, in pieces of whole records.

    Includes the blank at the end of the file; the bytes after them are zeros.
    """
    at, blob = each.physical_offset, bytearray()
    for tombstone in _plan(each):
        blob += tombstone.encode(each.store_ms, checksum=each.checksum)
        if len(blob) >= WRITE_BYTES:
            yield at, bytes(blob)
            at, blob = at + len(blob), bytearray()
    if each.ends_file:
        blob += blank(each.end_offset - at - len(blob))
    if blob:
        yield at, bytes(blob)


def lost_text(lost: Iterable[LostRange]) -> str:
    """Return a sentence, without its full stop, that names the lost messages."""
    ranges = list(lost)
    count = sum(each.messages for each in ranges)
    if not count:
        return "No message is known to be lost"
    named = [
        f"{each.topic} queue {each.queue}: {each.first:,}"
        + (f" to {each.first + each.messages - 1:,}" if each.messages > 1 else "")
        for each in ranges[:SHOWN_LOST]
    ]
    more = f" and {len(ranges) - SHOWN_LOST:,} more ranges" if len(ranges) > SHOWN_LOST else ""
    return f"{count:,} message{'s are' if count > 1 else ' is'} lost ({'; '.join(named)}{more})"
