"""Many slices of one buffer as one Arrow array (a copy) or as numbers, and the properties in them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...protocol.storage.reader.parts import Ints, Rows

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


# ---- The properties of many records: ``name \x01 value \x02`` for each pair, found without a Python loop. The rules
# are those of ``flintmq.protocol.storage.record.decode_properties``; the tests compare the two.

_EQUALS = 1
_SEPARATOR = 2


def property_pairs(properties: pa.BinaryArray) -> tuple[pa.BinaryArray, pa.BinaryArray, Ints]:
    """Return all names, all values, and the record of each, in order.

    Pairs without a name or a value are left out; of equal names in a record only the last one counts.
    """
    data, bounds = contiguous(properties)
    ends, is_separator = _pair_ends(data, bounds)
    starts = np.zeros(len(ends), np.int64)
    starts[1:] = ends[:-1] + is_separator[:-1]
    equals = _first_equals(data, starts, ends)
    rows = _rows(starts, ends, bounds)
    keep = (equals > starts) & (equals < ends - 1)
    if not keep.all():
        starts, equals, ends, rows = starts[keep], equals[keep], ends[keep], rows[keep]
    names = slices(data, starts, equals)
    values = slices(data, equals + 1, ends)
    codes = pc.dictionary_encode(names).indices.to_numpy(zero_copy_only=False).astype(np.int64)
    which = rows * (int(codes.max(initial=0)) + 1) + codes
    # The last pair of each name and record is the first one seen from the end.
    last = np.sort(len(which) - 1 - np.unique(which[::-1], return_index=True)[1])
    if len(last) == len(which):
        return names, values, rows
    indices = pa.array(last)
    return names.take(indices), values.take(indices), rows[last]


def _pair_ends(data: npt.NDArray[np.uint8], bounds: Ints) -> tuple[Ints, Rows]:
    """Return the end of each pair, and whether a separator is there; the last pair of a record may lack one."""
    ends = np.flatnonzero(data == _SEPARATOR)
    row_ends = bounds[1:]
    has_pairs = row_ends > bounds[:-1]
    unended = row_ends[has_pairs & (data[np.maximum(row_ends, 1) - 1] != _SEPARATOR)] if len(data) else row_ends[:0]
    if not len(unended):
        return ends, np.ones(len(ends), np.bool_)
    # The next record may begin with a separator at the same position, so the end must sort before the separator.
    both = np.concatenate([unended, ends])
    separators = np.concatenate([np.zeros(len(unended), np.bool_), np.ones(len(ends), np.bool_)])
    order = np.argsort(both, kind="stable")
    return both[order], separators[order]


def _first_equals(data: npt.NDArray[np.uint8], starts: Ints, ends: Ints) -> Ints:
    """Return the position of the first \\x01 of each pair, or the pair's end if it has none."""
    equals = np.flatnonzero(data == _EQUALS)
    if len(equals) == len(ends) and (equals >= starts).all() and (equals < ends).all():
        return equals
    found: Ints = np.append(equals, len(data))[np.searchsorted(equals, starts)]
    return np.minimum(found, ends, out=found)


def _rows(starts: Ints, ends: Ints, bounds: Ints) -> Ints:
    count = len(bounds) - 1
    each, rest = divmod(len(ends), count) if count else (0, 0)
    if each and not rest and (ends[each - 1 :: each] == bounds[1:] - 1).all():
        return np.repeat(np.arange(count), each)  # every record has the same number of pairs: the usual case
    return np.searchsorted(bounds[1:], starts, side="right")
