"""Delivery of due messages with whole records: the deliver kernels' twin."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from flintmq.protocol.storage.layout import SysFlag
from flintmq.protocol.storage.record import Record
from tests.twins.log import Stopped, read_record, size_at
from tests.twins.pull import Chosen

Target = tuple[bytes, int]
"""Topic and queue."""


@dataclass
class Planned:
    """A sound record: its target (None: not given), its due time (-1: not given), its unique key, and what it recalls
    (empty: not given)."""

    record: Record
    target: Target | None
    due_ms: int
    key: bytes
    recalled: bytes


def _pairs(properties: bytes) -> list[bytes]:
    """Return the properties with their separators, in their order."""
    pairs = [pair + b"\x02" for pair in properties.split(b"\x02")]
    pairs[-1] = pairs[-1][:-1]
    return [pair for pair in pairs if pair]


def _value(properties: bytes, wanted: bytes) -> bytes:
    """Return the last value of that name, empty by default."""
    found = b""
    for pair in _pairs(properties):
        name, separator, value = pair.removesuffix(b"\x02").partition(b"\x01")
        if separator and name == wanted and value:
            found = value
    return found


def _digits(text: bytes, digits_max: int) -> int:
    return int(text) if text and len(text) <= digits_max and not text.strip(b"0123456789") else -1


def plan(
    records: Sequence[bytes], chosen: Sequence[Chosen], checksummed: tuple[int, int] = (0, 0)
) -> list[Planned | None]:
    """Return the result of the kernel for each record; None: it is not sound, or not the requested one.
    ``checksummed``: between these physical offsets a record must have a checksum over all of it."""
    planned: list[Planned | None] = []
    for blob, (physical_offset, size, _) in zip(records, chosen, strict=True):
        try:
            must_have = checksummed[0] <= physical_offset < checksummed[1]
            record = read_record(blob, 0, physical_offset, check_body=True, checksummed=must_have)
        except Stopped:
            planned.append(None)
            continue
        if size_at(blob, 0) != size:
            planned.append(None)
            continue
        topic, queue_id = (_value(record.properties, b"REAL_TOPIC"), _digits(_value(record.properties, b"REAL_QID"), 9))
        due_ms = _digits(_value(record.properties, b"TIMER_OUT_MS"), 15)
        key, recalled = _value(record.properties, b"UNIQ_KEY"), _value(record.properties, b"TIMER_DEL_UNIQKEY")
        planned.append(Planned(record, (topic, queue_id) if topic and queue_id >= 0 else None, due_ms, key, recalled))
    return planned


def delivered(
    record: Record,
    topic: bytes,
    queue_id: int,
    queue_offset: int,
    physical_offset: int,
    store_ms: int,
    host: bytes,
    committed: bool,
) -> Record:
    """Return the record as a message of another topic. ``committed``: by the transaction that staged it."""
    checksums = (b"__CRC32#\x01", b"__CRC32#\x02")
    kept = [
        pair
        for pair in _pairs(record.properties)
        if not pair.startswith(checksums[0]) and pair not in (checksums[1], checksums[1][:-1])
    ]
    sys_flag = record.sys_flag
    if committed:
        sys_flag = sys_flag & ~SysFlag.TRANSACTION_MASK | SysFlag.TRANSACTION_COMMIT
    elif sys_flag & SysFlag.TRANSACTION_MASK != SysFlag.TRANSACTION_COMMIT:
        sys_flag &= ~SysFlag.TRANSACTION_MASK
    return dataclasses.replace(
        record,
        topic=topic,
        properties=b"".join(kept),
        queue_id=queue_id,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        sys_flag=sys_flag,
        store_timestamp=store_ms,
        store_host=host,
        prepared_transaction_offset=record.physical_offset if committed else 0,
    )
