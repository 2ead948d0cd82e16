"""Preallocation: extents, pages in memory and files that the CommitLog has ready beyond its write offset."""

from __future__ import annotations

import errno
import logging
import threading

from ....protocol.errors import ServiceNotAvailable
from ....protocol.storage.layout import BLANK_BYTES_MIN
from ..errors import StoreFailed
from ..files.file_system import Files
from ..files.mapped_file import MappedFile, MappedFileQueue
from ..settings import StoreSettings

POPULATE_AHEAD_BYTES = 32 * 1024 * 1024
"""Maximum number of bytes beyond the write offset whose pages are in memory: 0.1 s of the fastest writes."""
_CANNOT_POPULATE = -2
"""Value of ``_populate_from`` if the system has no call that populates pages."""
POPULATE_STEP_BYTES = 8 * 1024 * 1024
"""Bytes of one step. Every step first waits for the GIL, which a busy event loop gives up every 5 ms."""

log = logging.getLogger(__name__)


class LogPreallocator:
    """Room for the next records.

    ``make``, ``place_next`` and ``enter_next`` belong to the appending thread, ``prepare`` and ``populate`` to the
    allocation service, which works ahead so that appends seldom have to allocate.
    """

    def __init__(self, files: Files, queue: MappedFileQueue, settings: StoreSettings) -> None:
        self.os = files
        self.queue = queue
        self.settings = settings
        self.prepared: list[MappedFile] = []
        """The next files, created ahead."""
        self._preparing = threading.Lock()
        self._populate_from = -1
        """Write offset at the first ``populate``; -1 before it, or ``_CANNOT_POPULATE``."""

    def make(self, write_offset: int, bound: int, record_bytes: int = 0) -> MappedFile:
        """Return the file to write to, with extents for ``bound`` bytes from the write offset on.

        Creates further files if they are needed. ``record_bytes``: size of the largest record. Raises as
        ``CommitLog.append`` does, with nothing written.
        """
        try:
            files = self.queue.files
            file = files[-1] if files else self.enter_next(write_offset)
            position = write_offset - file.start_offset
            if position >= file.size:
                file = self.enter_next(write_offset)
                position = 0
            if position + bound > file.allocated and file.allocated < file.size:
                with self._preparing:
                    file.allocate(position + bound, self.settings.allocate_step_bytes)
            if position + bound > file.size:
                # A frame is written completely or not at all: all files that it rolls into must exist, with their
                # blocks, before its first byte is written.
                waste = max(self.settings.message_bytes_max, record_bytes) + BLANK_BYTES_MIN
                self._have_next(position + bound - file.size + waste, waste)
            return file
        except OSError as error:
            raise self._no_room(error, bound) from error

    def _no_room(self, error: OSError, needed_bytes: int) -> ServiceNotAvailable:
        """Return the error for the producer if the disk is full; raise ``StoreFailed`` for any other error."""
        self._check_full(error)
        folder = self.queue.folder
        free = self.os.free_bytes(folder)
        step = self.settings.allocate_step_bytes
        needed_bytes = max(needed_bytes, step)
        return ServiceNotAvailable(
            f"the disk of {folder} is full: {free:,} bytes are free, {needed_bytes:,} were needed "
            f"(store.allocate_step_bytes is {step:,}); nothing was written. Free space or shorten "
            "retention.file_reserved_hours; writes resume by themselves",
            retry_after_ms=1000,
            free_bytes=free,
            needed_bytes=needed_bytes,
        )

    def _check_full(self, error: OSError) -> None:
        """Raise ``StoreFailed`` unless the error says that the disk is full."""
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise StoreFailed(
                f"the log in {self.queue.folder} cannot be made longer: {error}. Nothing was written; the broker ends. "
                "Check the disk, then start it again"
            ) from error

    def _have_next(self, rest: int, waste: int) -> None:
        """Prepare files with blocks for ``rest`` bytes of records after the last file.

        Each file may leave up to ``waste`` bytes unused at its end.
        """
        with self._preparing:
            number = 0
            while rest > 0:
                if number == len(self.prepared):
                    self.prepared.append(self._create_next(min(rest, self.queue.file_bytes)))
                file = self.prepared[number]
                file.allocate(rest, self.settings.allocate_step_bytes)
                rest -= file.size - waste
                number += 1

    def _create_next(self, allocate: int, first_offset: int = 0) -> MappedFile:
        ahead = self.prepared or self.queue.files
        start_offset = ahead[-1].end_offset if ahead else first_offset
        return self.queue.create(start_offset, max(allocate, self.settings.allocate_step_bytes))

    def enter_next(self, first_offset: int = 0) -> MappedFile:
        """Make the next file the last of the log, and return it. Creates it if none was prepared.

        ``first_offset``: where a log without files begins. Raises OSError, except for a file that is already placed.
        """
        with self._preparing:
            if not self.prepared:
                self.prepared.append(self._create_next(0, first_offset))
            file = self.prepared[0]
            self.queue.place(file)
            self.queue.enter(file)
            del self.prepared[0]
        return file

    def place_next(self, count: int, needed_bytes: int) -> None:
        """Move the next ``count`` files, which ``make`` created, into the log's folder and map them.

        After this, a write that continues in these files cannot fail. Call it only if the write will reach them: a
        RocketMQ that is started by mistake deletes files of the folder that nothing was written to. ``needed_bytes``:
        requested size, for the error. Raises as ``make`` does.
        """
        try:
            with self._preparing:
                for file in self.prepared[:count]:
                    self.queue.place(file)
                    file.array()
        except OSError as error:
            raise self._no_room(error, needed_bytes) from error

    def prepare(self, write_offset: int) -> bool:
        """Allocate the next step of extents, or the next file once this one is three quarters full.

        Only for the allocation service. Returns whether there was anything to do. Raises OSError if the disk is full,
        otherwise ``StoreFailed``.
        """
        try:
            return self._prepare(write_offset)
        except OSError as error:
            self._check_full(error)
            raise

    def _prepare(self, write_offset: int) -> bool:
        files = self.queue.files
        if not files:
            return False
        file = files[-1]
        step = self.settings.allocate_step_bytes
        position = write_offset - file.start_offset
        if file.allocated < file.size and file.allocated - position < step:
            with self._preparing:
                file.allocate(position + 2 * step, step)
            return True
        if not self.prepared and 4 * position > 3 * file.size:
            with self._preparing:
                if not self.prepared and self.queue.files[-1] is file:
                    self.prepared.append(self._create_next(0))
            return True
        return False

    def populate(self, write_offset: int) -> bool:
        """Bring the next pages of the log into memory, one step at a time.

        Only for the allocation service. Returns whether there was anything to do.

        The first write to a page takes microseconds, but tens of milliseconds if the system must first fill the pages
        around it with zeros (up to the disk's ``read_ahead_kb``) while the log is synced, or if a virtual machine's
        host must find memory for it. The event loop should not wait that long.

        Reaches as far ahead as was written since the store was opened, up to ``POPULATE_AHEAD_BYTES``: an idle broker
        needs no pages. Pages are only read, because written zeros would have to be synced.
        """
        if self._populate_from == -1:
            self._populate_from = write_offset
        files = self.queue.files
        if not files or self._populate_from == _CANNOT_POPULATE:
            return False
        ahead = min(write_offset - self._populate_from, POPULATE_AHEAD_BYTES)
        file = files[-1]
        begin = max(write_offset - file.start_offset, 0)
        end = begin + ahead
        try:
            if file.populate(begin, end, POPULATE_STEP_BYTES):
                return True
            following = self.prepared[:1]
            return bool(following) and following[0].populate(0, end - file.size, POPULATE_STEP_BYTES)
        except OSError as error:
            log.info("cannot bring pages of the log into memory ahead of writes, so some writes take longer: %s", error)
            self._populate_from = _CANNOT_POPULATE
            return False

    def close(self) -> None:
        """Close the prepared files."""
        for file in self.prepared:
            file.close()
