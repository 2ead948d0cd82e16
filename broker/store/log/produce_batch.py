"""The messages of a PRODUCE frame: their bytes, the kernel's arguments for frames like it, where they were stored, and
the errors of those that cannot be.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ....protocol.errors import MessageIllegal
from ....protocol.storage.layout import BLANK_BYTES_MIN, MAGIC_BLANK, PRODUCED_PROPERTIES_BYTES_MAX
from ...kernels import produce as kernel
from ...memo import remembered
from ..errors import StoreFailed
from ..files.file_system import zero
from .preallocation import is_full

if TYPE_CHECKING:
    from ....protocol.errors import ServiceNotAvailable
    from ..files.file_system import Files
    from ..files.mapped_file import MappedFile
    from .preallocation import LogPreallocator

FRAME_RECORDS_BYTES_MAX = 64 * 1024 * 1024
"""Maximum size of all records of one frame. Common properties are copied into each record, and a frame must not occupy
the event loop for long."""
_MESSAGE_BYTES_MIN = (4, 3, 0, kernel.BATCH_MESSAGE_BYTES_MIN)
"""Minimum size of a message in a frame, by layout."""

_RULES = {
    kernel.TRUNCATED: "the body ends in the middle of it",
    kernel.NOT_A_MESSAGE: "it is not an array of 2 to 4 items [body, properties, sys_flag, flag]",
    kernel.BODY_NOT_BIN: "its body is not a msgpack bin",
    kernel.PROPERTIES_NOT_MAP: "its properties are not a msgpack map",
    kernel.PROPERTY_NOT_STR: "a property's name or value is not a msgpack str",
    kernel.NOT_UTF8: "a property or key is not UTF-8",
    kernel.HAS_SEPARATOR: "a property or key contains \\x01 or \\x02, which separate properties in the store",
    kernel.EMPTY_PROPERTY: "a property has an empty name or value; leave it out",
    kernel.FORBIDDEN_PROPERTY: "it sets a property that only the broker may set",
    kernel.DELAY_NOT_INTEGER: "its property DELAY is not an integer",
    kernel.FLAG_NOT_INTEGER: "its sys_flag or flag is not an integer of 32 bits",
    kernel.BYTES_LEFT: "bytes follow the last message; count or layout is wrong",
    kernel.KEYS_NOT_STR: "its key is neither a str nor nil",
    kernel.WRONG_COUNT: "the columns do not have count items each",
    kernel.WRONG_SIZE: "its size differs from that of its parts",
    kernel.COMMON_ONLY: "it asks for a delayed or transactional delivery for itself alone: DELAY, TIMER_* and "
    "TRAN_MSG belong among the common properties of its frame",
}


@dataclass(slots=True)
class ProduceBatch:
    """The messages of one PRODUCE frame: ``buffer[body_at:body_end]`` in ``layout``, and their common properties.

    ``common``: encoded properties, checked by ``common_properties``; ``unique_prefix``: 20 hex digits or empty;
    ``born_ms``: 0 for now; ``born_host``: 8 or 20 bytes, as in the record; ``flag``: of a message without a flag of its
    own (``LAYOUT_BODY``); ``reconsume_times``: deliveries that failed before.
    """

    buffer: bytearray
    body_at: int
    body_end: int
    count: int
    layout: int
    common: bytes
    sys_flag: int
    unique_prefix: bytes
    unique_first: int
    born_ms: int
    born_host: bytes
    flag: int = 0
    reconsume_times: int = 0


FrameBody: TypeAlias = tuple[bytearray, int, int, int, int, int]
"""The parts of a batch that differ from frame to frame: buffer, begin and end of the body, number of messages, counter
of the first, time of birth."""


class RepeatedBatch:
    """The arguments of the produce kernel for batches like the last one of a CommitLog.

    ``numbers`` and ``texts``: those of the last batch, which are copied. ``record_overhead_bytes``: upper bound of a
    record's bytes besides its body and properties of its own. ``common_bytes_max``: size of the longest common
    properties that ``set_common`` will get; 0 if they stay as they are.
    """

    __slots__ = ("_common_at", "numbers", "record_overhead_bytes", "texts", "values")

    def __init__(
        self, numbers: np.ndarray, texts: np.ndarray, record_overhead_bytes: int, common_bytes_max: int
    ) -> None:
        self.numbers = numbers.copy()
        self.numbers[kernel.N_RECORDS_MAX] = FRAME_RECORDS_BYTES_MAX
        self._common_at = int(numbers[kernel.N_STORE_HOST_END])
        self.texts = np.zeros(self._common_at + common_bytes_max, np.uint8)
        self.texts[: self._common_at] = texts[: self._common_at]
        self.values = memoryview(self.numbers.data)
        """View of ``numbers`` that takes Python integers: cheaper than NumPy's assignment."""
        common_bytes = self.values[kernel.N_COMMON_END] - self.values[kernel.N_COMMON_AT]
        self.record_overhead_bytes = record_overhead_bytes + max(common_bytes, common_bytes_max)

    def set_common(self, common: bytes) -> None:
        """Replace the common properties by others of at most ``common_bytes_max`` bytes."""
        begin, end = self._common_at, self._common_at + len(common)
        self.texts.data[begin:end] = common
        self.values[kernel.N_COMMON_AT] = begin
        self.values[kernel.N_COMMON_END] = end


@dataclass(slots=True)
class Appended:
    """Where a batch was stored: queue offset of its first message, store time, count × i64 physical offsets, and the
    log's end after it."""

    queue_offset: int
    store_ms: int
    physical_offsets: bytes | bytearray
    end_offset: int


@remembered(1024)
def common_properties(text: str) -> bytes:
    """Encode a request's common properties; each obeys the rules for a message's own. Raises ``MessageIllegal``."""
    if not text:
        return b""
    blob = text.encode("utf-8", "surrogatepass")
    if not blob.endswith(b"\x02"):
        blob += b"\x02"
    limit = PRODUCED_PROPERTIES_BYTES_MAX
    if len(blob) > limit:
        raise MessageIllegal(
            f"the common properties take {len(blob):,} bytes, at most {limit:,} are allowed; nothing of the frame was "
            "written",
            properties_bytes_max=limit,
        )
    status, name_at, name_end = kernel.common_status(np.frombuffer(bytearray(blob), np.uint8), 0, len(blob))
    if status != kernel.OK:
        shown = blob[name_at:name_end].decode("utf-8", "replace")
        raise MessageIllegal(f"the common property {shown!r} cannot be set: {_RULES[status]}")
    return blob


def check_count(count: int, layout: int, body_bytes: int) -> None:
    """Raise ``MessageIllegal`` if the body is too short for ``count`` messages, before arrays are sized by it."""
    if count * _MESSAGE_BYTES_MIN[layout] > body_bytes:
        raise MessageIllegal(f"count says {count} messages, but the body has {body_bytes} bytes")


def count_batch(buffer: bytearray, at: int, end: int) -> int:
    """Return the number of messages in a RocketMQ client's batch. Raises ``MessageIllegal`` if one is cut."""
    count, whole_until = kernel.count_batch(np.frombuffer(buffer, np.uint8), at, end)
    if whole_until != end or not count:
        raise MessageIllegal(
            f"message {count} of the batch: its size does not fit into the {end - at:,} bytes of the batch; nothing "
            "was written",
            message_index=count,
        )
    return count


def refusal(status: int, message: int, detail: int, *, body_at: int, message_bytes_max: int) -> MessageIllegal:
    """Return the producer's error for a status of ``kernels.produce``.

    ``body_at``: where the frame's body begins; ``message_bytes_max``: maximum size of a record.
    """
    if status == kernel.PROPERTIES_TOO_LONG:
        limit = PRODUCED_PROPERTIES_BYTES_MAX
        return MessageIllegal(
            f"message {message}: its properties take {detail:,} bytes, at most {limit:,} are allowed; nothing of "
            "the frame was written",
            message_index=message,
            properties_bytes_max=limit,
        )
    if status == kernel.RECORD_TOO_LONG:
        limit = message_bytes_max
        return MessageIllegal(
            f"message {message}: its record would take {detail:,} bytes, store.message_bytes_max allows {limit:,}; "
            "nothing of the frame was written",
            message_index=message,
            message_bytes_max=limit,
        )
    if status == kernel.RECORDS_TOO_LONG:
        return MessageIllegal(
            f"the records of this frame would take more than {FRAME_RECORDS_BYTES_MAX:,} bytes; send fewer "
            "messages a frame; nothing of it was written"
        )
    return MessageIllegal(
        f"message {message}: {_RULES[status]} (byte {detail - body_at} of the body); nothing of the frame was written",
        message_index=message,
    )


# ---- LogWriter: the records of one append, from the buffer in which they are made to the files of the
# CommitLog.

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

    def skip(self, size: int) -> None:
        """Count the first ``size`` bytes of the buffer as written: a kernel has done it, from the append's begin on."""
        self.offset += size
        self._in_buffer = size

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
