"""The byte work of a pull: choose ConsumeQueue units, plan the reads, copy and check the records."""

from __future__ import annotations

import numpy as np

from ...protocol.storage.arrays.jit import bytes_array, i64, i64_array, kernel, results
from ...protocol.storage.arrays.words import copy_bytes, load_be32, load_be64, store_be32
from ...protocol.storage.layout import MAGIC_V1, MAGIC_V2, PRE_BLANK_SIZE, RECORD, RECORD_BYTES_MIN, UNIT, UNIT_BYTES

_UNIT_SIZE_AT = UNIT.at["size"]
_UNIT_TAGS_AT = UNIT.at["tags_code"]
_AT_MAGIC = RECORD.at["magic"]
_AT_QUEUE_ID = RECORD.at["queue_id"]
_AT_QUEUE_OFFSET = RECORD.at["queue_offset"]
_AT_PHYSICAL_OFFSET = RECORD.at["physical_offset"]

SOUND = -1

# Columns of a read.
READ_AT = 0
READ_BYTES = 1
READ_FIRST = 2
READ_COUNT = 3
READ_ROW = 4

# Columns of a chosen record.
C_PHYSICAL_OFFSET = 0
C_SIZE = 1
C_QUEUE_OFFSET = 2
CHOSEN_ROW = 3


@kernel(results(i64, i64, i64), bytes_array, i64, i64, i64_array, i64, i64, i64, i64, i64, i64_array)
def choose(
    units: np.ndarray,
    unit_count: int,
    first_queue_offset: int,
    tags: np.ndarray,
    tag_count: int,
    physical_min: int,
    physical_max: int,
    count_max: int,
    bytes_max: int,
    chosen: np.ndarray,
) -> tuple[int, int, int]:
    """Choose records from ConsumeQueue units, in order, until a limit is reached.

    ``tags``: the wanted tag codes; none (``tag_count`` 0): all. A unit outside ``[physical_min, physical_max)`` or
    without a size is skipped. At least one record is chosen, however large. Returns (units examined, records chosen,
    their bytes); ``chosen`` gets (physical offset, size, queue offset) of each.
    """
    taken = 0
    taken_bytes = 0
    for unit in range(unit_count):
        at = unit * UNIT_BYTES
        physical_offset = load_be64(units, at)
        size = load_be32(units, at + _UNIT_SIZE_AT)
        if size <= 0 or size == PRE_BLANK_SIZE:
            continue
        if physical_offset < physical_min or physical_offset > physical_max - size:
            continue
        if tag_count > 0:
            code = load_be64(units, at + _UNIT_TAGS_AT)
            wanted = False
            for k in range(tag_count):
                wanted = wanted or tags[k] == code
            if not wanted:
                continue
        if taken > 0 and taken_bytes + size > bytes_max:
            return unit, taken, taken_bytes
        row = taken * CHOSEN_ROW
        chosen[row + C_PHYSICAL_OFFSET] = physical_offset
        chosen[row + C_SIZE] = size
        chosen[row + C_QUEUE_OFFSET] = first_queue_offset + unit
        taken += 1
        taken_bytes += size
        if taken == count_max or taken_bytes >= bytes_max:
            return unit + 1, taken, taken_bytes
    return unit_count, taken, taken_bytes


@kernel(i64, i64_array, i64, i64, i64, i64, i64, i64_array)
def plan_reads(
    chosen: np.ndarray, count: int, file_bytes: int, gap_max: int, sparse_max: int, span_max: int, reads: np.ndarray
) -> int:
    """Join the chosen records into few reads: (physical offset, bytes, first record, records) each, in order.

    A read spans a gap of up to ``gap_max`` bytes while it has at most ``sparse_max`` times the wanted bytes and at most
    ``span_max`` bytes; it never crosses a CommitLog file of ``file_bytes``. Returns the number of reads.
    """
    number = 0
    wanted = 0
    for k in range(count):
        at = chosen[k * CHOSEN_ROW + C_PHYSICAL_OFFSET]
        size = chosen[k * CHOSEN_ROW + C_SIZE]
        if k > 0:
            row = (number - 1) * READ_ROW
            begin = reads[row + READ_AT]
            end = begin + reads[row + READ_BYTES]
            if (
                at >= end
                and at // file_bytes == begin // file_bytes
                and (at == end or at - end <= gap_max)
                and at + size - begin <= max(sparse_max * (wanted + size), gap_max)
                and at + size - begin <= span_max
            ):
                reads[row + READ_BYTES] = at + size - begin
                reads[row + READ_COUNT] += 1
                wanted += size
                continue
        row = number * READ_ROW
        reads[row + READ_AT] = at
        reads[row + READ_BYTES] = size
        reads[row + READ_FIRST] = k
        reads[row + READ_COUNT] = 1
        wanted = size
        number += 1
    return number


@kernel(i64, bytes_array, i64, i64_array, i64, i64, bytes_array, i64)
def gather(
    span: np.ndarray, span_physical: int, chosen: np.ndarray, first: int, count: int, out: np.ndarray, at: int
) -> int:
    """Copy ``count`` chosen records, starting with ``first``, from a span read at ``span_physical``; return the
    position after them."""
    for k in range(first, first + count):
        size = chosen[k * CHOSEN_ROW + C_SIZE]
        copy_bytes(span, chosen[k * CHOSEN_ROW + C_PHYSICAL_OFFSET] - span_physical, out, at, size)
        at += size
    return at


@kernel(i64, bytes_array, i64, i64_array, i64, i64)
def finish(out: np.ndarray, records_at: int, chosen: np.ndarray, count: int, queue_id: int) -> int:
    """Write the sizes before a response's records, and check that each is the record that its unit points at.

    Compares size, magic, physical offset and, unless ``queue_id`` is negative, queue and queue offset. Returns SOUND,
    or the number of the first wrong record.
    """
    at = records_at
    for k in range(count):
        size = chosen[k * CHOSEN_ROW + C_SIZE]
        if size < RECORD_BYTES_MIN:  # the compared fields would be outside the record, perhaps outside the array
            return k
        magic = load_be32(out, at + _AT_MAGIC)
        if (
            load_be32(out, at) != size
            or (magic != MAGIC_V1 and magic != MAGIC_V2)
            or load_be64(out, at + _AT_PHYSICAL_OFFSET) != chosen[k * CHOSEN_ROW + C_PHYSICAL_OFFSET]
        ):
            return k
        if queue_id >= 0 and (
            load_be32(out, at + _AT_QUEUE_ID) != queue_id
            or load_be64(out, at + _AT_QUEUE_OFFSET) != chosen[k * CHOSEN_ROW + C_QUEUE_OFFSET]
        ):
            return k
        store_be32(out, records_at - 4 * (count - k), size)
        at += size
    return SOUND
