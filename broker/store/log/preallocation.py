"""Preallocation: extents and files that the CommitLog has ready beyond its write offset."""

from __future__ import annotations

import errno
import threading
from typing import TYPE_CHECKING

from ....protocol.errors import ServiceNotAvailable
from ....protocol.storage.layout import BLANK_BYTES_MIN
from ..errors import StoreFailed

if TYPE_CHECKING:
    from ..files.file_system import Files
    from ..files.mapped_file import MappedFile, MappedFileQueue
    from ..settings import StoreSettings


def is_full(error: OSError) -> bool:
    """Return whether the error says that the disk is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


class LogPreallocator:
    """Room for the next records.

    ``make``, ``place_next`` and ``enter_next`` belong to the appending thread, ``prepare`` to the allocation service,
    which works ahead so that appends seldom have to allocate.
    """

    def __init__(self, files: Files, queue: MappedFileQueue, settings: StoreSettings) -> None:
        self.os = files
        self.queue = queue
        self.settings = settings
        self.prepared: list[MappedFile] = []
        """The next files, created ahead."""
        self._preparing = threading.Lock()
        """Held to allocate blocks or to create and place files: the appending thread and the allocation service both
        do."""

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
            self._check_full(error)
            raise self.no_room(bound) from error

    def no_room(self, needed_bytes: int) -> ServiceNotAvailable:
        """Return the error for the producer if the disk is full."""
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
        if not is_full(error):
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
            # Last: if the file could not be placed, it stays prepared for the next attempt.
            del self.prepared[0]
        return file

    def place_next(self, count: int, needed_bytes: int) -> None:
        """Move the next ``count`` files, which ``make`` created, into the log's folder.

        Call it before the first byte is written, and only if the write will reach these files: a RocketMQ that is
        started by mistake deletes unwritten files in the folder. ``needed_bytes``: requested size, for the error.
        Raises as ``make`` does.
        """
        try:
            with self._preparing:
                for file in self.prepared[:count]:
                    self.queue.place(file)
        except OSError as error:
            self._check_full(error)
            raise self.no_room(needed_bytes) from error

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
                # Checked again under the lock: an append may have prepared a file, or rolled, meanwhile.
                if not self.prepared and self.queue.files[-1] is file:
                    self.prepared.append(self._create_next(0))
            return True
        return False

    def close(self) -> None:
        """Close the prepared files."""
        for file in self.prepared:
            file.close()
