"""Recovery of the CommitLog: check its files, find its holes and its true end, and cut everything after that end.

Finding holes and end changes only the length of files that were cut short, and only after the checks that can refuse
the start because of missing or foreign files.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ....protocol.storage.layout import (
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PRE_BLANK_SIZE,
    RECORD_HEAD_BYTES_MAX,
    UNIT_BYTES,
    SysFlag,
)
from ....protocol.storage.record import unpack_head
from ....protocol.store_files import file_name
from ...kernels import dispatch as kernel
from ..check import points_at_own_record, record_of_size
from ..damage import LostRange
from ..derivation import LogScan, RecordAt, ends_file
from ..dispatch import GAP_MAX
from ..errors import CorruptLog
from ..files.file_system import zero
from ..queues import count_units
from .holes import Hole, HoleFinder

if TYPE_CHECKING:
    from ..errors import DamagedRecord
    from ..files.mapped_file import MappedFile
    from ..queues import ConsumeQueue
    from ..tables.checkpoint import Mark
    from .holes import HasRecordOf, KnownRecord, UnitEvidence
    from .loaded_store import LoadedStore, Progress

SCAN_STEP_BYTES = 64 * 1024 * 1024
"""Maximum bytes that one kernel call checks, between two reports of the progress."""
LOOK_AHEAD_BYTES_MAX = 16 * 1024 * 1024
LOOK_AHEAD_RECORDS_MAX = 33
CLOCK_MARGIN_MS = 3_000
"""RocketMQ's own margin on the checkpoint's times."""

log = logging.getLogger(__name__)


class FileHead:
    """The head of a CommitLog file's first record."""

    def __init__(self, file: MappedFile) -> None:
        blob = bytearray(RECORD_HEAD_BYTES_MAX)
        file.files.read(file.fd, memoryview(blob), 0, wait=True)
        head = unpack_head(blob)
        self.physical_offset = head.physical_offset
        self.is_record = head.total_size > 0 and head.magic in (MAGIC_V1, MAGIC_V2)
        self.begun = self.is_record or (head.total_size > 0 and head.magic == MAGIC_BLANK)
        """True if the file begins with a record or a blank."""
        self.store_ms = head.store_timestamp
        self.empty = not any(blob)


class LogRecovery:
    """Finds the holes and the end of the log (``find_end``), then makes it the end (``cut``).

    ``proves_hole(physical_offset)``: predicate: does anything outside the log prove that sound records follow? Called
    only in a store without a mark. ``passed_over``: (begin, end) of holes that are known already; the scan skips them.
    ``verify_all``: check the whole log.
    """

    def __init__(
        self,
        store: LoadedStore,
        evidence: UnitEvidence,
        progress: Progress,
        *,
        proves_hole: Callable[[int], bool],
        passed_over: Iterable[tuple[int, int]] = (),
        verify_all: bool = False,
    ) -> None:
        self._commitlog = store.commitlog
        self._files = store.commitlog.queue
        self._checkpoint = store.checkpoint
        self._progress = progress
        self._clean = store.clean
        self._log_start = store.state.snapshot.log_start
        """Recorded first offset of the log, -1 if unknown."""
        self._proves_hole = proves_hole
        self._checksummed = store.state.checksummed
        self._finder = HoleFinder(store.commitlog, evidence, self.has_record_of)
        self._passed_over = dict(passed_over)
        self._verify_all = verify_all
        self.holes: list[Hole] = []
        """Holes that ``find_end`` found in the middle of the log, by physical offset."""
        self.mark: Mark | None = store.checkpoint.mark
        self.checked_from = 0
        """Physical offset from which every record was checked."""
        self.messages_checked = 0
        self.last_store_ms = 0
        """Store time of the last record."""
        self.cut_bytes = 0

    def find_end(self) -> int:
        """Return the physical offset at which the log ends.

        Raises ``CorruptLog``, before any change, if a file is missing or belongs to another log.
        """
        self._check_presence()
        heads = [FileHead(file) for file in self._files.files]
        self._check_heads(heads)
        if not heads:
            return self.mark.flushed_offset if self.mark else 0
        # After the checks, which may refuse the start: then nothing may have been changed.
        self._files.lengthen()
        self.checked_from = self._files.start_offset if self._verify_all else self._scan_from(heads)
        end = self._scan(self.checked_from, heads)
        self._check_behind(end, heads)
        if self.messages_checked == 0 and self.mark is not None:
            self.last_store_ms = self._checkpoint.physic_msg_timestamp
        return end

    # Are the right files there?

    def _check_presence(self) -> None:
        mark, files = self.mark, self._files
        if mark is None:
            return
        for at, why in mark.missing_ends(files.start_offset, files.end_offset, self._log_start, files.file_bytes):
            on_purpose = f", or, if it was removed on purpose, remove {self._checkpoint.path} too"
            raise CorruptLog(
                f"{files.folder / file_name(at)} is missing: {why}. Restore it from a backup"
                f"{on_purpose if at < files.start_offset else ''}. Nothing was changed"
            )

    def _check_heads(self, heads: list[FileHead]) -> None:
        """Refuse a file of another log. If only the offset in its first record is wrong, that record is damaged."""
        for file, head in zip(self._files.files, heads, strict=True):
            if head.is_record and head.physical_offset != file.start_offset and not self._has_record(file):
                raise CorruptLog(
                    f"{file.path}: its first record says it is at physical offset {head.physical_offset:,}, not at "
                    f"{file.start_offset:,}. The file belongs to another log or was renamed; put the right one back. "
                    "Nothing was changed"
                )

    def _has_record(self, file: MappedFile) -> bool:
        """Return whether the file has any sound record whose offset is right."""
        from ...kernels import search  # imported only here, so that a start without damage need not compile it

        size = file.files.size(file.fd)
        if size < file.size:
            return True  # it was cut short, so it belongs here; mapping it beyond its end would raise SIGBUS
        parts = np.zeros(kernel.PARTS, np.int64)
        return bool(search.find_record(file.array(), 0, size, file.start_offset, 0, parts) < size)

    def _check_behind(self, end: int, heads: list[FileHead]) -> None:
        """Refuse files with content after the end of a log that was closed in an orderly way.

        Only the preallocated next file, all zeros, may follow the last record then.
        """
        if not self._clean or self.mark is None:
            return
        for file, head in zip(self._files.files, heads, strict=True):
            if file.start_offset >= end and not head.empty:
                where = f"{file.path} is not empty at byte 0 (physical offset {file.start_offset:,}), but the log"
                if end > self.mark.flushed_offset:  # an orderly stop flushes everything: this checkpoint is older
                    raise CorruptLog(
                        f"{where} is damaged at {end:,}, and {self._checkpoint.path} is too old to show that it "
                        "continues after that. Move the checkpoint away and start again: then the queues show it. "
                        "Nothing was changed"
                    )
                raise CorruptLog(
                    f"{where} ended at {end:,} when the broker stopped. The file does not belong to this log: move it "
                    "away. Nothing was changed"
                )

    # Where is the end?

    def _scan_from(self, heads: list[FileHead]) -> int:
        """Return the offset to check from, normally the start of a file.

        The check covers about the newest ``verify_at_start_bytes`` and all bytes that are not known to be flushed.
        """
        files = self._files.files
        verify_bytes = self._commitlog.settings.verify_at_start_bytes
        number = len(files) - 1
        while number > 0 and not heads[number].begun:
            number -= 1
        budget = verify_bytes - files[number].size
        while number > 0 and budget >= files[number - 1].size:
            number -= 1
            budget -= files[number].size
        needed = self._not_flushed_from(heads)
        while number > 0 and files[number].start_offset > needed:
            number -= 1
        if verify_bytes == 0 and self.mark is not None:
            return max(files[number].start_offset, self.mark.flushed_offset)
        return files[number].start_offset

    def _not_flushed_from(self, heads: list[FileHead]) -> int:
        if self.mark is not None:
            return self.mark.flushed_offset
        if self._clean and self._checkpoint.physic_msg_timestamp:
            return self._files.end_offset
        return self.file_before(self._checkpoint.physic_msg_timestamp, heads)

    def file_before(self, store_ms: int, heads: list[FileHead] | None = None) -> int:
        """Return the start of the newest file whose first record was stored ``CLOCK_MARGIN_MS`` before ``store_ms``.

        Returns the start of the log if there is none.
        """
        heads = heads or [FileHead(file) for file in self._files.files]
        for file, head in zip(reversed(self._files.files), reversed(heads), strict=True):
            if head.is_record and 0 < head.store_ms <= store_ms - CLOCK_MARGIN_MS:
                return file.start_offset
        return self._files.start_offset

    def _scan(self, begin: int, heads: list[FileHead]) -> int:
        """Check every record from ``begin`` on and note the holes; returns the offset at which the log ends."""
        scan = LogScan(self._checksummed)
        parts = scan.parts
        flushed = self.mark.flushed_offset if self.mark else 0
        total = max(flushed, self._files.files[-1].start_offset) - begin
        at = begin
        while (file := self._files.find(at)) is not None:
            if at in self._passed_over:
                at = self._passed_over[at]
                # ``_lost_its_tail`` must only judge a record that directly precedes.
                parts[kernel.R_SIZE] = 0
                continue
            stop = min(at + SCAN_STEP_BYTES, file.end_offset, self._next_passed_over(at))
            status, position = scan.step(file.array(), at, stop, file.start_offset)
            at = file.start_offset + position
            self._progress("checking the log", at - begin, max(total, at - begin))
            if status == kernel.DONE:
                continue
            if status == kernel.BAD_RECORD_CRC and self.mark is None:
                # RocketMQ wrote last: it may have cut the log here and appended records with old checksums.
                self._checksummed.end(at)
                continue
            if status == kernel.NO_RECORD and at != flushed and _lost_its_tail(file.array(), position, parts):
                position -= int(parts[kernel.R_SIZE])
                at = file.start_offset + position
                status = kernel.BAD_PARTS
                scan.counts[kernel.S_RECORDS] -= 1
            if status == kernel.BLANK and not ends_file(file.array(), position):
                status = kernel.BAD_LENGTH  # the file continues after it, so it is not the blank of this file
            if status == kernel.BLANK:
                file.release()
                at = file.end_offset
                parts[kernel.R_SIZE] = 0
                continue
            if not self._is_hole(at, heads):
                file.release()
                break
            at = self._note_hole(file, at, int(status), scan.counts[kernel.S_LAST_STORE_MS])
            parts[kernel.R_SIZE] = 0
        self.messages_checked = scan.counts[kernel.S_RECORDS]
        self.last_store_ms = scan.counts[kernel.S_LAST_STORE_MS]
        return at

    def _next_passed_over(self, physical_offset: int) -> int:
        return min((begin for begin in self._passed_over if begin > physical_offset), default=1 << 62)

    def _is_hole(self, physical_offset: int, heads: list[FileHead]) -> bool:
        """Return whether the log continues after a position without a sound record."""
        if self.mark is not None:
            return physical_offset < self.mark.flushed_offset
        if self._proves_hole(physical_offset):
            return True
        begins_file = physical_offset % self._files.file_bytes == 0
        files = zip(self._files.files, heads, strict=True)
        return begins_file and any(head.begun for file, head in files if file.start_offset > physical_offset)

    def _note_hole(self, file: MappedFile, begin: int, status: int, store_ms: int) -> int:
        """Note the hole that begins there; returns its end: at most the end of its file and the flushed offset."""
        limit = min(file.end_offset, self.mark.flushed_offset) if self.mark is not None else file.end_offset
        end = self._finder.end_of(begin, limit, store_ms)
        end = min(end, self._next_passed_over(begin))
        before = self.holes[-1] if self.holes else None
        if before is not None and before.end == begin > file.start_offset:
            # No sound record separates the two holes, so a missing message may have been in either, and one of them
            # may be too small for all tombstones. They are contained as one.
            self.holes[-1] = dataclasses.replace(before, end=end)
        else:
            self.holes.append(Hole(begin, end, kernel.BAD_NAMES[status], store_ms))
        return end

    def holes_of(self, damaged: Iterable[DamagedRecord]) -> list[Hole]:
        """Return the holes of records that cannot be right although their parts are valid, by physical offset.

        Holes that touch are joined, for the same reason as in ``_note_hole``.
        """
        holes: list[Hole] = []
        for each in sorted(damaged, key=lambda each: each.physical_offset):
            begin = each.physical_offset
            file = self._files.find(begin)
            assert file is not None
            end = self._finder.end_of(begin, min(file.end_offset, self._commitlog.write_offset), 0)
            if holes and begin <= holes[-1].end and begin > file.start_offset:
                holes[-1] = dataclasses.replace(holes[-1], end=max(holes[-1].end, end))
            else:
                holes.append(Hole(begin, end, each.reason, 0))
        return holes

    # The cut.

    def cut(self, end: int) -> None:
        """Make ``end`` the end of the log on disk: remove the files after it, and zero the rest of its own file."""
        queue = self._files
        queue.remove_empty()
        kept = max(sum(1 for file in queue.files if file.start_offset < end), 1)
        removed = queue.remove_from(kept)
        # Newest first: after a stop in between, the remaining files have no gap.
        for file in reversed(removed):
            if not FileHead(file).empty:
                log.warning("%s was removed: the log ends at %d", file.path, end)
                self.cut_bytes += file.size
            file.close()
            queue.os.unlink(file.path)
        if removed:
            queue.os.sync_folder(queue.folder)
        flushed = self.mark.flushed_offset if self.mark else 0
        for file in queue.files:
            if file.start_offset <= end < file.end_offset:
                zeroed = zero(queue.os, file.fd, end - file.start_offset, file.size)
                if zeroed:
                    self.cut_bytes += zeroed
                    log.warning("%s: the rest of a torn write after offset %d is cut", file.path, end)
                queue.os.sync_data(file.fd)
            elif file.end_offset > flushed:
                # Its records may be in the page cache only, and the new end says that they are on disk.
                queue.os.sync_data(file.fd)
        self._open_tail(end)

    def _open_tail(self, end: int) -> None:
        commitlog = self._commitlog
        commitlog.write_offset = commitlog.flushed_offset = end
        commitlog.last_store_ms = self.last_store_ms
        for file in self._files.files:
            written = min(max(end - file.start_offset, 0), file.size)
            file.allocated = written if written == file.size else written // 4096 * 4096

    def has_record_of(self, queue: ConsumeQueue, unit: tuple[int, int, int]) -> bool:
        """Return whether a unit of the queue (queue offset, physical offset, size) points at its own sound record."""
        return points_at_own_record(self._files.find, queue, unit)

    def record_there(self, physical_offset: int, size: int) -> tuple[bytes, int, int] | None:
        """Return (topic, queue, queue offset) from the sound record of this size there, or None."""
        record = record_of_size(self._files.find, physical_offset, size)
        return record.message if record is not None and record.is_sound else None

    def store_ms_behind(self, physical_offset: int) -> int:
        """Return the store time of the first sound record at or after a record boundary.

        Returns 0 if damage or the end of the log comes first.
        """
        while (file := self._files.find(physical_offset)) is not None:
            record = RecordAt(file, physical_offset)
            if record.is_sound:
                return record.store_ms
            if record.status != kernel.BLANK:
                break
            physical_offset = file.end_offset
        return 0

    def following_queue_offsets(self, physical_offset: int, end: int) -> list[int]:
        """Return the queue offsets of the next records after ``physical_offset`` that have its topic and queue.

        Looks at most ``LOOK_AHEAD_BYTES_MAX`` ahead and returns at most ``LOOK_AHEAD_RECORDS_MAX``.
        """
        found: list[int] = []
        end = min(end, physical_offset + LOOK_AHEAD_BYTES_MAX)
        wanted = None
        at = physical_offset
        while at < end and len(found) < LOOK_AHEAD_RECORDS_MAX and (file := self._files.find(at)) is not None:
            record = RecordAt(file, at)
            if record.status == kernel.BLANK:
                at = file.end_offset
                continue
            if not record.is_sound:
                break
            *queue, queue_offset = record.message
            if wanted is None:
                wanted = queue
            elif queue == wanted and not record.transaction & SysFlag.TRANSACTION_PREPARED:
                found.append(queue_offset)
            at += record.size
        return found


def _lost_its_tail(array: np.ndarray, end: int, parts: np.ndarray) -> bool:
    """Return whether the last record, which ends at ``end`` before zeros, has lost its own last bytes to zeros.

    Its last page may not have reached the disk. No checksum covers the bytes after the body, but neither properties
    nor a topic can end with a zero byte.
    """
    if parts[kernel.R_SIZE] == 0:
        return False
    without_properties = parts[kernel.R_PROPERTIES_AT] == end
    topic_end = parts[kernel.R_TOPIC_END]
    last = array[topic_end - 1] if without_properties and parts[kernel.R_TOPIC_AT] < topic_end else array[end - 1]
    return bool(last == 0)


# ---- Search for the messages that were lost in a hole of the CommitLog.
#
# These are the messages whose ConsumeQueue units point into it, and those missing between the records around
# it.


class LostMessages:
    """Finds the messages that were lost in ``holes``. Changes only the table of queues in memory.

    ``holes`` must include all holes between ``dispatched``, below which every record has its unit, and ``end``, the end
    of the log; it may include earlier ones.
    """

    def __init__(
        self,
        store: LoadedStore,
        evidence: UnitEvidence,
        has_record_of: HasRecordOf,
        holes: Iterable[Hole],
        dispatched: int,
        end: int,
    ) -> None:
        self._store = store
        self._commitlog = store.commitlog
        self._queues = store.queues
        self._state = store.state
        self._has_record_of = has_record_of
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
            if not self._has_record_of(queue, (queue_offset, physical_offset, size)):
                return False
        return True

    def _spans(self, begin: int, end: int) -> dict[tuple[str, int], tuple[int, int]]:
        """Return (first queue offset, end) of every queue with a record in ``[begin, end)``."""
        spans: dict[tuple[str, int], tuple[int, int]] = {}
        # Records with an impossible topic or queue offset are ignored here: they are contained later, when they are
        # compared or dispatched.
        for derived in self._store.derive(begin, end, []):
            for queue, first, units in derived.runs:
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
