"""Records of any content: round trips, truncation, damage. The strategies' widths come from the layout's table."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.protocol.storage.javahash import java_hash
from flintmq.protocol.storage.layout import PROPERTIES_BYTES_MAX, RECORD, SysFlag
from flintmq.protocol.storage.record import (
    CorruptRecord,
    Record,
    body_crc,
    decode_host,
    decode_properties,
    decode_record,
    encode_host,
    encode_properties,
    record_size,
)


def field(name: str) -> st.SearchStrategy[int]:
    """Return a strategy for any value of one field of the record's fixed head."""
    bits = 8 * next(field.width for field in RECORD.fields if field.name == name)
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


HOST_BITS = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
hosts = st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20))
topics = st.one_of(st.binary(max_size=127), st.binary(min_size=128, max_size=400))
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=20)

records = st.builds(
    Record,
    topic=topics,
    body=st.binary(max_size=300),
    properties=st.binary(max_size=200),
    queue_id=field("queue_id"),
    queue_offset=field("queue_offset"),
    physical_offset=field("physical_offset"),
    flag=field("flag"),
    sys_flag=field("sys_flag"),
    born_timestamp=field("born_timestamp"),
    born_host=hosts,
    store_timestamp=field("store_timestamp"),
    store_host=hosts,
    reconsume_times=field("reconsume_times"),
    prepared_transaction_offset=field("prepared_transaction_offset"),
)


@given(records, st.binary(max_size=20), st.binary(max_size=20))
def test_a_record_decodes_unchanged_at_any_place(record: Record, before: bytes, behind: bytes) -> None:
    blob = record.encode()
    decoded = decode_record(before + blob + behind, len(before))
    expected = dataclasses.replace(record, body_crc=body_crc(record.body))
    expected.sys_flag &= ~HOST_BITS
    expected.sys_flag |= SysFlag.BORN_HOST_V6 if len(record.born_host) == 20 else 0
    expected.sys_flag |= SysFlag.STORE_HOST_V6 if len(record.store_host) == 20 else 0
    assert decoded == expected
    assert decoded.encode() == blob
    v6_hosts = (len(record.born_host) == 20) + (len(record.store_host) == 20)
    assert len(blob) == record_size(len(record.body), len(record.topic), len(record.properties), v6_hosts)


@given(records)
def test_a_truncated_record_is_corrupt(record: Record) -> None:
    blob = record.encode()
    for end in range(len(blob)):
        with pytest.raises(CorruptRecord):
            decode_record(blob[:end])


@given(records)
def test_a_truncated_record_filled_with_zeros_is_corrupt_or_lost_only_zeros(record: Record) -> None:
    blob = record.encode()
    kept = record.body.rstrip(b"\0")
    for end in range(len(blob)):
        torn = blob[:end].ljust(len(blob), b"\0")
        try:
            decoded = decode_record(torn)
        except CorruptRecord:
            continue
        # A checksum covers the body, but not the head, the topic and the properties.
        assert decoded.body.rstrip(b"\0") == kept or not decoded.body


@given(records, st.data())
def test_a_flipped_bit_of_the_body_is_found(record: Record, data: st.DataObject) -> None:
    record.body = record.body or b"\0"
    blob = bytearray(record.encode())
    begin = record_size(0, 0, 0, (len(record.born_host) == 20) + (len(record.store_host) == 20)) - 3
    at = data.draw(st.integers(begin, begin + len(record.body) - 1))
    blob[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptRecord, match="checksum"):
        decode_record(blob)


@given(records, st.data())
def test_a_flipped_bit_anywhere_is_found_or_leads_to_another_record(record: Record, data: st.DataObject) -> None:
    blob = bytearray(record.encode())
    original = decode_record(blob)
    blob[data.draw(st.integers(0, len(blob) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        decoded = decode_record(blob)
    except CorruptRecord:
        return
    assert decoded != original


@given(st.binary(max_size=400), st.integers(0, 50))
def test_random_bytes_are_corrupt_or_a_record_and_raise_nothing_else(blob: bytes, at: int) -> None:
    try:
        decoded = decode_record(blob, at)
    except CorruptRecord:
        return
    assert len(decoded.encode()) <= len(blob) - at


@given(records, st.binary(min_size=100, max_size=200))
def test_random_bytes_after_a_sound_beginning_raise_nothing_else(record: Record, noise: bytes) -> None:
    blob = record.encode()
    for kept in (8, 40, 88, len(blob) // 2):
        noisy = blob[:kept] + noise
        try:
            decoded = decode_record(noisy)
        except CorruptRecord:
            continue
        assert set(decoded.property_map()) <= set(decode_properties(decoded.properties))


@given(st.dictionaries(texts, texts, max_size=8))
def test_properties_decode_unchanged(properties: dict[str, str]) -> None:
    blob = encode_properties(properties)
    assert decode_properties(blob) == properties
    assert encode_properties(properties.items()) == blob
    assert decode_properties(blob[:-1]) == properties


@given(st.binary(max_size=300))
def test_any_bytes_are_properties(blob: bytes) -> None:
    for name, value in decode_properties(blob).items():
        assert name
        assert value
        assert "\x01" not in name
        assert "\x02" not in name + value


def _java_properties(text: str) -> dict[str, str]:
    """Read properties by the rule of RocketMQ's ``string2messageProperties``, with indexes: an independent oracle."""
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        end = text.find("\x02", at)
        end = len(text) if end < 0 else end
        split = text.find("\x01", at)
        if at < split < end - 1:
            found[text[at:split]] = text[split + 1 : end]
        at = end + 1
    return found


@given(st.text(st.sampled_from("ab\x01\x02é"), max_size=40))
def test_properties_are_read_like_rocketmq(text: str) -> None:
    assert decode_properties(text.encode()) == _java_properties(text)


@given(st.ip_addresses().map(str), st.integers(-(2**31), 2**31 - 1))
def test_hosts_decode_unchanged(host: str, port: int) -> None:
    assert decode_host(encode_host(host, port)) == (host, port)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_the_java_hash_is_the_polynomial_over_utf_16_units(text: str) -> None:
    units = memoryview(text.encode("utf-16-le")).cast("H").tolist()
    value = sum(unit * 31 ** (len(units) - 1 - at) for at, unit in enumerate(units)) % 2**32
    assert java_hash(text) == (value if value < 2**31 else value - 2**32)


def test_properties_of_the_greatest_length_fit() -> None:
    longest = b"A\x01" + b"x" * (PROPERTIES_BYTES_MAX - 3) + b"\x02"
    assert decode_record(Record(b"t", b"", longest).encode()).properties == longest
