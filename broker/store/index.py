"""IndexFiles: finding records by key, and checking the chains of entries."""

from __future__ import annotations

import errno
import re
import threading
from bisect import bisect_left
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...protocol.storage.layout import (
    INDEX_ENTRY,
    INDEX_ENTRY_BYTES,
    INDEX_HEADER,
    INDEX_HEADER_BYTES,
    INDEX_SLOT_BYTES,
)
from ..kernels import index as kernel
from ..kernels.dispatch import K_PHYSICAL_OFFSET, KEY_ROW
from .errors import SettingMismatch, WouldBlock
from .files.file_system import create_whole, is_plain_file, move_aside

if TYPE_CHECKING:
    from ...protocol.storage.layout import IndexHeader
    from .files.file_system import Files


# ---- IndexFile and IndexService: hash from ``topic#key`` to CommitLog offsets, newest first.

NAME_DIGITS = 17
_NAME = re.compile(rf"\d{{{NAME_DIGITS}}}\Z", re.ASCII)
CHAIN_STEP = 1024
"""Maximum number of entries that one kernel call follows."""
ALLOCATE_STEP_BYTES = 32 * 1024 * 1024
"""An index file gets its disk blocks in steps of this size, as entries need them."""
ENTRY_DTYPE: np.dtype[np.void] = np.dtype(INDEX_ENTRY.dtype())

Entries = np.ndarray[Any, np.dtype[np.void]]


def index_file_bytes(slots: int, entries: int) -> int:
    """Return the size of an IndexFile."""
    return INDEX_HEADER_BYTES + INDEX_SLOT_BYTES * slots + INDEX_ENTRY_BYTES * entries


class IndexFile:
    """One IndexFile. The owner of reput writes it through its map; hot reads go through the descriptor."""

    def __init__(self, files: Files, path: Path, fd: int, slots: int, entries: int) -> None:
        self.files = files
        self.path = path
        self.fd = fd
        self.slots = slots
        self.entries = entries
        self.size = index_file_bytes(slots, entries)
        self.entries_at = INDEX_HEADER_BYTES + INDEX_SLOT_BYTES * slots
        self.allocated = 0
        self.dirty = False
        self._array: np.ndarray | None = None
        self._header: IndexHeader | None = None
        self.index_count = self.header.index_count
        """Number of entries + 1, as in the header."""
        self.end_physical_offset = self.header.end_physical_offset
        """CommitLog offset of the last message, as in the header."""

    @property
    def header(self) -> IndexHeader:
        """Header of the file; read again after a change."""
        header = self._header
        if header is None:
            blob = bytearray(INDEX_HEADER_BYTES)
            self.files.read(self.fd, memoryview(blob), 0, wait=True)
            header = self._header = INDEX_HEADER.unpack(blob)
        return header

    @property
    def full(self) -> bool:
        """Return whether the file has no room for another entry."""
        return self.index_count >= self.entries

    def array(self) -> np.ndarray:
        """Return the file's bytes, mapped."""
        if self._array is None:
            self._array = np.frombuffer(self.files.map(self.fd, self.size), np.uint8)
        return self._array

    def release(self) -> None:
        """Unmap the file."""
        self._array = None

    def put(self, keys: np.ndarray, first: int, count: int) -> int:
        """Put dispatch's keys ``[first, count)``; return how many of ``count`` are in, fewer if the file is full.

        Raises OSError ENOSPC if the disk is full, before it writes anything.
        """
        number = max(self.index_count, 1)
        # Blocks before the kernel writes through the map: a hole that the disk cannot fill would raise SIGBUS.
        self.allocate(self.entries_at + (number + count - first) * INDEX_ENTRY_BYTES)
        done = kernel.put(self.array(), self.slots, self.entries, keys, first, count)
        self.index_count = number + done - first
        if done > first:
            self.end_physical_offset = int(keys[(done - 1) * KEY_ROW + K_PHYSICAL_OFFSET])
        self._header = None
        self.dirty = True
        return done

    def allocate(self, end: int) -> bool:
        """Give the bytes below ``end`` their disk blocks; return whether some had none. Raises OSError ENOSPC.

        The owner and the thread that prepares may call it at the same time.
        """
        end = min(end, self.size)
        lacked = self.allocated < end
        while (at := self.allocated) < end:
            size = min(max(ALLOCATE_STEP_BYTES, self.entries_at - at), self.size - at)
            self.files.allocate(self.fd, at, size)
            self.allocated = max(self.allocated, at + size)
        return lacked

    def allocate_ahead(self) -> bool:
        """Give the next half step of entries its blocks; return whether they had none."""
        return self.allocate(self.entries_at + self.index_count * INDEX_ENTRY_BYTES + ALLOCATE_STEP_BYTES // 2)

    def check(self) -> int:
        """Check the chains: ``kernels.index.SOUND``, ``REPAIRED`` or ``DAMAGED``. Reads the whole file."""
        if self.index_count == 0:  # RocketMQ created it, and writes the header later
            self.files.write(self.fd, INDEX_HEADER.pack(0, 0, 0, 0, 0, 1), 0)
        result = kernel.check(self.array(), self.slots, self.entries, np.zeros(self.slots, np.int32))
        self._header = None
        self.index_count = self.header.index_count
        self.end_physical_offset = self.header.end_physical_offset
        if result == kernel.REPAIRED:
            self.dirty = True
        return result

    def first_entry_at(self, physical_offset: int) -> int:
        """Return the number of the first entry of a record at or after ``physical_offset``, or ``index_count``."""
        numbers = range(1, max(self.index_count, 1))
        return 1 + bisect_left(numbers, physical_offset, key=self.physical_offset_of)

    def physical_offset_of(self, number: int) -> int:
        """Return the physical offset of an entry's record."""
        blob = bytearray(INDEX_ENTRY_BYTES)
        self.files.read(self.fd, memoryview(blob), self.entries_at + INDEX_ENTRY_BYTES * number, wait=True)
        return INDEX_ENTRY.unpack(blob).physical_offset

    @property
    def all_entries(self) -> Entries:
        """View of all entries, mapped; entry 0 and those from ``index_count`` on are unused."""
        return np.frombuffer(self.array(), ENTRY_DTYPE, self.entries, self.entries_at)

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        """Return whether the file may hold messages of ``[begin_ms, end_ms]``."""
        header = self.header
        return header.index_count > 1 and header.begin_timestamp <= end_ms and header.end_timestamp >= begin_ms

    def chain(self, key_hash: int, begin_ms: int, end_ms: int, entry: int, *, hot: bool) -> Iterator[tuple[int, int]]:
        """Yield (physical offset, entry number) of the entries of one hash, newest first.

        Begins at ``entry``, or at the slot if ``entry`` is 0. Skips entries whose second is outside of
        ``[begin_ms, end_ms]``; the limits are rounded outwards, because entries hold whole seconds. With ``hot``,
        raises ``WouldBlock`` if the page cache does not hold an entry.
        """
        begin_timestamp = self.header.begin_timestamp
        if hot:
            yield from self._hot_chain(begin_timestamp, key_hash, begin_ms, end_ms, entry)
            return
        array = self.array()
        found = np.empty(2 * CHAIN_STEP, np.int64)
        while True:
            count, entry = kernel.select(
                array, self.slots, self.entries, begin_timestamp, key_hash, begin_ms, end_ms, entry, found
            )
            yield from zip(found[: 2 * count : 2].tolist(), found[1 : 2 * count : 2].tolist(), strict=True)
            if not entry:
                return

    def _hot_chain(
        self, begin_timestamp: int, key_hash: int, begin_ms: int, end_ms: int, entry: int
    ) -> Iterator[tuple[int, int]]:
        """Yield the same from the page cache alone.

        Reads through the descriptor, because a page fault in the map would block the event loop.
        """
        number = entry or self._word(INDEX_HEADER_BYTES + INDEX_SLOT_BYTES * (key_hash % self.slots))
        blob = bytearray(INDEX_ENTRY_BYTES)
        view = memoryview(blob)
        while 0 < number < self.entries:
            self._read(view, self.entries_at + INDEX_ENTRY_BYTES * number)
            found = INDEX_ENTRY.unpack(blob)
            entry_ms = begin_timestamp + (1000 * found.seconds if number > 1 else 0)
            if found.key_hash == key_hash and entry_ms <= end_ms and entry_ms + 1000 > begin_ms:
                yield found.physical_offset, number
            # The rest of the chain is older still. A link that does not lead to an older entry is damage, and could be
            # a circle.
            if entry_ms + 1000 <= begin_ms or found.previous >= number:
                return
            number = found.previous

    def _word(self, at: int) -> int:
        blob = bytearray(4)
        self._read(memoryview(blob), at)
        return int.from_bytes(blob, "big", signed=True)

    def _read(self, view: memoryview, at: int) -> None:
        if self.files.read(self.fd, view, at, wait=False) < len(view):
            raise WouldBlock

    def sync(self) -> None:
        """Put the file on disk."""
        if self.dirty:
            # Cleared first: entries that are written meanwhile make the file dirty again.
            self.dirty = False
            try:
                self.files.sync_data(self.fd)
            except OSError:
                self.dirty = True
                raise

    def close(self) -> None:
        self._array = None
        if self.fd >= 0:
            self.files.close(self.fd)
            self.fd = -1

    def __del__(self) -> None:
        self.close()  # expired files are closed here, when their last reader has dropped them


class IndexService:
    """The index files of a store, oldest first."""

    def __init__(
        self, files: Files, folder: Path, aside_folder: Path, scratch_folder: Path, slots: int, entries: int
    ) -> None:
        self._os = files
        self.folder = folder
        self._aside = aside_folder
        self._scratch = scratch_folder
        self.slots = slots
        self.entries = entries
        self.files: list[IndexFile] = []
        self._next = -1
        """Descriptor of the next file, which ``prepare`` made; -1: none."""
        self._preparing = threading.Lock()
        """Held while the next file is made or gets its name."""
        self._has_unsynced_names = False
        self._unusable: list[Path] = []

    def load(self, recorded_sizes: tuple[int, int] | None) -> str:
        """Open the existing files, without changing anything. Returns why the newest cannot be used, or "".

        ``recorded_sizes``: slots and entries that the store is known to have been created with; None if they are
        unknown. A file of another size is damage if the settings equal the recorded sizes, or if other files have the
        size of the settings; the next ``drop_from`` then drops it and all files after it. Otherwise raises
        ``SettingMismatch``.
        """
        if not self.folder.is_dir():
            return ""
        expected = index_file_bytes(self.slots, self.entries)
        paths = sorted(path for path in self.folder.iterdir() if _NAME.match(path.name))
        sizes = [path.stat().st_size if is_plain_file(path) else 0 for path in paths]
        wrong = [number for number, size in enumerate(sizes) if size != expected]
        if paths and recorded_sizes not in (None, (self.slots, self.entries)):
            raise self._mismatch(paths[0], recorded_sizes)
        if wrong and recorded_sizes is None and len(wrong) == len(paths):
            raise self._mismatch(paths[0], None)
        whole = wrong[0] if wrong else len(paths)
        for path in paths[:whole]:
            self.files.append(IndexFile(self._os, path, self._os.open(path), self.slots, self.entries))
        self._unusable = paths[whole:]
        if not wrong:
            return ""
        return f"{paths[whole]} has {sizes[whole]:,} bytes instead of {expected:,}"

    def _mismatch(self, path: Path, recorded_sizes: tuple[int, int] | None) -> SettingMismatch:
        made_with = "the sizes that the store was made with"
        if recorded_sizes is not None:
            made_with = f"--set store.index_slots={recorded_sizes[0]} --set store.index_entries={recorded_sizes[1]}"
        return SettingMismatch(
            f"{path} has {path.stat().st_size:,} bytes, the settings store.index_slots = {self.slots:,} and "
            f"store.index_entries = {self.entries:,} say {index_file_bytes(self.slots, self.entries):,}. Start with "
            f"{made_with}, or move the folder {self.folder} away: the index is built again from the log. Nothing was "
            "changed"
        )

    @property
    def end_physical_offset(self) -> int:
        """Physical offset of the last indexed record, 0 without files, as in RocketMQ's ``IndexService.buildIndex``."""
        for file in reversed(self.files):
            if file.index_count > 1:
                return file.end_physical_offset
        return 0

    @property
    def end_ms(self) -> int:
        """Store time of the last indexed record in ms since 1970 UTC, 0 without files."""
        return next((file.header.end_timestamp for file in reversed(self.files) if file.index_count > 1), 0)

    @property
    def indexed_below(self) -> int:
        """Physical offset below which all keys of all records are indexed; recovery completes the last record's
        keys."""
        end = self.end_physical_offset
        return end + 1 if end or any(file.index_count > 1 for file in self.files) else 0

    def first_record_at(self, physical_offset: int) -> int | None:
        """Return the physical offset of the first record with a key at or after ``physical_offset``, or None."""
        for file in self.files:
            if file.index_count > 1 and file.end_physical_offset >= physical_offset:
                return file.physical_offset_of(file.first_entry_at(physical_offset))
        return None

    def entries_of_last_record(self) -> int:
        """Return the number of index entries of the last indexed record."""
        end = self.end_physical_offset
        return sum(
            file.index_count - file.first_entry_at(end) for file in self.files if file.end_physical_offset == end
        )

    def put(self, keys: np.ndarray, count: int, first: int = 0) -> Iterator[int]:
        """Put dispatch's keys, rolling to new files; yield after each file how many are in. Raises OSError ENOSPC."""
        while first < count:
            if not self.files or self.files[-1].full:
                self._create()
            first = self.files[-1].put(keys, first, count)
            yield first

    def prepare(self) -> bool:
        """Give the newest file its next blocks, or make the next file once it is three quarters full.

        Only for one thread, beside the owner of reput, which then seldom waits for the disk. Returns whether there was
        anything to do. A full disk is not an error here: dispatch tells, when it needs the room.
        """
        try:
            if not self.files:
                return False
            file = self.files[-1]
            if file.allocate_ahead():
                return True
            if self._next >= 0 or 4 * file.index_count <= 3 * file.entries:
                return False
            with self._preparing:
                if self._next < 0 and file is self.files[-1]:
                    self._next = self._make()
            return True
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            return False

    @property
    def _next_path(self) -> Path:
        return self._scratch / "index"

    def _make(self) -> int:
        size = index_file_bytes(self.slots, self.entries)
        return create_whole(self._os, self._next_path, size, self._scratch, allocate=self._first_blocks)

    @property
    def _first_blocks(self) -> int:
        """Bytes of a new file that get their blocks at once: the slots, and a step of entries."""
        slots_end = INDEX_HEADER_BYTES + INDEX_SLOT_BYTES * self.slots
        return min(slots_end + ALLOCATE_STEP_BYTES, index_file_bytes(self.slots, self.entries))

    def _create(self) -> None:
        before = self.files[-1].header if self.files else None
        name = datetime.now().strftime(  # noqa: DTZ005 - RocketMQ names them in local time
            "%Y%m%d%H%M%S%f"
        )[:NAME_DIGITS]
        if self.files:
            # Names must sort in the order of the files, even if the clock was set back or two files are created in
            # one millisecond.
            name = max(name, _next_name(self.files[-1].path.name))
        path = self.folder / name
        # As in RocketMQ, a new file's header begins with the end of the file before it.
        end_ms, end_physical = (before.end_timestamp, before.end_physical_offset) if before else (0, 0)
        header = INDEX_HEADER.pack(end_ms, end_ms, end_physical, end_physical, 0, 1)
        with self._preparing:
            if self._next < 0:
                self._next = self._make()
            self._os.write(self._next, header, 0)
            self._os.rename(self._next_path, path)
            fd, self._next = self._next, -1
            # Before the file is in ``files``, whose names must be on disk when the store's state has them.
            self._has_unsynced_names = True
        if self.files:
            self.files[-1].release()
        file = IndexFile(self._os, path, fd, self.slots, self.entries)
        file.allocated = self._first_blocks
        self.files.append(file)

    def drop_from(self, number: int) -> None:
        """Move the files from ``number`` on aside, durably; the caller must index their messages again."""
        for file in self.files[number:]:
            file.close()
        gone = [file.path for file in self.files[number:]] + self._unusable
        del self.files[number:]
        for path in reversed(gone):  # newest first: after a stop the remaining files have no gap
            move_aside(self._os, path, self._aside, f"index-{path.name}")
        self._unusable = []

    def expired(self, log_start: int) -> int:
        """Return how many of the oldest files refer only to messages before ``log_start``; the last file never
        counts."""
        count = 0
        for file in self.files[:-1]:
            if file.end_physical_offset >= log_start:
                break
            count += 1
        return count

    def remove_first(self, count: int) -> None:
        """Delete the oldest ``count`` files. May run beside readers and the owner of reput."""
        gone = self.files[:count]
        del self.files[:count]
        for file in gone:
            file.release()
            self._os.unlink(file.path)
        if gone:
            self._os.sync_folder(self.folder)

    @property
    def full_end_ms(self) -> int:
        """End time of the newest full file; 0 if no file is full."""
        return max((file.header.end_timestamp for file in self.files if file.full), default=0)

    def sync_names(self) -> None:
        """Put the names of new files on disk."""
        if self._has_unsynced_names:
            self._has_unsynced_names = False  # before the sync: a file that is named meanwhile needs the next one
            try:
                self._os.sync_folder(self.folder)
            except OSError:
                self._has_unsynced_names = True
                raise

    def sync(self) -> None:
        """Put written entries on disk, and the names of their files."""
        self.sync_names()
        for file in list(self.files):
            file.sync()

    def close(self) -> None:
        for file in self.files:
            file.close()
        if self._next >= 0:
            self._os.close(self._next)
            self._next = -1


def _next_name(name: str) -> str:
    """Return the file name of one millisecond later."""
    try:
        last = datetime.strptime(name + "000", "%Y%m%d%H%M%S%f")  # noqa: DTZ007
    except ValueError:  # not a time
        return f"{int(name) + 1:0{NAME_DIGITS}d}"
    return (last + timedelta(milliseconds=1)).strftime("%Y%m%d%H%M%S%f")[:NAME_DIGITS]


# ---- Checks of index files by their own bytes: whether headers and chains are plausible.

CHECK_BYTES_MAX = 512 * 1024 * 1024
"""Chains are checked in the newest file, and in older ones as long as the files together are no larger than this."""


def index_problem(index: IndexService, end: int, expected_names: list[str]) -> tuple[str, int]:
    """Return (the problem of the oldest bad file, empty if all are sound; the number of sound files before it).

    ``end``: the log's end; ``expected_names``: names of the files that must exist.
    """
    names = [file.path.name for file in index.files]
    missing = [name for name in expected_names if name not in names]
    keep = len(names)
    problem = ""
    if missing:
        problem = f"index file {missing[0]} is missing"
        keep = sum(1 for name in names if name < missing[0])
    checked_bytes = CHECK_BYTES_MAX
    unchecked = 0
    for number in reversed(range(keep)):
        checked_bytes -= index.files[number].size
        if checked_bytes < 0 and number < keep - 1:
            unchecked = number + 1
            break
    reached = 0
    for number, file in enumerate(index.files[:keep]):
        wrong = _header_problem(file, reached, end, newest=number == len(names) - 1)
        if not wrong and number >= unchecked and file.check() == kernel.DAMAGED:
            wrong = "its chains are broken"
        if wrong:
            return f"{file.path}: {wrong}", number
        reached = file.end_physical_offset
    return problem, keep


def _header_problem(file: IndexFile, reached: int, end: int, *, newest: bool) -> str:
    header = file.header
    if not 0 <= header.index_count <= file.entries or (header.index_count <= 1 and not newest):
        return f"it says it has {header.index_count:,} entries"
    if header.index_count <= 1:
        return ""
    if not reached <= header.begin_physical_offset <= header.end_physical_offset:
        return "its offsets do not follow the file before it"
    if header.end_physical_offset >= end:
        return "it points after the end of the log"
    return ""
