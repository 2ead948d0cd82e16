"""The CommitLog record: its bytes, its properties, and invalid records."""

from __future__ import annotations

import struct
import zlib

import pytest

from flintmq.protocol.storage.javahash import index_key_hash, java_hash, tags_code
from flintmq.protocol.storage.layout import MAGIC_BLANK, MAGIC_V2, PROPERTIES_BYTES_MAX, RECORD_BYTES_MIN, SysFlag
from flintmq.protocol.storage.record import (
    FORBIDDEN_PROPERTIES,
    FORBIDDEN_PROPERTY_PREFIX,
    CorruptRecord,
    Record,
    body_crc,
    check_record_crc,
    decode_host,
    decode_properties,
    decode_record,
    encode_host,
    record_crc_property,
    record_size,
    split_keys,
    without_record_crc,
)

V4 = encode_host("127.0.0.1", 10911)

EXAMPLE = Record(
    topic=b"orders",
    body=b"hello",
    properties=b"KEYS\x01o-1\x02TAGS\x01eu\x02",
    queue_id=3,
    queue_offset=7,
    physical_offset=4096,
    flag=-5,
    sys_flag=SysFlag.MULTI_TAGS,
    born_timestamp=1_700_000_000_000,
    born_host=V4,
    store_timestamp=1_700_000_000_123,
    store_host=V4,
    reconsume_times=2,
    prepared_transaction_offset=99,
)

# Written out by hand from the description of the format, not by the code under test.
EXAMPLE_BYTES = bytes.fromhex(
    "00000077"  # total_size 119 = 88 + 5 + 1 + 6 + 2 + 17
    "daa320a7"  # magic
    "3610a686"  # crc32("hello")
    "00000003"  # queue_id
    "fffffffb"  # flag
    "0000000000000007"  # queue_offset
    "0000000000001000"  # physical_offset
    "00000002"  # sys_flag
    "0000018bcfe56800"  # born_timestamp
    "7f00000100002a9f"  # born_host 127.0.0.1:10911
    "0000018bcfe5687b"  # store_timestamp
    "7f00000100002a9f"  # store_host
    "00000002"  # reconsume_times
    "0000000000000063"  # prepared_transaction_offset
    "0000000568656c6c6f"  # body
    "066f7264657273"  # topic
    "00114b455953016f2d310254414753016575"
    "02"  # properties
)


def test_a_record_follows_the_format() -> None:
    assert EXAMPLE.encode() == EXAMPLE_BYTES


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_record_is_decoded_at_any_place_of_a_buffer(kind: type) -> None:
    decoded = decode_record(kind(b"\xff" * 33 + EXAMPLE_BYTES + b"\xff" * 10), 33)
    assert decoded.encode() == EXAMPLE_BYTES


def test_the_smallest_record_has_neither_body_topic_nor_properties() -> None:
    blob = Record(b"", b"").encode()
    assert len(blob) == RECORD_BYTES_MIN == record_size(0, 0, 0)
    assert decode_record(blob).encode() == blob


def test_an_empty_body_is_not_checked() -> None:
    blob = Record(b"t", b"", body_crc=12345).encode()
    assert decode_record(blob).body_crc == 12345


def test_a_checksum_is_without_its_sign_bit() -> None:
    assert zlib.crc32(b"a") & 0x80000000
    assert body_crc(b"a") == zlib.crc32(b"a") - 0x80000000
    assert body_crc(b"") == 0


def patched(at: int, code: str, value: int) -> bytes:
    blob = bytearray(EXAMPLE_BYTES)
    struct.pack_into(code, blob, at, value)
    return bytes(blob)


BODY_LENGTH_AT = 84
TOPIC_LENGTH_AT = 88 + 5
PROPERTIES_LENGTH_AT = TOPIC_LENGTH_AT + 1 + 6


@pytest.mark.parametrize(
    ("blob", "says"),
    [
        pytest.param(b"", "at least 91", id="nothing"),
        pytest.param(EXAMPLE_BYTES[:90], "at least 91", id="less than the smallest record"),
        pytest.param(EXAMPLE_BYTES[:-1], "claims 119 bytes, but only 118 are left", id="last byte missing"),
        pytest.param(bytes(200), "magic 0x00000000", id="zeros"),
        pytest.param(patched(4, ">i", MAGIC_BLANK), "magic 0xcbd43194", id="blank record"),
        pytest.param(patched(4, ">i", MAGIC_V2), "topic of", id="V2 magic on a V1 record"),
        pytest.param(patched(0, ">i", 90), "claims 90 bytes", id="size below the least"),
        pytest.param(patched(0, ">i", 91), "body of 5 bytes", id="size of a record without its body"),
        pytest.param(patched(0, ">i", -1), "claims -1 bytes", id="negative size"),
        pytest.param(patched(0, ">i", 2**31 - 1), "claims 2147483647 bytes", id="enormous size"),
        pytest.param(patched(0, ">i", 118), "its parts add up to 119", id="size one too small"),
        pytest.param(patched(36, ">i", 0x30), "too few for its own head|body of|parts", id="IPv6 bits on IPv4 hosts"),
        pytest.param(patched(BODY_LENGTH_AT, ">i", -1), "body of -1 bytes", id="negative body length"),
        pytest.param(patched(BODY_LENGTH_AT, ">i", 2**31 - 1), "body of 2147483647", id="enormous body length"),
        pytest.param(patched(TOPIC_LENGTH_AT, ">b", -1), "topic of -1 bytes", id="negative topic length"),
        pytest.param(patched(TOPIC_LENGTH_AT, ">b", 127), "topic of 127 bytes", id="topic beyond the record"),
        pytest.param(patched(PROPERTIES_LENGTH_AT, ">h", -1), "parts add up to", id="negative properties length"),
        pytest.param(patched(PROPERTIES_LENGTH_AT, ">h", 18), "parts add up to 120", id="properties one too long"),
        pytest.param(patched(PROPERTIES_LENGTH_AT, ">h", 16), "parts add up to 118", id="properties one too short"),
        pytest.param(patched(8, ">i", 1), "checksum is 0x3610a686, expected 0x00000001", id="wrong checksum"),
        pytest.param(patched(88, ">b", ord("H")), "checksum", id="changed body"),
    ],
)
def test_damage_raises_corrupt_record_with_field_and_place(blob: bytes, says: str) -> None:
    with pytest.raises(CorruptRecord, match=says) as caught:
        decode_record(b"\xee" * 1000 + blob, 1000)
    assert "1000" in str(caught.value)


def test_without_the_check_a_wrong_checksum_is_returned_as_found() -> None:
    assert decode_record(patched(8, ">i", 1), check_crc=False).body_crc == 1


def test_keys_are_separated_by_one_space_and_empty_keys_are_ignored() -> None:
    assert split_keys("a b") == ("a", "b")
    assert split_keys(" a  b ") == ("a", "b")
    assert split_keys("") == split_keys(None) == split_keys(" ") == ()
    assert split_keys("a\tb") == ("a\tb",)


def test_bytes_that_are_not_utf_8_are_replaced_in_properties() -> None:
    assert decode_properties(b"A\x01\xff\x02") == decode_properties(memoryview(b"A\x01\xff")) == {"A": "\ufffd"}


@pytest.mark.parametrize(
    ("host", "port", "blob"),
    [
        ("127.0.0.1", 0, bytes.fromhex("7f00000100000000")),
        ("10.1.2.3", 65535, bytes.fromhex("0a0102030000ffff")),
        ("::1", 10911, bytes.fromhex("0000000000000000000000000000000100002a9f")),
    ],
)
def test_hosts_are_address_bytes_and_a_port_of_four_bytes(host: str, port: int, blob: bytes) -> None:
    assert encode_host(host, port) == blob
    assert decode_host(blob) == decode_host(memoryview(blob)) == (host, port)


def test_the_zone_of_a_link_local_address_is_not_stored() -> None:
    assert encode_host("fe80::1%eth0", 1) == encode_host("fe80::1", 1)


@pytest.mark.parametrize("length", [0, 4, 7, 9, 16, 21])
def test_a_host_of_another_length_is_an_error(length: int) -> None:
    with pytest.raises(struct.error):
        decode_host(bytes(length))


def test_properties_that_only_a_broker_sets_are_forbidden() -> None:
    assert set(FORBIDDEN_PROPERTIES) == {
        "INNER_NUM",
        "INNER_BASE",
        "DUP_INFO",
        "REAL_TOPIC",
        "REAL_QID",
        "__CRC32#",
        "TIMER_OUT_MS",
        "TIMER_DEL_UNIQKEY",
        "TRANSACTION_CHECK_TIMES",
    }
    assert FORBIDDEN_PROPERTY_PREFIX == "INNER_MULTI_"
    assert not any(name.startswith(FORBIDDEN_PROPERTY_PREFIX) for name in FORBIDDEN_PROPERTIES)


def test_no_tags_have_code_zero() -> None:
    assert tags_code(None) == tags_code("") == 0


def test_the_hash_of_an_index_key_is_never_negative() -> None:
    assert java_hash("orders#key-0") == -686946012
    assert index_key_hash("orders", "key-0") == 686946012
    # Java's abs of the smallest integer is negative; RocketMQ uses 0 then.
    assert java_hash("t#2rdmwpq") == -(2**31)
    assert index_key_hash("t", "2rdmwpq") == 0


# ---- ``__CRC32#``: RocketMQ's bytes, and records that fail the check.

# Written out by hand from the description of the format; the checksum of the bytes before it is zlib's.
CHECKSUMMED_BEFORE = bytes.fromhex(
    "0000008bdaa320a7"  # total_size 139 = 88 + 5 + 1 + 6 + 2 + 17 + 20, magic
    "3610a68600000003fffffffb"  # crc32("hello"), queue_id, flag
    "0000000000000007000000000000100000000002"  # queue_offset, physical_offset, sys_flag
    "0000018bcfe568007f00000100002a9f0000018bcfe5687b7f00000100002a9f"  # birth and store time and host
    "000000020000000000000063"  # reconsume_times, prepared_transaction_offset
    "0000000568656c6c6f066f7264657273"  # body, topic
    "00254b455953016f2d31025441475301657502"  # 37 bytes of properties, of which the last 20 follow
)


def test_it_is_the_last_20_bytes_with_the_least_significant_digit_first() -> None:
    assert record_crc_property(1_234_567) == b"__CRC32#\x017654321000\x02"
    assert record_crc_property(0) == b"__CRC32#\x010000000000\x02"
    assert record_crc_property(0x7FFFFFFF) == b"__CRC32#\x017463847412\x02"


def test_a_record_with_a_checksum_follows_the_format() -> None:
    digits = str(zlib.crc32(CHECKSUMMED_BEFORE) & 0x7FFFFFFF).zfill(10)[::-1].encode()
    blob = EXAMPLE.encode(checksum=True)
    assert blob == CHECKSUMMED_BEFORE + b"__CRC32#\x01" + digits + b"\x02"
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
