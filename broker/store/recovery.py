"""Recovery: find the true end of the log, cut what is torn, and make queues and index agree with it.

The rules, in the order they are applied:

1. Below the checkpoint's flushed offset everything was on disk: a record there that does not check is damage, and the
   start is refused. Above it the first bad record is the end, because nothing behind it was ever acknowledged under sync
   flush. A store without FlintMQ's mark (RocketMQ wrote last) has no such line: there, ConsumeQueue units that point at
   sound records behind a bad one prove that it is a hole.
2. What lies behind the end becomes zeros, on disk, before the first write: no ghost of an old record can come back.
3. Queues and index are trusted below the dispatched offset; everything from there on is dispatched again. One that is
   missing or damaged is moved aside, and the log is dispatched from its beginning, which fills only what is missing.

Killed at any point, it starts over and comes to the same result.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ...protocol.layout import (
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PRE_BLANK_SIZE,
    RECORD,
    RECORD_HEAD_BYTES,
    RECORD_STRUCT,
    UNIT_BYTES,
)
from ..kernels import dispatch as kernel
from ..kernels import index as index_kernel
from .checkpoint import Mark, StoreCheckpoint
from .commitlog import CommitLog
from .consume_queue import ConsumeQueue
from .dispatcher import Dispatcher, IncompleteQueue
from .errors import CorruptLog
from .files import zero
from .index_file import IndexService
from .mapped_file import MappedFile
from .queue_table import ConsumeQueueTable
from .settings import StoreSettings
from .store_state import StoreState

Progress = Callable[[str, int, int], None]
"""Called with (what is done, bytes done, bytes in all)."""

SCAN_STEP_BYTES = 64 * 1024 * 1024
DISPATCH_CHUNK_BYTES = 4 * 1024 * 1024
QUEUE_CHECK_BYTES_MAX = 64 * 1024 * 1024
"""All units are checked where the queues are this small in all; otherwise those of each queue's last file."""
INDEX_CHECK_BYTES_MAX = 512 * 1024 * 1024
CLOCK_MARGIN_MS = 3_000
"""RocketMQ's own margin on the checkpoint's times."""

UNIT_DTYPE = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])

log = logging.getLogger(__name__)


@dataclass(slots=True)
class RecoveryReport:
    """What a start found: whether the stop before was orderly, records checked and dispatched, bytes cut, and why queues
    or index files were rebuilt. ``seconds``: what it took."""

    clean: bool
    seconds: float = 0.0
    messages_checked: int = 0
    messages_recovered: int = 0
    truncated_bytes: int = 0
    rebuilt: list[str] = field(default_factory=list)


class Recovery:
    """One recovery of an opened, locked store."""

    def __init__(
        self,
        settings: StoreSettings,
        commitlog: CommitLog,
        queues: ConsumeQueueTable,
        index: IndexService,
        checkpoint: StoreCheckpoint,
        state: StoreState,
        dispatcher: Dispatcher,
        progress: Progress,
        *,
        clean: bool,
    ) -> None:
        self._settings = settings
        self._commitlog = commitlog
        self._queues = queues
        self._index = index
        self._checkpoint = checkpoint
        self._state = state
        self._dispatcher = dispatcher
        self._progress = progress
        self._parts = np.zeros(kernel.PARTS, np.int64)
        self._scan_state = np.zeros(kernel.STATE, np.int64)
        self._last_store_ms = 0
        self._index_damage: list[str] = []
        self._blob = bytearray()
        self.cut = False
        self.report = RecoveryReport(clean)
        self.before_changes: Callable[[], None] = lambda: None
        """Called when the start is not refused any more, before the first byte is changed."""

    def run(self) -> RecoveryReport:
        """Recover. Raises ``CorruptLog``, with nothing changed, where the log has a hole or a foreign file."""
        self._commitlog.queue.load()
        self.report.rebuilt += self._queues.load()
        self._index_damage = self._index.load()
        self.report.rebuilt += self._index_damage
        mark = self._usable_mark()
        self._check_file_heads(mark)
        end = self._find_end(mark)
        self.before_changes()
        self._cut(end)
        self._open_tail(end)
        dispatched = min(self._first_undispatched(mark, end), end)
        dispatched = min(dispatched, self._recover_queues(dispatched, end))
        dispatched = min(dispatched, self._recover_index(dispatched, end, trusted=mark is not None))
        self._dispatch(max(dispatched, self._commitlog.start_offset), end)
        self._sync(end)
        return self.report

    # 1. The end of the log.

    def _usable_mark(self) -> Mark | None:
        mark = self._checkpoint.mark
        log_files = self._commitlog.queue
        if mark is None or (not log_files.files and mark.flushed_offset == 0):
            return mark
        if mark.flushed_offset > log_files.end_offset:
            raise CorruptLog(
                f"{log_files.folder} ends at {log_files.end_offset:,}, but {mark.flushed_offset:,} bytes were flushed: "
                "its last file is missing. Restore it from a backup; nothing was changed"
            )
        return mark if mark.flushed_offset >= log_files.start_offset else None

    def _head(self, file: MappedFile) -> tuple[int, int, int]:
        """(size, magic, physical offset) where a file's first record should be."""
        blob = bytearray(RECORD_HEAD_BYTES)
        file.files.read(file.fd, memoryview(blob), 0, wait=True)
        fields = RECORD_STRUCT.unpack(blob)
        return fields[0], fields[1], fields[6]

    def _check_file_heads(self, mark: Mark | None) -> None:
        """A file that belongs to another log, or begins with nothing although the log goes on behind it, is refused."""
        files = self._commitlog.queue.files
        for number, file in enumerate(files):
            size, magic, physical_offset = self._head(file)
            known = mark.flushed_offset > file.start_offset if mark else number + 1 < len(files) and self._begun(files[number + 1])
            if magic in (MAGIC_V1, MAGIC_V2) and physical_offset != file.start_offset and (known or mark is None):
                raise CorruptLog(
                    f"{file.path}: its first record says it lies at {physical_offset:,}, not at {file.start_offset:,}. "
                    "The file belongs to another log or was renamed; put the right one back. Nothing was changed"
                )
            if known and not (magic in (MAGIC_V1, MAGIC_V2) or magic == MAGIC_BLANK) or known and size <= 0:
                raise CorruptLog(
                    f"{file.path} does not begin with a record although the log goes on behind byte 0 of it (physical "
                    f"offset {file.start_offset:,}). Restore the file from a backup; nothing was changed"
                )

    def _begun(self, file: MappedFile) -> bool:
        size, magic, _ = self._head(file)
        return size > 0 and magic in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK)

    def _scan_from(self, mark: Mark | None) -> int:
        """Where checking begins: at a file's start, so that the newest ``verify_at_start_bytes`` are checked, and all
        that is not known to be flushed."""
        files = self._commitlog.queue.files
        number = len(files) - 1
        while number > 0 and not self._begun(files[number]):
            number -= 1
        budget = self._settings.verify_at_start_bytes - files[number].size
        while number > 0 and budget >= files[number - 1].size:
            number -= 1
            budget -= files[number].size
        needed = self._not_flushed_from(mark)
        while number > 0 and files[number].start_offset > needed:
            number -= 1
        start = files[number].start_offset
        if self._settings.verify_at_start_bytes == 0 and mark is not None:
            return max(start, mark.flushed_offset)
        return start

    def _not_flushed_from(self, mark: Mark | None) -> int:
        if mark is not None:
            return mark.flushed_offset
        if self.report.clean and self._checkpoint.physic_msg_timestamp:
            return self._commitlog.queue.end_offset
        return self._file_before(self._checkpoint.physic_msg_timestamp)

    def _file_before(self, store_ms: int) -> int:
        """Start of the newest file whose first record was stored well before ``store_ms``; the log's start if none."""
        files = self._commitlog.queue.files
        for file in reversed(files):
            blob = bytearray(RECORD_HEAD_BYTES)
            file.files.read(file.fd, memoryview(blob), 0, wait=True)
            first_ms = int.from_bytes(blob[RECORD.at["store_timestamp"] : RECORD.at["store_timestamp"] + 8], "big")
            if self._begun(file) and 0 < first_ms <= store_ms - CLOCK_MARGIN_MS:
                return file.start_offset
        return self._commitlog.start_offset

    def _find_end(self, mark: Mark | None) -> int:
        files = self._commitlog.queue.files
        if not files:
            return mark.flushed_offset if mark else 0
        at = self._scan_from(mark)
        flushed = mark.flushed_offset if mark else 0
        total = max(flushed, self._commitlog.queue.files[-1].start_offset) - at
        self._scan_state[:] = 0
        begin = at
        while (file := self._commitlog.queue.find(at)) is not None:
            position = at - file.start_offset
            status, position = kernel.scan(
                file.array(), position, min(position + SCAN_STEP_BYTES, file.size), file.start_offset, self._parts,
                self._scan_state,
            )  # fmt: skip
            at = file.start_offset + position
            self._progress("checking the log", at - begin, max(total, at - begin))
            if status == kernel.DONE:
                continue
            file.release()
            if status == kernel.BLANK:
                at = file.end_offset
                continue
            if at < flushed or mark is None and self._units_prove_records_behind(at):
                raise CorruptLog(
                    f"{file.path} has {kernel.BAD_NAMES[status]} at byte {position:,} (physical offset {at:,}), and sound "
                    "records lie behind it. Restore the file from a backup; nothing was changed"
                )
            break
        self.report.messages_checked = int(self._scan_state[kernel.S_RECORDS])
        self._last_store_ms = int(self._scan_state[kernel.S_LAST_STORE_MS])
        if at < flushed:
            raise CorruptLog(
                f"{self._commitlog.queue.folder} ends at {at:,}, but {flushed:,} bytes were flushed: a file is missing. "
                "Restore it from a backup; nothing was changed"
            )
        return at

    def _units_prove_records_behind(self, physical_offset: int) -> bool:
        """Whether a ConsumeQueue unit points at a sound record behind ``physical_offset``."""
        for queue in self._queues:
            for unit_at in reversed(range(queue.first_byte, queue.end_byte, queue.file_bytes)):
                units = self._units_of_file(queue, unit_at)
                behind = units[(units["size"] > 0) & (units["size"] != PRE_BLANK_SIZE)]
                behind = behind[behind["physical_offset"] > physical_offset]
                for unit in behind[:3]:
                    if self._record_at(int(unit["physical_offset"]), int(unit["size"])) == kernel.DONE:
                        return True
        return False

    def _record_at(self, physical_offset: int, size: int) -> int:
        """Check the record there; DONE with its parts in ``self._parts`` where it is sound and of that size."""
        file = self._commitlog.queue.find(physical_offset)
        if file is None or size < RECORD_HEAD_BYTES or physical_offset + size > file.end_offset:
            return kernel.NO_RECORD
        blob = bytearray(size)
        file.files.read(file.fd, memoryview(blob), physical_offset - file.start_offset, wait=True)
        self._blob = blob
        status = kernel.locate(np.frombuffer(blob, np.uint8), 0, size, physical_offset, self._parts)
        return kernel.BAD_LENGTH if status == kernel.DONE and self._parts[kernel.R_SIZE] != size else status

    # 2. The cut.

    def _cut(self, end: int) -> None:
        queue = self._commitlog.queue
        keep = [file for file in queue.files if file.start_offset < end]
        if not keep and queue.files:
            keep = queue.files[:1]
        removed = queue.remove_from(len(keep))
        for file in reversed(removed):
            if self._begun(file):
                self.report.truncated_bytes += file.size
                self.cut = True
            file.close()
            queue.os.unlink(file.path)
        if removed:
            queue.os.sync_folder(queue.folder)
        if keep and end < keep[-1].end_offset:
            file = keep[-1]
            zeroed = zero(queue.os, file.fd, max(end - file.start_offset, 0), file.size)
            if zeroed:
                queue.os.sync_data(file.fd)
                self.cut = True
                self.report.truncated_bytes += zeroed
                log.warning("%s: %d bytes of a torn write behind offset %d were cut", file.path, zeroed, end)

    def _open_tail(self, end: int) -> None:
        commitlog = self._commitlog
        commitlog.write_offset = commitlog.flushed_offset = end
        for file in commitlog.queue.files:
            file.allocated = file.size
        if commitlog.queue.files:
            tail = commitlog.queue.files[-1]
            tail.allocated = min(end - tail.start_offset, tail.size) // 4096 * 4096
            for file in commitlog.queue.files:
                if file.end_offset > (self._checkpoint.mark.flushed_offset if self._checkpoint.mark else 0):
                    commitlog.os.sync_data(file.fd)
        self._last_store_ms = max(self._last_store_ms, self._checkpoint.physic_msg_timestamp if not self.cut else 0)
        commitlog.last_store_ms = self._last_store_ms

    # 3. Queues and index.

    def _first_undispatched(self, mark: Mark | None, end: int) -> int:
        if mark is not None:
            return mark.dispatched_offset
        if not self.report.clean:
            return self._file_before(self._checkpoint.logics_msg_timestamp)
        # RocketMQ dispatches in order: after an orderly stop all is there up to the newest unit.
        newest = self._commitlog.start_offset
        for queue in self._queues:
            count = self._count_units(queue, end)
            if count > queue.first_byte // UNIT_BYTES:
                physical_offset, size, _ = queue.unit(count - 1, hot=False)
                if size != PRE_BLANK_SIZE:
                    newest = max(newest, physical_offset + size)
        return newest

    def _count_units(self, queue: ConsumeQueue, below: int) -> int:
        """The first queue offset whose unit is none or points at or behind ``below``, by binary search."""
        low, high = queue.first_byte // UNIT_BYTES, queue.end_byte // UNIT_BYTES
        while low < high:
            middle = (low + high) // 2
            physical_offset, size, _ = queue.unit(middle, hot=False)
            filling = size == PRE_BLANK_SIZE and physical_offset == 0
            if size > 0 and (filling or physical_offset < below):
                low = middle + 1
            else:
                high = middle
        return low

    def _recover_queues(self, dispatched: int, end: int) -> int:
        """Cut each queue at ``dispatched``; returns from where the log must be dispatched again."""
        total = sum(queue.end_byte - queue.first_byte for queue in self._queues)
        needed = dispatched
        for queue in self._queues:
            count = self._count_units(queue, dispatched)
            problem = self._queue_problem(queue, count, end, thorough=total <= QUEUE_CHECK_BYTES_MAX)
            if problem:
                self.report.rebuilt.append(f"consumequeue {queue.topic}/{queue.queue_id}: {problem}")
                self._queues.move_aside(queue)
                needed = self._commitlog.start_offset
            else:
                queue.truncate(count)
                self._find_start(queue)
            self._queues.sync_row(queue)
        return min(needed, self._missing_queues(dispatched))

    def _find_start(self, queue: ConsumeQueue) -> None:
        """The first unit that is no filling."""
        low, high = queue.first_byte // UNIT_BYTES, queue.max_offset
        while low < high:
            middle = (low + high) // 2
            physical_offset, size, _ = queue.unit(middle, hot=False)
            if size == PRE_BLANK_SIZE and physical_offset == 0:
                low = middle + 1
            else:
                high = middle
        queue.start_offset = queue.min_hint = low

    def _missing_queues(self, dispatched: int) -> int:
        """Whether a queue ends before where it is known to have ended, which only a lost folder or file explains."""
        snapshot = self._state.snapshot
        for topic, row in snapshot.next_offsets.items():
            for queue_id, next_offset in row.items():
                queue = self._queues.get(topic, queue_id)
                held = queue.max_offset if queue is not None else 0
                sure = dispatched >= snapshot.physical_offset or held == 0
                if held < next_offset and sure and self._has_records(topic):
                    if queue is not None:
                        self._queues.move_aside(queue)
                    self.report.rebuilt.append(f"consumequeue {topic}/{queue_id}: it ends at {held}, not at {next_offset}")
                    return self._commitlog.start_offset
        return dispatched

    def _has_records(self, topic: str) -> bool:
        return self._commitlog.write_offset > max(self._commitlog.start_offset, self._state.deleted_below(topic))

    def _units_of_file(self, queue: ConsumeQueue, start_byte: int) -> np.ndarray:
        blob = queue.read_units(start_byte // UNIT_BYTES, queue.file_bytes // UNIT_BYTES, hot=False)
        return np.frombuffer(blob, UNIT_DTYPE)

    def _queue_problem(self, queue: ConsumeQueue, count: int, end: int, *, thorough: bool) -> str:
        """Why the queue's units below ``count`` cannot be right; empty where they can."""
        first = queue.first_byte // UNIT_BYTES
        if count == first:
            return ""
        per_file = queue.file_bytes // UNIT_BYTES
        at = first if thorough else (count - 1) // per_file * per_file
        last_physical = -1
        while at < count:
            blob = queue.read_units(at, min(per_file, count - at), hot=False)
            units = np.frombuffer(blob, UNIT_DTYPE)
            units = units[~((units["size"] == PRE_BLANK_SIZE) & (units["physical_offset"] == 0))]
            if len(units):
                offsets = units["physical_offset"].astype(np.int64)
                sizes = units["size"].astype(np.int64)
                if (sizes <= 0).any() or (np.diff(offsets) < sizes[:-1]).any() or offsets[0] <= last_physical:
                    return f"its units between {at:,} and {at + per_file:,} do not point forward"
                last_physical = int(offsets[-1])
            at += per_file
        return self._last_unit_problem(queue, count - 1, end)

    def _last_unit_problem(self, queue: ConsumeQueue, queue_offset: int, end: int) -> str:
        physical_offset, size, _ = queue.unit(queue_offset, hot=False)
        if size == PRE_BLANK_SIZE or physical_offset < self._commitlog.start_offset:
            return ""
        if physical_offset + size > end or self._record_at(physical_offset, size) != kernel.DONE:
            return f"unit {queue_offset:,} points at no record"
        fields = RECORD_STRUCT.unpack_from(self._blob)
        topic = bytes(self._blob[self._parts[kernel.R_TOPIC_AT] : self._parts[kernel.R_TOPIC_END]])
        if (topic, fields[3], fields[5]) != (queue.topic.encode(), queue.queue_id, queue_offset):
            return f"unit {queue_offset:,} points at a record of another queue or offset"
        return ""

    def _recover_index(self, dispatched: int, end: int, *, trusted: bool) -> int:
        """Drop index files that cannot be right; returns from where the log must be dispatched again."""
        index = self._index
        names = [file.path.name for file in index.files]
        expected = self._state.snapshot.index_files
        missing = [name for name in expected if name not in names]
        keep = len(names)
        if missing:
            self.report.rebuilt.append(f"index file {missing[0]} is missing")
            keep = sum(1 for name in names if name < missing[0])
        elif not names and end > self._commitlog.start_offset and not self._state.snapshot.physical_offset:
            self.report.rebuilt.append("there is no index file")
            return self._commitlog.start_offset
        problem, keep = self._index_problem(keep, end)
        if problem:
            self.report.rebuilt.append(problem)
        complete = trusted and not missing and not problem and not self._index_damage
        index.drop_from(keep)
        return dispatched if complete else min(dispatched, index.end_physical_offset)

    def _index_problem(self, keep: int, end: int) -> tuple[str, int]:
        """What is wrong with the oldest index file that is wrong, and how many before it are good."""
        budget = INDEX_CHECK_BYTES_MAX
        last_physical = 0
        for number, file in enumerate(self._index.files[:keep]):
            header = file.header
            newest = number == keep - 1
            if not (1 <= header.index_count <= file.entries or newest and header.index_count == 0):
                return f"{file.path}: it says it has {header.index_count:,} entries", number
            if header.index_count > 1 and not last_physical <= header.begin_physical_offset <= header.end_physical_offset:
                return f"{file.path}: its offsets do not follow the file before it", number
            if header.end_physical_offset >= end and header.index_count > 1:
                return f"{file.path}: it points behind the end of the log", number
            last_physical = header.end_physical_offset
            checked = newest or budget >= file.size * (keep - number)
            if checked and header.index_count and file.check() == index_kernel.DAMAGED:
                return f"{file.path}: its chains are broken", number
        return "", keep

    def _dispatch(self, begin: int, end: int) -> None:
        dispatcher = self._dispatcher
        dispatcher.reput_offset = begin
        refilled: set[int] = set()
        while dispatcher.reput_offset < end:
            try:
                dispatcher.step(end, DISPATCH_CHUNK_BYTES, complete=refilled)
            except IncompleteQueue as gap:
                # Its units in front of the gap were lost: fill it from the log, once. A gap that is still there then is
                # in the log itself.
                queue = gap.queue
                refilled.add(queue.row)
                self.report.rebuilt.append(f"consumequeue {queue.topic}/{queue.queue_id}: it ends at {queue.max_offset:,}")
                self._queues.move_aside(queue)
                dispatcher.reput_offset = begin = self._commitlog.start_offset
            self._progress("dispatching", dispatcher.reput_offset - begin, end - begin)
            self.report.messages_recovered += dispatcher.dispatched_records
        dispatcher.reput_offset = end

    def _sync(self, end: int) -> None:
        self._queues.sync()
        self._index.sync()
        self._checkpoint.reset(end, end, self._last_store_ms)
        for file in self._commitlog.queue.files[:-1]:
            file.release()
