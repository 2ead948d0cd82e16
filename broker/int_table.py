"""Tables of integers that Python and kernels count in together."""

from __future__ import annotations

import numpy as np

_ROWS = 64


class IntTable:
    """Rows of 64-bit integers in one array that grows; a row is known by its *place*, the index of its first column.

    ``values`` and ``address`` are those of the array, until ``take`` makes a larger one.
    """

    __slots__ = ("_free", "_used", "address", "array", "values", "width")

    def __init__(self, width: int) -> None:
        self.width = width
        self._free: list[int] = []
        self._used = 0
        self._replace(np.zeros(_ROWS * width, np.int64))

    def _replace(self, array: np.ndarray) -> None:
        self.array = array
        self.values = array.data
        """View that takes and gives Python integers: cheaper than NumPy's."""
        self.address = array.ctypes.data

    def take(self, rows: int = 1) -> int:
        """Return the place of ``rows`` rows in sequence, all 0."""
        if rows == 1 and self._free:
            place = self._free.pop()
        else:
            place, self._used = self._used, self._used + rows * self.width
            if self._used > len(self.array):
                array = np.zeros(max(2 * len(self.array), self._used), np.int64)
                array[: len(self.array)] = self.array
                self._replace(array)
        self.array[place : place + rows * self.width] = 0
        return place

    def give_back(self, place: int, rows: int = 1) -> None:
        """Take back rows that nothing refers to any more."""
        self._free.extend(range(place, place + rows * self.width, self.width))
