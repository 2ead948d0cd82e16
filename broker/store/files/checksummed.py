"""Ranges of the log in which every record must carry ``__CRC32#``, a checksum over the whole record.

While the option is off, RocketMQ copies old checksums into records that it rewrites. A wrong checksum is therefore
damage only in records that FlintMQ itself wrote with the option on: half-open ranges of physical offsets, stored in
``state.json``. The last range may be open: it extends to the end of the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

OPEN = -1
"""End of an open range."""
FOREVER = 1 << 62
"""Physical offset that no log reaches."""


class ChecksummedRanges:
    """The ranges, in ascending order; they neither touch nor overlap."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._ranges = [(begin, end) for begin, end in ranges]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._ranges)

    def at(self, physical_offset: int) -> tuple[bool, int]:
        """Return (whether a record there must have a checksum, the physical offset up to which that holds)."""
        for begin, end in self._ranges:
            if physical_offset < begin:
                return False, begin
            if end == OPEN or physical_offset < end:
                return True, FOREVER if end == OPEN else end
        return False, FOREVER

    def around(self, physical_offset: int) -> tuple[int, int]:
        """Return the range that contains a physical offset; an empty one if records there need no checksum."""
        for begin, end in self._ranges:
            if begin <= physical_offset and (end == OPEN or physical_offset < end):
                return begin, FOREVER if end == OPEN else end
        return 0, 0

    def begin(self, physical_offset: int) -> None:
        """Open a range: all records appended from this offset on have a checksum."""
        if not self._ranges or self._ranges[-1][1] != OPEN:
            if self._ranges and self._ranges[-1][1] == physical_offset:
                physical_offset = self._ranges.pop()[0]
            self._ranges.append((physical_offset, OPEN))

    def end(self, physical_offset: int) -> None:
        """Cut all ranges at this offset: records from here on need no checksum."""
        self._ranges = [
            (begin, physical_offset if end == OPEN else min(end, physical_offset))
            for begin, end in self._ranges
            if begin < physical_offset
        ]

    def cut(self, physical_offset: int) -> None:
        """Cut closed ranges at the new end of the log: they say nothing about records appended later."""
        self._ranges = [
            (begin, end if end == OPEN else min(end, physical_offset))
            for begin, end in self._ranges
            if begin < physical_offset or (end == OPEN and begin == physical_offset)
        ]

    def drop_below(self, physical_offset: int) -> None:
        """Drop the ranges that end at or before the new beginning of the log."""
        self._ranges = [(begin, end) for begin, end in self._ranges if end == OPEN or end > physical_offset]
