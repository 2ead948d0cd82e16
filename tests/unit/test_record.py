"""The CommitLog record: its bytes, its properties, and invalid records."""

from __future__ import annotations

import struct
import zlib

import pytest

from flintmq.protocol.storage.javahash import index_key_hash, java_hash, tags_code
from flintmq.protocol.storage.layout import MAGIC_BLANK, MAGIC_V2, RECORD_BYTES_MIN, SysFlag
from flintmq.protocol.storage.record import (
    FORBIDDEN_PROPERTIES,
    FORBIDDEN_PROPERTY_PREFIX,
    CorruptRecord,
    Record,
    body_crc,
    decode_host,
    decode_properties,
    decode_record,
    encode_host,
    encode_properties,
    record_size,
    split_keys,
)

V4 = encode_host("127.0.0.1", 10911)
V6 = encode_host("2001:db8::7", 10911)

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


def test_an_encoded_record_is_decoded_unchanged() -> None:
    decoded = decode_record(EXAMPLE_BYTES)
    assert decoded.body_crc == zlib.crc32(b"hello") & 0x7FFFFFFF
    decoded.body_crc = None
    assert decoded == EXAMPLE
    assert decoded.property_map() == {"KEYS": "o-1", "TAGS": "eu"}


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_record_is_decoded_at_any_place_of_a_buffer(kind: type) -> None:
    decoded = decode_record(kind(b"\xff" * 33 + EXAMPLE_BYTES + b"\xff" * 10), 33)
    assert decoded.encode() == EXAMPLE_BYTES


@pytest.mark.parametrize("born_host", [V4, V6])
@pytest.mark.parametrize("store_host", [V4, V6])
@pytest.mark.parametrize("topic_bytes", [1, 127, 128, 300])
def test_hosts_and_long_topics_shift_the_following_fields(
    born_host: bytes, store_host: bytes, topic_bytes: int
) -> None:
    record = Record(b"t" * topic_bytes, b"body", b"A\x01b\x02", born_host=born_host, store_host=store_host)
    blob = record.encode()
    v6_hosts = (born_host is V6) + (store_host is V6)
    assert len(blob) == record_size(4, topic_bytes, 4, v6_hosts) == struct.unpack_from(">i", blob)[0]
    assert (struct.unpack_from(">i", blob, 4)[0] == MAGIC_V2) == (topic_bytes > 127)
    decoded = decode_record(blob)
    assert (decoded.topic, decoded.body, decoded.properties) == (record.topic, b"body", b"A\x01b\x02")
    assert (decoded.born_host, decoded.store_host) == (born_host, store_host)
    assert decoded.sys_flag == SysFlag.BORN_HOST_V6 * (born_host is V6) | SysFlag.STORE_HOST_V6 * (store_host is V6)
    assert decoded.encode() == blob


def test_address_family_bits_follow_the_hosts_not_the_callers_flag() -> None:
    record = Record(b"t", b"", sys_flag=SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6 | SysFlag.COMPRESSED)
    assert decode_record(record.encode()).sys_flag == SysFlag.COMPRESSED


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


def test_properties_are_pairs_with_separators() -> None:
    assert encode_properties({"KEYS": "a b", "TAGS": "ü"}) == b"KEYS\x01a b\x02TAGS\x01\xc3\xbc\x02"
    assert encode_properties([("A", "1"), ("A", "2")]) == b"A\x011\x02A\x012\x02"
    assert encode_properties({}) == b""


@pytest.mark.parametrize(
    ("blob", "properties"),
    [
        (b"", {}),
        (b"A\x01b\x02C\x01d\x02", {"A": "b", "C": "d"}),
        (b"A\x01b\x02C\x01d", {"A": "b", "C": "d"}),  # RocketMQ 4.9.2 to 4.9.8 omit the last separator
        (b"A\x01b\x01c\x02", {"A": "b\x01c"}),  # the value runs from the first \x01
        (b"\x01b\x02A\x01\x02B\x02\x02C\x01d\x02", {"C": "d"}),  # no name, no value, no separator, nothing
        (b"A\x011\x02A\x012\x02", {"A": "2"}),
        (b"A\x011\x02A\x01\x02", {"A": "1"}),
        (b"\x02\x02\x02", {}),
        (b"\x01\x01\x02", {}),
        (b"A\x01\x01\x02", {"A": "\x01"}),
        (b"A\x01\xff\x02", {"A": "\ufffd"}),
        (b"\xd0\x90\x01\xd0\xb1", {"А": "б"}),
    ],
)
def test_properties_are_read_as_rocketmq_reads_them(blob: bytes, properties: dict[str, str]) -> None:
    assert decode_properties(blob) == properties
    assert decode_properties(memoryview(blob)) == properties


def test_keys_are_separated_by_one_space_and_empty_keys_are_ignored() -> None:
    assert split_keys("a b") == ("a", "b")
    assert split_keys(" a  b ") == ("a", "b")
    assert split_keys("") == split_keys(None) == split_keys(" ") == ()
    assert split_keys("a\tb") == ("a\tb",)


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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Computed by Java's String.hashCode.
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("TagA", 2598919),
        ("polygenelubricants", -(2**31)),
        ("Aa", 2112),
        ("BB", 2112),
        ("é", 233),
        ("中文", 646394),
        ("😀", 1772899),
    ],
)
def test_hashes_are_javas(text: str, expected: int) -> None:
    assert java_hash(text) == expected
    assert tags_code(text) == expected


def test_no_tags_have_code_zero() -> None:
    assert tags_code(None) == tags_code("") == 0


def test_the_hash_of_an_index_key_is_never_negative() -> None:
    assert java_hash("orders#key-0") == -686946012
    assert index_key_hash("orders", "key-0") == 686946012
    # Java's abs of the smallest integer is negative; RocketMQ uses 0 then.
    assert java_hash("t#2rdmwpq") == -(2**31)
    assert index_key_hash("t", "2rdmwpq") == 0
