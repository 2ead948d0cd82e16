"""CommitLog: append a produce frame's messages in one kernel call, roll to the next file, flush."""

from __future__ import annotations

import errno
import logging
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from ...protocol.errors import MessageIllegal, ServiceNotAvailable
from ...protocol.ids import UNIQUE_PREFIX_DIGITS
from ...protocol.layout import BLANK_BYTES_MIN, MAGIC_BLANK, PROPERTIES_BYTES_MAX, RECORD_BYTES_MIN
from ...protocol.record import Record
from ...protocol.record_crc import RECORD_CRC_BYTES
from ..kernels import produce as kernel
from .errors import StoreFailed
from .files import Files
from .mapped_file import MappedFile, MappedFileQueue
from .settings import StoreSettings

_SIZE_AND_MAGIC_BYTES = 8
_NUMBERS = struct.Struct(f"={kernel.N_LENGTH}q")
_PLAN_MESSAGES = 4096
_RECORD_OVERHEAD_BYTES = (
    RECORD_BYTES_MIN + 24 + 127 + kernel.UNIQUE_PROPERTY_BYTES + kernel.KEYS_PROPERTY_BYTES + 1 + RECORD_CRC_BYTES
)
"""At most what a stored message has beside its body, its own and the common properties."""
_MESSAGE_BYTES_MIN = (4, 3)
"""The fewest bytes of a message in a frame, by layout."""

FRAME_RECORDS_BYTES_MAX = 64 * 1024 * 1024
"""The records of one frame take at most this: common properties multiply, and a frame must not hold the loop for
long."""

POPULATE_AHEAD_BYTES = 32 * 1024 * 1024
"""So much of the log behind the write offset has its pages in memory: a tenth of a second of the fastest writes."""
_CANNOT_POPULATE = -2
"""The system has no call for it."""
POPULATE_STEP_BYTES = 2 * 1024 * 1024

log = logging.getLogger(__name__)

_FrameArrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""What the kernel plans a frame with: the frame, its numbers, its texts, the plan."""

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
    kernel.COMMON_ONLY: "it asks for a delayed or transactional delivery for itself alone: DELAY, TIMER_* and "
    "TRAN_MSG belong among the common properties of its frame",
}


@dataclass(slots=True)
class ProduceBatch:
    """The messages of one PRODUCE frame: ``buffer[body_at:body_end]`` in ``layout``, and what they have in common.

    ``common``: encoded properties, checked by ``common_properties``; ``unique_prefix``: 20 hex digits or empty;
    ``born_ms``: 0 for now; ``born_host``: 8 or 20 bytes as the record keeps it.
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


@dataclass(slots=True)
class Appended:
    """Where a batch went: queue offset of its first message, store time, count × i64 physical offsets, and the log's
    end behind it."""

    queue_offset: int
    store_ms: int
    physical_offsets: bytes
    end_offset: int


@lru_cache(maxsize=1024)
def common_properties(text: str) -> bytes:
    """Encode a request's common properties, each checked as a message's own. Raises ``MessageIllegal``."""
    if not text:
        return b""
    blob = text.encode("utf-8", "surrogatepass")
    if not blob.endswith(b"\x02"):
        blob += b"\x02"
    limit = kernel.PRODUCED_PROPERTIES_BYTES_MAX
    if len(blob) > limit:
        raise MessageIllegal(
            f"the common properties take {len(blob):,} bytes, at most {limit:,} are allowed; nothing of the frame was "
            "written", properties_bytes_max=limit,
        )  # fmt: skip
    array = np.frombuffer(bytearray(blob), np.uint8)
    at = 0
    for pair in blob[:-1].split(b"\x02"):
        name, _, value = pair.partition(b"\x01")
        status = kernel.property_status(array, at, len(name), at + len(name) + 1, len(value))
        if status != kernel.OK:
            shown = name.decode("utf-8", "replace")
            raise MessageIllegal(f"the common property {shown!r} cannot be set: {_RULES[status]}")
        at += len(pair) + 1
    return blob


def check_count(count: int, layout: int, body_bytes: int) -> None:
    """Raise ``MessageIllegal`` where a body is too short for so many messages."""
    if count * _MESSAGE_BYTES_MIN[layout] > body_bytes:
        raise MessageIllegal(f"count says {count} messages, but the body has {body_bytes} bytes")


def count_rolls(sizes: np.ndarray, room: int, file_bytes: int) -> int:
    """In how many further files records of these sizes go on, where the first has ``room`` bytes left for them."""
    ends = np.cumsum(sizes)
    rolls = written = 0
    while (fit := int(np.searchsorted(ends, written + room - BLANK_BYTES_MIN, "right"))) < len(ends):
        rolls += 1
        written, room = int(ends[fit - 1]) if fit else 0, file_bytes
    return rolls


def _hexadecimal(prefix: bytes) -> bool:
    return not prefix.translate(None, b"0123456789ABCDEFabcdef")


class CommitLog:
    """The log. ``append`` belongs to the event loop; ``flush`` to one flush thread; reads to anyone.

    ``write_offset`` and ``flushed_offset`` only grow and are published after the bytes they cover.
    """

    def __init__(self, files: Files, folder: Path, scratch_folder: Path, settings: StoreSettings, host: bytes) -> None:
        self.os = files
        self.settings = settings
        self.queue = MappedFileQueue(
            files, folder, settings.commitlog_file_bytes, scratch_folder, "store.commitlog_file_bytes"
        )
        self.write_offset = 0
        self.flushed_offset = 0
        self.last_store_ms = 0
        self.store_host = host
        self.checksum_bytes = RECORD_CRC_BYTES if settings.record_checksum else 0
        """What a checksum over all of it takes of a record that is written; 0: none is."""
        self.prepared: list[MappedFile] = []
        """The next files, made ahead."""
        self._preparing = threading.Lock()
        self._populate_from = -1
        """The write offset when pages were first thought of; -1: not yet; ``_CANNOT_POPULATE``."""
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
        """Where the first file begins."""
        return self.queue.start_offset

    def append(self, topic: bytes, queue_id: int, queue_offset: int, batch: ProduceBatch) -> Appended:
        """Write the batch's messages as records with queue offsets from ``queue_offset`` on.

        All or nothing: raises ``MessageIllegal`` for a message that breaks a rule and ``ServiceNotAvailable`` where the
        disk is full, with nothing written. After ``StoreFailed`` nothing may be appended any more.
        """
        count = batch.count
        body_bytes = batch.body_end - batch.body_at
        check_count(count, batch.layout, body_bytes)
        records_bound = body_bytes + count * (_RECORD_OVERHEAD_BYTES + len(batch.common))
        bound = min(records_bound, FRAME_RECORDS_BYTES_MAX) + BLANK_BYTES_MIN
        file = self.room(bound)
        if count * kernel.PLAN_WIDTH > len(self._plan):
            self._plan = np.zeros(count * kernel.PLAN_WIDTH, np.int64)
            self._offsets_blob = bytearray(count * 8)
            self._offsets = np.frombuffer(self._offsets_blob, np.uint8)
        if batch.buffer is not self._frame_blob:
            self._frame_blob = batch.buffer
            self._frame = np.frombuffer(batch.buffer, np.uint8)
        store_ms = max(time.time_ns() // 1_000_000, self.last_store_ms)
        self._set_numbers(topic, queue_id, queue_offset, batch, store_ms, file)
        arrays = (self._frame, self._numbers, self._texts, self._plan)
        if self.write_offset + bound > file.end_offset:
            sizes = self._plan_only(arrays, file, count)
            self.place_next(count_rolls(sizes, file.end_offset - self.write_offset, file.size), bound)
            written, position = kernel.produce_on(*arrays, file.array(), self._offsets, 0)
        else:
            status, written, position = kernel.produce(*arrays, file.array(), self._offsets)
            if status != kernel.OK:
                raise self._refusal(status, written, position)
        while written < count:
            file = self.roll(file, position)
            self._numbers[kernel.N_POSITION] = 0
            self._numbers[kernel.N_FILE_BASE] = file.start_offset
            written, position = kernel.produce_on(*arrays, file.array(), self._offsets, written)
        self.last_store_ms = store_ms
        self.write_offset = end_offset = file.start_offset + position
        return Appended(queue_offset, store_ms, bytes(memoryview(self._offsets_blob)[: 8 * count]), end_offset)

    def _plan_only(self, arrays: _FrameArrays, file: MappedFile, count: int) -> np.ndarray:
        """Validate and plan a frame, and write nothing of it: the size of each record. Raises ``MessageIllegal``."""
        self._numbers[kernel.N_RECORDS_MAX] = -1  # so the kernel refuses, and says what all of them take
        status, message, detail = kernel.produce(*arrays, file.array(), self._offsets)
        if status != kernel.RECORDS_TOO_LONG or detail > FRAME_RECORDS_BYTES_MAX:
            raise self._refusal(status, message, detail)
        plan = self._plan[: count * kernel.PLAN_WIDTH].reshape(count, kernel.PLAN_WIDTH)
        sizes: np.ndarray = plan[:, kernel.P_BODY_BYTES] + plan[:, kernel.P_PROPERTIES_BYTES]
        sizes += (detail - int(sizes.sum())) // count  # the rest of a record is as long in each of a frame
        return sizes

    def append_records(self, records: Sequence[Record]) -> None:
        """Write whole records of the broker's own making; their topic, queue and queue offset are set already.

        Sets store time, store host and physical offset of each. Raises as ``append`` does; a record that cannot be
        stored (``MessageIllegal``) is found before anything is written.
        """
        store_ms = max(time.time_ns() // 1_000_000, self.last_store_ms)
        bound = largest = 0
        for record in records:
            record.store_timestamp = store_ms
            record.store_host = self.store_host
            record.body_crc = None
            size = len(record.body) + len(record.topic) + len(record.properties) + _RECORD_OVERHEAD_BYTES
            if len(record.properties) > PROPERTIES_BYTES_MAX or size + BLANK_BYTES_MIN > self.queue.file_bytes:
                raise MessageIllegal(
                    f"a message of topic {record.topic.decode(errors='replace')} cannot be stored again: its record "
                    f"would take {size:,} bytes, {len(record.properties):,} of them properties, of which at most "
                    f"{PROPERTIES_BYTES_MAX:,} are allowed; nothing was written",
                )
            bound += size
            largest = max(largest, size)
        bound += BLANK_BYTES_MIN
        file = self.room(bound, largest)
        if self.write_offset + bound > file.end_offset:
            sizes = np.array([len(each.encode(checksum=self.settings.record_checksum)) for each in records], np.int64)
            self.place_next(count_rolls(sizes, file.end_offset - self.write_offset, file.size), bound)
        position = self.write_offset - file.start_offset
        for record in records:
            record.physical_offset = file.start_offset + position
            blob = record.encode(checksum=self.settings.record_checksum)
            if position + len(blob) + BLANK_BYTES_MIN > file.size:
                file, position = self.roll(file, position), 0
                record.physical_offset = file.start_offset
                blob = record.encode(checksum=self.settings.record_checksum)
            array = file.array()
            at = position + _SIZE_AND_MAGIC_BYTES
            # Size and magic last: until then nobody takes the bytes for a record.
            array[at : position + len(blob)] = np.frombuffer(blob, np.uint8)[_SIZE_AND_MAGIC_BYTES:]
            array[position:at] = np.frombuffer(blob, np.uint8)[:_SIZE_AND_MAGIC_BYTES]
            position += len(blob)
        self.last_store_ms = store_ms
        self.write_offset = file.start_offset + position

    def _set_numbers(
        self, topic: bytes, queue_id: int, queue_offset: int, batch: ProduceBatch, store_ms: int, file: MappedFile
    ) -> None:
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
            self._numbers_blob, 0,
            batch.body_at, batch.body_end, batch.count, batch.layout, batch.sys_flag,
            common_at, common_end, 0, 1 if prefix else 0, batch.unique_first,
            common_end, topic_end, topic_end, born_end, born_end, store_end,
            queue_id, queue_offset, batch.born_ms or store_ms, store_ms, self.settings.message_bytes_max,
            self.write_offset - file.start_offset, file.size, file.start_offset, FRAME_RECORDS_BYTES_MAX,
            self.checksum_bytes,
        )  # fmt: skip

    def _refusal(self, status: int, message: int, detail: int) -> MessageIllegal:
        if status == kernel.PROPERTIES_TOO_LONG:
            limit = kernel.PRODUCED_PROPERTIES_BYTES_MAX
            return MessageIllegal(
                f"message {message}: its properties take {detail:,} bytes, at most {limit:,} are allowed; nothing of "
                "the frame was written", message_index=message, properties_bytes_max=limit,
            )  # fmt: skip
        if status == kernel.RECORD_TOO_LONG:
            limit = self.settings.message_bytes_max
            return MessageIllegal(
                f"message {message}: its record would take {detail:,} bytes, store.message_bytes_max allows {limit:,}; "
                "nothing of the frame was written", message_index=message, message_bytes_max=limit,
            )  # fmt: skip
        if status == kernel.RECORDS_TOO_LONG:
            return MessageIllegal(
                f"the records of this frame would take more than {FRAME_RECORDS_BYTES_MAX:,} bytes; send fewer "
                "messages a frame; nothing of it was written"
            )
        return MessageIllegal(
            f"message {message}: {_RULES[status]} (byte {detail - int(self._numbers[kernel.N_BODY_AT])} of the body); "
            "nothing of the frame was written", message_index=message,
        )  # fmt: skip

    def room(self, bound: int, record_bytes: int = 0) -> MappedFile:
        """The file to write to, with extents for ``bound`` bytes from the write offset on, in the next file too if need
        be. Usually all is there already: the allocation service works ahead. ``record_bytes``: the largest record."""
        try:
            files = self.queue.files
            file = files[-1] if files else self._next_file()
            position = self.write_offset - file.start_offset
            if position >= file.size:
                file = self._next_file()
                position = 0
            if position + bound > file.allocated and file.allocated < file.size:
                with self._preparing:
                    file.allocate(position + bound, self.settings.allocate_step_bytes)
            if position + bound > file.size:
                # Every file that a frame rolls into must be there before its first byte is written.
                waste = max(self.settings.message_bytes_max, record_bytes) + BLANK_BYTES_MIN
                self._prepare(position + bound - file.size + waste, waste)
            return file
        except OSError as error:
            raise self.no_room(error, bound) from error

    def no_room(self, error: OSError, needed_bytes: int) -> ServiceNotAvailable:
        """The answer to a producer when extents cannot be allocated. Raises ``StoreFailed`` where the disk is not just
        full."""
        folder = self.queue.folder
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise StoreFailed(
                f"the log in {folder} cannot be made longer: {error}. Nothing was written; the broker ends. Check the "
                "disk, then start it again"
            ) from error
        free = self.os.free_bytes(folder)
        step = self.settings.allocate_step_bytes
        needed_bytes = max(needed_bytes, step)
        return ServiceNotAvailable(
            f"the disk of {folder} is full: {free:,} bytes are free, {needed_bytes:,} were needed "
            f"(store.allocate_step_bytes is {step:,}); nothing was written. Free space or shorten "
            "retention.file_reserved_hours; writes resume by themselves",
            retry_after_ms=1000, free_bytes=free, needed_bytes=needed_bytes,
        )  # fmt: skip

    def _prepare(self, rest: int, waste: int) -> None:
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

    def _create_next(self, allocate: int) -> MappedFile:
        ahead = self.prepared or self.queue.files
        start_offset = ahead[-1].end_offset if ahead else self.write_offset
        return self.queue.create(start_offset, max(allocate, self.settings.allocate_step_bytes))

    def _next_file(self) -> MappedFile:
        """The next file becomes the last of the log, made now where none was prepared. Raises OSError."""
        with self._preparing:
            if not self.prepared:
                self.prepared.append(self._create_next(0))
            file = self.prepared[0]
            self.queue.place(file)
            self.queue.enter(file)
            del self.prepared[0]
        return file

    def place_next(self, count: int, needed_bytes: int) -> None:
        """Have the next ``count`` files, which ``room`` made, in the folder and mapped: what is to be written goes
        on in them, and once it is begun nothing may fail any more.

        Only where it is sure to go on in them: a RocketMQ that is started by mistake deletes files of the folder that
        nothing was written to. ``needed_bytes``: for the error, how much was asked for. Raises as ``append`` does.
        """
        try:
            with self._preparing:
                for file in self.prepared[:count]:
                    self.queue.place(file)
                    file.array()
        except OSError as error:
            raise self.no_room(error, needed_bytes) from error

    def roll(self, file: MappedFile, position: int) -> MappedFile:
        """End ``file`` at ``position``, in the middle of a frame, and go on in the next, which is placed already."""
        self._write_blank(file, position)
        return self._next_file()

    def _write_blank(self, file: MappedFile, position: int) -> None:
        array = file.array()
        array[position + 4 : position + 8] = np.frombuffer(MAGIC_BLANK.to_bytes(4, "big", signed=True), np.uint8)
        array[position : position + 4] = np.frombuffer((file.size - position).to_bytes(4, "big"), np.uint8)

    def prepare_ahead(self) -> bool:
        """For the allocation service: the next step of extents, and the next file when this one is three quarters full.

        Returns whether there was something to do. Raises OSError.
        """
        files = self.queue.files
        if not files:
            return False
        file = files[-1]
        step = self.settings.allocate_step_bytes
        position = self.write_offset - file.start_offset
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

    def populate_ahead(self) -> bool:
        """For the allocation service: have the system find pages for what is written next; one step of it.

        A new page costs the writer microseconds, or tens of milliseconds while the log is synced or a virtual machine's
        host has to find it: the event loop should not wait so long. As far ahead as was written since the store was
        opened, up to ``POPULATE_AHEAD_BYTES``: an idle broker needs none. Pages are only read: zeros that were written
        would have to be synced.
        Returns whether there was something to do.
        """
        write_offset = self.write_offset
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

    def flush(self) -> int:
        """fdatasync everything below the write offset as it is now, and publish it; returns that offset.

        For one thread at a time. An OSError means that what is on disk is not known: the caller must end the process.
        """
        target = self.write_offset
        begin = self.flushed_offset
        if target <= begin:
            return begin
        for file in list(self.queue.files):
            if file.end_offset > begin and file.start_offset < target:
                self.os.sync_data(file.fd)
        self.queue.sync_placed()
        self.flushed_offset = target
        return target

    def release_below(self, physical_offset: int) -> None:
        """Let go of the maps of files that end at or below ``physical_offset``."""
        for file in self.queue.files[:-1]:
            if file.end_offset <= physical_offset:
                file.release()

    def close(self) -> None:
        """Close all files."""
        for file in self.prepared:
            file.close()
        self.queue.close()
