"""IndexFile and IndexService: hash from ``topic#key`` to CommitLog offsets, newest first."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np

from ...protocol.layout import (
    INDEX_ENTRY_BYTES,
    INDEX_ENTRY_STRUCT,
    INDEX_HEADER_BYTES,
    INDEX_HEADER_STRUCT,
    INDEX_SLOT_BYTES,
)
from ..kernels import index as kernel
from ..kernels.dispatch import K_PHYSICAL_OFFSET, KEY_ROW
from .errors import WouldBlock
from .files import Files, create_whole

_NAME = re.compile(r"\d{17}\Z")
CHAIN_STEP = 1024
"""Entries that one kernel call follows a chain for."""
ALLOCATE_STEP_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """The first 40 bytes of an IndexFile."""

    begin_timestamp: int
    end_timestamp: int
    begin_physical_offset: int
    end_physical_offset: int
    hash_slot_count: int
    index_count: int


def index_file_bytes(slots: int, entries: int) -> int:
    """Size of an IndexFile."""
    return INDEX_HEADER_BYTES + INDEX_SLOT_BYTES * slots + INDEX_ENTRY_BYTES * entries


class IndexFile:
    """One file. The owner of reput writes it through its map; readers read it through the descriptor."""

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
        """Entries in use + 1, as the header's."""
        self.end_physical_offset = self.header.end_physical_offset
        """CommitLog offset of the last message, as the header's."""

    @property
    def header(self) -> IndexHeader:
        """The header; read from the file after it changed."""
        header = self._header
        if header is None:
            blob = bytearray(INDEX_HEADER_BYTES)
            self.files.read(self.fd, memoryview(blob), 0, wait=True)
            header = self._header = IndexHeader(*INDEX_HEADER_STRUCT.unpack(blob))
        return header

    @property
    def full(self) -> bool:
        """Whether no entry fits any more."""
        return self.index_count >= self.entries

    def array(self) -> np.ndarray:
        """The file's bytes, mapped."""
        if self._array is None:
            self._array = np.frombuffer(self.files.map(self.fd, self.size), np.uint8)
        return self._array

    def release(self) -> None:
        """Let the map go."""
        self._array = None

    def put(self, keys: np.ndarray, first: int, count: int) -> int:
        """Put dispatch's keys ``[first, count)``; returns how many of ``count`` are in, fewer when the file is full.

        Raises OSError ENOSPC, before anything is written, where the disk is full.
        """
        number = max(self.index_count, 1)
        end = min(self.entries_at + (number + count - first) * INDEX_ENTRY_BYTES, self.size)
        while self.allocated < end:
            size = min(max(ALLOCATE_STEP_BYTES, self.entries_at - self.allocated), self.size - self.allocated)
            self.files.allocate(self.fd, self.allocated, size)
            self.allocated += size
        done = kernel.put(self.array(), self.slots, self.entries, keys, first, count)
        self.index_count = number + done - first
        if done > first:
            self.end_physical_offset = int(keys[(done - 1) * KEY_ROW + K_PHYSICAL_OFFSET])
        self._header = None
        self.dirty = True
        return done

    def check(self) -> int:
        """Whether its chains are whole: ``kernels.index.SOUND``, ``REPAIRED`` or ``DAMAGED``. Reads the whole file."""
        result = kernel.check(self.array(), self.slots, self.entries, np.zeros(self.slots, np.int32))
        self._header = None
        self.index_count = self.header.index_count
        self.end_physical_offset = self.header.end_physical_offset
        if result == kernel.REPAIRED:
            self.dirty = True
        return result

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        """Whether it may hold messages of that time."""
        header = self.header
        return header.index_count > 1 and header.begin_timestamp <= end_ms and header.end_timestamp >= begin_ms

    def chain(
        self, key_hash: int, begin_ms: int, end_ms: int, entry: int, *, hot: bool
    ) -> Iterator[tuple[int, int]]:
        """(physical offset, entry number) of the entries of one hash, newest first.

        From ``entry`` on where it is not 0, else from the slot. Entries whose second lies outside of
        ``[begin_ms, end_ms]`` are left out; both are rounded outwards, since entries keep whole seconds. With ``hot``
        may raise ``WouldBlock``.
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
            for physical_offset, number in found[: 2 * count].reshape(-1, 2).tolist():
                yield physical_offset, number
            if not entry:
                return

    def _hot_chain(
        self, begin_timestamp: int, key_hash: int, begin_ms: int, end_ms: int, entry: int
    ) -> Iterator[tuple[int, int]]:
        """The same from the page cache alone: through the descriptor, because a page fault would hold the loop."""
        number = entry or self._word(INDEX_HEADER_BYTES + INDEX_SLOT_BYTES * (key_hash % self.slots))
        blob = bytearray(INDEX_ENTRY_BYTES)
        view = memoryview(blob)
        while 0 < number < self.entries:
            self._read(view, self.entries_at + INDEX_ENTRY_BYTES * number)
            entry_hash, physical_offset, seconds, previous = INDEX_ENTRY_STRUCT.unpack(blob)
            entry_ms = begin_timestamp + (1000 * seconds if number > 1 else 0)
            if entry_hash == key_hash and entry_ms <= end_ms and entry_ms + 1000 > begin_ms:
                yield physical_offset, number
            if entry_ms + 1000 <= begin_ms or previous >= number:
                return
            number = previous

    def _word(self, at: int) -> int:
        blob = bytearray(4)
        self._read(memoryview(blob), at)
        return int.from_bytes(blob, "big", signed=True)

    def _read(self, view: memoryview, at: int) -> None:
        if self.files.read(self.fd, view, at, wait=False) < len(view):
            raise WouldBlock

    def sync(self) -> None:
        """Put it on disk."""
        if self.dirty:
            self.dirty = False
            try:
                self.files.sync_data(self.fd)
            except OSError:
                self.dirty = True
                raise

    def close(self) -> None:
        """Close the descriptor."""
        self._array = None
        if self.fd >= 0:
            self.files.close(self.fd)
            self.fd = -1


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

    def load(self) -> list[str]:
        """Open the files that are there. One of another size is moved aside, and those after it: returns why."""
        self._os.make_folder(self.folder)
        expected = index_file_bytes(self.slots, self.entries)
        paths = sorted(path for path in self.folder.iterdir() if _NAME.match(path.name))
        for number, path in enumerate(paths):
            size = path.stat().st_size
            if size != expected:
                reason = f"{path} has {size:,} bytes, the settings store.index_slots and store.index_entries say {expected:,}"
                for later in paths[number:]:
                    self._move_aside(later)
                return [reason]
            self.files.append(IndexFile(self._os, path, self._os.open(path), self.slots, self.entries))
        return []

    @property
    def end_physical_offset(self) -> int:
        """Records below this are in the index; 0 without files (``IndexService.buildIndex`` compares the same)."""
        for file in reversed(self.files):
            if file.index_count > 1:
                return file.end_physical_offset
        return 0

    def put(self, keys: np.ndarray, count: int, first: int = 0) -> Iterator[int]:
        """Put dispatch's keys, rolling to new files; yields after each file how many are in. Raises OSError ENOSPC."""
        while first < count:
            if not self.files or self.files[-1].full:
                self._create()
            first = self.files[-1].put(keys, first, count)
            yield first

    def _create(self) -> None:
        before = self.files[-1].header if self.files else None
        now = datetime.now()
        if self.files:
            # The clock went back, or two files in one millisecond: the names must keep the files' order.
            last = datetime.strptime(self.files[-1].path.name + "000", "%Y%m%d%H%M%S%f")
            now = max(now, last + timedelta(milliseconds=1))
        name = now.strftime("%Y%m%d%H%M%S%f")[:17]
        path = self.folder / name
        slots_end = INDEX_HEADER_BYTES + INDEX_SLOT_BYTES * self.slots
        size = index_file_bytes(self.slots, self.entries)
        fd = create_whole(self._os, path, size, self._scratch, allocate=slots_end)
        end_ms, end_physical = (before.end_timestamp, before.end_physical_offset) if before else (0, 0)
        header = INDEX_HEADER_STRUCT.pack(end_ms, end_ms, end_physical, end_physical, 0, 1)
        self._os.write(fd, header, 0)
        if self.files:
            self.files[-1].release()
        file = IndexFile(self._os, path, fd, self.slots, self.entries)
        file.allocated = slots_end
        self.files.append(file)

    def drop_from(self, number: int) -> None:
        """Move the files from index ``number`` on aside; their messages are to be indexed again."""
        for file in self.files[number:]:
            file.close()
            self._move_aside(file.path)
        del self.files[number:]

    def _move_aside(self, path: Path) -> None:
        self._os.make_folder(self._aside)
        shutil.move(path, self._aside / f"index-{path.name}-{time.time_ns()}")

    @property
    def full_end_ms(self) -> int:
        """End time of the newest file that is full; 0 for none."""
        return max((file.header.end_timestamp for file in self.files if file.full), default=0)

    def sync(self) -> None:
        """Put what was written on disk."""
        for file in list(self.files):
            file.sync()

    def close(self) -> None:
        """Close all files."""
        for file in self.files:
            file.close()
