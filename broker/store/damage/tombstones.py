"""Tombstones: records that replace lost ones, so that every reader of the log, RocketMQ included, can read past a hole.

Each lost message gets one, with its topic, queue and queue offset, no properties, and a body of zeros with a correct
checksum. The body of the last one takes up the remaining bytes. If these are more than a message may have, or if no
message is known to be lost, they go into records that look rolled back (sys_flag 0xC), which have no place in a queue;
at the end of a file they go into its blank. The layout depends only on the arguments, so an interrupted fill can be
repeated byte for byte.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ....protocol.storage.layout import BLANK_BYTES_MIN, MAGIC_BLANK, RECORD_BYTES_MIN, SysFlag
from ....protocol.storage.record import Record, record_size
from ....protocol.storage.record_crc import RECORD_CRC_BYTES

SURPLUS_TOPIC = b"rmq_sys_flintmq_lost"
"""Topic of the records that only fill space; it never has a queue."""
HOLE_BYTES_MIN = RECORD_BYTES_MIN + 1
"""Minimum size of a record whose topic name is not empty."""
SURPLUS_BYTES_MAX = 4 * 1024 * 1024
"""Maximum size of a tombstone: RocketMQ's limit for a message."""


class LostRange(NamedTuple):
    """A number of ``messages`` of a queue, from queue offset ``first`` on."""

    topic: str
    queue: int
    first: int
    messages: int


class Tombstone(NamedTuple):
    """One record that fills a hole, not encoded yet; ``physical_offset`` and ``size`` are its place in the log."""

    topic: bytes
    queue: int
    queue_offset: int
    sys_flag: int
    physical_offset: int
    size: int

    @property
    def has_unit(self) -> bool:
        """Return whether it replaces a lost message, which has a unit, and does not only fill space."""
        return self.sys_flag == 0

    def encode(self, store_ms: int, *, checksum: bool) -> bytes:
        """Return the record's bytes. ``checksum``: with a ``__CRC32#``, if there is space for it."""
        checksum = checksum and _bytes_min(len(self.topic), checksum=True) <= self.size
        body = bytes(self.size - _bytes_min(len(self.topic), checksum=checksum))
        record = Record(
            topic=self.topic,
            body=body,
            queue_id=self.queue,
            queue_offset=self.queue_offset,
            sys_flag=self.sys_flag,
            physical_offset=self.physical_offset,
            born_timestamp=store_ms,
            store_timestamp=store_ms,
        )
        return record.encode(checksum=checksum)


def _bytes_min(topic_bytes: int, *, checksum: bool) -> int:
    return record_size(0, topic_bytes, RECORD_CRC_BYTES if checksum else 0)


def that_fit(lost: Iterable[LostRange], room_bytes: int, *, ends_file: bool, checksum: bool) -> list[LostRange]:
    """Return the lost messages whose tombstones fit in ``room_bytes``, by queue; earlier ranges have priority."""
    room_bytes -= BLANK_BYTES_MIN if ends_file else 0
    fitting = []
    for each in lost:
        size = _bytes_min(len(each.topic.encode()), checksum=checksum)
        count = min(each.messages, room_bytes // size)
        if count > 0:
            fitting.append(each._replace(messages=count))
            room_bytes -= count * size
    return sorted(fitting)


def plan(
    physical_offset: int, size: int, lost: Sequence[LostRange], *, ends_file: bool, checksum: bool
) -> Iterator[Tombstone]:
    """Yield the records that replace the ``size`` bytes at ``physical_offset``, in their order in the log.

    ``lost``: a result of ``that_fit``. With ``ends_file`` they leave enough space for the blank that ends the file (see
    ``blank``).
    """
    needed = sum(each.messages * _bytes_min(len(each.topic.encode()), checksum=checksum) for each in lost)
    left_over = size - needed
    into_last = left_over if lost and not ends_file and left_over <= SURPLUS_BYTES_MAX else 0
    at = physical_offset
    for number, (topic, queue, first, count) in enumerate(lost, 1):
        name = topic.encode()
        bytes_min = _bytes_min(len(name), checksum=checksum)
        for queue_offset in range(first, first + count):
            is_last = number == len(lost) and queue_offset == first + count - 1
            record_bytes = bytes_min + (into_last if is_last else 0)
            yield Tombstone(name, queue, queue_offset, 0, at, record_bytes)
            at += record_bytes
    if not ends_file:
        yield from _surplus(at, physical_offset + size, checksum=checksum)


def _surplus(at: int, end: int, *, checksum: bool) -> Iterator[Tombstone]:
    """Yield records without a message that fill ``[at, end)``."""
    if at == end:
        return
    # Records of about equal size: full ones and a rest would not do, because the rest could be too small for a record.
    count = -((at - end) // SURPLUS_BYTES_MAX)
    for number in range(count, 0, -1):
        size = (end - at) // number
        room = size - _bytes_min(0, checksum=checksum)
        # If no room is left beside a checksum, ``encode`` leaves the checksum out, and the name may fill its room.
        topic = SURPLUS_TOPIC[: room if room > 0 else size - RECORD_BYTES_MIN]
        yield Tombstone(topic, 0, 0, SysFlag.TRANSACTION_ROLLBACK, at, size)
        at += size


def blank(size: int) -> bytes:
    """Return the head of a blank, which marks the ``size`` bytes up to the end of the file as unused."""
    return struct.pack(">ii", size, MAGIC_BLANK)
