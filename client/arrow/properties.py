"""The properties of many records at once: ``name \\x01 value \\x02`` for each pair, found without a Python loop.

The rules are those of ``flintmq.protocol.storage.record.decode_properties``; the tests compare the two.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .scan import WORD_BYTES, Ints, Rows, words_of
from .slices import contiguous, slices

_EQUALS = 1
_SEPARATOR = 2


class Pairs:
    """The pairs of all records, in order. Pairs without a name or a value are left out.

    ``row[i]`` is the record of pair i. Its name is ``data[name_at[i]:name_end[i]]``; its value begins one byte later
    and ends at ``value_end[i]``.
    """

    def __init__(self, properties: pa.BinaryArray) -> None:
        self.data, bounds = contiguous(properties)
        data = self.data
        ends, is_separator = _pair_ends(data, bounds)
        starts = np.zeros(len(ends), np.int64)
        starts[1:] = ends[:-1] + is_separator[:-1]
        equals = _first_equals(data, starts, ends)
        rows = _rows(starts, ends, bounds)
        keep = (equals > starts) & (equals < ends - 1)
        if not keep.all():
            starts, equals, ends, rows = starts[keep], equals[keep], ends[keep], rows[keep]
        self.row = rows
        self.name_at = starts
        self.name_end = equals
        self.value_end = ends
        self._bounds = bounds
        # First eight bytes of each name. The padding makes a word readable at every position.
        self._words = words_of(np.concatenate([data, np.zeros(WORD_BYTES, np.uint8)]))[starts]

    def find(self, name: bytes) -> tuple[Ints, Ints, Ints]:
        """Return the pairs with a name of at most eight bytes: their records, and their values' bounds within these."""
        length = len(name)
        assert 0 < length <= WORD_BYTES
        mask = np.uint64((1 << 8 * length) - 1)
        word = np.uint64(int.from_bytes(name, "little"))
        found = np.flatnonzero((self.name_end - self.name_at == length) & (self._words & mask == word))
        rows = self.row[found]
        return rows, self.name_end[found] + 1 - self._bounds[rows], self.value_end[found] - self._bounds[rows]

    def names_and_values(self) -> tuple[pa.BinaryArray, pa.BinaryArray, Ints]:
        """Return all names, all values, and the record of each; of equal names in a record only the last one counts."""
        names = slices(self.data, self.name_at, self.name_end)
        values = slices(self.data, self.name_end + 1, self.value_end)
        codes = pc.dictionary_encode(names).indices.to_numpy(zero_copy_only=False).astype(np.int64)
        which = self.row * (int(codes.max(initial=0)) + 1) + codes
        # The last pair of each name and record is the first one seen from the end.
        last = np.sort(len(which) - 1 - np.unique(which[::-1], return_index=True)[1])
        if len(last) == len(which):
            return names, values, self.row
        indices = pa.array(last)
        return names.take(indices), values.take(indices), self.row[last]


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
    """Return the record of each pair."""
    count = len(bounds) - 1
    each, rest = divmod(len(ends), count) if count else (0, 0)
    if each and not rest and (ends[each - 1 :: each] == bounds[1:] - 1).all():
        return np.repeat(np.arange(count), each)  # every record has the same number of pairs: the usual case
    return np.searchsorted(bounds[1:], starts, side="right")
