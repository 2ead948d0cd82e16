"""The kernels of a pull, rule by rule."""

from __future__ import annotations

import numpy as np
import pytest

from flintmq.broker.kernels import gather as kernel
from flintmq.protocol.storage.layout import PRE_BLANK_SIZE, UNIT
from flintmq.protocol.storage.record import Record
from tests.twins.arrays import fenced, room

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
