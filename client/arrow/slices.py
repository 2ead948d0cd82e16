"""Many slices of one buffer, as one Arrow array (a copy) or as numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .scan import Ints

BLOB_BYTES_MAX = 2**31 - 1
"""Maximum size of a buffer: Arrow's offsets into binary values have 32 bits."""


def slices(blob: Any, at: Ints, end: Ints) -> pa.BinaryArray:
    """Return ``blob[at[i]:end[i]]`` for each i, null if ``at[i]`` is −1; the others must ascend and not overlap."""
    missing = at < 0
    if missing.any():
        rows = np.cumsum(~missing) - 1
        return _taken(blob, at[~missing], end[~missing], pa.array(2 * rows, mask=missing))
    return _taken(blob, at, end, pa.array(np.arange(0, 2 * len(at), 2, dtype=np.int32)))


def _taken(blob: Any, at: Ints, end: Ints, which: pa.Array) -> pa.BinaryArray:
    if not len(at):
        return pa.nulls(len(which), pa.binary())
    offsets = np.empty(2 * len(at), np.int32)
    offsets[0::2] = at
    offsets[1::2] = end
    # Every second value is a slice; the values in between are the bytes between the slices.
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(blob)]
    return pa.Array.from_buffers(pa.binary(), 2 * len(at) - 1, buffers).take(which)


def contiguous(array: pa.BinaryArray) -> tuple[npt.NDArray[np.uint8], Ints]:
    """Return the concatenated bytes of all values, and the start of each (with the end of the last)."""
    _, offsets, values = array.buffers()
    if offsets is None or values is None:
        return np.zeros(0, np.uint8), np.zeros(len(array) + 1, np.int64)
    bounds = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    return np.frombuffer(values, np.uint8)[bounds[0] : bounds[-1]], bounds - bounds[0]
