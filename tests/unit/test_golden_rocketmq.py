"""The protocol package decodes a store written by Apache RocketMQ 5.3.3, byte for byte."""

from __future__ import annotations

import hashlib
import json
import struct
import tarfile
import zlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from flintmq.protocol.storage.javahash import index_key_hash, tags_code
from flintmq.protocol.storage.layout import (
    CHECKPOINT,
    CHECKPOINT_FILE_BYTES,
    INDEX_ENTRY,
    INDEX_ENTRY_BYTES,
    INDEX_HEADER,
    INDEX_HEADER_BYTES,
    INDEX_SLOT_BYTES,
    UNIT,
    UNIT_BYTES,
    SysFlag,
)
from flintmq.protocol.storage.record import (
    Record,
    decode_host,
    decode_record,
    offset_id,
    parse_offset_id,
    record_size,
    split_keys,
)
from tests.store_tools import ROCKETMQ_ARCHIVE

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
DELAYS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
INDEX_SLOTS = 5_000_000


@dataclass
class GoldenStore:
    """The parts of the archive that hold data; the holes of its sparse files are never read."""

    log: bytes
    queues: dict[tuple[str, int], bytes]
    index: bytes
    checkpoint: bytes
    expected: list[dict[str, Any]]
    records: list[Record]


def _read(archive: tarfile.TarFile, member: tarfile.TarInfo, byte_count: int) -> bytes:
    content = archive.extractfile(member)
    assert content is not None
    # In pieces: the time that tarfile needs to join a sparse file's segments grows with the square of their number.
    pieces = [content.read(min(1 << 16, byte_count - at)) for at in range(0, byte_count, 1 << 16)]
    return b"".join(pieces)


def _records(log: bytes) -> Iterator[Record]:
    at = 0
    while struct.unpack_from(">i", log, at)[0] > 0:
        record = decode_record(log, at)
        yield record
        at += len(record.encode())


@pytest.fixture(scope="module")
def golden() -> GoldenStore:
    queues: dict[tuple[str, int], bytes] = {}
    parts: dict[str, bytes] = {}
    with tarfile.open(ROCKETMQ_ARCHIVE) as archive:
        for member in archive:
            match member.name.split("/"):
                case ["store-pristine", "commitlog", _]:
                    assert member.size == 1 << 30
                    parts["log"] = _read(archive, member, 1 << 20)
                case ["store-pristine", "consumequeue", topic, queue, _]:
                    assert member.size == 300_000 * UNIT_BYTES
                    queues[topic, int(queue)] = _read(archive, member, member.size)
                case ["store-pristine", "index", _]:
                    assert member.size == INDEX_HEADER_BYTES + INDEX_SLOTS * INDEX_SLOT_BYTES + 400_000_000
                    slots_end = INDEX_HEADER_BYTES + INDEX_SLOTS * INDEX_SLOT_BYTES
                    parts["index"] = _read(archive, member, slots_end + 2000 * INDEX_ENTRY_BYTES)
                case ["store-pristine", "checkpoint"]:
                    parts["checkpoint"] = _read(archive, member, member.size)
                case ["expected.jsonl"]:
                    parts["expected"] = _read(archive, member, member.size)
    expected = [json.loads(line) for line in parts["expected"].splitlines()]
    records = list(_records(parts["log"]))
    return GoldenStore(parts["log"], queues, parts["index"], parts["checkpoint"], expected, records)


def test_every_record_decodes_and_encodes_to_the_same_bytes(golden: GoldenStore) -> None:
    at = 0
    for record in golden.records:
        blob = record.encode()
        assert golden.log[at : at + len(blob)] == blob
        assert record.physical_offset == at
        assert len(blob) == record_size(len(record.body), len(record.topic), len(record.properties))
        at += len(blob)
    assert len(golden.records) == 552
    assert not any(golden.log[at:])


def test_a_recomputed_checksum_equals_rocketmqs(golden: GoldenStore) -> None:
    for record in golden.records:
        stored = record.encode()
        record.body_crc = None
        assert record.encode() == stored


def _record_of(golden: GoldenStore, sent: dict[str, Any]) -> Record | None:
    """Return the visible record of a message that was sent, or None.

    Messages of one batch share the batch's UNIQ_KEY, but RocketMQ reports the offset id of each; it reports none for
    delayed and transactional messages.
    """
    if sent["offsetMsgId"] is not None:
        parsed = parse_offset_id(sent["offsetMsgId"])
        assert parsed is not None
        return decode_record(golden.log, parsed[1])
    found = [
        record
        for record in golden.records
        if record.topic.decode() == sent["topic"] and record.property_map()["UNIQ_KEY"] == sent["msgId"]
    ]
    assert len(found) <= 1
    return found[0] if found else None


def test_every_message_equals_the_sent_one(golden: GoldenStore) -> None:
    seen = set()
    for sent in golden.expected:
        record = _record_of(golden, sent)
        assert (record is not None) == sent["visible"]
        if record is None:
            continue
        seen.add(record.physical_offset)
        properties = record.property_map()
        body = record.body
        if record.sys_flag & SysFlag.COMPRESSED:
            assert record.sys_flag & SysFlag.COMPRESSION_MASK == SysFlag.COMPRESSION_ZLIB
            body = zlib.decompress(body)
        assert record.topic.decode() == sent["topic"]
        assert len(body) == sent["bodyLen"]
        assert hashlib.sha1(body).hexdigest() == sent["sha1"]
        assert properties.get("KEYS") == sent["keys"]
        assert properties.get("TAGS") == sent["tags"]
        assert sent["userProp"] is None or sent["userProp"] in properties.values()
        assert record.flag == sent["flag"]
        if sent["queueOffset"] is not None:
            assert (record.queue_id, record.queue_offset) == (sent["queueId"], sent["queueOffset"])
    assert len(seen) == 500


def test_offset_ids_equal_those_of_rocketmqs_client(golden: GoldenStore) -> None:
    ids = [sent["offsetMsgId"] for sent in golden.expected if sent["offsetMsgId"] is not None]
    assert len(ids) == 466
    for message_id in ids:
        record = _record_of(golden, {"offsetMsgId": message_id})
        assert record is not None
        assert offset_id(record.store_host, record.physical_offset) == message_id
        assert parse_offset_id(message_id) == (decode_host(record.store_host), record.physical_offset)


def _tags_code(record: Record) -> int:
    properties = record.property_map()
    if record.topic.decode() == SCHEDULE_TOPIC:
        return record.store_timestamp + 1000 * DELAYS_S[int(properties["DELAY"]) - 1]
    return tags_code(properties.get("TAGS"))


def test_the_consumequeues_follow_from_the_records(golden: GoldenStore) -> None:
    units: dict[tuple[str, int], list[bytes]] = defaultdict(list)
    for record in golden.records:
        queue = units[record.topic.decode(), record.queue_id]
        assert record.queue_offset == len(queue)
        queue.append(UNIT.pack(record.physical_offset, len(record.encode()), _tags_code(record)))
    assert units.keys() == golden.queues.keys()
    for key, stored in golden.queues.items():
        derived = b"".join(units[key])
        assert stored[: len(derived)] == derived, key
        assert not any(stored[len(derived) :]), key


def _index_keys(record: Record) -> list[str]:
    properties = record.property_map()
    unique_key = properties.get("UNIQ_KEY")
    return ([unique_key] if unique_key else []) + list(split_keys(properties.get("KEYS")))


def test_the_index_follows_from_the_records(golden: GoldenStore) -> None:
    header = INDEX_HEADER.unpack(golden.index)
    begin_ms, entries_end = header[0], header[5]
    slots: dict[int, int] = {}
    entry_number = 1
    for record in golden.records:
        for key in _index_keys(record):
            key_hash = index_key_hash(record.topic.decode(), key)
            slot = key_hash % INDEX_SLOTS
            seconds = (record.store_timestamp - begin_ms) // 1000
            at = INDEX_HEADER_BYTES + INDEX_SLOTS * INDEX_SLOT_BYTES + entry_number * INDEX_ENTRY_BYTES
            entry = INDEX_ENTRY.pack(key_hash, record.physical_offset, seconds, slots.get(slot, 0))
            assert golden.index[at : at + INDEX_ENTRY_BYTES] == entry, (key, entry_number)
            slots[slot] = entry_number
            entry_number += 1
    indexed = [record for record in golden.records if _index_keys(record)]
    first, last = indexed[0], indexed[-1]
    assert header == (
        first.store_timestamp,
        last.store_timestamp,
        first.physical_offset,
        last.physical_offset,
        len(slots),
        entries_end,
    )
    assert entry_number == entries_end == 1120
    stored = struct.unpack_from(f">{INDEX_SLOTS}i", golden.index, INDEX_HEADER_BYTES)
    assert {slot: entry for slot, entry in enumerate(stored) if entry} == slots


def test_the_checkpoint_holds_the_times_of_the_last_record(golden: GoldenStore) -> None:
    assert len(golden.checkpoint) == CHECKPOINT_FILE_BYTES
    last_ms = golden.records[-1].store_timestamp
    assert CHECKPOINT.unpack(golden.checkpoint) == (last_ms, last_ms, 0, 0, 0)
    assert not any(golden.checkpoint[CHECKPOINT.size :])
