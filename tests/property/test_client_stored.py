"""Decoding returns sound records, and raises a typed error for all others."""

from __future__ import annotations

import struct
import zlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from flintmq.client import Batch, CorruptMessage, RemoteProtocolError, StoredMessage
from flintmq.protocol.storage.layout import SysFlag
from flintmq.protocol.storage.record import Record, encode_properties, split_keys

text = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=12)
hosts = st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20)
i64 = st.integers(0, 2**63 - 1)

ATTRIBUTES = [name for name, value in vars(StoredMessage).items() if isinstance(value, property)]
assert len(ATTRIBUTES) >= 20


@st.composite
def records(draw: st.DrawFn) -> tuple[Record, bytes]:
    """Draw a record and the body that its consumer sees."""
    body = draw(st.binary(max_size=200))
    compressed = draw(st.booleans())
    properties = draw(st.dictionaries(st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY"]) | text, text, max_size=5))
    record = Record(
        topic=draw(st.sampled_from([b"t", b"orders", b"%RETRY%group", b"x" * 127, b"y" * 128, b"z" * 200])),
        body=zlib.compress(body) if compressed else body,
        properties=encode_properties(properties),
        queue_id=draw(st.integers(0, 65535)),
        queue_offset=draw(i64),
        physical_offset=draw(i64),
        flag=draw(st.integers(-(2**31), 2**31 - 1)),
        sys_flag=SysFlag.COMPRESSED if compressed else 0,
        born_timestamp=draw(i64),
        born_host=draw(hosts),
        store_timestamp=draw(i64),
        store_host=draw(hosts),
        reconsume_times=draw(st.integers(0, 100)),
    )
    return record, body


def batch_of(blobs: list[bytes]) -> Batch:
    body = struct.pack(f">{len(blobs)}I", *map(len, blobs)) + b"".join(blobs)
    return Batch("t", 0, body, len(blobs), next_offset=0, min_offset=0, max_offset=0)


@given(st.lists(records(), max_size=8))
def test_a_batch_equals_the_stored_messages(stored: list[tuple[Record, bytes]]) -> None:
    batch = batch_of([record.encode() for record, _ in stored])
    assert batch.bodies() == [body for _, body in stored]
    for message, (record, body) in zip(batch.messages, stored, strict=True):
        properties = record.property_map()
        assert message.body == body
        assert dict(message.properties) == properties
        assert message.keys == split_keys(properties.get("KEYS"))
        assert message.tags == properties.get("TAGS")
        assert message.message_id == (properties.get("UNIQ_KEY") or message.offset_id)
        assert (
            message.queue,
            message.queue_offset,
            message.physical_offset,
            message.flag,
            message.reconsume_times,
        ) == (record.queue_id, record.queue_offset, record.physical_offset, record.flag, record.reconsume_times)
        assert message.stored_ms == record.store_timestamp


def read(message: StoredMessage, name: str) -> object:
    """Return an attribute of a message, or the text of the error that it raises."""
    try:
        return getattr(message, name)
    except CorruptMessage as error:
        return str(error)


def read_everything(batch: Batch) -> None:
    for message, streamed in zip(batch.messages, batch.stream(), strict=True):
        for name in ATTRIBUTES:
            assert read(message, name) == read(streamed, name)
    try:
        batch.bodies()
    except CorruptMessage:
        return


@given(st.lists(records(), min_size=1, max_size=4), st.data())
def test_damage_is_a_typed_error(stored: list[tuple[Record, bytes]], data: Any) -> None:
    blobs = [record.encode() for record, _ in stored]
    damaged = bytearray(b"".join(blobs))
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    pieces, at = [], 0
    for blob in blobs:
        pieces.append(bytes(damaged[at : at + len(blob)]))
        at += len(blob)
    read_everything(batch_of(pieces))


@given(st.lists(st.binary(min_size=91, max_size=300), max_size=4))
def test_random_bytes_are_a_typed_error(blobs: list[bytes]) -> None:
    read_everything(batch_of(blobs))


@given(st.binary(max_size=600), st.integers(0, 5))
def test_random_answers_are_a_typed_error(body: bytes, count: int) -> None:
    try:
        batch = Batch("t", 0, body, count, next_offset=0, min_offset=0, max_offset=0)
    except RemoteProtocolError:
        return
    read_everything(batch)


@given(records().filter(lambda pair: len(pair[0].body) > 0), st.data())
def test_a_changed_body_is_never_returned(stored: tuple[Record, bytes], data: Any) -> None:
    record, _ = stored
    changed = bytearray(record.body)
    at = data.draw(st.integers(0, len(changed) - 1))
    changed[at] ^= data.draw(st.integers(1, 255))
    whole = Record(**{name: getattr(record, name) for name in Record.__dataclass_fields__})
    whole.body_crc = zlib.crc32(record.body) & 0x7FFFFFFF
    whole.body = bytes(changed)
    (message,) = batch_of([whole.encode()]).messages
    try:
        message.body  # noqa: B018
    except CorruptMessage:
        return
    raise AssertionError("a body with a wrong checksum was returned")
