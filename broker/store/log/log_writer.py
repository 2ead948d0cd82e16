"""LogWriter: the records of one append, from the buffer in which they are made to the files of the CommitLog."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from ....protocol.storage.layout import BLANK_BYTES_MIN, MAGIC_BLANK
from ..errors import StoreFailed
from ..files.file_system import zero
from .preallocation import is_full

if TYPE_CHECKING:
    from ....protocol.errors import ServiceNotAvailable
    from ..files.file_system import Files
    from ..files.mapped_file import MappedFile
    from .preallocation import LogPreallocator

BUFFER_BYTES = 1024 * 1024
"""Size of the buffer: a larger one would leave the processor's cache, a smaller one needs more system calls."""
_BLANK = struct.Struct(">ii")


class LogWriter:
    """Writer of one append at a time: ``begin``, then ``put`` or ``write`` and ``roll``, then ``finish``.

    Belongs to the appending thread. Records are written with ``pwrite``, never through the map that readers use: before
    a page can be written through a map, the system must fill it with zeros and map it, which costs three times as much
    as writing the records. Never mix both: a store through a map makes all of a large folio dirty, so that the next
    sync writes up to a megabyte for one small record.

    Readers stay below the log's write offset, so an append becomes visible when the caller publishes the offset that
    ``finish`` returns. After an append that fails, the log's files are as before.
    """

    def __init__(self, files: Files, ahead: LogPreallocator) -> None:
        self._os = files
        self._ahead = ahead
        self._buffer = np.zeros(BUFFER_BYTES, np.uint8)
        self._files: list[MappedFile] = []
        """Files of this append: the log's last, then those that it rolled into."""
        self._begin = 0
        self._record_bytes_max = 0
        self._in_buffer = 0
        """Size of the append's last records, if they are still at the start of the buffer."""
        self.array = self._buffer
        """Buffer in which kernels make the next records."""
        self.offset = 0
        """Physical offset of the next byte to be written, which is the first one of the buffer."""
        self.limit = 0
        """Number of bytes of the buffer that records and the room for a blank after them may take."""

    def begin(self, file: MappedFile, write_offset: int, record_bytes_max: int) -> None:
        """Begin an append at ``write_offset`` in ``file``, which ``LogPreallocator.make`` returned.

        ``record_bytes_max``: upper bound of the size of a record.
        """
        self._files = [file]
        self._begin = self.offset = write_offset
        # ``written`` must not return bytes of the append before while this one replaces them.
        self._in_buffer = 0
        self._record_bytes_max = record_bytes_max
        self.limit = min(file.end_offset - write_offset, BUFFER_BYTES)

    @property
    def room(self) -> int:
        """Number of bytes from ``offset`` to the end of the current file."""
        return self._files[-1].end_offset - self.offset

    def put(self, size: int, *, is_last: bool) -> None:
        """Write the first ``size`` bytes of the buffer.

        Unless they are the last of the append, the next record did not fit within ``limit``: make room for it in the
        buffer or in the next file. Raises as ``write`` does.
        """
        self.write(self.array.data[:size])
        if is_last:
            if self.array is self._buffer:
                self._in_buffer = size
            return
        # The end of the file was the limit, not that of the buffer.
        if size + self.room == self.limit:
            self.roll()
        elif not size:  # the record is larger than the buffer
            self.array = np.empty(self._record_bytes_max + BLANK_BYTES_MIN, np.uint8)
        self.limit = min(self.room, len(self.array))

    def write(self, data: bytes | memoryview) -> None:
        """Write bytes at ``offset``. Raises ``ServiceNotAvailable`` if the disk is full, otherwise ``StoreFailed``."""
        file = self._files[-1]
        try:
            self._os.write(file.fd, data, self.offset - file.start_offset)
        except OSError as error:
            raise self._undo(error, len(data)) from error
        self.offset += len(data)

    def roll(self) -> None:
        """End the file with a blank and continue in the next, which ``LogPreallocator.place_next`` has placed."""
        self.write(_BLANK.pack(self.room, MAGIC_BLANK))
        self.enter_next()

    def enter_next(self) -> None:
        """Continue in the next file, after the current one was written to its end."""
        file = self._ahead.prepared[len(self._files) - 1]
        self._files.append(file)
        self.offset = file.start_offset

    def finish(self) -> int:
        """Enter the files that the append rolled into; return the physical offset of its end."""
        # Only now, because an append that failed must leave the log's list of files as it was.
        for _ in self._files[1:]:
            self._ahead.enter_next()
        self.array = self._buffer
        return self.offset

    def written(self, offset: int, size: int) -> memoryview | None:
        """Return these bytes of the log if they are all that the last append wrote and still in the buffer."""
        if offset != self._begin or size != self._in_buffer or self.offset != offset + size:
            return None
        return self._buffer.data[:size]

    def _undo(self, error: OSError, size: int) -> ServiceNotAvailable:
        """Return the error for the producer if the disk is full; raise ``StoreFailed`` for any other error.

        A full disk is unlikely here, because the files have their blocks, but some file systems write changed data to
        new blocks. Nothing may be left that a start could take for records: the append may have written whole ones.
        """
        self.array = self._buffer
        folder = self._files[0].path.parent
        try:
            if not is_full(error):
                raise error
            for file in self._files:
                zero(self._os, file.fd, max(self._begin - file.start_offset, 0), file.size)
        except OSError as failure:
            raise StoreFailed(
                f"the log in {folder} cannot be written: {failure}. The newest messages may or may not be stored; the "
                "broker ends. Check the disk, then start it again"
            ) from failure
        return self._ahead.no_room(size)
