"""``__CRC32#``: RocketMQ's bytes, and records that fail the check."""

from __future__ import annotations

import zlib

import pytest

from flintmq.protocol.storage.layout import PROPERTIES_BYTES_MAX
from flintmq.protocol.storage.record import (
    CorruptRecord,
    Record,
    check_record_crc,
    decode_record,
    encode_host,
    record_crc_property,
    without_record_crc,
)

HOST = encode_host("127.0.0.1", 10911)
EXAMPLE = Record(
    b"orders",
    b"hello",
    b"KEYS\x01o-1\x02TAGS\x01eu\x02",
    queue_id=3,
    queue_offset=7,
    physical_offset=4096,
    flag=-5,
    born_timestamp=1_700_000_000_000,
    born_host=HOST,
    store_timestamp=1_700_000_000_123,
    store_host=HOST,
)
# Written out by hand from the description of the format; the checksum of the bytes before it is zlib's.
EXAMPLE_BEFORE = bytes.fromhex(
    "0000008bdaa320a7"  # total_size 139 = 88 + 5 + 1 + 6 + 2 + 17 + 20, magic
    "3610a68600000003fffffffb"  # crc32("hello"), queue_id, flag
    "0000000000000007000000000000100000000000"  # queue_offset, physical_offset, sys_flag
    "0000018bcfe568007f00000100002a9f0000018bcfe5687b7f00000100002a9f"  # birth and store time and host
    "000000000000000000000000"  # reconsume_times, prepared_transaction_offset
    "0000000568656c6c6f066f7264657273"  # body, topic
    "00254b455953016f2d31025441475301657502"  # 37 bytes of properties, of which the last 20 follow
)


def test_it_is_the_last_20_bytes_with_the_least_significant_digit_first() -> None:
    assert record_crc_property(1_234_567) == b"__CRC32#\x017654321000\x02"
    assert record_crc_property(0) == b"__CRC32#\x010000000000\x02"
    assert record_crc_property(0x7FFFFFFF) == b"__CRC32#\x017463847412\x02"


def test_a_record_with_a_checksum_follows_the_format() -> None:
    digits = str(zlib.crc32(EXAMPLE_BEFORE) & 0x7FFFFFFF).zfill(10)[::-1].encode()
    blob = EXAMPLE.encode(checksum=True)
    assert blob == EXAMPLE_BEFORE + b"__CRC32#\x01" + digits + b"\x02"
    check_record_crc(blob)
    decoded = decode_record(blob)
    assert without_record_crc(decoded.properties) == EXAMPLE.properties
    assert decoded.property_map()["__CRC32#"] == digits.decode()


@pytest.mark.parametrize(
    "properties",
    [
        EXAMPLE.properties,
        EXAMPLE.properties[:-1],  # some versions of RocketMQ omit the last separator
        EXAMPLE.properties + b"__CRC32#\x011234567890\x02",
        b"__CRC32#\x011234567890\x02" + EXAMPLE.properties,
        b"KEYS\x01o-1\x02__CRC32#\x02__CRC32#\x01\x02TAGS\x01eu\x02__CRC32#\x011",
    ],
)
def test_an_old_one_gives_way_to_the_new_one(properties: bytes) -> None:
    record = decode_record(EXAMPLE.encode())
    record.properties = properties
    assert record.encode(checksum=True) == EXAMPLE.encode(checksum=True)


def test_a_name_that_only_begins_so_stays() -> None:
    assert without_record_crc(b"__CRC32#x\x011\x02__CRC32\x012\x02") == b"__CRC32#x\x011\x02__CRC32\x012\x02"


@pytest.mark.parametrize("record", [EXAMPLE, Record(b"t", b""), Record(b"t" * 200, b"x" * 300, b"A\x01b\x02")])
def test_any_flipped_bit_is_found(record: Record) -> None:
    blob = record.encode(checksum=True)
    check_record_crc(b"\xff" * 7 + blob + b"\xff" * 30, 7)
    for bit in range(8 * len(blob)):
        flipped = bytearray(blob)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptRecord):
            check_record_crc(flipped)


def test_a_record_without_one_does_not_check() -> None:
    for properties in (b"", b"__CRC32#\x010123456789\x02A\x01b\x02", EXAMPLE.properties):
        with pytest.raises(CorruptRecord, match="has no __CRC32#"):
            check_record_crc(Record(b"t", b"body", properties).encode())


def test_properties_that_leave_no_room_for_it_stay_without() -> None:
    fits = b"A\x01" + b"x" * (PROPERTIES_BYTES_MAX - 20 - 3) + b"\x02"
    check_record_crc(Record(b"t", b"body", fits).encode(checksum=True))
    assert decode_record(Record(b"t", b"body", fits).encode(checksum=True)).properties[:-20] == fits
    full = b"A\x01" + b"x" * (PROPERTIES_BYTES_MAX - 20 - 2) + b"\x02"
    blob = Record(b"t", b"body", full).encode(checksum=True)
    assert blob == Record(b"t", b"body", full).encode()
    check_record_crc(blob)
