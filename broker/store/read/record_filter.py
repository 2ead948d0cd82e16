"""Which of the records that were read a filter lets through."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ....protocol.storage.layout import IPV6_EXTRA_BYTES, MAGIC_V1, RECORD, RECORD_HEAD_BYTES, SysFlag
from ....protocol.storage.record import PROPERTY_SEPARATOR

LOOK_S = 0.0005
"""A look over records ends after this time: others wait for the loop, or for the interpreter."""
CHUNK_RECORDS = 32
CHUNK_BYTES = 16 * 1024
"""So many records, or about so many bytes of them, are looked at between two looks at the clock."""

_MAGIC_V1_END = MAGIC_V1 & 0xFF
_MAGIC_END_AT = RECORD.at["magic"] + 3
_SYS_FLAG_END_AT = RECORD.at["sys_flag"] + 3
_BODY_LENGTH_AT = RECORD.at["body_length"]
_BORN_V6 = SysFlag.BORN_HOST_V6
_STORE_V6 = SysFlag.STORE_HOST_V6
_TAIL_BYTES_MIN = 3
"""Behind a record's body: the lengths of a topic and of properties, at least."""


class RecordFilter(Protocol):
    """What ``Pulls.pull`` asks of a filter; ``broker.filters.Filter`` is one."""

    def select(self, sources: Sequence[bytes]) -> list[int]:
        """Which of several messages are wanted, in their order. Of each the properties as its record holds them, with
        0x02 in front, so that it stands before every name."""


@dataclass(slots=True)
class Kept:
    """``body``: count × u32 sizes, then the records; ``looked``: how many were looked at, from the first on."""

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
    """The records of an answer's ``body`` that match, in their order, until ``max_count`` or ``max_bytes`` is met or
    ``LOOK_S`` is over; at least one record is looked at.

    ``one_at_least``: the first that matches is kept, however large it is. A record whose parts do not add up is kept:
    nobody knows its properties, and who decodes it says what is wrong with it.
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
        if len(kept) + len(found) < max_count and kept_bytes + properties.span_bytes(first, end) <= max_bytes:
            kept += found
            kept_bytes += sum([sizes[number] for number in found])
            continue
        for number in found:  # one of the limits may be met
            if kept_bytes + sizes[number] > max_bytes and (kept or not one_at_least):
                return Kept(len(kept), number, properties.joined(kept))
            kept.append(number)
            kept_bytes += sizes[number]
            if len(kept) == max_count:
                return Kept(len(kept), number + 1, properties.joined(kept))
    return Kept(len(kept), looked, properties.joined(kept))


class _Properties:
    """Where the properties of an answer's records lie."""

    def __init__(self, body: bytearray, count: int) -> None:
        self._body = body
        octets = np.frombuffer(body, np.uint8)
        sizes = np.frombuffer(body, ">u4", count).astype(np.int64)
        ends = 4 * count + np.cumsum(sizes)
        self._starts: list[int] = (ends - sizes).tolist()
        self._ends: list[int] = ends.tolist()
        self.sizes: list[int] = sizes.tolist()
        begins, sound = _locate(octets, ends - sizes, ends)
        self._broken: frozenset[int] = frozenset(np.flatnonzero(~sound).tolist())
        self._begins: list[int] = (begins - 1).tolist()
        # The byte in front of each properties becomes 0x02 in a copy: that spares putting one there each by itself.
        were = octets[begins - 1]
        octets[begins - 1] = PROPERTY_SEPARATOR[0]
        self._marked = bytes(body)
        octets[begins - 1] = were

    def span_bytes(self, first: int, end: int) -> int:
        """The bytes of the records in ``[first, end)``."""
        return self._ends[end - 1] - self._starts[first]

    def select(self, first: int, end: int, records: RecordFilter) -> list[int]:
        """The numbers of the records in ``[first, end)`` that are to be kept."""
        marked = self._marked
        bounds = zip(self._begins[first:end], self._ends[first:end], strict=True)
        found = [first + place for place in records.select([marked[begin:end] for begin, end in bounds])]
        if self._broken:
            found = sorted({*found, *self._broken.intersection(range(first, end))})
        return found

    def joined(self, numbers: list[int]) -> bytearray:
        """An answer's body of these records."""
        if len(numbers) == len(self.sizes):
            return self._body
        view = memoryview(self._body)
        parts: list[bytes | memoryview] = [
            struct.pack(f">{len(numbers)}I", *[self.sizes[number] for number in numbers])
        ]
        parts += [view[self._starts[number] : self._ends[number]] for number in numbers]
        return bytearray().join(parts)


def _locate(octets: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where the properties of records begin, each record's end where its parts do not add up, and which ones do."""
    v2 = octets[starts + _MAGIC_END_AT] != _MAGIC_V1_END
    flags = octets[starts + _SYS_FLAG_END_AT]
    v6_hosts = (flags & _BORN_V6 > 0).astype(np.int64) + (flags & _STORE_V6 > 0)
    bodies_at = starts + RECORD_HEAD_BYTES + v6_hosts * IPV6_EXTRA_BYTES
    # A place that lies outside of its record is not looked at: its start is, where something always is.
    sound = bodies_at + _TAIL_BYTES_MIN <= ends
    topics_at = bodies_at + _big_endian(octets, np.where(sound, bodies_at - 4, starts), 4)
    sound &= topics_at + _TAIL_BYTES_MIN <= ends
    topics_at = np.where(sound, topics_at, starts)
    topic_bytes = np.where(v2, _big_endian(octets, topics_at, 2), octets[topics_at])
    lengths_at = topics_at + 1 + v2 + topic_bytes
    sound &= lengths_at + 2 <= ends
    lengths_at = np.where(sound, lengths_at, starts)
    sound &= lengths_at + 2 + _big_endian(octets, lengths_at, 2) == ends
    return np.where(sound, lengths_at + 2, ends), sound


def _big_endian(octets: np.ndarray, at: np.ndarray, size: int) -> np.ndarray:
    """The unsigned integers of so many bytes at these places."""
    value: np.ndarray = octets[at].astype(np.int64)
    for place in range(1, size):
        value = (value << 8) | octets[at + place]
    return value
