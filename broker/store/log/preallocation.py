"""What the CommitLog has ahead of its write offset: extents, pages in memory, and the next files."""

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
"""So much of the log behind the write offset has its pages in memory: a tenth of a second of the fastest writes."""
_CANNOT_POPULATE = -2
"""The system has no call for it."""
POPULATE_STEP_BYTES = 8 * 1024 * 1024
"""Each step waits for the interpreter, which a busy event loop lets go of every 5 ms."""

log = logging.getLogger(__name__)


class LogPreallocator:
    """Room for what is written next. ``make``, ``place_next`` and ``enter_next`` belong to who appends, ``prepare`` and
    ``populate`` to the allocation service, which works ahead so that an append finds all there already."""

    def __init__(self, files: Files, queue: MappedFileQueue, settings: StoreSettings) -> None:
        self.os = files
        self.queue = queue
        self.settings = settings
        self.prepared: list[MappedFile] = []
        """The next files, made ahead."""
        self._preparing = threading.Lock()
        self._populate_from = -1
        """The write offset when pages were first thought of; -1: not yet; ``_CANNOT_POPULATE``."""

    def make(self, write_offset: int, bound: int, record_bytes: int = 0) -> MappedFile:
        """The file to write to, with extents for ``bound`` bytes from the write offset on, in files made to follow it
        too if need be. ``record_bytes``: the largest record. Raises as ``CommitLog.append``, with nothing written."""
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
                # Every file that a frame rolls into must be there before its first byte is written.
                waste = max(self.settings.message_bytes_max, record_bytes) + BLANK_BYTES_MIN
                self._have_next(position + bound - file.size + waste, waste)
            return file
        except OSError as error:
            raise self._no_room(error, bound) from error

    def _no_room(self, error: OSError, needed_bytes: int) -> ServiceNotAvailable:
        """The answer to a producer when extents cannot be allocated. Raises ``StoreFailed`` where the disk is not just
        full."""
        self._check_full(error)
        folder = self.queue.folder
        free = self.os.free_bytes(folder)
        step = self.settings.allocate_step_bytes
        needed_bytes = max(needed_bytes, step)
        return ServiceNotAvailable(
            f"the disk of {folder} is full: {free:,} bytes are free, {needed_bytes:,} were needed "
            f"(store.allocate_step_bytes is {step:,}); nothing was written. Free space or shorten "
            "retention.file_reserved_hours; writes resume by themselves",
            retry_after_ms=1000, free_bytes=free, needed_bytes=needed_bytes,
        )  # fmt: skip

    def _check_full(self, error: OSError) -> None:
        """Raise ``StoreFailed`` unless the error is that of a full disk."""
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise StoreFailed(
                f"the log in {self.queue.folder} cannot be made longer: {error}. Nothing was written; the broker ends. "
                "Check the disk, then start it again"
            ) from error

    def _have_next(self, rest: int, waste: int) -> None:
        """Have files with blocks for ``rest`` bytes of records behind the last; each may leave ``waste`` unused."""
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
        """The next file becomes the last of the log, made now where none was prepared. ``first_offset``: where a log
        without files begins. Raises OSError, but for a file that is placed."""
        with self._preparing:
            if not self.prepared:
                self.prepared.append(self._create_next(0, first_offset))
            file = self.prepared[0]
            self.queue.place(file)
            self.queue.enter(file)
            del self.prepared[0]
        return file

    def place_next(self, count: int, needed_bytes: int) -> None:
        """Have the next ``count`` files, which ``make`` made, in the folder and mapped: what is to be written goes
        on in them, and once it is begun nothing may fail any more.

        Only where it is sure to go on in them: a RocketMQ that is started by mistake deletes files of the folder that
        nothing was written to. ``needed_bytes``: for the error, how much was asked for. Raises as ``make`` does.
        """
        try:
            with self._preparing:
                for file in self.prepared[:count]:
                    self.queue.place(file)
                    file.array()
        except OSError as error:
            raise self._no_room(error, needed_bytes) from error

    def prepare(self, write_offset: int) -> bool:
        """For the allocation service: the next step of extents, and the next file when this one is three quarters full.

        Returns whether there was something to do. Raises OSError where the disk is full, else ``StoreFailed``.
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
        """For the allocation service: have the system find pages for what is written next; one step of it.

        A new page costs the writer microseconds, or tens of milliseconds: where the system fills those around it with
        zeros, too (up to the disk's ``read_ahead_kb``), while the log is synced, or where a virtual machine's host has
        to find it. The event loop should not wait so long. As far ahead as was written since the store was
        opened, up to ``POPULATE_AHEAD_BYTES``: an idle broker needs none. Pages are only read: zeros that were written
        would have to be synced.
        Returns whether there was something to do.
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
            log.info("pages of the log cannot be got ready ahead of the writes, which take longer at times: %s", error)
            self._populate_from = _CANNOT_POPULATE
            return False

    def close(self) -> None:
        """Close the files that were made."""
        for file in self.prepared:
            file.close()
