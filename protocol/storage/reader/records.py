"""Many stored records in one buffer, and which of them belong to selected topics."""

from __future__ import annotations

import copy
import re
from typing import Self

import numpy as np
import numpy.typing as npt

from ...names import is_system_topic
from .parts import Blob, Ints, Part, Rows


class ScannedRecords:
    """Records of ``sizes[i]`` bytes at ``starts[i]`` of ``blob``, in ascending order and within it.

    ``parts[Part.X]`` has a number for each record.
    """

    def __init__(self, blob: Blob, starts: Ints, sizes: Ints, parts: npt.NDArray[np.int64]) -> None:
        self.blob = blob
        self.starts = starts
        self.sizes = sizes
        self.parts = parts

    def __len__(self) -> int:
        return len(self.starts)

    def select(self, rows: Rows) -> Self:
        """Return the records for which ``rows`` is true, over the same buffer."""
        if rows.all():
            return self
        chosen = copy.copy(self)
        chosen.starts = self.starts[rows]
        chosen.sizes = self.sizes[rows]
        chosen.parts = self.parts[:, rows]
        return chosen

    def record(self, row: int) -> memoryview:
        """Return the bytes of one record."""
        start = int(self.starts[row])
        return memoryview(self.blob)[start : start + int(self.sizes[row])]


def scan(blob: Blob, starts: Ints, sizes: Ints, *, verify: bool) -> tuple[npt.NDArray[np.int64], int]:
    """Call ``scan.scan_records``, loading Numba on first use: a driver of Spark plans without it."""
    from .scan import scan_records

    return scan_records(blob, starts, sizes, verify=verify)


_WORD_BYTES = 8
_MASKS = np.array([(1 << 8 * count) - 1 for count in range(_WORD_BYTES + 1)], np.uint64)
"""Masks that keep the given number of bytes of a little-endian word."""
_KNOWN_MAX = 65_536
_SHOWN = 10


class TopicFilter:
    """Selects topics: ``names``: these, system topics too; ``pattern``: those whose whole name matches; neither: all.
    System topics are selected only by ``names``."""

    def __init__(self, names: tuple[str, ...] | None = None, pattern: re.Pattern[str] | None = None) -> None:
        self._names = None if names is None else frozenset(names)
        self._pattern = pattern
        self._known: dict[bytes, bool] = {}

    def wants(self, topic: str) -> bool:
        """Return whether the topic's messages are selected."""
        if self._names is not None:
            return topic in self._names
        if is_system_topic(topic):
            return False
        return self._pattern is None or self._pattern.fullmatch(topic) is not None

    def rows(self, block: ScannedRecords) -> Rows:
        """Return which records are of selected topics. Looks at the topic once per run of records with the same one."""
        begins = _runs(block)
        at, end = block.parts[Part.TOPIC_AT, begins].tolist(), block.parts[Part.TOPIC_END, begins].tolist()
        wanted = [self._wants(bytes(block.blob[start:stop])) for start, stop in zip(at, end, strict=True)]
        return np.repeat(np.array(wanted, np.bool_), np.diff(begins, append=len(block)))

    def _wants(self, topic: bytes) -> bool:
        wanted = self._known.get(topic)
        if wanted is None:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            wanted = self._known[topic] = self.wants(topic.decode("utf-8", "replace"))
        return wanted


def _runs(block: ScannedRecords) -> Ints:
    """Return the first record, and each record whose topic differs from that of the record before it."""
    at = block.parts[Part.TOPIC_AT]
    length = block.parts[Part.TOPIC_END] - at
    shortest, longest = int(length.min()), int(length.max())
    differs = np.ones(len(block), np.bool_)
    np.not_equal(length[1:], length[:-1], out=differs[1:])
    # The little-endian word at every byte position of the buffer.
    words = np.ndarray((max(0, len(block.blob) - _WORD_BYTES + 1),), "<u8", block.blob, strides=(1,))
    for offset in range(0, longest, _WORD_BYTES):
        place = at + offset
        # A word at the end of the buffer cannot be read whole: its record counts as a separate run. Positions ascend.
        beyond = int(np.searchsorted(place, len(words)))
        word = words[np.minimum(place, len(words) - 1)]
        if shortest < offset + _WORD_BYTES:
            word &= _MASKS[longest - offset if shortest == longest else np.clip(length - offset, 0, _WORD_BYTES)]
        differs[1:] |= word[1:] != word[:-1]
        differs[beyond:] = True
    return np.flatnonzero(differs)
