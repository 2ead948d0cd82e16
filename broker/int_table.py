"""Tables of integers that Python and kernels count in together."""

from __future__ import annotations

import numpy as np

_ROWS = 64
_LINE_INTEGERS = 8
"""Integers of a cache line: a row of as many is read with one access to memory, because the array begins with one."""


class IntTable:
    """Rows of 64-bit integers in one array that grows; a row is known by its *place*, the index of its first column.

    ``values`` and ``address`` are those of the array, until ``take`` makes a larger one. Rows are taken in blocks of a
    power of two, so that the next block of that size can have the same place.
    """

    __slots__ = ("_free", "_used", "address", "array", "values", "width")

    def __init__(self, width: int) -> None:
        self.width = width
        self._free: dict[int, list[int]] = {}
        """Places of free blocks, by their rows."""
        self._used = 0
        self._make(_ROWS * width)

    def _make(self, integers: int) -> None:
        array = np.zeros(integers + _LINE_INTEGERS, np.int64)
        first = -array.ctypes.data // array.itemsize % _LINE_INTEGERS
        self.array = array[first : first + integers]
        self.values = self.array.data
        """View that takes and gives Python integers: cheaper than NumPy's."""
        self.address = self.array.ctypes.data

    def take(self, rows: int = 1) -> int:
        """Return the place of ``rows`` rows in sequence, all 0."""
        rows = _block(rows)
        free = self._free.get(rows)
        if free:
            place = free.pop()
        else:
            place, self._used = self._used, self._used + rows * self.width
            if self._used > len(self.array):
                before = self.array
                self._make(max(2 * len(before), self._used))
                self.array[: len(before)] = before
        self.array[place : place + rows * self.width] = 0
        return place

    def give_back(self, place: int, rows: int = 1) -> None:
        """Take back what ``take`` returned for as many rows, and nothing refers to any more."""
        self._free.setdefault(_block(rows), []).append(place)


def _block(rows: int) -> int:
    """Return the number of rows of the block that has room for ``rows``."""
    return 1 << (rows - 1).bit_length()
