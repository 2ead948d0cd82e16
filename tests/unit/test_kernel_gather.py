"""The kernels of a pull, rule by rule."""

from __future__ import annotations

import numpy as np
import pytest

from flintmq.broker.kernels import gather as kernel
from flintmq.protocol.storage.layout import PRE_BLANK_SIZE, UNIT
from flintmq.protocol.storage.record import Record
from tests.twins.arrays import fenced, room
from tests.twins.log import write_log

LOG = range(1 << 40)


def choose(
    units: list[tuple[int, int, int]],
    tags: tuple[int, ...] = (),
    log: range = LOG,
    count_max: int = 100,
    bytes_max: int = 1 << 20,
) -> tuple[tuple[int, int, int], list[int]]:
    """Return the kernel's result and the chosen queue offsets, for units from queue offset 50 on."""
    array = fenced(b"".join(UNIT.pack(*unit) for unit in units))
    codes = fenced(tags or (7,), np.int64)
    chosen = room(min(len(units), count_max) * kernel.CHOSEN_ROW, np.int64)
    answer = kernel.choose(
        array.array, len(units), 50, codes.array, len(tags), log.start, log.stop, count_max, bytes_max, chosen.array
    )
    assert chosen.intact
    return answer, chosen.values()[kernel.C_QUEUE_OFFSET : answer[1] * kernel.CHOSEN_ROW : kernel.CHOSEN_ROW]


def test_all_units_are_chosen_within_the_limits() -> None:
    assert choose([(0, 100, 1), (100, 91, 2), (191, 300, 0)]) == ((3, 3, 491), [50, 51, 52])


def test_a_tag_chooses_by_its_hash() -> None:
    units = [(0, 100, 1), (100, 100, -2), (200, 100, 0), (300, 100, 1)]
    assert choose(units, (1,)) == ((4, 2, 200), [50, 53])
    assert choose(units, (-2, 1)) == ((4, 3, 300), [50, 51, 53])
    assert choose(units, (9,)) == ((4, 0, 0), [])


def test_the_first_record_is_chosen_at_any_size() -> None:
    assert choose([(0, 5000, 0), (5000, 100, 0)], bytes_max=1) == ((1, 1, 5000), [50])
    assert choose([(0, 5000, 1), (5000, 7000, 2)], (2,), bytes_max=1) == ((2, 1, 7000), [51])


def test_a_record_that_would_go_over_the_bytes_is_left_for_the_next_pull() -> None:
    units = [(0, 100, 0), (100, 100, 0), (200, 101, 0), (301, 10, 0)]
    assert choose(units, bytes_max=300) == ((2, 2, 200), [50, 51])
    assert choose(units, bytes_max=301) == ((3, 3, 301), [50, 51, 52])


def test_no_more_than_the_count_are_chosen() -> None:
    assert choose([(0, 100, 0)] * 5, count_max=2) == ((2, 2, 200), [50, 51])


@pytest.mark.parametrize(
    "unit",
    [
        (0, 0, 0),
        (0, -1, 0),
        (0, PRE_BLANK_SIZE, 0),
        (99, 100, 0),
        (901, 100, 0),
        (2**63 - 1, 100, 0),
        (-(2**63), 100, 0),
        (2**63 - 50, 2**31 - 2, 0),
    ],
)
def test_a_unit_that_points_at_no_record_of_the_log_is_passed_over(unit: tuple[int, int, int]) -> None:
    log = range(100, 1000)
    assert choose([unit, (100, 900, 0), unit], log=log) == ((3, 1, 900), [51])


def finish(
    record: Record, unit: tuple[int, int, int], queue_id: int = 3, body: bytes | None = None
) -> tuple[int, bytes]:
    """Return the code that ``finish`` gives for one record, and the size that it wrote before the record."""
    blob = record.encode() if body is None else body
    out = fenced(b"\xee" * 4 + blob)
    chosen = fenced(unit, np.int64)
    result = kernel.finish(out.array, 4, chosen.array, 1, queue_id)
    assert out.intact
    assert out.bytes()[4:] == blob
    return int(result), out.bytes()[:4]


def test_a_record_that_its_unit_did_not_promise_is_named_by_its_number() -> None:
    record = Record(b"t", b"body", queue_id=3, queue_offset=8, physical_offset=4096)
    size = len(record.encode())
    sound = (kernel.SOUND, size.to_bytes(4, "big"))
    wrong = (0, b"\xee" * 4)
    assert finish(record, (4096, size, 8)) == sound
    assert finish(record, (4096, size, 9)) == wrong
    assert finish(record, (4096, size, 9), queue_id=-1) == sound
    assert finish(record, (4096, size, 8), queue_id=2) == wrong
    assert finish(record, (4097, size, 8)) == wrong
    assert finish(record, (4096, size - 1, 8)) == wrong
    assert finish(record, (4096, size, 8), body=bytes(size)) == wrong


@pytest.mark.parametrize("size", [1, 4, 8, 35, 90])
def test_a_size_too_small_for_a_record_is_named_before_later_reads(size: int) -> None:
    record = Record(b"t", b"body", queue_id=3, queue_offset=8, physical_offset=4096)
    body = size.to_bytes(4, "big")[:size] + record.encode()[4:size]
    assert finish(record, (4096, size, 8), body=body) == (0, b"\xee" * 4)


def plan(
    chosen: list[tuple[int, int]], file_bytes: int = 1 << 30, span_max: int = 1 << 22
) -> list[tuple[int, int, int, int]]:
    """Return the planned reads, with gaps of up to 4,096 bytes and up to eight times the wanted bytes."""
    rows = fenced(np.array([(at, size, 0) for at, size in chosen], np.int64).reshape(-1), np.int64)
    reads = room(len(chosen) * kernel.READ_ROW, np.int64)
    count = kernel.plan_reads(rows.array, len(chosen), file_bytes, 4096, 8, span_max, reads.array)
    assert reads.intact
    values = reads.values()
    return [(values[at], values[at + 1], values[at + 2], values[at + 3]) for at in range(0, 4 * count, kernel.READ_ROW)]


def test_records_side_by_side_are_one_read() -> None:
    assert plan([(0, 100), (100, 50), (150, 91)]) == [(0, 241, 0, 3)]


def test_a_small_gap_is_read_over_and_a_large_one_is_not() -> None:
    assert plan([(0, 1000), (1500, 1000)]) == [(0, 2500, 0, 2)]
    assert plan([(0, 1000), (5096, 1000)]) == [(0, 6096, 0, 2)]
    assert plan([(0, 1000), (5097, 1000)]) == [(0, 1000, 0, 1), (5097, 1000, 1, 1)]


def test_a_read_is_little_larger_than_its_wanted_records() -> None:
    sparse = [(at, 100) for at in range(0, 40_000, 2000)]
    reads = plan(sparse)
    assert len(reads) > 1
    for at, length, first, count in reads:
        assert length <= max(8 * 100 * count, 4096)
        assert at == sparse[first][0]


def test_no_read_crosses_a_file_or_the_longest_span() -> None:
    assert plan([(900, 100), (1000, 100)], file_bytes=1000) == [(900, 100, 0, 1), (1000, 100, 1, 1)]
    assert plan([(0, 100), (100, 100), (200, 100)], span_max=200) == [(0, 200, 0, 2), (200, 100, 2, 1)]
    assert plan([(0, 5000)], span_max=200) == [(0, 5000, 0, 1)]


def test_a_record_in_front_of_the_one_before_is_a_read_of_its_own() -> None:
    assert plan([(1000, 100), (0, 100), (50, 100)]) == [(1000, 100, 0, 1), (0, 100, 1, 1), (50, 100, 2, 1)]


def test_records_are_gathered_without_the_bytes_between_them() -> None:
    records = [Record(b"t", bytes([place]) * place, queue_offset=place) for place in range(4)]
    log = write_log(records, file_base=500)
    wanted = [records[0], records[2], records[3]]
    rows = fenced(
        np.array([(r.physical_offset, len(r.encode()), r.queue_offset) for r in wanted], np.int64).reshape(-1), np.int64
    )
    expected = b"".join(record.encode() for record in wanted)
    out = room(12 + len(expected))
    assert kernel.gather(fenced(log).array, 500, rows.array, 0, 3, out.array, 12) == 12 + len(expected)
    assert out.bytes()[12:] == expected
    assert out.intact
