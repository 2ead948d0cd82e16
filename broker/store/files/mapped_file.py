"""MappedFile and MappedFileQueue: the CommitLog as a row of equal files, each named by the offset it begins at."""

from __future__ import annotations

import errno
import logging
import mmap
import re
import threading
from pathlib import Path

import numpy as np

from ..errors import CorruptLog, SettingMismatch, WouldBlock
from .file_system import Files, create_whole

NAME_DIGITS = 20
_NAME = re.compile(r"\d{20}\Z")

log = logging.getLogger(__name__)


def file_name(start_offset: int) -> str:
    """The name of the file that begins at ``start_offset``: 20 digits."""
    return f"{start_offset:0{NAME_DIGITS}d}"


class MappedFile:
    """One file of fixed size. It is read through its descriptor; only what kernels work on is mapped.

    No view of the map leaves the store: whoever needs the bytes elsewhere copies them.
    """

    def __init__(self, files: Files, path: Path, fd: int, size: int, *, allocated: int = 0) -> None:
        self.files = files
        self.path = path
        self.fd = fd
        self.size = size
        self.start_offset = int(path.name)
        self.allocated = allocated
        """Extents exist below this; a map may be written only there."""
        self.populated = 0
        """Below this, pages were got ready in memory, or nothing more is written."""
        self._array: np.ndarray | None = None

    @property
    def end_offset(self) -> int:
        """The offset of the next file."""
        return self.start_offset + self.size

    def array(self) -> np.ndarray:
        """The file's bytes, mapped shared and writable."""
        array = self._array
        if array is None:
            array = self._array = np.frombuffer(self.files.map(self.fd, self.size), np.uint8)
        return array

    def release(self) -> None:
        """Let the map go; it ends when the last array on it does."""
        self._array = None

    def allocate(self, end: int, step: int) -> None:
        """Give ``[0, end)`` blocks, in steps; raises OSError ENOSPC where the disk is full."""
        while self.allocated < min(end, self.size):
            size = min(step, self.size - self.allocated)
            self.files.allocate(self.fd, self.allocated, size)
            self.allocated += size

    def populate(self, begin: int, end: int, step: int) -> bool:
        """Get the next ``step`` bytes of ``[begin, end)`` ready in memory that are not yet; whether there were as many,
        or the file's last. Raises OSError."""
        begin = max(self.populated, begin - begin % mmap.PAGESIZE)
        end = min(end, self.allocated)
        size = min(step, end - begin)
        if size <= 0 or (size < step and end < self.size):
            return False
        array = self.array()
        self.files.populate(self.fd, begin, array.ctypes.data + begin, size)
        self.populated = begin + size
        return True

    def close(self) -> None:
        """Close the descriptor and let the map go."""
        self._array = None
        if self.fd >= 0:
            self.files.close(self.fd)
            self.fd = -1

    def __del__(self) -> None:
        # Of a file that retention took away: once the last reader lets go of it, so that its descriptor's number does
        # not come to mean another file in the middle of a read.
        self.close()


class MappedFileQueue:
    """The files of a folder in order, without a gap.

    ``setting``: the name of the setting that gives the files' size, for the error when one has another.
    """

    def __init__(self, files: Files, folder: Path, file_bytes: int, scratch_folder: Path, setting: str) -> None:
        self.os = files
        self.folder = folder
        self.file_bytes = file_bytes
        self.scratch_folder = scratch_folder
        self.setting = setting
        self.files: list[MappedFile] = []
        self._changing = threading.Lock()
        """Held to replace ``files``: whoever reads takes the list once, and it never changes under him."""
        self._empty_file: Path | None = None
        self._short: list[tuple[Path, int]] = []
        """Files that were cut short, and how many bytes they have."""
        self._placed = False

    def load(self, recorded_file_bytes: int | None = None, flushed_offset: int = 0) -> None:
        """Open what is there; changes nothing. Raises ``SettingMismatch`` or ``CorruptLog``, naming the file.

        ``recorded_file_bytes``: the size that the files are known to have been made with, None where nobody wrote it
        down. One that is shorter is taken for cut short, where the setting is that size: see ``lengthen``.
        ``flushed_offset``: up to where something was written; an empty last file behind that counts as none.
        """
        may_be_short = recorded_file_bytes == self.file_bytes
        if not self.folder.is_dir():
            return
        names = sorted(path.name for path in self.folder.iterdir() if _NAME.match(path.name))
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
        """Give files that were cut short their length again, with zeros: what they lost is damage, or lay behind the
        log's end. Raises OSError ENOSPC."""
        for path, held in self._short:
            file = next(file for file in self.files if file.path == path)
            log.warning(
                "%s has %s bytes instead of %s: it was cut short, and gets zeros at its end",
                path, f"{held:,}", f"{file.size:,}",
            )  # fmt: skip
            self.os.allocate(file.fd, held, file.size - held)
            self.os.sync_data(file.fd)
        self._short.clear()

    def remove_empty(self) -> None:
        """Remove the file without a byte that a RocketMQ leaves when it stops while it makes its next one."""
        if self._empty_file is not None:
            self.os.unlink(self._empty_file)
            self._empty_file = None

    def _check(self, file: MappedFile, number: int) -> None:
        if file.size != self.file_bytes:
            raise SettingMismatch(
                f"{file.path} has {file.size:,} bytes, the setting {self.setting} says {self.file_bytes:,}. Start with "
                f"the size that the store was made with (--set {self.setting}={file.size}), or, if this file was cut "
                "short, restore it from a backup. Nothing was changed"
            )
        if file.start_offset % self.file_bytes:
            raise CorruptLog(
                f"{file.path}: its name says it begins at {file.start_offset:,}, which is no multiple of "
                f"{self.setting} = {self.file_bytes:,}. The file belongs to another log or was renamed; move it away "
                "or put its name right. Nothing was changed"
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
        """Where the first file begins; 0 without files."""
        files = self.files
        return files[0].start_offset if files else 0

    @property
    def end_offset(self) -> int:
        """Where the last file ends; 0 without files."""
        files = self.files
        return files[-1].end_offset if files else 0

    def create(self, start_offset: int, allocate: int) -> MappedFile:
        """Make the file at ``start_offset``, durably, with blocks for its first ``allocate`` bytes; in no row yet.

        Nor in the folder: a RocketMQ that is started by mistake deletes the files there that nothing was written to,
        before it finds the store locked.
        """
        path = self.scratch_folder / file_name(start_offset)
        fd = create_whole(self.os, path, self.file_bytes, self.scratch_folder, allocate=allocate)
        return MappedFile(self.os, path, fd, self.file_bytes, allocated=min(allocate, self.file_bytes))

    def place(self, file: MappedFile) -> None:
        """Put a file that ``create`` made into the folder, if it is not there yet; in no row yet. Raises OSError.

        ``sync_placed`` must run before its bytes count as on disk.
        """
        path = self.folder / file.path.name
        if file.path != path:
            self.os.rename(file.path, path)
            file.path = path
            self._placed = True

    def enter(self, file: MappedFile) -> None:
        """Put a file that lies in the folder into the row, as its last."""
        with self._changing:
            self.files = [*self.files, file]

    def sync_placed(self) -> None:
        """Make the names of files that were placed durable."""
        if self._placed:
            self._placed = False
            try:
                self.os.sync_folder(self.folder)
            except OSError:
                self._placed = True
                raise

    def find(self, offset: int) -> MappedFile | None:
        """The file that holds ``offset``."""
        files = self.files
        if not files:
            return None
        number = (offset - files[0].start_offset) // self.file_bytes
        return files[number] if 0 <= number < len(files) else None

    def read(self, offset: int, buffer: memoryview, *, hot: bool) -> None:
        """Fill ``buffer`` from ``offset``; it does not cross a file.

        With ``hot``, raises ``WouldBlock`` where a byte is not in the page cache. Raises ``CorruptLog`` where there is
        no such file or it ends before. What was cut off a file that waits to be lengthened is zeros already.
        """
        file = self.find(offset)
        if file is None:
            raise CorruptLog(f"{self.folder} has no file that holds offset {offset:,}")
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
        """Take the oldest ``count`` files away, beside readers. Their space is free once nobody reads them any more."""
        with self._changing:
            gone, self.files = self.files[:count], self.files[count:]
        for file in gone:  # the oldest first: stopped in between, what is left has no gap
            file.release()
            self.os.unlink(file.path)
        self.os.sync_folder(self.folder)

    def remove_from(self, number: int) -> list[MappedFile]:
        """Take the files from index ``number`` on out of the row, for the caller to delete."""
        removed = self.files[number:]
        del self.files[number:]
        return removed

    def close(self) -> None:
        """Close all files."""
        for file in self.files:
            file.close()
