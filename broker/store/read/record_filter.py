"""Applying a consumer's filter to the records that a pull has read."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ....protocol.storage.arrays.record_positions import locate_records
from ....protocol.storage.record import PROPERTY_SEPARATOR

LOOK_S = 0.0005
"""Maximum time of filtering in one pull, because other work waits for the event loop or for the GIL."""
CHUNK_RECORDS = 32
CHUNK_BYTES = 16 * 1024
"""Approximate bytes, and ``CHUNK_RECORDS`` the number of records, that are filtered between two checks of the clock."""


class RecordFilter(Protocol):
    """The filter that ``Pulls.pull`` takes; ``broker.filters.Filter`` implements it."""

    def select(self, sources: Sequence[bytes]) -> list[int]:
        """Return the numbers of the matching messages, in their order.

        ``sources``: each message's properties as in its record, with a leading 0x02, so that 0x02 precedes every name.
        """


@dataclass(slots=True)
class Kept:
    """``body``: count × u32 sizes, then the records; ``looked``: number of examined records, from the first on."""

    count: int
    looked: int
    body: bytearray


def keep_matching(
    body: bytearray,
    count: int,
    records: RecordFilter,
    max_count: int,
    max_bytes: int,
    *,
    one_at_least: bool,
    clock: Callable[[], float] = time.monotonic,
) -> Kept:
    """Return the matching records of a response's ``body``, in their order.

    Stops at ``max_count`` or ``max_bytes``, or after ``LOOK_S``; examines at least one chunk. ``one_at_least``: keep
    the first match, however large it is. A record whose parts do not add up is kept, because its properties cannot be
    located; the client's decoder reports the damage.
    """
    began = clock()
    properties = _Properties(body, count)
    sizes = properties.sizes
    kept: list[int] = []
    kept_bytes = 0
    looked = count
    chunk = max(1, min(CHUNK_RECORDS, CHUNK_BYTES * count // len(body)))
    for first in range(0, count, chunk):
        if first and clock() - began >= LOOK_S:
            looked = first
            break
        end = min(first + chunk, count)
        found = properties.select(first, end, records)
        # Nearly always the whole chunk fits, so its matches need not be counted one by one.
        if len(kept) + len(found) < max_count and kept_bytes + properties.span_bytes(first, end) <= max_bytes:
            kept += found
            kept_bytes += sum([sizes[number] for number in found])
            continue
        for number in found:  # a limit may be reached within this chunk
            if kept_bytes + sizes[number] > max_bytes and (kept or not one_at_least):
                return Kept(len(kept), number, properties.joined(kept))
            kept.append(number)
            kept_bytes += sizes[number]
            if len(kept) == max_count:
                return Kept(len(kept), number + 1, properties.joined(kept))
    return Kept(len(kept), looked, properties.joined(kept))


class _Properties:
    """Positions of the properties in a response's records."""

    def __init__(self, body: bytearray, count: int) -> None:
        self._body = body
        octets = np.frombuffer(body, np.uint8)
        sizes = np.frombuffer(body, ">u4", count).astype(np.int64)
        ends = 4 * count + np.cumsum(sizes)
        self._starts: list[int] = (ends - sizes).tolist()
        self._ends: list[int] = ends.tolist()
        self.sizes: list[int] = sizes.tolist()
        located = locate_records(body, ends - sizes, ends)
        begins = np.where(located.sound, located.properties_at, ends)
        self._broken: frozenset[int] = frozenset(np.flatnonzero(~located.sound).tolist())
        self._begins: list[int] = (begins - 1).tolist()
        # ``RecordFilter.select`` wants a 0x02 before the properties. Setting that byte in one copy of the whole body is
        # cheaper than prepending it to each record's properties.
        were = octets[begins - 1]
        octets[begins - 1] = PROPERTY_SEPARATOR[0]
        self._marked = bytes(body)
        octets[begins - 1] = were

    def span_bytes(self, first: int, end: int) -> int:
        """Return the bytes of the records in ``[first, end)``."""
        return self._ends[end - 1] - self._starts[first]

    def select(self, first: int, end: int, records: RecordFilter) -> list[int]:
        """Return the numbers of the records in ``[first, end)`` to keep."""
        marked = self._marked
        bounds = zip(self._begins[first:end], self._ends[first:end], strict=True)
        found = [first + place for place in records.select([marked[begin:end] for begin, end in bounds])]
        if self._broken:
            found = sorted({*found, *self._broken.intersection(range(first, end))})
        return found

    def joined(self, numbers: list[int]) -> bytearray:
        """Return a response body with these records."""
        if len(numbers) == len(self.sizes):
            return self._body
        view = memoryview(self._body)
        parts: list[bytes | memoryview] = [
            struct.pack(f">{len(numbers)}I", *[self.sizes[number] for number in numbers])
        ]
        parts += [view[self._starts[number] : self._ends[number]] for number in numbers]
        return bytearray().join(parts)
