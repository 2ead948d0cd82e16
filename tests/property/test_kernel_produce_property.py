"""The produce kernel against its plain twin: the frames that it accepts, the records that it writes, and no other
writes."""

from __future__ import annotations

import dataclasses
import io
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.broker.kernels import produce as plan
from flintmq.protocol.storage.layout import PRODUCED_PROPERTIES_BYTES_MAX
from flintmq.protocol.storage.record import (
    COMMON_ONLY_PROPERTIES,
    FORBIDDEN_PROPERTIES,
    Record,
    check_record_crc,
    decode_record,
)
from tests.twins import frames
from tests.twins.arrays import SENTINELS, examples, fenced
from tests.twins.produce import (
    BLANK_BYTES,
    COLUMNS,
    FILE_BASE,
    ROWS,
    UNTOUCHED,
    Batch,
    Message,
    Refused,
    judge,
    lay_out,
    make_records,
    produce,
    property_problem,
    read_messages,
    size_of,
)
from tests.twins.wire import NOT_A_BIN, NOT_A_MAP, NOT_A_STR, NOT_AN_ARRAY, NOT_AN_INT, Packer, int_forms

sentinels = st.sampled_from(SENTINELS)
layouts = st.sampled_from([ROWS, COLUMNS])
many_seeds = st.integers(0, 2**32).map(lambda first: list(range(first, first + 20)))


def check(batch: Batch, before: bytes = b"", position: int = 0, sentinel: int = 0xA5) -> bool:
    """Compare one call with the twin, with a log large enough for all; return whether the frame was accepted."""
    bound = len(batch.body) + batch.count * (1024 + len(batch.common))
    call = produce(batch, file_bytes=position + bound, position=position, before=before, sentinel=sentinel)
    assert call.intact
    assert call.frame.bytes() == before + batch.body
    records = judge(batch)
    if isinstance(records, Refused):
        assert (call.status, call.message) == (records.status, records.message)
        assert call.nothing_written
        return False
    places = lay_out(records, position, position + bound, FILE_BASE, checksum=batch.checksum)
    assert (call.status, call.message) == (plan.OK, batch.count)
    written = b"".join(record.encode(checksum=batch.checksum) for record in records)
    assert call.position == len(written)
    log = call.log.bytes()
    assert log[: call.position] == written
    assert set(log[call.position :]) <= {UNTOUCHED}
    assert call.offsets(batch.count) == [FILE_BASE + place for _, place in places]
    return True


@given(frames.batches(), st.binary(max_size=20), st.integers(0, 50), sentinels)
@examples(100)
def test_a_sound_frame_becomes_the_twins_records(batch: Batch, before: bytes, position: int, sentinel: int) -> None:
    assert check(batch, before, position, sentinel)


@given(frames.batches(frames.any_pairs), sentinels)
@examples(200)
def test_forbidden_properties_refuse_the_frame(batch: Batch, sentinel: int) -> None:
    check(batch, sentinel=sentinel)


@given(frames.batches(), many_seeds, sentinels)
@examples(60)
def test_a_tampered_frame_is_accepted_only_if_it_is_still_valid(batch: Batch, seeds: list[int], sentinel: int) -> None:
    for seed in seeds:
        check(frames.tampered(batch, seed), sentinel=sentinel)


@given(st.lists(frames.messages(frames.clean_pairs), min_size=1, max_size=3), layouts, many_seeds, sentinels)
@examples(60)
def test_values_of_wrong_types_and_wrong_counts_refuse_the_frame(
    rows: list[Message], layout: int, seeds: list[int], sentinel: int
) -> None:
    for seed in seeds:
        check(frames.ill_typed(rows, layout, seed), sentinel=sentinel)


@given(frames.random_frames, sentinels)
@examples(150)
def test_random_bytes_are_refused_and_write_nothing(batch: Batch, sentinel: int) -> None:
    check(batch, sentinel=sentinel)


class Pairs(list[tuple[Any, Any]]):
    """A msgpack map in a form that differs from an array and keeps duplicates."""


def _values(blob: bytes) -> list[Any]:
    unpacker = msgpack.Unpacker(
        io.BytesIO(blob), object_pairs_hook=Pairs, strict_map_key=False, unicode_errors="surrogateescape", raw=False
    )
    return list(unpacker)


def _check_against_msgpack(batch: Batch) -> None:
    call = produce(batch, file_bytes=len(batch.body) + batch.count * 2048)
    if call.status != plan.OK:
        return
    values = _values(batch.body)
    if batch.layout == ROWS:
        rows = [[*row, 0, 0][:4] for row in values]
    else:
        rows = [
            [body, Pairs([("KEYS", key)] if key else []), batch.sys_flag, 0] for body, key in zip(*values, strict=True)
        ]
    position = 0
    for body, pairs, sys_flag, flag in rows:
        record = decode_record(call.log.bytes(), position)
        assert type(body) is bytes
        assert record.body == body
        assert record.flag == flag
        assert record.sys_flag & 0x703 == sys_flag & 0x703
        if batch.checksum:
            check_record_crc(call.log.bytes(), position)
        own = "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()
        assert record.properties[len(batch.common) :].startswith(own)
        position += len(record.encode())
    assert position == call.position


@given(frames.batches(), frames.seeds)
@examples(60)
def test_accepted_messages_equal_those_that_msgpack_reads(batch: Batch, seed: int) -> None:
    _check_against_msgpack(batch)
    _check_against_msgpack(frames.tampered(batch, seed))


@given(frames.batches())
@examples(25)
def test_a_frame_cut_at_any_byte_is_refused(batch: Batch) -> None:
    step = max(len(batch.body) // 100, 1)
    for end in range(0, len(batch.body), step):
        assert not check(dataclasses.replace(batch, body=batch.body[:end]), sentinel=batch.body[end])


@st.composite
def rolling(draw: st.DrawFn) -> tuple[Batch, int, int]:
    """Draw a frame, a file too small for it but large enough for each of its records, and a position in it."""
    batch = draw(frames.batches(max_count=6))
    sizes = [len(record.encode(checksum=batch.checksum)) for record in make_records(batch)]
    file_bytes = max(sizes) + BLANK_BYTES + draw(st.integers(0, max(sizes)))
    return batch, file_bytes, draw(st.integers(0, file_bytes))


@given(rolling(), sentinels)
@examples(60)
def test_a_frame_continues_in_the_next_file_when_one_is_full(case: tuple[Batch, int, int], sentinel: int) -> None:
    batch, file_bytes, position = case
    records = make_records(batch)
    places = lay_out(records, position, file_bytes, FILE_BASE, checksum=batch.checksum)
    call = produce(batch, file_bytes=file_bytes, position=position, sentinel=sentinel)
    assert call.status == plan.OK
    logs = [call.log]
    ends = [call.position]
    while call.message < batch.count:
        before = call.message
        logs.append(call.resume(file_bytes))
        ends.append(call.position)
        assert call.message > before
    assert call.intact
    expected = [bytearray([UNTOUCHED]) * file_bytes for _ in logs]
    for record, (file, at) in zip(records, places, strict=True):
        blob = record.encode(checksum=batch.checksum)
        expected[file][at : at + len(blob)] = blob
    del expected[0][:position]
    assert [log.bytes() for log in logs] == [bytes(content) for content in expected]
    assert all(end + BLANK_BYTES <= file_bytes for end in ends[1:])
    assert call.offsets(batch.count) == [record.physical_offset for record in records]


@given(frames.batches(), st.data())
@examples(60)
def test_a_record_is_refused_from_the_first_byte_over_the_limit(batch: Batch, data: st.DataObject) -> None:
    sizes = [len(record.encode(checksum=batch.checksum)) for record in make_records(batch)]
    limit = data.draw(st.integers(min(sizes) - 2, max(sizes) + 1))
    tight = dataclasses.replace(batch, record_max=limit)
    assert check(tight) == (max(sizes) <= limit)
    if max(sizes) > limit:
        call = produce(tight)
        assert call.position == sizes[call.message]


@given(frames.batches(), st.integers(-2, 2))
@examples(40)
def test_a_frame_is_refused_from_the_first_byte_over_the_limit_of_all_records(batch: Batch, spare: int) -> None:
    total = sum(len(record.encode(checksum=batch.checksum)) for record in make_records(batch))
    tight = dataclasses.replace(batch, records_max=total + spare)
    assert check(tight) == (spare >= 0)
    if spare < 0:
        assert produce(tight).position == total


@given(layouts, st.integers(-3, 3), st.booleans(), st.booleans())
@examples(40)
def test_properties_are_refused_from_the_first_byte_over_their_limit(
    layout: int, over: int, unique: bool, in_common: bool
) -> None:
    batch = Batch(b"", 2, layout, unique_prefix=frames.PREFIX if unique else b"")
    pair = len(b"KEYS") + 2
    longest = PRODUCED_PROPERTIES_BYTES_MAX + over - pair - plan.UNIQUE_PROPERTY_BYTES * unique
    if in_common:
        batch.common = b"A\x01" + b"c" * 1000 + b"\x02"
        longest -= len(batch.common)
    value = "é" * (longest // 2) + "x" * (longest % 2)
    if layout == ROWS:
        batch.body = msgpack.packb([b"", {}]) + msgpack.packb([b"", {"KEYS": value}])
    else:
        batch.body = msgpack.packb([b"", b""]) + msgpack.packb([None, value])
    assert check(batch) == (over <= 0)
    if over > 0:
        call = produce(batch)
        assert call.message == 1
        assert call.position == PRODUCED_PROPERTIES_BYTES_MAX + over
    else:
        longest_record = make_records(batch)[1]
        assert len(longest_record.properties) == PRODUCED_PROPERTIES_BYTES_MAX + over
        assert size_of(batch, b"", longest_record.properties) == len(longest_record.encode(checksum=batch.checksum))


@given(frames.any_pairs, st.binary(max_size=9), sentinels)
@examples(200)
def test_a_common_property_follows_the_rules_of_a_messages_own(
    pair: tuple[bytes, bytes], before: bytes, sentinel: int
) -> None:
    text = b"A\x01a\x02" + b"\x01".join(pair) + b"\x02"
    array = fenced(before + text, sentinel=sentinel)
    status, name_at, name_end = plan.common_status(array.array, len(before), len(before) + len(text))
    expected = plan.OK
    for one in text[:-1].split(b"\x02"):
        name, _, value = one.partition(b"\x01")
        expected = property_problem(name, value)
        if expected != plan.OK:
            assert array.bytes()[name_at:name_end] == name
            break
    assert status == expected
    assert array.intact


@given(frames.batches())
@examples(60)
def test_only_flag_bits_allowed_to_producers_are_kept(batch: Batch) -> None:
    call = produce(batch, file_bytes=len(batch.body) + batch.count * 2048)
    position = 0
    for message in read_messages(batch):
        record: Record = decode_record(call.log.bytes(), position)
        hosts = 0x10 * (len(batch.born_host) == 20) | 0x20 * (len(batch.store_host) == 20)
        assert record.sys_flag == message.sys_flag & 0x703 | hosts
        assert (record.born_host, record.store_host) == (batch.born_host, batch.store_host)
        position += len(record.encode())


# ---- frames that a generator seldom makes ----

SOUND = b"\x92\xc4\x05hello\x81\xa4TAGS\xa2eu"
TOO_LONG = (2**31, 2**32 - 1, 2**31 - 1, 100)
LENGTHS = (b"\x92\xc6", b"\x92\xc4\x00\x81\xdb", b"\x92\xc4\x00\x81\xa1n\xdb", b"\x92\xc4\x00\xdf")
INTEGERS = (0, 1, 127, 128, 255, 256, 65_535, 65_536, -1, -32, -33, -128, -129, -32_769)
NO_ARRAYS = [*NOT_AN_ARRAY, b"\x90", b"\x91\xc4\x00", b"\xdd\xff\xff\xff\xff"]
ROW_FRAMES = [
    *(b"\x92" + wrong for wrong in [*NOT_A_BIN, b""]),
    *(b"\x92\xc4\x00" + wrong for wrong in NOT_A_MAP),
    *(b"\x92\xc4\x00" + before + wrong for before in (b"\x81", b"\x81\xa1n") for wrong in NOT_A_STR),
    *(
        before + value
        for before in (b"\x93\xc4\x00\x80", b"\x94\xc4\x00\x80\x00")
        for value in [
            *NOT_AN_INT,
            *(form for value in (*INTEGERS, 2**31 - 1, -(2**31)) for form in int_forms(value)),
            *(form for value in (2**31, -(2**31) - 1, 2**63) for form in int_forms(value)),
            b"",
            b"\xce\x00",
        ]
    ),
    *[*NO_ARRAYS, b"\x95\xc4\x00\x80\x00\x00\x00"],
    *(SOUND + behind for behind in (b"\x00", b"\xc0", SOUND)),
    *(before + length.to_bytes(4, "big") + b"x" for before in LENGTHS for length in TOO_LONG),
]
COLUMN_FRAMES = [
    *(b"\x92\xc4\x00" + wrong for wrong in NOT_A_BIN),
    *(before + wrong for before in (b"", b"\x92\xc4\x00\xc4\x00") for wrong in NO_ARRAYS),
    *(b"\x92\xc4\x00\xc4\x00\x92\xa1k" + wrong for wrong in NOT_A_STR),
    *(
        b"\x92\xc4\x00\xc4\x00\x92\xa1k" + Packer(0).str(key)
        for key in (b"", b"a\x01", b"\x02", b"a\xff", b"seven77\xed\xa0\x80")
    ),
    *(b"\x92\xc4\x05hello\xc4\x00\x92\xa3o-1\xc0" + behind for behind in (b"", b"\x00", b"\xc0", SOUND)),
]
NOT_UTF8 = (b"\xc3", b"\xc0\xaf", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80")
NAMES = [*FORBIDDEN_PROPERTIES, *COMMON_ONLY_PROPERTIES, "INNER_MULTI_", "INNER_MULTI", "INNER_NUMB", "INNER_NU"]
DELAYS = "1 +1 18 19 000000001 999999999 - + 1s 1.0 --1 0x1 0 -1 -0 999999999999999999999999999999".split()
PAIRS = [
    *((b"", b"v"), (b"n", b""), (b"n\x01", b"v"), (b"n", b"v\x02"), (b"twelve bytes\x01", b"v"), (b"\xff", b"v")),
    *((b"n", value) for value in (b"\x01234567", b"0123456\x02", b"\xff\x01", b"\x01\xff", b"\x03\x00\x7f", *NOT_UTF8)),
    *((name.encode(), b"1") for name in (*NAMES, "real_topic", "__CRC32", "TRAN_MSGS", "DELAYS", "DELA")),
    *((b"DELAY", value.encode()) for value in [*DELAYS, " 1"]),
    (b"n", "\u0080\u07ff\u0800\ud7ff\ue000\uffff\U00010000\U0010ffff".encode()),
]


def test_frames_with_one_wrong_value_are_judged_like_the_twin() -> None:
    accepted = [check(Batch(SOUND + row, 2)) for row in ROW_FRAMES]
    accepted += [check(Batch(columns, 2, COLUMNS)) for columns in COLUMN_FRAMES]
    assert 20 < sum(accepted) < len(accepted) - 100
    for place in range(5):
        rows = [SOUND] * 5
        rows[place] = rows[4] = b"\x92\xa0\x80"
        assert not check(dataclasses.replace(Batch(b"".join(rows), 5), record_max=100))


def test_properties_with_one_wrong_byte_are_judged_like_the_twin() -> None:
    for name, value in PAIRS:
        message = Packer(0).array([b"\xc4\x01x", Packer(0).map([(b"A", b"b"), (name, value)])])
        check(Batch(SOUND + message, 2))
    for first in (0, 2**48 - 1):
        own = b"\x92\xc4\x00\x81\xa8UNIQ_KEY\xa1u"
        assert check(Batch(SOUND + own + SOUND, 3, unique_prefix=frames.PREFIX, unique_first=first))


@pytest.mark.parametrize("spare", [0, 1, 8, 100])
def test_a_record_leaves_room_for_a_blank_after_it(spare: int) -> None:
    batch = Batch(SOUND, 1)
    size = len(make_records(batch)[0].encode())
    call = produce(batch, file_bytes=50 + size + spare, position=50)
    assert (call.status, call.message) == (plan.OK, int(spare >= BLANK_BYTES))
