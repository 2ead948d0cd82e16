"""Copy of a log from one broker to another: one reads and sends whole records, the other checks and appends them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ....protocol.storage.layout import BLANK_BYTES_MIN
from ...kernels import dispatch as kernel
from ..errors import CorruptLog, DamagedRecord, LogCopyRefused, StoreFailed

if TYPE_CHECKING:
    from .commitlog import CommitLog

COPY_BYTES_MAX = 64 * 1024 * 1024
"""Maximum number of bytes of one append."""


class LogCopy:
    """Both ends of a copy of a log, byte for byte, at the same physical offsets. Belongs to the appending thread.

    The unit is the whole record, or the blank that ends a file together with the unused bytes after it. The receiver
    checks every record with the kernel that recovery uses (length, magic number, physical offset, parts, checksums), so
    that damage does not pass from one disk to another. With ``store.record_checksum`` the sender must have it on too.

    The sender checks in the same way what it may have read from its disk. Of records that this process has appended
    since the receiver began, it leaves the checksums to the receiver. A receiver that refuses a piece begins again, and
    then the sender checks it, too, and so finds out on which side the damage is.
    """

    def __init__(
        self,
        commitlog: CommitLog,
        forget_offsets: Callable[[], None],
        check_writable: Callable[[], None],
        stop_writing: Callable[[StoreFailed], None],
    ) -> None:
        self._log = commitlog
        self._forget_offsets = forget_offsets
        self._check_writable = check_writable
        self._stop_writing = stop_writing
        self._parts = np.zeros(kernel.PARTS, np.int64)
        self._state = np.zeros(kernel.STATE, np.int64)
        # A start finds damage in records without a checksum if the setting was on when they were appended.
        self._state[kernel.S_CHECKSUMMED] = commitlog.checksum_bytes > 0
        self._appended_from: int | None = None
        """Physical offset from which on records are of this process, and no receiver has refused them; None: none
        are."""

    # ---- to send ----

    def begin_receiver(self) -> None:
        """Note that a receiver begins: what the log has now is checked before it is sent."""
        self._appended_from = self._log.write_offset

    def piece_end(self, offset: int, limit: int) -> int:
        """Return the end of the piece from ``offset``: as many whole records as end at or before ``limit``.

        A piece has at least one record, even if that ends after ``limit``, and never spans two files. ``offset`` must
        be the start of a record below the write offset. Raises ``DamagedRecord`` if the first record is damaged.
        """
        file = self._log.queue.find(offset)
        if file is None:
            raise CorruptLog(f"{self._log.queue.folder} has no file that contains offset {offset:,}")
        is_own = self._appended_from is not None and offset >= self._appended_from
        if is_own and self._log.write_offset <= min(limit, file.end_offset):
            return self._log.write_offset
        begin = offset - file.start_offset
        array = file.array()[begin : min(self._log.write_offset, file.end_offset) - file.start_offset]
        self._state[kernel.S_HEADS_ONLY] = is_own
        status, end = self._check(array[: limit - offset], offset)
        if end == 0 and status != kernel.DONE:  # it is longer than the limit allows, or damaged
            status, end = self._check(array, offset, end=1)
        self._state[kernel.S_HEADS_ONLY] = 0
        if status == kernel.BLANK:
            return file.end_offset
        if end == 0:
            reason = kernel.BAD_NAMES[status]
            raise DamagedRecord(f"the log has {reason} at offset {offset:,}; it is not copied", offset, reason)
        return offset + end

    def read(self, offset: int, end: int) -> bytearray:
        """Return the bytes of a piece. May wait for the disk."""
        file = self._log.queue.find(offset)
        if file is None:
            raise CorruptLog(f"{self._log.queue.folder} has no file that contains offset {offset:,}")
        written = self._log.writer.written(offset, end - offset)
        if written is not None:
            return bytearray(written)
        buffer = bytearray(end - offset)
        self._log.queue.read(offset, memoryview(buffer), hot=False)
        return buffer

    # ---- to append ----

    def begin_at(self, offset: int) -> None:
        """Begin an empty log at ``offset``, where a file of the other log begins."""
        assert not self._log.queue.files, self._log.queue.folder
        # The file exists from now on: a store without one begins at 0.
        self._log.ahead.make(offset, 0)
        self._log.queue.sync_placed()
        self._log.write_offset = self._log.flushed_offset = offset

    def append(self, offset: int, data: bytearray | memoryview) -> int:
        """Append the bytes of whole records that another broker has at ``offset``; return the log's end.

        ``data``: writable, because kernels take no read-only arrays; it is not changed and may be used again.
        Everything is appended, or nothing: raises ``LogCopyRefused`` if the bytes do not continue this log or are
        damaged, and otherwise as ``MessageStore.append`` does.
        """
        self._check_writable()
        if offset != self._log.write_offset:
            raise LogCopyRefused(offset, f"this log ends at {self._log.write_offset:,}")
        if not 0 < len(data) <= COPY_BYTES_MAX:
            raise LogCopyRefused(offset, f"a piece has 1 to {COPY_BYTES_MAX:,} bytes, not {len(data):,}")
        array = np.frombuffer(data, np.uint8)
        segments = self._segments(array, offset)
        # Their queues' next offsets are known from the units after dispatch.
        self._forget_offsets()
        try:
            self._write(offset, segments, len(data))
        except StoreFailed as failure:
            self._stop_writing(failure)
            raise
        self._log.last_store_ms = int(self._state[kernel.S_LAST_STORE_MS])
        self._log.write_offset = self._log.writer.finish()
        return self._log.write_offset

    def _write(self, offset: int, segments: list[np.ndarray], size: int) -> None:
        file = self._log.ahead.make(offset, size)
        if len(segments) > 1:
            self._log.ahead.place_next(len(segments) - 1, size)
        writer = self._log.writer
        writer.begin(file, offset, 0)
        for number, segment in enumerate(segments):
            if number:
                writer.enter_next()
            writer.write(segment.data)

    def _segments(self, array: np.ndarray, offset: int) -> list[np.ndarray]:
        """Return the bytes for each file of the log, all of them checked."""
        self._state[kernel.S_LAST_STORE_MS] = self._log.last_store_ms
        file_bytes = self._log.queue.file_bytes
        segments, at = [], 0
        while at < len(array):
            room = file_bytes - (offset + at) % file_bytes
            segment = array[at : at + room]
            self._check_segment(segment, offset + at, room)
            segments.append(segment)
            at += len(segment)
        return segments

    def _check_segment(self, segment: np.ndarray, offset: int, room: int) -> None:
        """Raise ``LogCopyRefused`` unless the bytes are whole records and, at the end of a file, its blank."""
        status, end = self._check(segment, offset)
        if status == kernel.DONE:
            if end > room - BLANK_BYTES_MIN:
                raise LogCopyRefused(offset + end, "no room is left for the blank that ends a file")
            return
        if status == kernel.BLANK:
            if int.from_bytes(segment[end : end + 4].tobytes(), "big") == len(segment) - end and len(segment) == room:
                return
            status = kernel.BAD_LENGTH
        raise LogCopyRefused(offset + end, kernel.BAD_NAMES[status])

    def _check(self, array: np.ndarray, offset: int, end: int | None = None) -> tuple[int, int]:
        """Check the records that begin below ``end``; return (why the check stopped, where)."""
        status, at = kernel.scan(array, 0, len(array) if end is None else end, offset, self._parts, self._state)
        return int(status), int(at)
