"""Checks of a ConsumeQueue by its files alone: where it begins and ends, and whether its units are plausible."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ....protocol.storage.layout import PRE_BLANK_SIZE, RECORD_BYTES_MIN, UNIT, UNIT_BYTES

if TYPE_CHECKING:
    from .consume_queue import ConsumeQueue

UNIT_DTYPE = np.dtype(UNIT.dtype())
BLOCK_UNITS = 8192
"""Number of units that are read and checked together."""
RECORD_BYTES_MAX = 64 * 1024 * 1024
"""Maximum record size that a sound unit can state."""

Units = np.ndarray[Any, np.dtype[np.void]]


def read_units(queue: ConsumeQueue, queue_offset: int, count: int) -> Units:
    """Return units as an array of (physical_offset, size, tags_code); fewer if the files end before."""
    return np.frombuffer(queue.read_units(queue_offset, count, hot=False), UNIT_DTYPE)


def is_filling(units: Units) -> np.ndarray:
    """Return a mask of the units that only fill a gap, or the queue's first file up to the first message."""
    filling: np.ndarray = (units["size"] == PRE_BLANK_SIZE) & (units["physical_offset"] == 0)
    return filling


def first_unit(queue: ConsumeQueue) -> int:
    """Return the queue offset of the first unit in the files."""
    return queue.first_byte // UNIT_BYTES


def count_units(queue: ConsumeQueue, below: int) -> int:
    """Return the first queue offset whose unit is missing or points at or after ``below``: where a queue cut there
    ends.

    A filling in the middle can mislead the binary search, because it has no place in the order of the log. So the last
    real unit before the end that was found must point below ``below`` too; otherwise the search is repeated before it.
    """
    low, high = first_unit(queue), queue.end_byte // UNIT_BYTES
    while True:
        end = _search(queue, low, high, below)
        last = last_record_unit(queue, end)
        if last is None or last[1] < below:
            return end
        high = last[0]


def _search(queue: ConsumeQueue, low: int, high: int, below: int) -> int:
    while low < high:
        middle = (low + high) // 2
        physical_offset, size, _ = queue.unit(middle, hot=False)
        filling = size == PRE_BLANK_SIZE and physical_offset == 0
        if size > 0 and (filling or physical_offset < below):
            low = middle + 1
        else:
            high = middle
    return low


def last_record_unit(queue: ConsumeQueue, end: int) -> tuple[int, int, int] | None:
    """Return (queue offset, physical offset, size) of the last unit below ``end`` that is not filling, or None."""
    # A real unit is nearly always among the last few, so the first read is small.
    begin, block_units = first_unit(queue), 64
    while end > begin:
        at = max(end - block_units, begin)
        block_units = BLOCK_UNITS
        units = read_units(queue, at, end - at)
        records = np.flatnonzero(~is_filling(units))
        if len(records):
            unit = units[records[-1]]
            return at + int(records[-1]), int(unit["physical_offset"]), int(unit["size"])
        end = at
    return None


def find_start(queue: ConsumeQueue, end: int) -> int:
    """Return the first queue offset whose unit is not filling; ``end`` if all units below it are."""
    at = first_unit(queue)
    while at < end:
        records = np.flatnonzero(~is_filling(read_units(queue, at, min(BLOCK_UNITS, end - at))))
        if len(records):
            return at + int(records[0])
        at += BLOCK_UNITS
    return end


def order_problem(queue: ConsumeQueue, begin: int, end: int) -> str:
    """Return why the units of ``[begin, end)`` contradict each other; empty if they do not."""
    reached = 0
    for at in range(begin, end, BLOCK_UNITS):
        units = read_units(queue, at, min(BLOCK_UNITS, end - at))
        units = units[~is_filling(units)]
        if not len(units):
            continue
        offsets, sizes = units["physical_offset"].astype(np.int64), units["size"].astype(np.int64)
        # The difference of two non-negative offsets cannot overflow.
        sound = (sizes >= RECORD_BYTES_MIN) & (sizes <= RECORD_BYTES_MAX) & (offsets >= 0)
        if not sound.all() or offsets[0] < reached or (np.diff(offsets) < sizes[:-1]).any():
            return f"its units between {at:,} and {min(at + BLOCK_UNITS, end):,} do not point forward"
        reached = int(offsets[-1]) + int(sizes[-1])
    return ""


def units_behind(queue: ConsumeQueue, physical_offset: int) -> Iterator[tuple[int, int, int]]:
    """Yield (queue offset, physical offset, size) of the units that point after ``physical_offset``, newest first."""
    for start in reversed(range(queue.first_byte, queue.end_byte, queue.file_bytes)):
        first = start // UNIT_BYTES
        units = read_units(queue, first, queue.file_bytes // UNIT_BYTES)
        behind = np.flatnonzero((units["size"] > 0) & ~is_filling(units) & (units["physical_offset"] > physical_offset))
        for number in reversed(behind.tolist()):
            yield first + number, int(units[number]["physical_offset"]), int(units[number]["size"])
        if len(units) and units[0]["size"] > 0 and 0 < units[0]["physical_offset"] <= physical_offset:
            return
