"""The kernels of a pull against their plain twins: choice of units, plan of reads, copies and checks of records."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flintmq.broker.kernels import gather as kernel
from flintmq.protocol.storage.layout import PRE_BLANK_SIZE, UNIT, UNIT_BYTES
from flintmq.protocol.storage.record import Record
from tests.twins import pull as twin
from tests.twins.arrays import SENTINELS, Fenced, examples, fenced, room
from tests.twins.log import write_log
from tests.twins.pull import Chosen

sentinels = st.sampled_from(SENTINELS)
seeds = st.integers(0, 2**32 - 1)
ANY_I64 = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(2**63 - 100, 2**63 - 1))


def rows(values: list[tuple[int, ...]], width: int, sentinel: int) -> Fenced:
    """Return rows of integers in one array."""
    return fenced(np.array(values, np.int64).reshape(len(values) * width), np.int64, sentinel)


def read_rows(array: Fenced, count: int, width: int) -> list[tuple[int, ...]]:
    """Return the first rows."""
    values = array.values()
    return [tuple(values[width * k : width * (k + 1)]) for k in range(count)]


units = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 2000), st.integers(0, 2000), st.integers(0, 2000), ANY_I64),
        st.one_of(
            st.integers(1, 300),
            st.integers(1, 300),
            st.sampled_from([0, -1, PRE_BLANK_SIZE, -(2**31), PRE_BLANK_SIZE - 1, 2**31 - 2]),
        ),
        st.sampled_from([0, 1, 2, -5, 2**40, -(2**63)]),
    ),
    max_size=20,
).map(lambda many: b"".join(UNIT.pack(*unit) for unit in many))


@given(
    units,
    st.lists(st.sampled_from([0, 1, -5, 2**40]), max_size=3),
    st.integers(0, 500),
    st.integers(0, 2500),
    st.integers(1, 25),
    st.one_of(st.integers(0, 3000), st.just(1)),
    st.integers(0, 2**62),
    sentinels,
)
@examples(300)
def test_units_are_chosen_like_the_twin(
    blob: bytes, tags: list[int], low: int, high: int, count_max: int, bytes_max: int, first: int, sentinel: int
) -> None:
    unit_count = len(blob) // UNIT_BYTES
    array = fenced(blob, sentinel=sentinel)
    codes = fenced(tags or [1], np.int64, sentinel)
    chosen = room(min(unit_count, count_max) * kernel.CHOSEN_ROW, np.int64, sentinel)
    seen, taken, taken_bytes = kernel.choose(
        array.array, unit_count, first, codes.array, len(tags), low, high, count_max, bytes_max, chosen.array
    )
    assert array.intact
    assert codes.intact
    assert chosen.intact
    expected_seen, expected = twin.choose(blob, first, tags, range(low, high), count_max, bytes_max)
    assert (seen, taken, taken_bytes) == (expected_seen, len(expected), sum(size for _, size, _ in expected))
    assert read_rows(chosen, taken, kernel.CHOSEN_ROW) == expected


@st.composite
def chosen_records(draw: st.DrawFn) -> list[Chosen]:
    """Draw chosen records, mostly consecutive, some with gaps, some going back."""
    gaps = st.one_of(st.just(0), st.integers(1, 60), st.integers(61, 5000), st.integers(-300, -1))
    at = draw(st.integers(300, 1000))
    records: list[Chosen] = []
    for gap, size in draw(st.lists(st.tuples(gaps, st.integers(1, 200)), min_size=1, max_size=15)):
        at = max(at + gap, 0)
        records.append((at, size, len(records)))
        at += size
    return records


@given(
    chosen_records(),
    st.sampled_from([100, 1000, 4096, 1 << 30]),
    st.integers(0, 100),
    st.integers(1, 8),
    st.integers(1, 3000),
    sentinels,
)
@examples(300)
def test_reads_are_planned_like_the_twin_and_hold_every_record(
    chosen: list[Chosen], file_bytes: int, gap_max: int, sparse_max: int, span_max: int, sentinel: int
) -> None:
    array, reads = (
        rows(list(chosen), kernel.CHOSEN_ROW, sentinel),
        room(len(chosen) * kernel.READ_ROW, np.int64, sentinel),
    )
    count = kernel.plan_reads(array.array, len(chosen), file_bytes, gap_max, sparse_max, span_max, reads.array)
    assert array.intact
    assert reads.intact
    planned = read_rows(reads, count, kernel.READ_ROW)
    expected = twin.plan_reads(chosen, file_bytes, gap_max, sparse_max, span_max)
    first = 0
    for (at, length, first_record, records), read in zip(planned, expected, strict=True):
        assert (at, length, first_record, records) == (read.begin, read.end - read.begin, first, len(read.records))
        for physical_offset, size, _ in chosen[first : first + records]:
            assert at <= physical_offset
            assert physical_offset + size <= at + length
        assert records == 1 or length <= span_max
        first += records
    assert first == len(chosen)


def make_records(seed: int, count: int) -> tuple[list[bytes], list[Chosen], int]:
    """Return records of one queue in a log, some with others between them: (the records, their places, the queue)."""
    chance = random.Random(seed)
    queue_id = chance.choice([0, 3, 65_535])
    every = [
        Record(
            chance.choice([b"t", b"x" * 200]),
            chance.randbytes(chance.randrange(40)),
            queue_id=queue_id,
            queue_offset=1000 + k,
        )
        for k in range(count)
    ]
    write_log(every, chance.choice([0, 2**40]))
    wanted = [record for record in every if chance.randrange(4)] or every[:1]
    chosen = [(record.physical_offset, len(record.encode()), record.queue_offset) for record in wanted]
    return [record.encode() for record in wanted], chosen, queue_id


@given(seeds, st.integers(1, 8), st.integers(0, 9), sentinels)
@examples(100)
def test_records_are_copied_out_of_a_span_without_gaps(seed: int, count: int, before: int, sentinel: int) -> None:
    records, chosen, _ = make_records(seed, count)
    chance = random.Random(seed)
    begin = chosen[0][0] - chance.choice([0, 5])
    span = bytearray(chance.randbytes(chosen[-1][0] + chosen[-1][1] - begin))
    for blob, (physical_offset, size, _) in zip(records, chosen, strict=True):
        span[physical_offset - begin : physical_offset - begin + size] = blob
    first = chance.randrange(len(chosen))
    wanted = b"".join(records[first:])
    source, array = fenced(span, sentinel=sentinel), rows(list(chosen), kernel.CHOSEN_ROW, sentinel)
    out = room(before + len(wanted), sentinel=sentinel)
    end = kernel.gather(source.array, begin, array.array, first, len(chosen) - first, out.array, before)
    assert end == before + len(wanted)
    assert out.bytes()[before:] == wanted
    assert out.bytes()[:before] == b"\xff" * before
    assert out.intact
    assert source.bytes() == bytes(span)


def finish(records: list[bytes], chosen: list[Chosen], queue_id: int, sentinel: int) -> tuple[int, bytes]:
    """Return the result of ``finish``, and the response body after it."""
    body = fenced(b"\xee" * 4 * len(chosen) + b"".join(records), sentinel=sentinel)
    array = rows(list(chosen), kernel.CHOSEN_ROW, sentinel)
    result = kernel.finish(body.array, 4 * len(chosen), array.array, len(chosen), queue_id)
    assert body.intact
    assert array.intact
    assert body.bytes()[4 * len(chosen) :] == b"".join(records)
    return int(result), body.bytes()


@given(seeds, st.integers(1, 8), st.booleans(), sentinels)
@examples(100)
def test_a_response_body_holds_sizes_then_records(seed: int, count: int, any_queue: bool, sentinel: int) -> None:
    records, chosen, queue_id = make_records(seed, count)
    assert finish(records, chosen, -1 if any_queue else queue_id, sentinel) == (kernel.SOUND, twin.answer_body(records))


@given(seeds, st.integers(1, 6), st.booleans(), sentinels)
@examples(100)
def test_a_record_that_differs_from_its_unit_is_named(seed: int, count: int, any_queue: bool, sentinel: int) -> None:
    records, chosen, queue_id = make_records(seed, count)
    asked = -1 if any_queue else queue_id
    chance = random.Random(seed)
    for _ in range(10):
        damaged, units_of = list(records), list(chosen)
        place = chance.randrange(len(records))
        blob = bytearray(damaged[place])
        blob[chance.randrange(min(len(blob), 48))] ^= 1 << chance.randrange(8)
        damaged[place] = bytes(blob)
        if chance.randrange(3) == 0:
            damaged[place] = records[place][: chance.randrange(1, 95)]
            units_of[place] = (chosen[place][0], len(damaged[place]), chosen[place][2])
        result, body = finish(damaged, units_of, asked, sentinel)
        assert result == twin.first_unsound(damaged, units_of, asked)
        if result == kernel.SOUND:
            assert body == twin.answer_body(damaged)
