"""CommitLog: append a produce frame's messages in one kernel call and one write, roll to the next file, flush."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ....protocol.errors import MessageIllegal, ServiceNotAvailable
from ....protocol.storage.layout import BLANK_BYTES_MIN, PROPERTIES_BYTES_MAX, RECORD_BYTES_MIN
from ....protocol.storage.record import RECORD_CRC_BYTES, UNIQUE_PREFIX_DIGITS
from ...kernels import produce as kernel
from ..files.file_system import Files
from ..files.mapped_file import MappedFileQueue
from ..tables.clock import StoreClock
from .preallocation import LogPreallocator
from .produce_batch import FRAME_RECORDS_BYTES_MAX, Appended, LogWriter, RepeatedBatch, check_count, refusal

if TYPE_CHECKING:
    from ....protocol.storage.record import Record
    from ..files.mapped_file import MappedFile
    from ..settings import StoreSettings
    from .produce_batch import FrameBody, ProduceBatch

_NUMBERS = struct.Struct(f"={kernel.N_LENGTH}q")
_PLAN_MESSAGES = 4096
"""Number of messages that the arrays have room for at first; a larger frame makes larger arrays."""
_RECORD_OVERHEAD_BYTES = (
    RECORD_BYTES_MIN + 24 + 127 + kernel.UNIQUE_PROPERTY_BYTES + kernel.KEYS_PROPERTY_BYTES + 1 + RECORD_CRC_BYTES
)
"""Upper bound of a record's bytes besides its body and its own and common properties."""

_FrameArrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Arguments of the produce kernel: the frame, its numbers, its texts, the plan."""


def count_rolls(sizes: np.ndarray, room: int, file_bytes: int) -> int:
    """Return how many further files records of these sizes take if the current file has ``room`` bytes left."""
    ends = np.cumsum(sizes)
    rolls = written = 0
    while (fit := int(np.searchsorted(ends, written + room - BLANK_BYTES_MIN, "right"))) < len(ends):
        rolls += 1
        written, room = int(ends[fit - 1]) if fit else 0, file_bytes
    return rolls


def _hexadecimal(prefix: bytes) -> bool:
    return not prefix.translate(None, b"0123456789ABCDEFabcdef")


class CommitLog:
    """The log. ``append`` belongs to the event loop, ``flush`` to one flush thread; any thread may read.

    ``write_offset`` and ``flushed_offset`` only grow, and are published after the bytes that they cover.
    """

    def __init__(self, files: Files, folder: Path, scratch_folder: Path, settings: StoreSettings, host: bytes) -> None:
        self.os = files
        self.settings = settings
        self.queue = MappedFileQueue(
            files, folder, settings.commitlog_file_bytes, scratch_folder, "store.commitlog_file_bytes"
        )
        self.ahead = LogPreallocator(files, self.queue, settings)
        self.writer = LogWriter(files, self.ahead)
        self.has_real_files = type(files).write is Files.write
        """Whether a kernel may write to the log by itself, past ``files``."""
        self.write_offset = 0
        self.flushed_offset = 0
        self.last_store_ms = 0
        self.clock = StoreClock()
        self.store_host = host
        self.checksum_bytes = RECORD_CRC_BYTES if settings.record_checksum else 0
        """Bytes of the checksum over the whole record in each new record; 0: records get none."""
        # Work space of the kernel, made once: arrays made for each frame would cost more than the kernel takes for a
        # small one.
        self._numbers_blob = bytearray(_NUMBERS.size)
        self._numbers = np.frombuffer(self._numbers_blob, np.int64)
        self._plan = np.zeros(_PLAN_MESSAGES * kernel.PLAN_WIDTH, np.int64)
        self._offsets_blob = bytearray(_PLAN_MESSAGES * 8)
        self._offsets = np.frombuffer(self._offsets_blob, np.uint8)
        self._texts_blob = bytearray(PROPERTIES_BYTES_MAX + 512)
        self._texts = np.frombuffer(self._texts_blob, np.uint8)
        self._frame_blob = bytearray()
        self._frame = np.zeros(1, np.uint8)

    @property
    def start_offset(self) -> int:
        """Physical offset at which the first file begins."""
        return self.queue.start_offset

    def end(self) -> tuple[int, int]:
        """Return the physical offset of the next record, and the store time of the last."""
        return self.write_offset, self.last_store_ms

    def next_store_ms(self) -> int:
        """Return the store time that a record would get now, ms since 1970 UTC. Only for the appending thread."""
        return self.clock.store_ms(self.last_store_ms)

    def append(self, topic: bytes, queue_id: int, queue_offset: int, batch: ProduceBatch) -> Appended:
        """Append the batch's messages as records with queue offsets from ``queue_offset`` on.

        All of them are written, or none: raises ``MessageIllegal`` for a message that breaks a rule, and
        ``ServiceNotAvailable`` if the disk is full. After ``StoreFailed`` the caller must append nothing more.
        """
        count = batch.count
        body_bytes = batch.body_end - batch.body_at
        check_count(count, batch.layout, body_bytes)
        records_bound = body_bytes + count * (_RECORD_OVERHEAD_BYTES + len(batch.common))
        # The kernel refuses a frame with more bytes of records, so no more room is ever needed.
        bound = min(records_bound, FRAME_RECORDS_BYTES_MAX) + BLANK_BYTES_MIN
        file = self.ahead.make(self.write_offset, bound)
        if count * kernel.PLAN_WIDTH > len(self._plan):
            self._plan = np.zeros(count * kernel.PLAN_WIDTH, np.int64)
            self._offsets_blob = bytearray(count * 8)
            self._offsets = np.frombuffer(self._offsets_blob, np.uint8)
        # Frames mostly arrive in the one receive buffer that all connections share, so its array is made once.
        if batch.buffer is not self._frame_blob:
            self._frame_blob = batch.buffer
            self._frame = np.frombuffer(batch.buffer, np.uint8)
        store_ms = self.next_store_ms()
        writer = self.writer
        writer.begin(file, self.write_offset, self.settings.message_bytes_max)
        self._set_numbers(topic, queue_id, queue_offset, batch, store_ms)
        arrays = (self._frame, self._numbers, self._texts, self._plan)
        # The frame may roll into further files. All of them must be in the folder before its first byte is written, so
        # a planning call counts them.
        if self.write_offset + bound > file.end_offset:
            sizes = self._plan_only(arrays, count)
            self.ahead.place_next(count_rolls(sizes, file.end_offset - self.write_offset, file.size), bound)
            # ``_plan_only`` has left the plan, so the kernel only writes.
            made, size = kernel.produce_on(*arrays, writer.array, self._offsets, 0)
        else:
            status, made, size = kernel.produce(*arrays, writer.array, self._offsets)
            if status != kernel.OK:
                raise self._refusal(status, made, size)
        # The kernel stopped at the end of the buffer or of the file; ``put`` makes room for the next record in either
        # case.
        while made < count:
            writer.put(size, is_last=False)
            self._numbers[kernel.N_LIMIT] = writer.limit
            self._numbers[kernel.N_BASE] = writer.offset
            made, size = kernel.produce_on(*arrays, writer.array, self._offsets, made)
        writer.put(size, is_last=True)
        # Published last: readers, the flush and the dispatch look at nothing beyond ``write_offset``.
        self.last_store_ms = store_ms
        self.write_offset = end_offset = writer.finish()
        return Appended(queue_offset, store_ms, bytes(memoryview(self._offsets_blob)[: 8 * count]), end_offset)

    def repeated_batch(self, common_bytes_max: int = 0) -> RepeatedBatch:
        """Return the prepared form of batches like the one that ``append`` wrote last; see ``RepeatedBatch``."""
        return RepeatedBatch(self._numbers, self._texts, _RECORD_OVERHEAD_BYTES, common_bytes_max)

    def append_repeated(
        self, repeated: RepeatedBatch, frame: FrameBody, queue_id: int, queue_offset: int, common: bytes = b""
    ) -> Appended | None:
        """Append a batch like an earlier one as ``append`` does, with the same result. ``common``: its common
        properties if they are not those of the earlier one.

        Returns None, and writes nothing, if the batch needs more than one kernel call: ``append`` then finds out why.
        Raises ``StoreFailed`` as ``append`` does.
        """
        buffer, body_at, body_end, count, unique_first, born_ms = frame
        files = self.queue.files
        file = files[-1]
        position = self.write_offset - file.start_offset
        bound = body_end - body_at + count * repeated.record_overhead_bytes + BLANK_BYTES_MIN
        # Only the plain case: blocks are allocated, no roll, and the arrays are large enough. ``append`` handles the
        # others.
        if position + bound > file.allocated or count > _PLAN_MESSAGES or bound > FRAME_RECORDS_BYTES_MAX:
            return None
        if buffer is not self._frame_blob:
            self._frame_blob = buffer
            self._frame = np.frombuffer(buffer, np.uint8)
        store_ms = self.next_store_ms()
        values = repeated.values
        if common:
            repeated.set_common(common)
        values[kernel.N_BODY_AT] = body_at
        values[kernel.N_BODY_END] = body_end
        values[kernel.N_COUNT] = count
        values[kernel.N_UNIQUE_FIRST] = unique_first
        values[kernel.N_QUEUE_ID] = queue_id
        values[kernel.N_QUEUE_OFFSET] = queue_offset
        values[kernel.N_BORN_MS] = born_ms or store_ms
        values[kernel.N_STORE_MS] = store_ms
        writer = self.writer
        writer.begin(file, self.write_offset, self.settings.message_bytes_max)
        values[kernel.N_LIMIT] = writer.limit
        values[kernel.N_BASE] = writer.offset
        status, made, size = kernel.produce(
            self._frame, repeated.numbers, repeated.texts, self._plan, writer.array, self._offsets
        )
        if status != kernel.OK or made < count:
            return None
        try:
            writer.put(size, is_last=True)
        except ServiceNotAvailable:
            # The writer has undone its write; ``append`` meets the full disk again and says so.
            return None
        self.last_store_ms = store_ms
        self.write_offset = end_offset = writer.finish()
        return Appended(queue_offset, store_ms, self._offsets_blob[: 8 * count], end_offset)

    def append_made(self, written: int, size: int, store_ms: int) -> bool:
        """Append ``size`` bytes of records that a kernel made at the start of the writer's buffer, for the current end.

        The kernel has written the first ``written`` of them itself, which ``has_real_files`` allows. Returns False, and
        writes nothing more, if the disk is full. Raises ``StoreFailed`` as ``append`` does.
        """
        writer = self.writer
        writer.begin(self.queue.files[-1], self.write_offset, self.settings.message_bytes_max)
        self.last_store_ms = store_ms
        if written:
            writer.skip(written)
            self.write_offset = writer.finish()
            if size == written:
                return True
            writer.begin(self.queue.files[-1], self.write_offset, self.settings.message_bytes_max)
        try:
            writer.write(writer.array.data[written:size])
        except ServiceNotAvailable:
            # The writer has undone its write; ``append`` meets the full disk again and says so.
            return False
        self.write_offset = writer.finish()
        return True

    def _plan_only(self, arrays: _FrameArrays, count: int) -> np.ndarray:
        """Validate and plan a frame without writing it; return the size of each record. Raises ``MessageIllegal``."""
        self._numbers[kernel.N_RECORDS_MAX] = -1  # makes the kernel refuse after planning, with the size of all records
        status, message, detail = kernel.produce(*arrays, self.writer.array, self._offsets)
        # The refusal is the expected result here; any other status is a fault of the frame.
        if status != kernel.RECORDS_TOO_LONG or detail > FRAME_RECORDS_BYTES_MAX:
            raise self._refusal(status, message, detail)
        plan = self._plan[: count * kernel.PLAN_WIDTH].reshape(count, kernel.PLAN_WIDTH)
        sizes: np.ndarray = plan[:, kernel.P_BODY_BYTES] + plan[:, kernel.P_PROPERTIES_BYTES]
        sizes += (detail - int(sizes.sum())) // count  # all records of a frame have equally long other parts
        return sizes

    def _refusal(self, status: int, message: int, detail: int) -> MessageIllegal:
        body_at = int(self._numbers[kernel.N_BODY_AT])
        return refusal(status, message, detail, body_at=body_at, message_bytes_max=self.settings.message_bytes_max)

    def append_records(self, records: Sequence[Record]) -> None:
        """Append records that the broker itself makes; their topic, queue and queue offset are set already.

        Sets store time, store host and physical offset of each. Raises as ``append`` does, ``MessageIllegal`` for a
        record that cannot be stored; nothing is written then.
        """
        store_ms = self.next_store_ms()
        bound = largest = 0
        for record in records:
            record.store_timestamp = store_ms
            record.store_host = self.store_host
            # Makes the encoder compute the checksum of the present body.
            record.body_crc = None
            size = len(record.body) + len(record.topic) + len(record.properties) + _RECORD_OVERHEAD_BYTES
            if len(record.properties) > PROPERTIES_BYTES_MAX or size + BLANK_BYTES_MIN > self.queue.file_bytes:
                raise MessageIllegal(
                    f"a message of topic {record.topic.decode(errors='replace')} cannot be stored again: its record "
                    f"would take {size:,} bytes, {len(record.properties):,} of them properties, of which at most "
                    f"{PROPERTIES_BYTES_MAX:,} are allowed; nothing was written"
                )
            bound += size
            largest = max(largest, size)
        bound += BLANK_BYTES_MIN
        file = self.ahead.make(self.write_offset, bound, largest)
        # The sizes must be exact: a file too many would be placed in the folder with nothing in it.
        if self.write_offset + bound > file.end_offset:
            sizes = np.array([len(each.encode(checksum=self.settings.record_checksum)) for each in records], np.int64)
            self.ahead.place_next(count_rolls(sizes, file.end_offset - self.write_offset, file.size), bound)
        writer = self.writer
        writer.begin(file, self.write_offset, largest)
        made = bytearray()
        for record in records:
            record.physical_offset = writer.offset + len(made)
            blob = record.encode(checksum=self.settings.record_checksum)
            if len(made) + len(blob) + BLANK_BYTES_MIN > writer.room:
                writer.write(bytes(made))
                writer.roll()
                made.clear()
                # The offset is part of the record, so a record that moved to the next file is encoded again.
                record.physical_offset = writer.offset
                blob = record.encode(checksum=self.settings.record_checksum)
            made += blob
        writer.write(bytes(made))
        self.last_store_ms = store_ms
        self.write_offset = writer.finish()

    def _set_numbers(self, topic: bytes, queue_id: int, queue_offset: int, batch: ProduceBatch, store_ms: int) -> None:
        prefix = batch.unique_prefix
        if prefix and not (len(prefix) == UNIQUE_PREFIX_DIGITS and _hexadecimal(prefix)):
            raise MessageIllegal(f"unique_prefix must be {UNIQUE_PREFIX_DIGITS} hex digits, not {prefix[:40]!r}")
        common_at = UNIQUE_PREFIX_DIGITS
        common_end = common_at + len(batch.common)
        topic_end = common_end + len(topic)
        born_end = topic_end + len(batch.born_host)
        store_end = born_end + len(self.store_host)
        texts = prefix.ljust(UNIQUE_PREFIX_DIGITS) + batch.common + topic + batch.born_host + self.store_host
        self._texts_blob[:store_end] = texts
        _NUMBERS.pack_into(
            self._numbers_blob,
            0,
            batch.body_at,
            batch.body_end,
            batch.count,
            batch.layout,
            batch.sys_flag,
            common_at,
            common_end,
            0,
            1 if prefix else 0,
            batch.unique_first,
            common_end,
            topic_end,
            topic_end,
            born_end,
            born_end,
            store_end,
            queue_id,
            queue_offset,
            batch.born_ms or store_ms,
            store_ms,
            self.settings.message_bytes_max,
            self.writer.limit,
            self.writer.offset,
            FRAME_RECORDS_BYTES_MAX,
            self.checksum_bytes,
            batch.flag,
            batch.reconsume_times,
        )

    def prepare_ahead(self) -> bool:
        """Allocate the next extents or the next file; return whether there was anything to do."""
        return self.ahead.prepare(self.write_offset)

    def flush(self) -> int:
        """Put everything below the current write offset on disk; publish and return that offset.

        One thread at a time. After an OSError it is unknown which bytes are on disk: the caller must end the process.
        """
        # Read once, before the sync: bytes that are appended meanwhile are not covered by it.
        target = self.write_offset
        begin = self.flushed_offset
        if target <= begin:
            return begin
        for file in list(self.queue.files):
            if file.end_offset > begin and file.start_offset < target:
                self.os.sync_data(file.fd)
        # A file counts as on disk only with its name, so this comes before ``flushed_offset`` is published.
        self.queue.sync_placed()
        self.flushed_offset = target
        return target

    def only_file_to_flush(self) -> MappedFile | None:
        """Return the file with all bytes that are not on disk; None if ``flush`` has more to do than to sync it."""
        files = self.queue.files
        if not files or self.flushed_offset < files[-1].start_offset or self.queue.has_unsynced_names:
            return None
        return files[-1]

    def release_below(self, physical_offset: int) -> None:
        """Unmap the files that end at or below ``physical_offset``."""
        for file in self.queue.files[:-1]:
            if file.end_offset <= physical_offset:
                file.release()

    def close(self) -> None:
        self.ahead.close()
        self.queue.close()
