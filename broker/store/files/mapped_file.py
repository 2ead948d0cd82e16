"""MappedFile and MappedFileQueue: the CommitLog as a sequence of equal files, each named by its first offset."""

from __future__ import annotations

import errno
import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ....protocol.store_files import OFFSET_NAME, file_name
from ..errors import CorruptLog, SettingMismatch, WouldBlock
from .file_system import create_whole

if TYPE_CHECKING:
    from .file_system import Files

log = logging.getLogger(__name__)


class MappedFile:
    """One file of fixed size. Writes and most reads go through its descriptor; kernels read through the map.

    No view of the map leaves the store: code that needs the bytes elsewhere copies them. Nothing writes through it.
    """

    def __init__(self, files: Files, path: Path, fd: int, size: int, *, allocated: int = 0) -> None:
        self.files = files
        self.path = path
        self.fd = fd
        self.size = size
        self.start_offset = int(path.name)
        self.end_offset = self.start_offset + size
        """Offset at which the next file begins."""
        self.allocated = allocated
        """End of the bytes that have disk blocks, so that writing them needs no space."""
        self._array: np.ndarray | None = None

    def array(self) -> np.ndarray:
        """Return the file's bytes, mapped, for reading only. They show at once what is written to the file."""
        array = self._array
        if array is None:
            array = self._array = np.frombuffer(self.files.map(self.fd, self.size), np.uint8)
        return array

    def release(self) -> None:
        """Drop the map; it is unmapped when the last array on it is gone."""
        self._array = None

    def allocate(self, end: int, step: int) -> None:
        """Allocate disk blocks for ``[0, end)`` in steps. Raises OSError ENOSPC if the disk is full."""
        while self.allocated < min(end, self.size):
            size = min(step, self.size - self.allocated)
            self.files.allocate(self.fd, self.allocated, size)
            self.allocated += size

    def close(self) -> None:
        """Close the descriptor and drop the map."""
        self._array = None
        if self.fd >= 0:
            self.files.close(self.fd)
            self.fd = -1

    def __del__(self) -> None:
        # Retention does not close the files that it removes. The descriptor is closed only after the last reader has
        # dropped the file, so that its number is not reused for another file in the middle of a read.
        self.close()


class MappedFileQueue:
    """The files of a folder in order, without a gap.

    ``setting``: name of the setting with the file size, for the error if a file has another size.
    """

    def __init__(self, files: Files, folder: Path, file_bytes: int, scratch_folder: Path, setting: str) -> None:
        self.os = files
        self.folder = folder
        self.file_bytes = file_bytes
        self.scratch_folder = scratch_folder
        self.setting = setting
        self.files: list[MappedFile] = []
        self._changing = threading.Lock()
        """Held to replace ``files``. The list is copy-on-write: readers take a reference once and need no lock."""
        self._empty_file: Path | None = None
        self._short: list[tuple[Path, int]] = []
        """Files that were cut short, each with the number of bytes it still has."""
        self._placed = False

    def load(self, recorded_file_bytes: int | None = None, flushed_offset: int = 0) -> None:
        """Open the existing files without changing them. Raises ``SettingMismatch`` or ``CorruptLog``, naming the file.

        ``recorded_file_bytes``: the size that the files were created with, None if it was not recorded. If the setting
        equals it, a shorter file counts as cut short (see ``lengthen``). ``flushed_offset``: an empty last file that
        begins at or after it is ignored, because nothing was ever written to it.
        """
        may_be_short = recorded_file_bytes == self.file_bytes
        if not self.folder.is_dir():
            return
        names = sorted(path.name for path in self.folder.iterdir() if OFFSET_NAME.match(path.name))
        for number, name in enumerate(names):
            path = self.folder / name
            fd = self.os.open(path)
            size = self.os.size(fd)
            if size == 0 and number == len(names) - 1 and not (may_be_short and int(name) < flushed_offset):
                self.os.close(fd)
                self._empty_file = path
                continue
            if size < self.file_bytes and may_be_short:
                self._short.append((path, size))
                size = self.file_bytes
            self.files.append(MappedFile(self.os, path, fd, size))
            self._check(self.files[-1], number)

    def lengthen(self) -> None:
        """Extend files that were cut short to their full length with zeros. Raises OSError ENOSPC.

        The bytes that they lost are either damage, which recovery contains, or were after the end of the log.
        """
        for path, held in self._short:
            file = next(file for file in self.files if file.path == path)
            log.warning(
                "%s has %s bytes instead of %s: it was cut short; zeros are appended",
                path,
                f"{held:,}",
                f"{file.size:,}",
            )
            # Allocation also makes the file longer; the new bytes read as zeros.
            self.os.allocate(file.fd, held, file.size - held)
            self.os.sync_data(file.fd)
        self._short.clear()

    def remove_empty(self) -> None:
        """Remove the empty file that RocketMQ leaves if it stops while it creates its next one."""
        if self._empty_file is not None:
            self.os.unlink(self._empty_file)
            self._empty_file = None

    def _check(self, file: MappedFile, number: int) -> None:
        if file.size != self.file_bytes:
            raise SettingMismatch(
                f"{file.path} has {file.size:,} bytes, the setting {self.setting} says {self.file_bytes:,}. Start with "
                f"the size that the store was created with (--set {self.setting}={file.size}), or, if it was cut "
                "short, restore it from a backup. Nothing was changed"
            )
        if file.start_offset % self.file_bytes:
            raise CorruptLog(
                f"{file.path}: its name says it begins at {file.start_offset:,}, which is not a multiple of "
                f"{self.setting} = {self.file_bytes:,}. The file belongs to another log or was renamed; move it away "
                "or correct its name. Nothing was changed"
            )
        before = self.files[number - 1]
        if number and file.start_offset != before.end_offset:
            raise CorruptLog(
                f"{self.folder / file_name(before.end_offset)} is missing: {before.path.name} ends at "
                f"{before.end_offset:,}, and the next file there is {file.path.name}. Restore it from a backup; "
                "nothing was changed"
            )

    @property
    def start_offset(self) -> int:
        """Offset at which the first file begins; 0 without files."""
        files = self.files
        return files[0].start_offset if files else 0

    @property
    def end_offset(self) -> int:
        """Offset at which the last file ends; 0 without files."""
        files = self.files
        return files[-1].end_offset if files else 0

    def create(self, start_offset: int, allocate: int) -> MappedFile:
        """Create the file at ``start_offset`` durably, with blocks for its first ``allocate`` bytes.

        The file is not yet in ``files``, nor in the folder: if RocketMQ is started on the store by mistake, it deletes
        unwritten files in the folder before it notices that the store is locked.
        """
        path = self.scratch_folder / file_name(start_offset)
        fd = create_whole(self.os, path, self.file_bytes, self.scratch_folder, allocate=allocate)
        return MappedFile(self.os, path, fd, self.file_bytes, allocated=min(allocate, self.file_bytes))

    def place(self, file: MappedFile) -> None:
        """Move a file that ``create`` made into the folder, unless it is there already. Raises OSError.

        The file is not yet in ``files``. ``sync_placed`` must run before its bytes count as on disk.
        """
        path = self.folder / file.path.name
        if file.path != path:
            self.os.rename(file.path, path)
            file.path = path
            self._placed = True

    def enter(self, file: MappedFile) -> None:
        """Append a file that is in the folder to ``files``."""
        with self._changing:
            self.files = [*self.files, file]

    @property
    def has_unsynced_names(self) -> bool:
        """True if ``sync_placed`` has something to do."""
        return self._placed

    def sync_placed(self) -> None:
        """Put the names of placed files on disk."""
        if self._placed:
            # Cleared first: a file that the appending thread places during the sync needs the next one.
            self._placed = False
            try:
                self.os.sync_folder(self.folder)
            except OSError:
                self._placed = True  # so that the next call tries again
                raise

    def find(self, offset: int) -> MappedFile | None:
        files = self.files
        if not files:
            return None
        number = (offset - files[0].start_offset) // self.file_bytes
        return files[number] if 0 <= number < len(files) else None

    def read(self, offset: int, buffer: memoryview, *, hot: bool) -> None:
        """Fill ``buffer`` from ``offset``; the range must be within one file.

        With ``hot``, raises ``WouldBlock`` if a byte is not in the page cache. Raises ``CorruptLog`` if no file
        contains the offset or the file is too short. The missing bytes of a file that ``lengthen`` has still to extend
        are returned as zeros.
        """
        file = self.find(offset)
        if file is None:
            raise CorruptLog(f"{self.folder} has no file that contains offset {offset:,}")
        try:
            count = self.os.read(file.fd, buffer, offset - file.start_offset, wait=not hot)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            raise CorruptLog(f"{file.path} was removed while offset {offset:,} was read") from error
        if count < len(buffer):
            if hot:
                raise WouldBlock
            if any(path == file.path for path, _ in self._short):
                buffer[count:] = bytes(len(buffer) - count)
                return
            raise CorruptLog(f"{file.path} ends in the middle of the {len(buffer)} bytes at offset {offset:,}")

    def remove_first(self, count: int) -> None:
        """Remove the oldest ``count`` files while others may read them; the last reader frees their space."""
        with self._changing:
            gone, self.files = self.files[:count], self.files[count:]
        for file in gone:  # oldest first: after a crash in between, the remaining files have no gap
            file.release()
            self.os.unlink(file.path)
        self.os.sync_folder(self.folder)

    def remove_from(self, number: int) -> list[MappedFile]:
        """Take the files from index ``number`` on out of ``files``, for the caller to delete."""
        removed = self.files[number:]
        del self.files[number:]
        return removed

    def close(self) -> None:
        for file in self.files:
            file.close()
