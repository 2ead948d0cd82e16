"""Content of a range of the CommitLog, with the units and keys that follow from it: the dispatch kernels' twin.

``protocol.record`` reads the records; it and ``protocol.javahash`` give properties and hashes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from flintmq.broker.kernels import dispatch as kernel
from flintmq.protocol.storage.javahash import index_key_hash, tags_code
from flintmq.protocol.storage.layout import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RECORD, RECORD_BYTES_MIN, UNIT, SysFlag
from flintmq.protocol.storage.record import CorruptRecord, Record, body_crc, check_record_crc, decode_record, split_keys

SCHEDULE_TOPIC = b"SCHEDULE_TOPIC_XXXX"
DELAYS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)


class Stopped(Exception):
    """There is no sound record; ``status`` is the reason."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def read_record(log: bytes, at: int, physical_offset: int, *, check_body: bool, checksummed: bool = False) -> Record:
    """Return the record at ``at``, completely checked except, unless requested, for its body and the checksum that it
    must have if ``checksummed``. Raises ``Stopped``."""
    left = len(log) - at
    if left < 8:
        raise Stopped(kernel.NO_RECORD)
    size, magic = struct.unpack_from(">ii", log, at)
    if magic == MAGIC_BLANK and 8 <= size <= left:
        raise Stopped(kernel.BLANK)
    if (size, magic) == (0, 0):
        raise Stopped(kernel.NO_RECORD)
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise Stopped(kernel.BAD_MAGIC)
    if not RECORD_BYTES_MIN <= size <= left:
        raise Stopped(kernel.BAD_LENGTH)
    if RECORD.unpack(log, at).physical_offset != physical_offset:
        raise Stopped(kernel.BAD_PHYSICAL_OFFSET)
    try:
        record = decode_record(log, at, check_crc=False)
    except CorruptRecord:
        raise Stopped(kernel.BAD_PARTS) from None
    if check_body and record.body and body_crc(record.body) != record.body_crc:
        raise Stopped(kernel.BAD_CRC)
    if checksummed and not has_record_crc(log, at):
        raise Stopped(kernel.BAD_RECORD_CRC)
    return record


def has_record_crc(log: bytes, at: int) -> bool:
    """Return whether the record there, whose parts add up, has a valid checksum over all of it, or no room for any."""
    try:
        check_record_crc(log, at)
    except CorruptRecord:
        return False
    return True


def judge_record(log: bytes, at: int, physical_offset: int) -> Record | Stopped:
    """Return the record at ``at``, its body checked too, or the reason why it is not sound."""
    try:
        return read_record(log, at, physical_offset, check_body=True)
    except Stopped as stopped:
        return stopped


def size_at(log: bytes, at: int) -> int:
    """Return the total size of the record there."""
    size: int = struct.unpack_from(">i", log, at)[0]
    return size


def scan(log: bytes, at: int, end: int, file_base: int, checksummed: bool = False) -> tuple[int, int, list[Record]]:
    """Return (reason of the stop, its position, the records before)."""
    records = []
    while at < end:
        try:
            records.append(read_record(log, at, file_base + at, check_body=True, checksummed=checksummed))
        except Stopped as stopped:
            return stopped.status, at, records
        at += size_at(log, at)
    return kernel.DONE, at, records


@dataclass
class Queue:
    """A known queue: its next offset, and the physical offset below which its topic was deleted."""

    next: int = 0
    deleted_below: int = 0


QueueName = tuple[bytes, int]
Queues = dict[QueueName, Queue]


@dataclass
class Dispatched:
    """Result of a range of the log: units by queue in the order of their first, keys in the order of the log."""

    status: int = kernel.DONE
    at: int = 0
    units: dict[QueueName, list[bytes]] = field(default_factory=dict)
    keys: list[tuple[int, int, int]] = field(default_factory=list)
    records: int = 0
    last_store_ms: int = 0
    gap: QueueName | None = None


def _level(value: str) -> int:
    """Return a delay level as Java's parseInt reads it, at most 18; 0 if it is not an integer."""
    return min(int(value), len(DELAYS_S)) if re.fullmatch("[+-]?[0-9]+", value) else 0


def unit_of(record: Record, size: int) -> bytes:
    """Return the record's ConsumeQueue unit."""
    properties = record.property_map()
    code = tags_code(properties.get("TAGS"))
    level = _level(properties.get("DELAY", ""))
    if record.topic == SCHEDULE_TOPIC and level > 0:
        code = record.store_timestamp + 1000 * DELAYS_S[level - 1]
    code = (code + 2**63) % 2**64 - 2**63  # as Java adds them
    return UNIT.pack(record.physical_offset, size, code)


def keys_of(record: Record) -> list[tuple[int, int, int]]:
    """Return the record's index keys, the unique key first: (hash, physical offset, store time)."""
    properties = record.property_map()
    keys = [properties["UNIQ_KEY"]] if "UNIQ_KEY" in properties else []
    keys += split_keys(properties.get("KEYS"))
    topic = record.topic.decode("utf-8", "replace")
    return [(index_key_hash(topic, key), record.physical_offset, record.store_timestamp) for key in keys]


def dispatch(log: bytes, at: int, end: int, file_base: int, queues: Queues, index_from: int = 0) -> Dispatched:
    """Return units and keys of ``log[at:end]``, and advance the queues' next offsets."""
    result = Dispatched(at=at)
    while result.at < end and result.status == kernel.DONE:
        try:
            record = read_record(log, result.at, file_base + result.at, check_body=False)
        except Stopped as stopped:
            result.status = stopped.status
            break
        size = size_at(log, result.at)
        result.status = _dispatch_record(record, size, queues, index_from, result)
        if result.status == kernel.DONE:
            result.records += 1
            result.last_store_ms = record.store_timestamp
            result.at += size
    return result


def _dispatch_record(record: Record, size: int, queues: Queues, index_from: int, result: Dispatched) -> int:
    name = (record.topic, record.queue_id)
    queue = queues.get(name)
    if queue is None:
        return kernel.NEW_QUEUE
    if record.physical_offset < queue.deleted_below:
        return kernel.DONE
    transaction = record.sys_flag & SysFlag.TRANSACTION_MASK
    if transaction not in (SysFlag.TRANSACTION_PREPARED, SysFlag.TRANSACTION_ROLLBACK):
        if not 0 <= record.queue_offset <= kernel.QUEUE_OFFSET_MAX:
            return kernel.BAD_QUEUE_OFFSET
        if record.queue_offset > queue.next:
            result.gap = name
            return kernel.GAP
        if record.queue_offset == queue.next:
            queue.next += 1
            result.units.setdefault(name, []).append(unit_of(record, size))
    if transaction != SysFlag.TRANSACTION_ROLLBACK and record.physical_offset >= index_from:
        result.keys += keys_of(record)
    return kernel.DONE


def write_log(records: Iterable[Record], file_base: int = 0, at: int = 0, *, checksum: bool = False) -> bytes:
    """Return the consecutive records, their physical offsets set for a file that begins at ``file_base``."""
    blob = bytearray()
    for record in records:
        record.physical_offset = file_base + at + len(blob)
        blob += record.encode(checksum=checksum)
    return bytes(blob)


def find_record(log: bytes, at: int, end: int, file_base: int, store_ms_min: int) -> int:
    """Return the first position with a sound record stored at ``store_ms_min`` or later, else ``end``."""
    while at < end:
        try:
            record = read_record(log, at, file_base + at, check_body=True)
        except Stopped:
            pass
        else:
            if record.store_timestamp >= store_ms_min:
                return at
        at += 1
    return end
