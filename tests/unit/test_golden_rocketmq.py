"""The protocol package decodes a store written by Apache RocketMQ 5.3.3, byte for byte."""

from __future__ import annotations

import json
import struct
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from flintmq.protocol.storage.layout import CHECKPOINT, CHECKPOINT_FILE_BYTES
from flintmq.protocol.storage.record import Record, decode_host, decode_record, offset_id, parse_offset_id, record_size
from tests.store_tools import ROCKETMQ_ARCHIVE


@dataclass
class GoldenStore:
    """The parts of the archive that hold data; the holes of its sparse files are never read."""

    log: bytes
    checkpoint: bytes
    expected: list[dict[str, Any]]
    records: list[Record]


def _records(log: bytes) -> Iterator[Record]:
    at = 0
    while struct.unpack_from(">i", log, at)[0] > 0:
        record = decode_record(log, at)
        yield record
        at += len(record.encode())


@pytest.fixture(scope="module")
def golden() -> GoldenStore:
    parts: dict[str, bytes] = {}
    with tarfile.open(ROCKETMQ_ARCHIVE) as archive:
        for member in archive:
            match member.name.split("/"):
                case ["store-pristine", "commitlog" | "checkpoint" as name, *_] | ["expected.jsonl" as name]:
                    content = archive.extractfile(member)
                    if content is not None:
                        parts[name] = content.read(1 << 20)
    records = list(_records(parts["commitlog"]))
    expected = [json.loads(line) for line in parts["expected.jsonl"].splitlines()]
    return GoldenStore(parts["commitlog"], parts["checkpoint"], expected, records)


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


def test_offset_ids_equal_those_of_rocketmqs_client(golden: GoldenStore) -> None:
    ids = [sent["offsetMsgId"] for sent in golden.expected if sent["offsetMsgId"] is not None]
    assert len(ids) == 466
    for message_id in ids:
        parsed = parse_offset_id(message_id)
        assert parsed is not None
        record = decode_record(golden.log, parsed[1])
        assert offset_id(record.store_host, record.physical_offset) == message_id
        assert parsed == (decode_host(record.store_host), record.physical_offset)


def test_the_checkpoint_holds_the_times_of_the_last_record(golden: GoldenStore) -> None:
    assert len(golden.checkpoint) == CHECKPOINT_FILE_BYTES
    last_ms = golden.records[-1].store_timestamp
    assert CHECKPOINT.unpack(golden.checkpoint) == (last_ms, last_ms, 0, 0, 0)
    assert not any(golden.checkpoint[CHECKPOINT.size :])
