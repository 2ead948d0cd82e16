"""ConsumeQueue: the list of one queue's messages, as 20-byte units that point into the CommitLog."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ....protocol.storage.layout import PRE_BLANK_SIZE, UNIT, UNIT_BYTES
from ....protocol.store_files import OFFSET_NAME, file_name
from ..errors import CorruptFile, WouldBlock
from ..files.file_system import Descriptor, is_plain_file, zero

if TYPE_CHECKING:
    from ..files.file_system import Files
    from ..files.open_files import OpenFiles

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


class ConsumeQueue:
    """One queue's units, in files of ``file_bytes``.

    ``max_offset`` is published after the units below it are written, so any thread may read below it. Only the owner of
    reput writes; retention deletes the oldest files.
    """

    __slots__ = tuple(
        (
            "_dirty _empty_file _files _open_files file_bytes files folder folder_dirty max_offset min_hint "
            "queue_id row start_offset totals topic"
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
        self.start_offset = 0
        """First queue offset whose unit is not filling. The log may begin after that message."""
        self.max_offset = 0
        self.min_hint = 0
        """Queue offset below which all units point before the start of the log."""
        self.totals: QueueTotals | None = None
        """Result of the last count, for as long as nothing changes."""
        self._dirty: set[int] = set()
        self.folder_dirty = False

    @property
    def dirty(self) -> bool:
        """Return whether anything was written since the last ``sync``."""
        return bool(self._dirty) or self.folder_dirty

    def load(self) -> tuple[str, Path | None]:
        """Open the existing files, without changing anything.

        Returns (the reason why they cannot be used, empty if they can; the first file whose size is not
        ``file_bytes``). An empty last file, which a crash can leave, is ignored.
        """
        if not self.folder.is_dir():
            return "", None
        starts = sorted(int(path.name) for path in self.folder.iterdir() if OFFSET_NAME.match(path.name))
        problem = ""
        wrong_size = None
        for number, start in enumerate(starts):
            path = self.folder / file_name(start)
            if not is_plain_file(path):
                problem = problem or f"{path} is not a file"
                continue
            fd = self._open(start)
            size = self.files.size(fd)
            if size == 0 and number == len(starts) - 1:
                self.files.close(fd)
                self._empty_file = path
                continue
            self._enter(start, fd)
            if size != self.file_bytes:
                problem = problem or f"{path} has {size:,} bytes instead of {self.file_bytes:,}"
                wrong_size = wrong_size or path
            elif start % self.file_bytes or (number and start != starts[number - 1] + self.file_bytes):
                problem = problem or f"{path} does not follow the file before it"
        return problem, wrong_size

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
        """Position in the queue at which the last file ends, in bytes."""
        return max(list(self._files), default=-self.file_bytes) + self.file_bytes

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
        buffer = bytearray(count * UNIT_BYTES)
        view = memoryview(buffer)
        at = queue_offset * UNIT_BYTES
        done = 0
        while done < len(buffer):
            start = at - at % self.file_bytes
            file = self._file(start)
            if file is None:
                break
            size = min(len(buffer) - done, start + self.file_bytes - at)
            got = self.files.read(file.fd, view[done : done + size], at - start, wait=not hot)
            if got < size:
                if hot:
                    raise WouldBlock
                break
            done += size
            at += size
        return buffer if done == len(buffer) else buffer[: done - done % UNIT_BYTES]

    def unit(self, queue_offset: int, *, hot: bool) -> tuple[int, int, int]:
        """Return (physical offset, size, tags code) of one unit; its size is 0 if there is no such unit."""
        blob = self.read_units(queue_offset, 1, hot=hot)
        if len(blob) < UNIT_BYTES:
            return 0, 0, 0
        physical_offset, size, tags_code = UNIT.unpack(blob)
        return physical_offset, size, tags_code

    def append(self, units: memoryview) -> None:
        """Write units at ``max_offset``, then publish them. Raises OSError ENOSPC, publishing nothing."""
        at = self.max_offset * UNIT_BYTES
        start = at - at % self.file_bytes
        file = self._files.get(start)
        if file is not None and at + len(units) <= start + self.file_bytes:
            # Units for one open file, without the calls of `write_at`: with many topics, dispatch comes here once for
            # each message.
            file.used = True
            self.files.write(file.fd, units, at - start)
            self._dirty.add(start)
        else:
            self.write_at(self.max_offset, units)
        self.max_offset += len(units) // UNIT_BYTES

    def write_at(self, queue_offset: int, units: memoryview) -> None:
        """Write units without publishing them."""
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
        self._remove_empty()
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
        self.max_offset = self.start_offset = self.min_hint = 0

    def _remove_empty(self) -> None:
        if self._empty_file is not None:
            self.files.unlink(self._empty_file)
            self._empty_file = None
            self.folder_dirty = True

    def _remove(self, start: int) -> None:
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
        """Close the files."""
        self._empty_file = None
        for start in list(self._files):
            file = self._leave(start)
            if file is not None:
                file.close()
