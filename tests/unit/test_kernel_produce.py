"""The produce kernel, rule by rule: the frames it refuses and why, and that a refused frame leaves no trace."""

from __future__ import annotations

import dataclasses

import msgpack
import pytest

from flintmq.broker.kernels import produce as plan
from flintmq.broker.store import common_properties
from flintmq.protocol.errors import MessageIllegal
from flintmq.protocol.storage.arrays.jit import INTERPRETED
from flintmq.protocol.storage.record import COMMON_ONLY_PROPERTIES, FORBIDDEN_PROPERTIES, decode_record
from tests.twins.arrays import SENTINELS
from tests.twins.frames import PREFIX, pack_columns, pack_row
from tests.twins.produce import COLUMNS, Batch, Message, Refused, judge, make_records
from tests.twins.produce_call import FILE_BASE, UNTOUCHED, Call, produce
from tests.twins.wire import NOT_A_BIN, NOT_A_MAP, NOT_A_STR, NOT_AN_ARRAY, NOT_AN_INT, Packer, int_forms

SOUND = b"\x92\xc4\x05hello\x81\xa4TAGS\xa2eu"
TWO_ROWS = SOUND + b"\x94\xc4\x00\x80\xd1\x01\x00\xff"
TWO_COLUMNS = b"\x92\xc4\x05hello\xc4\x00\x92\xa3o-1\xc0"
RICH_ROWS = pack_row(Packer(7), Message(b"body", [(b"KEYS", b"a b"), (b"N", "é😀".encode())], 0x301, -1)) + pack_row(
    Packer(8), Message(b"", [(b"UNIQ_KEY", b"own"), (b"UNIQ_KEY", b"twice")], 2, 2**31 - 1)
)
RICH_COLUMNS = pack_columns(Packer(7), [b"body", b"", b"x" * 20], [b"k1", b"", "é 😀".encode()])


def rows(*encoded: bytes) -> Batch:
    """Return a batch of rows that are already encoded."""
    return Batch(b"".join(encoded), len(encoded))


def refused(batch: Batch, sentinel: int = 0xA5) -> Call:
    """Make a call that must be refused without writing anything; return it."""
    call = produce(batch, position=17, sentinel=sentinel)
    assert call.status != plan.OK
    assert call.nothing_written
    assert call.intact
    return call


def with_property(name: bytes, value: bytes) -> Batch:
    """Return two messages, the second of which has this property."""
    return rows(SOUND, Packer(0).array([b"\xc4\x01x", Packer(0).map([(b"A", b"b"), (name, value)])]))


def test_a_message_becomes_the_specified_record() -> None:
    batch = dataclasses.replace(rows(SOUND), common=b"C\x01c\x02", unique_prefix=PREFIX, unique_first=0x4C4B400000)
    call = produce(batch)
    assert (call.status, call.message) == (plan.OK, 1)
    blob = call.log.bytes()[: call.position]
    # Written out by hand from the description of the format.
    assert (
        blob
        == bytes.fromhex(
            "0000009c"
            "daa320a7"
            "3610a686"
            "00000003"
            "00000000"  # size 88 + 5 + 7 + 2 + 54, magic, crc
            "00000000000003e8"
            "0000000100000000"
            "00000000"  # queue_offset, physical_offset, sys_flag
            "0000018bcfe56800"
            "7f00000100002a9f"
            "0000018bcfe5687b"
            "7f00000100002a9f"  # born, store: time and host
            "00000000"
            "0000000000000000"  # reconsume_times, prepared_transaction_offset
            "00000005"
            "68656c6c6f"
            "06"
            "6f7264657273"
            "0036"
        )
        + b"C\x01c\x02TAGS\x01eu\x02UNIQ_KEY\x017F00000104D2A1B2C3D4004C4B400000\x02"
    )
    assert call.offsets(1) == [FILE_BASE]


def test_the_unique_counter_wraps_at_48_bits() -> None:
    batch = dataclasses.replace(rows(SOUND, SOUND), unique_prefix=PREFIX, unique_first=2**48 - 1)
    log = produce(batch).log.bytes()
    assert PREFIX + b"FFFFFFFFFFFF\x02" in log
    assert PREFIX + b"000000000000\x02" in log


def test_a_message_that_brings_a_unique_key_gets_no_other() -> None:
    batch = dataclasses.replace(rows(b"\x92\xc4\x00\x81\xa8UNIQ_KEY\xa1u", SOUND), unique_prefix=PREFIX, unique_first=5)
    log = produce(batch).log.bytes()
    first = decode_record(log)
    assert first.properties == b"UNIQ_KEY\x01u\x02"
    second = decode_record(log, len(first.encode()))
    assert second.property_map()["UNIQ_KEY"] == PREFIX.decode() + "000000000006"


@pytest.mark.parametrize("frame", [Batch(RICH_ROWS, 2), Batch(RICH_COLUMNS, 3, COLUMNS)], ids=["rows", "columns"])
def test_a_frame_cut_at_any_byte_is_refused_with_nothing_written(frame: Batch) -> None:
    assert produce(frame).status == plan.OK
    for end in range(len(frame.body)):
        for sentinel in SENTINELS:
            refused(dataclasses.replace(frame, body=frame.body[:end]), sentinel)


@pytest.mark.parametrize("frame", [Batch(TWO_ROWS, 2), Batch(TWO_COLUMNS, 2, COLUMNS)], ids=["rows", "columns"])
def test_the_twin_agrees_on_a_frame_with_any_changed_byte(frame: Batch) -> None:
    for at in range(len(frame.body)):
        for byte in range(at % 16, 256, 16) if INTERPRETED else range(256):
            changed = bytearray(frame.body)
            changed[at] = byte
            batch = dataclasses.replace(frame, body=bytes(changed))
            call = produce(batch, file_bytes=512)
            assert call.intact
            records = judge(batch)
            if isinstance(records, Refused):
                assert (call.status, call.message) == (records.status, records.message), (at, byte)
                assert call.nothing_written
                continue
            assert (call.status, call.message) == (plan.OK, 2), (at, byte)
            first = records[0].encode()
            assert call.log.bytes()[4:28] == first[4:28]
            assert call.log.bytes()[len(first)] == 0


@pytest.mark.parametrize(
    ("value", "status"), [*((wrong, plan.BODY_NOT_BIN) for wrong in NOT_A_BIN), (b"", plan.TRUNCATED)]
)
def test_a_body_that_is_no_bin_is_refused(value: bytes, status: int) -> None:
    call = refused(rows(SOUND, b"\x92" + value))
    assert (call.status, call.message, call.position) == (status, 1, len(SOUND) + 1)
    column = Batch(b"\x92\xc4\x00" + value, 2, COLUMNS)
    call = refused(column)
    assert (call.status, call.message, call.position) == (status, 1, 3)


@pytest.mark.parametrize("wrong", NOT_A_MAP)
def test_properties_that_are_no_map_are_refused(wrong: bytes) -> None:
    call = refused(rows(SOUND, b"\x92\xc4\x00" + wrong))
    assert (call.status, call.message) == (plan.PROPERTIES_NOT_MAP, 1)


@pytest.mark.parametrize("wrong", NOT_A_STR)
@pytest.mark.parametrize("before", [b"\x81", b"\x81\xa1n"], ids=["name", "value"])
def test_a_property_that_is_no_str_is_refused(wrong: bytes, before: bytes) -> None:
    call = refused(rows(SOUND, b"\x92\xc4\x00" + before + wrong))
    assert (call.status, call.message) == (plan.PROPERTY_NOT_STR, 1)


@pytest.mark.parametrize(
    "wrong", [*NOT_AN_INT, *int_forms(2**31), *int_forms(-(2**31) - 1), *int_forms(2**63), b"", b"\xce\x00"]
)
@pytest.mark.parametrize("before", [b"\x93\xc4\x00\x80", b"\x94\xc4\x00\x80\x00"], ids=["sys_flag", "flag"])
def test_a_flag_that_is_no_integer_of_32_bits_is_refused(wrong: bytes, before: bytes) -> None:
    call = refused(rows(SOUND, before + wrong))
    assert (call.status, call.message) == (plan.FLAG_NOT_INTEGER, 1)


@pytest.mark.parametrize(
    "value", [0, 1, 127, 128, 255, 256, 65_535, 65_536, 2**31 - 1, -1, -32, -33, -128, -129, -32_769, -(2**31)]
)
def test_an_integer_is_read_in_every_form(value: int) -> None:
    for form in int_forms(value):
        call = produce(rows(b"\x94\xc4\x00\x80" + form + form))
        assert call.status == plan.OK
        stored = decode_record(call.log.bytes())
        assert (stored.flag, stored.sys_flag) == (value, value & 0x703)


@pytest.mark.parametrize(
    "wrong", [*NOT_AN_ARRAY, b"\x90", b"\x91\xc4\x00", b"\x95\xc4\x00\x80\x00\x00\x00", b"\xdd\xff\xff\xff\xff"]
)
def test_a_row_that_is_no_array_of_two_to_four_items_is_refused(wrong: bytes) -> None:
    call = refused(rows(SOUND, wrong))
    assert (call.status, call.message) == (plan.NOT_A_MESSAGE, 1)


@pytest.mark.parametrize(
    "wrong", [*NOT_AN_ARRAY, b"\x90", b"\x91\xc4\x00", b"\x93\xc4\x00\xc4\x00\xc4\x00", b"\xdd\xff\xff\xff\xff"]
)
@pytest.mark.parametrize("before", [b"", b"\x92\xc4\x00\xc4\x00"], ids=["bodies", "keys"])
def test_columns_that_do_not_have_count_items_are_refused(wrong: bytes, before: bytes) -> None:
    assert refused(Batch(before + wrong, 2, COLUMNS)).status == plan.WRONG_COUNT


@pytest.mark.parametrize("wrong", [value for value in NOT_A_STR if value != b"\xc0"])
def test_a_key_that_is_neither_str_nor_nil_is_refused(wrong: bytes) -> None:
    call = refused(Batch(b"\x92\xc4\x00\xc4\x00\x92\xa1k" + wrong, 2, COLUMNS))
    assert (call.status, call.message) == (plan.KEYS_NOT_STR, 1)


@pytest.mark.parametrize(
    ("key", "status"),
    [
        (b"", plan.EMPTY_PROPERTY),
        (b"a\x01", plan.HAS_SEPARATOR),
        (b"\x02", plan.HAS_SEPARATOR),
        (b"a\xff", plan.NOT_UTF8),
        (b"seven77\xed\xa0\x80", plan.NOT_UTF8),
    ],
)
def test_a_key_that_cannot_be_a_property_is_refused(key: bytes, status: int) -> None:
    call = refused(Batch(b"\x91\xc4\x00\x91" + Packer(0).str(key), 1, COLUMNS))
    assert (call.status, call.message) == (status, 0)


@pytest.mark.parametrize("behind", [b"\x00", b"\xc0", SOUND])
@pytest.mark.parametrize("frame", [Batch(TWO_ROWS, 2), Batch(TWO_COLUMNS, 2, COLUMNS)], ids=["rows", "columns"])
def test_bytes_after_the_last_message_are_refused(frame: Batch, behind: bytes) -> None:
    call = refused(dataclasses.replace(frame, body=frame.body + behind))
    assert (call.status, call.position) == (plan.BYTES_LEFT, len(frame.body))


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        (b"", b"v", plan.EMPTY_PROPERTY),
        (b"n", b"", plan.EMPTY_PROPERTY),
        (b"n\x01", b"v", plan.HAS_SEPARATOR),
        (b"n", b"v\x02", plan.HAS_SEPARATOR),
        (b"twelve bytes\x01", b"v", plan.HAS_SEPARATOR),
        (b"n", b"\x01234567", plan.HAS_SEPARATOR),
        (b"n", b"0123456\x02", plan.HAS_SEPARATOR),
        (b"n", b"\xc3", plan.NOT_UTF8),
        (b"n", b"\xc0\xaf", plan.NOT_UTF8),
        (b"n", b"\xe0\x80\x80", plan.NOT_UTF8),
        (b"n", b"\xed\xa0\x80", plan.NOT_UTF8),
        (b"n", b"\xf4\x90\x80\x80", plan.NOT_UTF8),
        (b"n", b"\xf8\x88\x80\x80\x80", plan.NOT_UTF8),
        (b"\xff", b"v", plan.NOT_UTF8),
        (b"n", b"\xff\x01", plan.NOT_UTF8),
        (b"n", b"\x01\xff", plan.HAS_SEPARATOR),
        (b"INNER_MULTI_", b"1", plan.FORBIDDEN_PROPERTY),
        (b"INNER_MULTI_QUEUE_OFFSET", b"1", plan.FORBIDDEN_PROPERTY),
        *((name.encode(), b"1", plan.FORBIDDEN_PROPERTY) for name in FORBIDDEN_PROPERTIES),
        *((name.encode(), b"1", plan.COMMON_ONLY) for name in COMMON_ONLY_PROPERTIES),
        *((b"DELAY", value, plan.COMMON_ONLY) for value in (b"1", b"+1", b"18", b"19", b"000000001", b"999999999")),
        *((b"DELAY", value, plan.DELAY_NOT_INTEGER) for value in (b"-", b"+", b"1s", b" 1", b"1.0", b"--1", b"0x1")),
        (b"DELAY", b"9" * 30, plan.DELAY_NOT_INTEGER),
    ],
)
def test_a_property_that_would_harm_a_reader_is_refused(name: bytes, value: bytes, status: int) -> None:
    call = refused(with_property(name, value))
    assert (call.status, call.message) == (status, 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"DELAY", b"0"),
        (b"DELAY", b"-1"),
        (b"DELAY", b"-0"),
        (b"DELAYS", b"x"),
        (b"DELA", b"x"),
        (b"INNER_MULTI", b"1"),
        (b"INNER_NUMB", b"1"),
        (b"INNER_NU", b"1"),
        (b"real_topic", b"1"),
        (b"__CRC32", b"1"),
        (b"TRAN_MSGS", b"1"),
        (b"n", b"\x03\x00\x7f"),
        (b"n", "\u0080\u07ff\u0800\ud7ff\ue000\uffff\U00010000\U0010ffff".encode()),
    ],
)
def test_a_property_that_only_looks_like_a_forbidden_one_is_stored(name: bytes, value: bytes) -> None:
    call = produce(with_property(name, value))
    assert call.status == plan.OK
    assert b"A\x01b\x02" + name + b"\x01" + value + b"\x02" in call.log.bytes()


@pytest.mark.parametrize(
    "value", ["x" * 31_741, "é" * 15_871, "日" * 32_700], ids=["ASCII", "two bytes", "three bytes"]
)
def test_common_properties_longer_than_a_message_may_have_are_refused(value: str) -> None:
    with pytest.raises(MessageIllegal, match="at most 31,743 are allowed"):
        common_properties(f"A\x01{value}\x02")
    common_properties(f"A\x01{'é' * 15_870}\x02")


def test_the_first_message_that_is_wrong_is_named() -> None:
    wrong = b"\x92\xa0\x80"
    for place in range(5):
        encoded = [SOUND] * 5
        encoded[place] = wrong
        encoded[4] = wrong
        assert refused(rows(*encoded)).message == place


def test_a_size_that_is_too_large_is_found_only_after_all_messages_were_read() -> None:
    batch = dataclasses.replace(rows(SOUND, b"\x92\xa0\x80"), record_max=100)
    assert refused(batch).status == plan.BODY_NOT_BIN


@pytest.mark.parametrize("length", [2**31, 2**32 - 1, 2**31 - 1, 100])
@pytest.mark.parametrize(
    "before", [b"\x92\xc6", b"\x92\xc4\x00\x81\xdb", b"\x92\xc4\x00\x81\xa1n\xdb", b"\x92\xc4\x00\xdf"]
)
def test_a_length_beyond_the_frame_is_refused_before_anything_is_read(before: bytes, length: int) -> None:
    call = refused(rows(before + length.to_bytes(4, "big") + b"x"))
    assert call.status in (plan.TRUNCATED, plan.PROPERTY_NOT_STR)


@pytest.mark.parametrize("spare", [0, 1, 8, 100])
def test_a_record_leaves_room_for_a_blank_after_it(spare: int) -> None:
    batch = rows(SOUND)
    size = len(make_records(batch)[0].encode())
    call = produce(batch, file_bytes=50 + size + spare, position=50)
    assert call.status == plan.OK
    if spare >= 8:
        assert (call.message, call.position) == (1, size)
    else:
        assert (call.message, call.position) == (0, 0)
        assert call.nothing_written
        call.resume(size + 8)
        assert (call.message, call.position) == (1, size)
        assert call.offsets(1) == [FILE_BASE + 50 + size + spare]
    assert call.intact


def test_messages_that_no_longer_fit_are_left_to_the_next_file() -> None:
    batch = rows(*[SOUND] * 5)
    size = len(make_records(batch)[0].encode())
    call = produce(batch, file_bytes=2 * size + 8, position=0)
    assert (call.status, call.message, call.position) == (plan.OK, 2, 2 * size)
    assert set(call.log.bytes()[2 * size :]) == {UNTOUCHED}
    second = call.resume(2 * size + 9)
    assert (call.message, call.position) == (4, 2 * size)
    third = call.resume(2 * size + 8)
    assert (call.message, call.position) == (5, size)
    for log, at, queue_offset in [(call.log, size, 1001), (second, 0, 1002), (second, size, 1003), (third, 0, 1004)]:
        assert decode_record(log.bytes(), at).queue_offset == queue_offset
    assert call.intact


def test_a_large_frame_equals_the_one_that_msgpack_packs() -> None:
    count = 300
    packed = msgpack.packb([b"%d" % number for number in range(count)]) + msgpack.packb(
        [f"k-{n}" for n in range(count)]
    )
    call = produce(Batch(packed, count, COLUMNS), file_bytes=50_000)
    assert (call.status, call.message) == (plan.OK, count)
    log = call.log.bytes()
    position = 0
    for number in range(count):
        stored = decode_record(log, position)
        assert (stored.body, stored.queue_offset) == (b"%d" % number, 1000 + number)
        assert stored.property_map() == {"KEYS": f"k-{number}"}
        position += len(stored.encode())
    assert position == call.position
    assert call.intact
