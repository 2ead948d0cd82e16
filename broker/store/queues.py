"""ConsumeQueues: their files, the table of all queues, and the check of a queue by its files alone."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...protocol.storage.javahash import java_hash
from ...protocol.storage.layout import PRE_BLANK_SIZE, RECORD_BYTES_MIN, UNIT, UNIT_BYTES
from ...protocol.store_files import OFFSET_NAME, QUEUE_NAME, file_name
from ..int_table import IntTable
from ..kernels.dispatch import (
    KIND_ORDINARY,
    KIND_SCHEDULE,
    Q_DELETED_BELOW,
    Q_KIND,
    Q_NEXT,
    Q_QUEUE_ID,
    Q_TOPIC_AT,
    Q_TOPIC_BYTES,
    Q_TOPIC_HASH,
    QUEUE_ROW,
    queue_hash,
)
from ..kernels.short_sends import O_AWAITED, O_NEXT, O_WIDTH
from .errors import CorruptFile, SettingMismatch, WouldBlock
from .files.file_system import Descriptor, OpenFiles, move_aside, zero

if TYPE_CHECKING:
    from .files.file_system import Files


# ---- ConsumeQueue: the list of one queue's messages, as 20-byte units that point into the CommitLog.

_PRE_BLANK = UNIT.pack(0, PRE_BLANK_SIZE, 0)


class QueueTotals(NamedTuple):
    """Totals of a queue, valid while its max offset is ``max_offset`` and its log begins at ``log_start``: its min
    offset, and place and store time (ms, -1: unknown yet) of its last message."""

    max_offset: int
    log_start: int
    min_offset: int
    physical_offset: int
    size: int
    stored_ms: int


class KeptEnd(NamedTuple):
    """The bytes of a queue's last file from position ``at`` of the queue up to the file's ``end``: ``held``, then only
    zeros."""

    at: int
    held: bytes
    end: int


GATHERED_UNITS_MAX = 32
"""Number of units of a queue that wait in memory before they are written together. With thousands of queues in use,
each would otherwise cost a system call for each message, and often the opening of its file."""


class Gathered:
    """Units from queue offset ``first`` on that are not in the file yet, or not all of them."""

    __slots__ = ("first", "units")

    def __init__(self, first: int) -> None:
        self.first = first
        self.units = bytearray()


class ConsumeQueue:
    """One queue's units, in files of ``file_bytes``.

    ``max_offset`` is published after the units below it are written, so any thread may read below it. Only the owner of
    reput writes; retention deletes the oldest files.
    """

    __slots__ = tuple(
        (
            "_dirty _empty_file _files _gathered _kept _open_files _written file_bytes files folder folder_dirty "
            "max_offset min_hint queue_id row start_offset totals topic"
        ).split()
    )

    def __init__(
        self, files: Files, open_files: OpenFiles, folder: Path, topic: str, queue_id: int, file_bytes: int, row: int
    ) -> None:
        self.files = files
        self.folder = folder
        self.topic = topic
        self.queue_id = queue_id
        self.file_bytes = file_bytes
        self.row = row
        self._open_files = open_files
        self._files: dict[int, Descriptor | None] = {}
        """Open files by the position of their first byte in the queue; None: the file is not open."""
        self._empty_file: Path | None = None
        self._kept: KeptEnd | None = None
        """See ``keep_end``; None once something else was written there."""
        self.start_offset = 0
        """First queue offset whose unit is not filling. The log may begin after that message."""
        self.max_offset = 0
        self.min_hint = 0
        """Queue offset below which all units point before the start of the log."""
        self.totals: QueueTotals | None = None
        """Result of the last count, for as long as nothing changes."""
        self._dirty: set[int] = set()
        self.folder_dirty = False
        self._gathered: Gathered | None = None
        """Units that ``gather`` took. Only the owner of reput adds to it, or replaces it once its units are written."""
        self._written = 0
        """Queue offset below which ``write_out`` has written gathered units; they stay until the owner writes too."""

    @property
    def dirty(self) -> bool:
        """Return whether anything was written since the last ``sync``."""
        return bool(self._dirty) or self.folder_dirty

    def load(self, kept_bytes: int = 0) -> tuple[str, Path | None]:
        """Open the existing files, without changing anything.

        ``kept_bytes``: keep as many bytes of the last units in memory until ``forget_end``. A start looks at them
        several times, and with thousands of queues it would have to open their files each time.

        Returns (the reason why they cannot be used, empty if they can; the first file whose size is not
        ``file_bytes``). An empty last file, which a crash can leave, is ignored.
        """
        # Without a ``Path`` and a ``stat`` for each entry: ten thousand queues are loaded in a fraction of a second.
        try:
            with os.scandir(self.folder) as entries:
                found = {int(entry.name): entry for entry in entries if OFFSET_NAME.match(entry.name)}
        except (FileNotFoundError, NotADirectoryError):
            return "", None
        starts = sorted(found)
        problem = ""
        wrong_size = None
        for number, start in enumerate(starts):
            entry = found[start]
            if not entry.is_file(follow_symlinks=False):
                problem = problem or f"{entry.path} is not a file"
                continue
            fd = self._open(start)
            size = self.files.size(fd)
            if size == 0 and number == len(starts) - 1:
                self.files.close(fd)
                self._empty_file = Path(entry.path)
                continue
            if kept_bytes and number == len(starts) - 1 and size == self.file_bytes:
                self._keep_end(start, fd, kept_bytes)
            if kept_bytes:
                self.files.close(fd)
                self._files[start] = None
            else:
                self._enter(start, fd)
            if size != self.file_bytes:
                problem = problem or f"{entry.path} has {size:,} bytes instead of {self.file_bytes:,}"
                wrong_size = wrong_size or Path(entry.path)
            elif start % self.file_bytes or (number and start != starts[number - 1] + self.file_bytes):
                problem = problem or f"{entry.path} does not follow the file before it"
        return problem, wrong_size

    def _keep_end(self, start: int, fd: int, bytes_max: int) -> None:
        end = 0
        for _, stop in self.files.data_ranges(fd, 0, self.file_bytes):
            end = stop
        held = bytearray(min(end, bytes_max))
        if self.files.read(fd, memoryview(held), end - len(held), wait=True) == len(held):
            at = start + end - len(held)
            self._kept = KeptEnd(at, bytes(held.rstrip(b"\0")), start + self.file_bytes)

    def forget_end(self) -> None:
        """Read from the files again."""
        self._kept = None

    @property
    def content_bytes(self) -> tuple[int, int]:
        """Return two positions in the queue: from the first on its last bytes are in memory, and behind the second
        there are only zeros."""
        kept = self._kept
        if kept is None:
            return self.end_byte, self.end_byte
        return kept.at, kept.at + len(kept.held)

    def has_whole_file(self) -> bool:
        """Return whether at least one file of the queue has the configured size."""
        files = (self._file(start) for start in list(self._files))
        return any(self.files.size(file.fd) == self.file_bytes for file in files if file is not None)

    def _file(self, start: int) -> Descriptor | None:
        """Return the file that begins at ``start``, opening it if needed; None if it does not exist."""
        try:
            file = self._files[start]
        except KeyError:
            return None
        if file is not None:
            file.used = True
            return file
        try:
            return self._enter(start, self._open(start), new=False)
        except FileNotFoundError:  # retention deleted it meanwhile
            if start in self._files:
                raise
            return None

    def _open(self, start: int, *, create: bool = False) -> int:
        path = self.folder / file_name(start)
        while True:
            try:
                return self.files.open(path, create=create)
            except OSError as error:
                self._open_files.make_room(error)

    def _enter(self, start: int, fd: int, *, new: bool = True) -> Descriptor:
        file = Descriptor(self.files, fd)
        with self._open_files.lock:
            if not new and start not in self._files:
                return file  # retention deleted it meanwhile; the open descriptor can still be read
            other = self._files.get(start)
            if other is not None:
                return other  # another thread was faster
            self._files[start] = file
            self._open_files.opened(self, start, file)
        return file

    def _leave(self, start: int) -> Descriptor | None:
        with self._open_files.lock:
            file = self._files.pop(start)
            if file is not None:
                self._open_files.left(file)
        return file

    def shut(self, start: int) -> None:
        """Note that the pool closed the file that begins at ``start``."""
        self._files[start] = None

    @property
    def first_byte(self) -> int:
        """Position of the first file's first byte in the queue."""
        return min(list(self._files), default=0)

    @property
    def end_byte(self) -> int:
        """Position in the queue at which the last file ends, or will end once all units are written, in bytes."""
        end = max(list(self._files), default=-self.file_bytes) + self.file_bytes
        if self._gathered is not None:
            end = max(end, -(-self.max_offset * UNIT_BYTES // self.file_bytes) * self.file_bytes)
        return end

    def size(self) -> tuple[int, int]:
        """Return the number of files, and the bytes of units in them."""
        starts = list(self._files)
        if not starts:
            return 0, 0
        return len(starts), max(self.max_offset * UNIT_BYTES - min(starts), 0)

    def read_units(self, queue_offset: int, count: int, *, hot: bool) -> bytearray:
        """Return ``count`` units from ``queue_offset`` on, fewer if the files end before.

        With ``hot``, raises ``WouldBlock`` if the page cache does not hold them.
        """
        at = queue_offset * UNIT_BYTES
        kept = self._kept
        if kept is not None and kept.at <= at and at + count * UNIT_BYTES <= kept.end:
            held = bytearray(kept.held[at - kept.at : at - kept.at + count * UNIT_BYTES])
            return held.ljust(count * UNIT_BYTES, b"\0")
        gathered = self._gathered
        if gathered is not None and queue_offset + count > gathered.first:
            from_file = min(max(gathered.first - queue_offset, 0), count)
            held = self._read(at, from_file * UNIT_BYTES, hot=hot)
            if len(held) == from_file * UNIT_BYTES:
                begin = max(queue_offset - gathered.first, 0) * UNIT_BYTES
                held += gathered.units[begin : begin + (count - from_file) * UNIT_BYTES]
            return held
        return self._read(at, count * UNIT_BYTES, hot=hot)

    def _read(self, at: int, size: int, *, hot: bool) -> bytearray:
        """Return the bytes of whole units at a position from the files."""
        buffer = bytearray(size)
        view = memoryview(buffer)
        done = 0
        while done < len(buffer):
            start = at - at % self.file_bytes
            file = self._file(start)
            if file is None:
                break
            part = min(len(buffer) - done, start + self.file_bytes - at)
            got = self.files.read(file.fd, view[done : done + part], at - start, wait=not hot)
            if got < part:
                if hot:
                    raise WouldBlock
                break
            done += part
            at += part
        return buffer if done == len(buffer) else buffer[: done - done % UNIT_BYTES]

    def unit(self, queue_offset: int, *, hot: bool) -> tuple[int, int, int]:
        """Return (physical offset, size, tags code) of one unit; its size is 0 if there is no such unit."""
        kept = self._kept
        if kept is not None and 0 <= (at := queue_offset * UNIT_BYTES - kept.at) <= len(kept.held) - UNIT_BYTES:
            physical_offset, size, tags_code = UNIT.unpack(kept.held, at)
            return physical_offset, size, tags_code
        blob = self.read_units(queue_offset, 1, hot=hot)
        if len(blob) < UNIT_BYTES:
            return 0, 0, 0
        physical_offset, size, tags_code = UNIT.unpack(blob)
        return physical_offset, size, tags_code

    def append(self, units: memoryview) -> None:
        """Write units at ``max_offset``, then publish them. Raises OSError ENOSPC, publishing nothing.

        If others wait in memory, these join them.
        """
        if self._gathered is not None:
            if len(units) < GATHERED_UNITS_MAX * UNIT_BYTES:
                self.gather(units)  # a write of its own, after one of those that wait, would cost twice
                return
            self._write_gathered(self._gathered)
        at = self.max_offset * UNIT_BYTES
        start = at - at % self.file_bytes
        file = self._files.get(start)
        if file is not None and at + len(units) <= start + self.file_bytes:
            # Units for one open file, without the calls of `write_at`: with many topics, dispatch comes here once for
            # each message.
            file.used = True
            self._kept = None
            self.files.write(file.fd, units, at - start)
            self._dirty.add(start)
        else:
            self.write_at(self.max_offset, units)
        self.max_offset += len(units) // UNIT_BYTES

    def gather(self, units: memoryview) -> None:
        """Publish units as ``append`` does, but write them only together with later ones, or in ``write_out``.

        Until then they are only in memory, where readers find them: after a crash, the start derives them again from
        the log, as it does with units that were written but not synced. Raises OSError ENOSPC, publishing nothing.
        """
        gathered = self._gathered
        if gathered is None:
            gathered = self._gathered = Gathered(self.max_offset)
        elif len(gathered.units) + len(units) > GATHERED_UNITS_MAX * UNIT_BYTES:
            self._write_gathered(gathered)
            gathered = self._gathered = Gathered(self.max_offset)
        gathered.units += units
        self.max_offset += len(units) // UNIT_BYTES

    def _write_gathered(self, gathered: Gathered) -> None:
        """Write the gathered units; from then on readers read them from the file."""
        # A copy, because an error holds what was to be written, and what is held cannot grow.
        self.write_at(gathered.first, memoryview(bytes(gathered.units)))
        self._gathered = None

    def write_at(self, queue_offset: int, units: memoryview) -> None:
        """Write units without publishing them."""
        self._kept = None
        at = queue_offset * UNIT_BYTES
        while len(units):
            start = at - at % self.file_bytes
            file = self._file(start) or self._create(start)
            size = min(len(units), start + self.file_bytes - at)
            self.files.write(file.fd, units[:size], at - start)
            self._dirty.add(start)
            units = units[size:]
            at += size

    def _create(self, start: int) -> Descriptor:
        try:
            self.files.make_folder(self.folder)
        except (FileExistsError, NotADirectoryError):
            raise CorruptFile(
                f"the folder {self.folder} cannot be made: something other than a folder is there, or above. Move "
                "it away"
            ) from None
        fd = self._open(start, create=True)
        try:
            self.files.resize(fd, self.file_bytes)
        except OSError:
            self.files.close(fd)
            raise
        self.folder_dirty = True
        return self._enter(start, fd)

    def begin_at(self, queue_offset: int) -> None:
        """Make an empty queue begin at ``queue_offset``. RocketMQ: the first file is filled up to it with
        pre-blanks."""
        first = queue_offset * UNIT_BYTES
        filling = (first % self.file_bytes) // UNIT_BYTES
        for start in [start for start in self._files if start != first - first % self.file_bytes]:
            self._remove(start)
        if filling:
            self.write_at(queue_offset - filling, memoryview(_PRE_BLANK * filling))
        self.start_offset = self.max_offset = self.min_hint = queue_offset

    def skip_to(self, queue_offset: int) -> None:
        """Fill a gap up to ``queue_offset`` with units that every reader skips."""
        self.append(memoryview(_PRE_BLANK * (queue_offset - self.max_offset)))

    def truncate(self, queue_offset: int) -> None:
        """End the queue at ``queue_offset``: zero the units after it and delete whole files after it. For recovery."""
        end = queue_offset * UNIT_BYTES
        if self._gathered is not None:
            self._write_gathered(self._gathered)
        self._remove_empty()
        kept = self._kept
        if kept is not None and kept.at + len(kept.held) <= end and kept.end - self.file_bytes < end <= kept.end:
            self.max_offset = queue_offset  # there are only zeros after it already
            return
        self._kept = None
        for start in sorted(self._files, reverse=True):
            if start >= end and start != self.first_byte:
                self._remove(start)
            elif start + self.file_bytes > end:
                file = self._file(start)
                if file is not None and zero(self.files, file.fd, max(end - start, 0), self.file_bytes):
                    self._dirty.add(start)
        self.max_offset = queue_offset

    def remove_files(self) -> None:
        """Delete all files and reset the queue to empty. For recovery."""
        self._remove_empty()
        for start in sorted(self._files, reverse=True):
            self._remove(start)
        self._gathered, self._written = None, 0
        self.max_offset = self.start_offset = self.min_hint = 0

    def _remove_empty(self) -> None:
        if self._empty_file is not None:
            self.files.unlink(self._empty_file)
            self._empty_file = None
            self.folder_dirty = True

    def _remove(self, start: int) -> None:
        self._kept = None
        file = self._leave(start)
        if file is not None:
            file.close()
        self.files.unlink(self.folder / file_name(start))
        self.folder_dirty = True

    def expire(self, log_start: int) -> int:
        """Delete the files whose units all point before ``log_start``; return how many were deleted.

        The last file always stays, because it holds the queue's next offset. May run beside the owner and readers.
        """
        starts = sorted(self._files)
        gone = 0
        for start in starts[:-1]:
            behind = (start + self.file_bytes) // UNIT_BYTES
            physical_offset, size, _ = self.unit(behind - 1, hot=False)
            if size <= 0 or physical_offset >= log_start:
                break
            # Raised before the file goes, so that readers no longer begin in it.
            self.min_hint = max(self.min_hint, behind)
            self._leave(start)  # closed when the last reader drops its reference
            self.files.unlink(self.folder / file_name(start))
            self.folder_dirty = True
            gone += 1
        return gone

    def write_out(self) -> None:
        """Write units that wait in memory, for ``sync``. May run beside the owner. Raises OSError ENOSPC."""
        gathered = self._gathered
        if gathered is not None and self._written < self.max_offset:
            # A copy, because the owner may be adding. It may be writing the same bytes at the same time, too.
            units = bytes(gathered.units)
            self.write_at(gathered.first, memoryview(units))
            self._written = gathered.first + len(units) // UNIT_BYTES

    def sync(self) -> None:
        """Put written units on disk. May run beside the owner, whose new units then wait for the next call."""
        if self.folder_dirty:
            self.folder_dirty = False  # before the sync, as below
            try:
                self.files.sync_folder(self.folder)
            except OSError:
                self.folder_dirty = True
                raise
        for start in list(self._dirty):
            self._dirty.discard(start)  # before the sync: units that are written meanwhile mark the file dirty again
            file = self._file(start)
            if file is None:
                continue
            try:
                self.files.sync_data(file.fd)
            except OSError:
                self._dirty.add(start)
                raise

    def close(self) -> None:
        """Close the files. Units that are only in memory are dropped: ``write_out`` writes them."""
        self._empty_file = self._kept = self._gathered = None
        self._written = 0
        for start in list(self._files):
            file = self._leave(start)
            if file is not None:
                file.close()


# ---- Checks of a ConsumeQueue by its files alone: where it begins and ends, and whether its units are
# plausible.

UNIT_DTYPE = np.dtype(UNIT.dtype())
BLOCK_UNITS = 8192
"""Number of units that are read and checked together."""
RECORD_BYTES_MAX = 64 * 1024 * 1024
"""Maximum record size that a sound unit can state."""

Units = np.ndarray[Any, np.dtype[np.void]]


def read_units(queue: ConsumeQueue, queue_offset: int, count: int) -> Units:
    """Return units as an array of (physical_offset, size, tags_code); fewer if the files end before."""
    return np.frombuffer(queue.read_units(queue_offset, count, hot=False), UNIT_DTYPE)


def is_filling(units: Units) -> np.ndarray:
    """Return a mask of the units that only fill a gap, or the queue's first file up to the first message."""
    filling: np.ndarray = (units["size"] == PRE_BLANK_SIZE) & (units["physical_offset"] == 0)
    return filling


def first_unit(queue: ConsumeQueue) -> int:
    """Return the queue offset of the first unit in the files."""
    return queue.first_byte // UNIT_BYTES


def count_units(queue: ConsumeQueue, below: int) -> int:
    """Return the first queue offset whose unit is missing or points at or after ``below``: where a queue cut there
    ends.

    A filling in the middle can mislead the binary search, because it has no place in the order of the log. So the last
    real unit before the end that was found must point below ``below`` too; otherwise the search is repeated before it.
    """

    def is_behind(queue_offset: int) -> bool:
        physical_offset, size, _ = queue.unit(queue_offset, hot=False)
        filling = size == PRE_BLANK_SIZE and physical_offset == 0
        return size <= 0 or not (filling or physical_offset < below)

    low, high = first_unit(queue), queue.end_byte // UNIT_BYTES
    # Where only zeros follow, nothing need be looked at, and what is in memory is looked at first.
    kept_at, zeros_at = queue.content_bytes
    high = max(min(high, -(-zeros_at // UNIT_BYTES)), low)
    if low < (kept_from := -(-kept_at // UNIT_BYTES)) < high and not is_behind(kept_from):
        low = kept_from
    if low < high and not is_behind(high - 1):
        low = high
    while True:
        end = low + bisect_left(range(low, high), True, key=is_behind)
        last = last_record_unit(queue, end)
        if last is None or last[1] < below:
            return end
        low, high = first_unit(queue), last[0]


def last_record_unit(queue: ConsumeQueue, end: int) -> tuple[int, int, int] | None:
    """Return (queue offset, physical offset, size) of the last unit below ``end`` that is not filling, or None."""
    begin, block_units = first_unit(queue), 64
    # The last unit is nearly always a real one.
    if end > begin:
        physical_offset, size, _ = queue.unit(end - 1, hot=False)
        if size > 0 and size != PRE_BLANK_SIZE:
            return end - 1, physical_offset, size
    while end > begin:
        at = max(end - block_units, begin)
        block_units = BLOCK_UNITS
        units = read_units(queue, at, end - at)
        records = np.flatnonzero(~is_filling(units))
        if len(records):
            unit = units[records[-1]]
            return at + int(records[-1]), int(unit["physical_offset"]), int(unit["size"])
        end = at
    return None


def find_start(queue: ConsumeQueue, end: int) -> int:
    """Return the first queue offset whose unit is not filling; ``end`` if all units below it are."""
    at = first_unit(queue)
    if at < end:
        _, size, _ = queue.unit(at, hot=False)
        if size > 0 and size != PRE_BLANK_SIZE:
            return at  # nearly always, so that a block is read only for a filling
    while at < end:
        records = np.flatnonzero(~is_filling(read_units(queue, at, min(BLOCK_UNITS, end - at))))
        if len(records):
            return at + int(records[0])
        at += BLOCK_UNITS
    return end


def order_problem(queue: ConsumeQueue, begin: int, end: int) -> str:
    """Return why the units of ``[begin, end)`` contradict each other; empty if they do not."""
    reached = 0
    for at in range(begin, end, BLOCK_UNITS):
        units = read_units(queue, at, min(BLOCK_UNITS, end - at))
        units = units[~is_filling(units)]
        if not len(units):
            continue
        offsets, sizes = units["physical_offset"].astype(np.int64), units["size"].astype(np.int64)
        # The difference of two non-negative offsets cannot overflow.
        sound = (sizes >= RECORD_BYTES_MIN) & (sizes <= RECORD_BYTES_MAX) & (offsets >= 0)
        if not sound.all() or offsets[0] < reached or (np.diff(offsets) < sizes[:-1]).any():
            return f"its units between {at:,} and {min(at + BLOCK_UNITS, end):,} do not point forward"
        reached = int(offsets[-1]) + int(sizes[-1])
    return ""


def order_problems(parts: Iterable[tuple[ConsumeQueue, int, int]]) -> dict[int, str]:
    """Return what ``order_problem`` finds in parts (queue, begin, end) of queues, by the row of the queue."""
    problems: dict[int, str] = {}
    together: list[tuple[ConsumeQueue, int, int]] = []
    blobs: list[bytearray] = []

    def look() -> None:
        # The short parts of many queues are judged by the same rules, but all at once; only a part in which something
        # is wrong is looked at by itself.
        counts = [len(blob) // UNIT_BYTES for blob in blobs]
        units = np.frombuffer(b"".join(blobs), UNIT_DTYPE)
        owners = np.repeat(np.arange(len(counts)), counts)
        records = ~is_filling(units)
        units, owners = units[records], owners[records]
        offsets, sizes = units["physical_offset"].astype(np.int64), units["size"].astype(np.int64)
        wrong = (sizes < RECORD_BYTES_MIN) | (sizes > RECORD_BYTES_MAX) | (offsets < 0)
        wrong[1:] |= (owners[1:] == owners[:-1]) & (np.diff(offsets) < sizes[:-1])
        for number in np.unique(owners[wrong]).tolist():
            queue, begin, end = together[number]
            if problem := order_problem(queue, begin, end):
                problems[queue.row] = problem
        together.clear()
        blobs.clear()

    held = 0
    for queue, begin, end in parts:
        if end - begin > BLOCK_UNITS:
            if problem := order_problem(queue, begin, end):
                problems[queue.row] = problem
            continue
        together.append((queue, begin, end))
        blobs.append(queue.read_units(begin, end - begin, hot=False))
        held += end - begin
        if held > 16 * BLOCK_UNITS:
            look()
            held = 0
    look()
    return problems


def units_behind(queue: ConsumeQueue, physical_offset: int) -> Iterator[tuple[int, int, int]]:
    """Yield (queue offset, physical offset, size) of the units that point after ``physical_offset``, newest first."""
    for start in reversed(range(queue.first_byte, queue.end_byte, queue.file_bytes)):
        first = start // UNIT_BYTES
        units = read_units(queue, first, queue.file_bytes // UNIT_BYTES)
        behind = np.flatnonzero((units["size"] > 0) & ~is_filling(units) & (units["physical_offset"] > physical_offset))
        for number in reversed(behind.tolist()):
            yield first + number, int(units[number]["physical_offset"]), int(units[number]["size"])
        if len(units) and units[0]["size"] > 0 and 0 < units[0]["physical_offset"] <= physical_offset:
            return


# ---- All ConsumeQueues of a store, and the arrays by which the dispatch kernel finds them.

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
LIGHT_QUEUE_PREFIX = "%LMQ%"
"""Prefix of RocketMQ's light queues, whose units point at other topics' records. FlintMQ leaves them alone."""


KEPT_END_BYTES = 4096
"""Bytes of the end of each queue that a start keeps in memory."""
KEPT_ENDS_BYTES_MAX = 64 * 1024 * 1024
"""Maximum of that of all queues."""


def _folder_names(folder: Path | str) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir())


class ConsumeQueueTable:
    """The queues by topic and queue id, and by their row in the kernel's arrays.

    Rows are only added. The rows of a deleted topic stay, and make dispatch skip the records below its deletion.
    """

    def __init__(
        self, files: Files, folder: Path, aside_folder: Path, file_bytes: int, open_files_max: int | None = None
    ) -> None:
        self._files = files
        self.open_files = OpenFiles(open_files_max)
        self.folder = folder
        self._aside = aside_folder
        self._file_bytes = file_bytes
        self.deleted_below: Callable[[str], int] = lambda topic: 0
        """Function: physical offset at which a topic was last deleted, 0 if never."""
        self.by_topic: dict[str, dict[int, ConsumeQueue]] = {}
        self.rows: list[ConsumeQueue] = []
        self.slots = np.zeros(64, np.int32)
        self.kernel_rows = np.zeros((16, QUEUE_ROW), np.int64)
        self.topics = np.zeros(1024, np.uint8)
        self._topics_end = 0
        self._topic_at: dict[str, int] = {}

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(list(self.rows))

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        queues = self.by_topic.get(topic)
        return queues.get(queue_id) if queues is not None else None

    def load(self, recorded_file_bytes: int | None, *, keep_ends: bool = False) -> dict[int, str]:
        """Open every queue on disk, without changing anything. Returns the reasons why queues cannot be used, by row.

        ``keep_ends``: keep the last units of the queues in memory until ``forget_ends``, see ``ConsumeQueue.keep_end``.

        ``recorded_file_bytes``: file size that the store is known to have been created with; None if it is unknown. A
        file of another size is damage if the setting equals the recorded size, or if other files have the size of the
        setting; otherwise raises ``SettingMismatch``.
        """
        problems: dict[int, str] = {}
        wrong_size: Path | None = None
        found = list(self._folders())
        kept_bytes = min(KEPT_END_BYTES, KEPT_ENDS_BYTES_MAX // max(len(found), 1)) * keep_ends
        self._reserve(len(self.rows) + len(found))
        for topic, queue_id in found:
            queue = self.add(topic, queue_id)
            problem, wrong = queue.load(kept_bytes)
            wrong_size = wrong_size or wrong
            if problem:
                problems[queue.row] = problem
        if wrong_size is not None and not (
            recorded_file_bytes == self._file_bytes
            or (recorded_file_bytes is None and any(queue.has_whole_file() for queue in self))
        ):
            size = recorded_file_bytes or wrong_size.stat().st_size
            raise SettingMismatch(
                f"{wrong_size} has {wrong_size.stat().st_size:,} bytes, the setting store.consumequeue_file_bytes says "
                f"{self._file_bytes:,}. Start with the size that the store was created with (--set "
                f"store.consumequeue_file_bytes={size}), or, if this file was cut short, move its folder away: queues "
                "are filled again from the log. Nothing was changed"
            )
        return problems

    def forget_ends(self) -> None:
        """Read from the files again."""
        for queue in self.rows:
            queue.forget_end()

    def _folders(self) -> Iterator[tuple[str, int]]:
        if not self.folder.is_dir():
            return
        for name in _folder_names(self.folder):
            if name.startswith(LIGHT_QUEUE_PREFIX) or name.encode(errors="replace").decode() != name:
                continue
            for number in _folder_names(f"{self.folder}/{name}"):
                if QUEUE_NAME.match(number):
                    yield name, int(number)

    def add(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue, creating it in memory if it is new. Only for the owner of reput, or before it runs."""
        queue = self.get(topic, queue_id)
        if queue is not None:
            return queue
        row = len(self.rows)
        folder = self.folder.joinpath(topic, str(queue_id))
        queue = ConsumeQueue(self._files, self.open_files, folder, topic, queue_id, self._file_bytes, row)
        self._reserve(row + 1)
        entry = self.kernel_rows[row]
        entry[:] = 0
        entry[Q_TOPIC_AT] = self._topic_name_at(topic)
        entry[Q_TOPIC_BYTES] = len(topic.encode())
        entry[Q_QUEUE_ID] = queue_id
        entry[Q_TOPIC_HASH] = java_hash(f"{topic}#") & 0xFFFFFFFF
        entry[Q_DELETED_BELOW] = self.deleted_below(topic)
        entry[Q_KIND] = KIND_SCHEDULE if topic == SCHEDULE_TOPIC else KIND_ORDINARY
        self.rows.append(queue)
        self._enter(row)
        self.by_topic.setdefault(topic, {})[queue_id] = queue
        return queue

    def _reserve(self, rows: int) -> None:
        """Make room for this many rows."""
        while rows > len(self.kernel_rows):
            self.kernel_rows = np.concatenate((self.kernel_rows, np.zeros_like(self.kernel_rows)))
        if 2 * rows > len(self.slots):
            self.slots = np.zeros(1 << (2 * rows - 1).bit_length(), np.int32)
            for each in range(len(self.rows)):
                self._enter(each)

    def _topic_name_at(self, topic: str) -> int:
        at = self._topic_at.get(topic)
        if at is None:
            name = np.frombuffer(topic.encode(), np.uint8)
            while self._topics_end + len(name) > len(self.topics):
                self.topics = np.concatenate((self.topics, np.zeros_like(self.topics)))
            at = self._topic_at[topic] = self._topics_end
            self.topics[at : at + len(name)] = name
            self._topics_end += len(name)
        return at

    def _enter(self, row: int) -> None:
        entry = self.kernel_rows[row]
        at = int(entry[Q_TOPIC_AT])
        mask = len(self.slots) - 1
        slot = queue_hash(self.topics, at, at + int(entry[Q_TOPIC_BYTES]), int(entry[Q_QUEUE_ID])) & mask
        while self.slots[slot]:
            slot = (slot + 1) & mask
        self.slots[slot] = row + 1  # 0 marks an empty slot

    def sync_row(self, queue: ConsumeQueue) -> None:
        """Tell the kernel the queue's next offset after other code than the kernel changed it."""
        self.kernel_rows[queue.row, Q_NEXT] = queue.max_offset

    def topic_deleted(self, topic: str) -> None:
        """Make the kernel skip the topic's records below its deletion. Only for the owner of reput."""
        for queue in self.by_topic.get(topic, {}).values():
            self.kernel_rows[queue.row, Q_DELETED_BELOW] = self.deleted_below(topic)

    def move_aside(self, queue: ConsumeQueue) -> None:
        """Move the queue's folder into ``flintmq/``, durably, and reset the queue to empty."""
        queue.close()
        if queue.folder.exists():
            move_aside(self._files, queue.folder, self._aside, f"consumequeue-{queue.topic[:127]}-{queue.queue_id}")
        queue.max_offset = queue.start_offset = queue.min_hint = 0
        self.sync_row(queue)

    def write_out(self) -> None:
        """Write all units that wait in memory. Raises OSError ENOSPC."""
        for queue in self:
            queue.write_out()

    def sync(self) -> None:
        """Put every queue that was written on disk."""
        folders = set()
        for queue in self:
            # Read before ``queue.sync`` clears it: the entries of a new queue's parent folders must be on disk too.
            if queue.folder_dirty:
                folders.add(queue.folder.parent)
            if queue.dirty:
                queue.sync()
        for folder in folders:
            self._files.sync_folder(folder)
        if folders:
            self._files.sync_folder(self.folder)

    def close(self) -> None:
        for queue in self.rows:
            queue.close()


# ---- The queue offsets of the next messages.


class AppendOffsets:
    """Queue offset of each queue's next message. RocketMQ: topicQueueTable. Belongs to the appending thread.

    ``stored_end``: returns the offset that follows a queue's units, for a queue that nothing was appended to yet.
    The offsets are in a table, which a kernel counts in too (``O_…``); a topic's queues have rows in sequence, with -1
    for a queue that nothing was appended to since the store was opened.
    """

    def __init__(self, stored_end: Callable[[str, int], int]) -> None:
        self._stored_end = stored_end
        self.table = IntTable(O_WIDTH)
        self._topics: dict[str, tuple[int, int]] = {}
        """Place of queue 0, and number of rows, of each topic."""
        self.on_move: Callable[[str, int], None] = lambda topic, rows: None
        """Called with a topic whose rows have moved, and their number."""

    def known(self, topic: str, queue_id: int) -> int:
        """Return the offset of a queue that messages were appended to since the store was opened; -1 for another."""
        first, queues = self._topics.get(topic, (0, 0))
        return self.table.values[first + queue_id * O_WIDTH + O_NEXT] if queue_id < queues else -1

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the queue's next message."""
        queue_offset = self.known(topic, queue_id)
        return queue_offset if queue_offset >= 0 else self._stored_end(topic, queue_id)

    def advance(self, topic: str, queue_id: int, queue_offset: int) -> None:
        """Set the queue offset of the queue's next message after an append."""
        first = self.place(topic, queue_id + 1)  # it may replace the table's values
        self.table.values[first + queue_id * O_WIDTH + O_NEXT] = queue_offset

    def place(self, topic: str, queues: int) -> int:
        """Return the place of the topic's queue 0, with rows for at least ``queues`` queues after it."""
        first, rows = self._topics.get(topic, (0, 0))
        if queues > rows:
            before = first, rows
            rows = max(queues, 2 * rows)
            first = self.table.take(rows)
            self._offsets(first, rows)[:] = -1
            if before[1]:
                self._offsets(first, before[1])[:] = self._offsets(*before)
                self.table.give_back(*before)
            self._topics[topic] = first, rows
            self.on_move(topic, rows)
        return first

    def forget(self) -> None:
        """Take every queue's next offset from its units again."""
        self.table.array[O_NEXT::O_WIDTH] = -1

    def of_topic(self, topic: str) -> Mapping[int, int]:
        """Return the offsets of the topic's queues that messages were appended to, by queue."""
        offsets = self._offsets(*self._topics.get(topic, (0, 0)))
        return {queue: offset for queue, offset in enumerate(offsets.tolist()) if offset >= 0}

    def _offsets(self, first: int, rows: int) -> np.ndarray:
        """Return the column of offsets of ``rows`` queues from the place ``first`` on."""
        offsets: np.ndarray = self.table.array[first : first + rows * O_WIDTH].reshape(-1, O_WIDTH)[:, O_NEXT]
        return offsets

    def await_messages(self, topic: str, queue_id: int, awaited: int) -> None:
        """Note whether a client waits for messages of the queue: see ``O_AWAITED``. Lost when the topic's rows move."""
        first, rows = self._topics.get(topic, (0, 0))
        if queue_id < rows:
            self.table.values[first + queue_id * O_WIDTH + O_AWAITED] = awaited
