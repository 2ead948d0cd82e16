"""``find_records`` as one compiled loop, for records of varying sizes; Numba caches its code as described in
``flintmq.client.spark.scan_numba``."""

from __future__ import annotations

import numpy as np
from numba import njit

from ....protocol.storage.layout import MAGIC_BLANK, RECORD_BYTES_MIN
from ..scan import Blob, Ints

# Literals, because Numba's cache does not notice a change in another module; the assert compares them with the source.
_SIZE_MIN = 91
_BLANK = -875286124
assert (_SIZE_MIN, _BLANK) == (RECORD_BYTES_MIN, MAGIC_BLANK)


def find_starts(blob: Blob) -> tuple[Ints, int]:
    """Find records as ``find_starts_plain`` does."""
    starts = np.empty(len(blob) // _SIZE_MIN + 1, np.int64)
    count, end = _find(np.frombuffer(blob, np.uint8), starts)
    return starts[:count].copy(), int(end)


@njit(cache=True, nogil=True)
def _i32(data, at):  # type: ignore[no-untyped-def]  # Numba infers the types
    value = (
        np.uint32(data[at]) << np.uint32(24)
        | np.uint32(data[at + 1]) << np.uint32(16)
        | np.uint32(data[at + 2]) << np.uint32(8)
        | np.uint32(data[at + 3])
    )
    return np.int64(np.int32(value))


@njit(cache=True, nogil=True)
def _find(data, starts):  # type: ignore[no-untyped-def]  # Numba infers the types
    at = np.int64(0)
    count = 0
    while at + _SIZE_MIN <= data.size:
        size = _i32(data, at)
        if size < _SIZE_MIN or at + size > data.size or _i32(data, at + 4) == _BLANK:
            break
        starts[count] = at
        count += 1
        at += size
    return count, at
