"""``flintmq-broker dump``: the records of a log as JSON lines, in log order.

It shows everything in the log, including records of deleted topics, half messages and the broker's own records. A
damaged record is reported as a finding and skipped.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np

from ...protocol.storage.delivery import PROPERTY_RECORD_CRC
from ...protocol.storage.javahash import index_key_hash
from ...protocol.storage.layout import SysFlag
from ...protocol.storage.reader.log_files import LogFile
from ...protocol.storage.reader.log_reader import LogRange, LogScanner, next_record
from ...protocol.storage.reader.parts import Part, Rows
from ...protocol.storage.reader.records import ScannedRecords, TopicFilter
from ...protocol.storage.record import (
    PROPERTY_KEYS,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    Buffer,
    CorruptRecord,
    Record,
    decode_host,
    decode_record,
    offset_id,
    split_keys,
)
from ..store.derivation import RecordAt
from ..store.files.mapped_file import MappedFile
from ..store.recovery.log_recovery import CLOCK_MARGIN_MS, FileHead
from .findings import Findings
from .log_verifier import check_file
from .offline import FOREVER, OfflineStore
from .output import iso_time

_OWN_PROPERTIES = {PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQ_KEY, PROPERTY_SHARDING_KEY, PROPERTY_RECORD_CRC}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Filter of the records: None matches all. Times in ms, both ends included; offsets are physical, half-open."""

    topic: str | None = None
    queue: int | None = None
    key: str | None = None
    since_ms: int = 0
    until_ms: int = FOREVER
    from_offset: int = 0
    to_offset: int = FOREVER

    def has_key(self, record: Record) -> bool:
        """Return whether the record has the wanted key, if any, among its keys or as its id."""
        if self.key is None:
            return True
        properties = record.property_map()
        return properties.get(PROPERTY_UNIQ_KEY) == self.key or self.key in split_keys(properties.get(PROPERTY_KEYS))


def records(store: OfflineStore, end: int, wanted: Wanted) -> Iterator[Record]:
    """Yield the wanted records of the log below ``end``, without tombstones. Damage is added to the store's
    findings."""
    for record in _records(store, end, wanted):
        if not store.quarantine.covers(record.physical_offset):
            yield record


def _records(store: OfflineStore, end: int, wanted: Wanted) -> Iterator[Record]:
    begin, end = max(wanted.from_offset, store.log_start), min(wanted.to_offset, end)
    if wanted.key is None:
        yield from _scan(store, begin, end, wanted)
        return
    indexed = _indexed(store)
    if indexed is None:
        store.findings.note("the index is not sound: the whole log is searched for the key")
        yield from _scan(store, begin, end, wanted)
        return
    # Outside of the range that the index covers, only the log tells the keys.
    first, last = indexed
    yield from _scan(store, begin, min(first, end), wanted)
    yield from _by_index(store, max(begin, first), min(last, end), wanted)
    yield from _scan(store, max(begin, last), end, wanted)


def _scan(store: OfflineStore, begin: int, end: int, wanted: Wanted) -> Iterator[Record]:
    for number, file in enumerate(store.log_files):
        if file.end_offset <= begin or file.start_offset >= end:
            continue
        behind = store.log_files[number + 1] if number + 1 < len(store.log_files) else None
        if wanted.since_ms and behind is not None:
            # Everything in this file is older than the next one's first record, unless a clock was set back.
            head = FileHead(behind)
            if head.is_record and head.store_ms < wanted.since_ms - CLOCK_MARGIN_MS:
                continue
        head = FileHead(file)
        if head.is_record and head.store_ms > wanted.until_ms + CLOCK_MARGIN_MS:
            return
        yield from _scan_file(store, file, begin, end, wanted)


def _scan_file(store: OfflineStore, file: MappedFile, begin: int, end: int, wanted: Wanted) -> Iterator[Record]:
    log = LogFile(file.path, file.start_offset, file.end_offset)
    topics = TopicFilter((wanted.topic,)) if wanted.topic else None
    at: int | None = max(begin, log.start)
    with log.open() as fd:
        if at != log.start:  # an offset given by the user is rarely the start of a record
            at = next_record(log, fd, begin, min(end, log.end), check_crc=False)
        while at is not None and at < end:
            walk = LogScanner(LogRange(log, at, log.end), fd, at)
            for block in walk:
                records = block.records
                for row in np.flatnonzero(_picked(records, topics, end, wanted)).tolist():
                    record = _decode(store, file, records.record(row), int(records.parts[Part.PHYSICAL_OFFSET, row]))
                    if record is not None and wanted.has_key(record):
                        yield record
                if records.parts[Part.PHYSICAL_OFFSET, -1] >= end:
                    return
            if walk.damage is None or walk.damage.physical_offset >= end:
                return
            at = next_record(log, fd, walk.damage.physical_offset + 1, min(end, log.end), check_crc=False)
            skipped = (min(end, log.end) if at is None else at) - walk.damage.physical_offset
            store.findings.add(
                "record",
                file.path,
                f"{walk.damage.reason}; {skipped:,} bytes up to the next record are skipped",
                position=walk.damage.position,
                physical_offset=walk.damage.physical_offset,
            )


def _picked(records: ScannedRecords, topics: TopicFilter | None, end: int, wanted: Wanted) -> Rows:
    """Return which records are before ``end`` and have the wanted topic, queue and store time."""
    parts = records.parts
    rows: Rows = (
        (parts[Part.PHYSICAL_OFFSET] < end)
        & (parts[Part.STORED_MS] >= wanted.since_ms)
        & (parts[Part.STORED_MS] <= wanted.until_ms)
    )
    if wanted.queue is not None:
        rows &= parts[Part.QUEUE] == wanted.queue
    return rows if topics is None else rows & topics.rows(records)


def _decode(store: OfflineStore, file: MappedFile, blob: Buffer, physical_offset: int) -> Record | None:
    try:
        return decode_record(blob)
    except CorruptRecord as error:
        store.findings.add(
            "body-crc",
            file.path,
            f"left out: {error}",
            position=physical_offset - file.start_offset,
            physical_offset=physical_offset,
        )
        return None


# By the index.


def _indexed(store: OfflineStore) -> tuple[int, int] | None:
    """Return the part of the log whose keys are all in the index, or None if the index is not sound."""
    expected = store.state.snapshot.index_files if not store.is_rocketmq else []
    names = {file.path.name for file in store.index_files}
    if not names or not names.issuperset(expected) or any(store.findings.counts):
        return None
    found = Findings()
    for file in store.index_files:
        if store.shared:  # while a broker runs, the newest file is incomplete
            check_file(file, found, clean=store.clean)
    used = [file for file in store.index_files if file.index_count > 1]
    if found.total or not used:
        return None
    return used[0].header.begin_physical_offset, used[-1].end_physical_offset


def _by_index(store: OfflineStore, begin: int, end: int, wanted: Wanted) -> Iterator[Record]:
    assert wanted.key is not None
    topics = [wanted.topic] if wanted.topic else _topics(store)
    offsets = {
        physical_offset
        for topic in topics
        for file in store.index_files
        for physical_offset, _ in file.chain(index_key_hash(topic, wanted.key), 0, FOREVER, 0, hot=False)
        if begin <= physical_offset < end
    }
    for physical_offset in sorted(offsets):
        file = store.find(physical_offset)
        found = None if file is None else RecordAt(file, physical_offset)
        if file is None or found is None or not found.has_parts:
            continue
        # Chains are of hashes, which several keys share: the record decides.
        record = _decode(store, file, found.blob, physical_offset)
        if record is not None and _fits(record, wanted):
            yield record


def _topics(store: OfflineStore) -> list[str]:
    return sorted({*(config.name for config in store.topics), *store.queues.by_topic})


def _fits(record: Record, wanted: Wanted) -> bool:
    return (
        wanted.has_key(record)
        and (wanted.topic is None or record.topic == wanted.topic.encode())
        and wanted.queue in (None, record.queue_id)
        and wanted.since_ms <= record.store_timestamp <= wanted.until_ms
    )


# As JSON.


def record_row(record: Record) -> dict[str, Any]:
    """Return a record with the field names of messages on the command line, and the log's further fields."""
    properties = record.property_map()
    body, compression = _plain_body(record)
    row: dict[str, Any] = {
        "topic": record.topic.decode("utf-8", "replace"),
        "queue": record.queue_id,
        "queue_offset": record.queue_offset,
        "physical_offset": record.physical_offset,
        "message_id": properties.get(PROPERTY_UNIQ_KEY) or offset_id(record.store_host, record.physical_offset),
        "keys": list(split_keys(properties.get(PROPERTY_KEYS))),
        "tag": properties.get(PROPERTY_TAGS),
        "sharding_key": properties.get(PROPERTY_SHARDING_KEY),
        "properties": {name: value for name, value in properties.items() if name not in _OWN_PROPERTIES},
        "born_at": iso_time(record.born_timestamp),
        "stored_at": iso_time(record.store_timestamp),
        "reconsume_times": record.reconsume_times,
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "born_host": _host(record.born_host),
        "stored_host": _host(record.store_host),
        "body_bytes": len(body),
    }
    if compression:
        row["body_compression"] = compression  # what would unpack it is not installed, or it does not unpack
    try:
        row["body"] = body.decode()
    except UnicodeDecodeError:
        row["body_base64"] = base64.b64encode(body).decode()
    return row


@lru_cache(maxsize=1024)
def _host(blob: bytes) -> str:
    host, port = decode_host(blob)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _plain_body(record: Record) -> tuple[bytes, str]:
    """Return the original body and an empty string, or the stored body and its compression if it cannot be unpacked."""
    if not record.sys_flag & SysFlag.COMPRESSED:
        return record.body, ""
    name = {SysFlag.COMPRESSION_LZ4: "lz4", SysFlag.COMPRESSION_ZSTD: "zstd"}.get(
        record.sys_flag & SysFlag.COMPRESSION_MASK, "zlib"
    )
    try:
        if name == "lz4":
            return import_module("lz4.frame").decompress(record.body), ""
        if name == "zstd":
            return import_module("zstandard").ZstdDecompressor().decompressobj().decompress(record.body), ""
        return zlib.decompress(record.body), ""
    except (ImportError, zlib.error, RuntimeError, ValueError):
        return record.body, name
    except Exception as error:
        # By its name, because the module of the class may not be installed.
        if type(error).__name__ != "ZstdError":
            raise
        return record.body, name
