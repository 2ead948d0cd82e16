"""Where in the log every record must carry a checksum over all of it, ``__CRC32#``.

While the option is off, RocketMQ copies old checksums into records that it writes anew. So a wrong one is damage only
where FlintMQ itself wrote with the option on: half-open ranges of physical offsets, kept in ``state.json``. The last
may be open: it goes on to the log's end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

OPEN = -1
"""The end of a range that goes on."""
FOREVER = 1 << 62


class ChecksummedRanges:
    """The ranges, in their order, apart from each other."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._ranges = [(begin, end) for begin, end in ranges]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._ranges)

    def at(self, physical_offset: int) -> tuple[bool, int]:
        """(whether a record there must have a checksum, up to which physical offset that is so)."""
        for begin, end in self._ranges:
            if physical_offset < begin:
                return False, begin
            if end == OPEN or physical_offset < end:
                return True, FOREVER if end == OPEN else end
        return False, FOREVER

    def around(self, physical_offset: int) -> tuple[int, int]:
        """The range that a physical offset lies in; an empty one where records there need none."""
        for begin, end in self._ranges:
            if begin <= physical_offset and (end == OPEN or physical_offset < end):
                return begin, FOREVER if end == OPEN else end
        return 0, 0

    def begin(self, physical_offset: int) -> None:
        """What is appended from here on has one."""
        if not self._ranges or self._ranges[-1][1] != OPEN:
            if self._ranges and self._ranges[-1][1] == physical_offset:
                physical_offset = self._ranges.pop()[0]
            self._ranges.append((physical_offset, OPEN))

    def end(self, physical_offset: int) -> None:
        """Nothing from here on is known to have one: ranges are cut there."""
        self._ranges = [
            (begin, physical_offset if end == OPEN else min(end, physical_offset))
            for begin, end in self._ranges
            if begin < physical_offset
        ]

    def cut(self, physical_offset: int) -> None:
        """The log now ends there: what was known of what lay behind it is not known of what comes."""
        self._ranges = [
            (begin, end if end == OPEN else min(end, physical_offset))
            for begin, end in self._ranges
            if begin < physical_offset or (end == OPEN and begin == physical_offset)
        ]

    def drop_below(self, physical_offset: int) -> None:
        """The log now begins there."""
        self._ranges = [(begin, end) for begin, end in self._ranges if end == OPEN or end > physical_offset]
