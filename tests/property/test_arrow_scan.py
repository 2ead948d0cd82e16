"""A scan and a decoder of many records return the same as the plain-Python record does for each."""

from __future__ import annotations

import dataclasses
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.client import StoredMessage
from flintmq.client.arrow.decoder import HEADERS, PROPERTIES, Decoder
from flintmq.client.arrow.records import RecordBlock
from flintmq.client.spark.columns import offered
from flintmq.protocol.storage.layout import SysFlag
from flintmq.protocol.storage.reader.parts import SOUND, Part
from flintmq.protocol.storage.reader.scan import scan_records
from flintmq.protocol.storage.record import CorruptRecord, Record, decode_record

i64 = st.integers(-(2**63), 2**63 - 1)
millis = st.integers(0, 4_000_000_000_000)
hosts = st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20)
names = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "UNIQ", "KEYSKEYS", "__SHARDINGKEY", "a", "é", ""])
values = st.text(st.characters(codec="utf-8", exclude_characters="\x02"), max_size=12) | st.sampled_from(
    ["a b", " ", ""]
)
well_made = st.lists(st.tuples(names, values), max_size=5).map(
    lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()
)
properties = (
    well_made
    | well_made.map(lambda blob: blob.removesuffix(b"\x02"))
    | st.text("\x01\x02TAGSKEY_UNIQ x", max_size=40).map(str.encode)
    | st.binary(max_size=30)
)
bodies = st.binary(max_size=100)


@st.composite
def records(draw: st.DrawFn) -> Record:
    body = draw(bodies)
    compressed = draw(st.integers(0, 4)) == 0
    return Record(
        topic=draw(st.sampled_from([b"t", b"orders", b"x" * 127, b"y" * 128, b"z" * 300])),
        body=zlib.compress(body) if compressed else body,
        properties=draw(properties),
        queue_id=draw(st.integers(0, 65535)),
        queue_offset=draw(i64),
        physical_offset=draw(i64),
        sys_flag=SysFlag.COMPRESSED if compressed else 0,
        born_timestamp=draw(millis),
        born_host=draw(hosts),
        store_timestamp=draw(millis),
        store_host=draw(hosts),
        reconsume_times=draw(st.integers(-(2**31), 2**31 - 1)),
    )


def laid_out(blobs: list[bytes], before: bytes = b"") -> tuple[bytes, Any, Any]:
    """Return the blobs joined, with the start and length of each."""
    sizes = np.array([len(blob) for blob in blobs], np.int64)
    return before + b"".join(blobs), len(before) + np.cumsum(sizes) - sizes, sizes


def is_sound(blob: bytes) -> bool:
    try:
        record = decode_record(blob)
    except CorruptRecord:
        return False
    return struct.unpack_from(">i", blob)[0] == len(blob) and record is not None


@given(stored=st.lists(records(), max_size=8), before=st.binary(max_size=9))
def test_a_scan_finds_the_parts_of_every_record(stored: list[Record], before: bytes) -> None:
    blob, starts, sizes = laid_out([record.encode() for record in stored], before)
    parts, damaged = scan_records(blob, starts, sizes)
    assert damaged == SOUND
    for row, record in enumerate(stored):
        found = {part: int(parts[part, row]) for part in Part}
        assert found[Part.QUEUE] == record.queue_id
        assert found[Part.QUEUE_OFFSET] == record.queue_offset
        assert found[Part.PHYSICAL_OFFSET] == record.physical_offset
        assert found[Part.BORN_MS] == record.born_timestamp
        assert found[Part.STORED_MS] == record.store_timestamp
        assert found[Part.RECONSUME_TIMES] == record.reconsume_times
        assert blob[found[Part.BODY_AT] : found[Part.BODY_END]] == record.body
        assert blob[found[Part.TOPIC_AT] : found[Part.TOPIC_END]] == record.topic
        assert blob[found[Part.PROPERTIES_AT] : found[Part.PROPERTIES_END]] == record.properties
        expected = record.property_map()
        for name, at, end in (
            ("TAGS", Part.TAGS_AT, Part.TAGS_END),
            ("KEYS", Part.KEYS_AT, Part.KEYS_END),
            ("UNIQ_KEY", Part.UNIQ_KEY_AT, Part.UNIQ_KEY_END),
        ):
            value = blob[found[at] : found[end]].decode("utf-8", "replace") if found[at] >= 0 else None
            assert value == expected.get(name)


@given(stored=st.lists(records(), min_size=1, max_size=5), data=st.data())
def test_a_scan_finds_the_first_damaged_record(stored: list[Record], data: st.DataObject) -> None:
    blobs = [bytearray(record.encode()) for record in stored]
    for _ in range(data.draw(st.integers(1, 3))):
        victim = data.draw(st.sampled_from(blobs))
        at = data.draw(st.integers(0, len(victim) - 1) | st.sampled_from([0, 3, 4, 8, 36, 39, 84, 87]))
        victim[at] ^= 1 << data.draw(st.integers(0, 7))
    sound = [is_sound(bytes(blob)) for blob in blobs]
    _, damaged = scan_records(*laid_out([bytes(blob) for blob in blobs]))
    assert damaged == (SOUND if all(sound) else sound.index(False))


def test_a_scan_without_verification_ignores_a_wrong_checksum() -> None:
    record = dataclasses.replace(Record(b"t", b"body"), body_crc=1)
    assert scan_records(*laid_out([record.encode()]))[1] == 0
    assert scan_records(*laid_out([record.encode()]), verify=False)[1] == SOUND


@pytest.mark.parametrize("size", [0, 1, 4, 90])
def test_an_impossible_size_is_damage(size: int) -> None:
    assert scan_records(bytes(200), np.array([5], np.int64), np.array([size], np.int64))[1] == 0


@given(st.lists(records(), max_size=6))
def test_the_columns_equal_a_consumers_view_of_each_message(stored: list[Record]) -> None:
    blobs = [record.encode(checksum=index % 2 == 1) for index, record in enumerate(stored)]
    decoder = Decoder(offered(properties=True, headers=True))
    batch = decoder.batch(RecordBlock(*laid_out(blobs)))
    batch.validate(full=True)
    assert batch.schema == decoder.schema
    for row, blob in zip(batch.to_pylist(maps_as_pydicts="strict"), blobs, strict=True):
        message = StoredMessage(len(blob), 0, blob, "")
        names = ("topic", "queue", "queue_offset", "physical_offset", "body", "tags", "message_id", "reconsume_times")
        assert {name: row[name] for name in names} == {name: getattr(message, name) for name in names}
        assert row["born_at"] == message.born_at
        assert row["stored_at"] == message.stored_at
        assert row["keys"] == list(message.keys)
        assert row["properties"] == dict(message.properties)
        headers = {header["key"]: header["value"].decode("utf-8", "replace") for header in row["headers"]}
        assert headers == dict(message.user_properties)


@given(st.lists(records(), min_size=1, max_size=6), st.data())
def test_only_requested_columns_are_made_in_their_order(stored: list[Record], data: st.DataObject) -> None:
    columns = data.draw(st.permutations((*offered(), PROPERTIES, HEADERS)).map(lambda all_: all_[:4]))
    block = RecordBlock(*laid_out([record.encode() for record in stored]))
    everything = Decoder(offered(properties=True, headers=True)).batch(block)
    chosen = Decoder(columns).batch(block)
    assert chosen.schema.names == [column.name for column in columns]
    for column in columns:
        assert chosen.column(column.name) == everything.column(column.name)


@given(st.lists(records(), max_size=8), st.data())
def test_a_selection_of_a_block_equals_a_block_of_the_selection(stored: list[Record], data: st.DataObject) -> None:
    blobs = [record.encode() for record in stored]
    chosen = np.array([data.draw(st.booleans()) for _ in blobs], np.bool_)
    decoder = Decoder(offered(properties=True))
    selected = decoder.batch(RecordBlock(*laid_out(blobs)).select(chosen))
    alone = decoder.batch(RecordBlock(*laid_out([blob for blob, wanted in zip(blobs, chosen, strict=True) if wanted])))
    assert selected == alone
