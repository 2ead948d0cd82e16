"""Bodies that hold records: a start takes none of them for a record of the log."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

from flintmq.protocol.storage.layout import RECORD
from flintmq.protocol.storage.record import Record
from tests.fault.damaged_logs import FIRST, undispatched
from tests.store_tools import Message, assert_contained, open_store, overwrite, plain, put


def forged(queue_offset: int, physical_offset: int, topic: bytes = b"orders", body: bytes = b"forged") -> bytes:
    """Return a record that a client sent inside a body, hoping that recovery takes it for a real one."""
    return Record(
        topic=topic,
        body=body,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        store_timestamp=1 << 42,
        properties=b"KEYS\x01forged\x02",
    ).encode()


def hostile(begin: int, head_bytes: int, count: int, topic: bytes, queue_offset: int) -> bytes:
    """Return a body with a chain of records that are valid at their places. ``begin``: begin of its own record."""
    body = bytearray(b"x" * 40)
    for number in range(count):
        body += forged(queue_offset + number, begin + head_bytes + len(body), topic)
    return bytes(body)


@pytest.mark.parametrize("known", ["by queues", "by the log alone"])
@pytest.mark.parametrize("damage", ["length", "head", "magic"])
@pytest.mark.parametrize("topic", [b"orders", b"bills", b"other"])
def test_records_forged_in_a_body_are_not_found(tmp_path: Path, known: str, damage: str, topic: bytes) -> None:
    path = tmp_path / "store"
    store = open_store(path)
    sent = put(store, "orders", 0, plain(5)) + put(store, "bills", 0, plain(3))
    begin = store.write_offset
    sent += put(store, "orders", 0, [Message(hostile(begin, RECORD.size, 6, topic, 5))])
    sent += put(store, "orders", 0, plain(5, first=5)) + put(store, "bills", 0, plain(4, first=3))
    store.close()
    damages = {"length": (0, b"\x7f"), "head": (0, bytes(60)), "magic": (0, bytes(8))}
    at, blob = damages[damage]
    overwrite(path / "commitlog" / FIRST, begin + at, blob)
    if known == "by the log alone":
        undispatched(path)
    assert_contained(path, sent, [sent[8]])


@pytest.mark.parametrize("known", ["by queues", "by the log alone"])
def test_a_forged_record_that_ends_where_its_message_ends_is_not_found(tmp_path: Path, known: str) -> None:
    """The log continues after it, but the forged record claims to be a later message."""
    path = tmp_path / "store"
    store = open_store(path)
    sent = put(store, "bills", 0, plain(3))
    begin = store.write_offset
    inner = forged(3, begin + RECORD.size, b"bills", b"\0")
    tail = bytes([6]) + b"orders" + bytes(2)  # the broker appends this to the body: topic and no properties
    head = bytearray(inner[: RECORD.size])
    head[0:4] = struct.pack(">i", RECORD.size + 1 + len(tail))
    head[8:12] = struct.pack(">i", zlib.crc32(b"\0") & 0x7FFFFFFF)
    sent += put(store, "orders", 0, [Message(bytes(head) + b"\0")])
    assert store.write_offset == begin + 2 * RECORD.size + 1 + len(tail)
    sent += put(store, "orders", 0, plain(4, first=1)) + put(store, "bills", 0, plain(4, first=3))
    store.close()
    overwrite(path / "commitlog" / FIRST, begin, b"\x7f")
    if known == "by the log alone":
        undispatched(path)
    assert_contained(path, sent, [sent[3]])
