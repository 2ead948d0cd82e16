"""Which of the records that were read a filter lets through."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ...protocol.layout import IPV6_EXTRA_BYTES, MAGIC_V1, RECORD, RECORD_HEAD_BYTES, SysFlag

LOOK_S = 0.001
"""A look over records ends after this time: others wait for the loop, or for the interpreter."""
CLOCK_EVERY = 16
"""Records between two looks at the clock."""

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_HEAD = struct.Struct(
    f">{RECORD.at['magic']}xi{RECORD.at['sys_flag'] - RECORD.at['magic'] - 4}xi"
    f"{RECORD.at['body_length'] - RECORD.at['sys_flag'] - 4}xi"
)
"""magic, sys_flag and body_length of a record whose hosts are IPv4."""
_V6 = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6


class RecordFilter(Protocol):
    """What ``Reads.pull`` asks of a filter; ``broker.filters.Filter`` is one."""

    def matches(self, properties: bytes) -> bool:
        """Whether a message with these properties, as its record holds them, is wanted."""


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
    sizes = struct.unpack_from(f">{count}I", body)
    blob = bytes(body)
    matches = records.matches
    began = clock()
    at = 4 * count
    kept: list[tuple[int, int]] = []
    kept_bytes = looked = 0
    for size in sizes:
        if not looked % CLOCK_EVERY and looked and clock() - began >= LOOK_S:
            break
        begin = properties_at(blob, at, size)
        if begin < 0 or matches(blob[begin : at + size]):
            if kept_bytes + size > max_bytes and (kept or not one_at_least):
                break
            kept.append((at, size))
            kept_bytes += size
        looked += 1
        at += size
        if len(kept) == max_count:
            break
    return Kept(len(kept), looked, body if len(kept) == count else _joined(body, kept))


def properties_at(body: bytes, at: int, size: int) -> int:
    """Where the properties of the record at ``at`` begin, which go on to its end; -1 where its parts do not add up."""
    body_length: int
    magic, sys_flag, body_length = _HEAD.unpack_from(body, at)
    body_at = at + RECORD_HEAD_BYTES
    if sys_flag & _V6:
        hosts = bool(sys_flag & SysFlag.BORN_HOST_V6) + bool(sys_flag & SysFlag.STORE_HOST_V6)
        body_at += hosts * IPV6_EXTRA_BYTES
        if body_at > at + size:
            return -1
        (body_length,) = _I32.unpack_from(body, body_at - 4)
    topic_at = body_at + body_length
    end = at + size
    if body_length < 0 or topic_at + 3 > end:
        return -1
    if magic == MAGIC_V1:
        length_at = topic_at + 1 + body[topic_at]
    else:
        length_at = topic_at + 2 + int(_I16.unpack_from(body, topic_at)[0])
    if not topic_at < length_at <= end - 2 or length_at + 2 + _I16.unpack_from(body, length_at)[0] != end:
        return -1
    return length_at + 2


def _joined(body: bytearray, kept: list[tuple[int, int]]) -> bytearray:
    view = memoryview(body)
    joined = bytearray(struct.pack(f">{len(kept)}I", *[size for _, size in kept]))
    for at, size in kept:
        joined += view[at : at + size]
    return joined
