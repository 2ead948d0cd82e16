"""What is written where records were lost: tombstones, so that every reader of the log, RocketMQ too, reads on.

One for each lost message: its topic, queue and queue offset, no properties, a body of zeros whose checksum is right.
What room is left goes into the body of the last; where that is more than a message may have, or no message is known to
be lost, into records that look rolled back (sys_flag 0xC), which take no place in a queue; at a file's end into its
blank record. The layout follows from its arguments alone, so that a fill that was interrupted is repeated to the byte.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ....protocol.storage.layout import BLANK_BYTES_MIN, MAGIC_BLANK, RECORD_BYTES_MIN, SysFlag
from ....protocol.storage.record import Record, record_size
from ....protocol.storage.record_crc import RECORD_CRC_BYTES

SURPLUS_TOPIC = b"rmq_sys_flintmq_lost"
"""Topic of the records that only take up room; nothing of it is ever in a queue."""
HOLE_BYTES_MIN = RECORD_BYTES_MIN + 1
"""The least room for a record whose topic has a name."""
SURPLUS_BYTES_MAX = 4 * 1024 * 1024
"""No tombstone is made larger than RocketMQ lets a message be."""


class LostRange(NamedTuple):
    """``messages`` of a queue, from queue offset ``first`` on."""

    topic: str
    queue: int
    first: int
    messages: int


class Tombstone(NamedTuple):
    """One record of a fill, before it is encoded; ``physical_offset`` and ``size``: where it lies."""

    topic: bytes
    queue: int
    queue_offset: int
    sys_flag: int
    physical_offset: int
    size: int

    @property
    def has_unit(self) -> bool:
        """Whether it stands for a lost message."""
        return self.sys_flag == 0

    def encode(self, store_ms: int, *, checksum: bool) -> bytes:
        """The record's bytes. ``checksum``: with a ``__CRC32#``, where there is room for it."""
        checksum = checksum and _bytes_min(len(self.topic), checksum=True) <= self.size
        body = bytes(self.size - _bytes_min(len(self.topic), checksum=checksum))
        record = Record(
            topic=self.topic, body=body, queue_id=self.queue, queue_offset=self.queue_offset, sys_flag=self.sys_flag,
            physical_offset=self.physical_offset, born_timestamp=store_ms, store_timestamp=store_ms,
        )  # fmt: skip
        return record.encode(checksum=checksum)


def _bytes_min(topic_bytes: int, *, checksum: bool) -> int:
    return record_size(0, topic_bytes, RECORD_CRC_BYTES if checksum else 0)


def that_fit(lost: Iterable[LostRange], room_bytes: int, *, ends_file: bool, checksum: bool) -> list[LostRange]:
    """As many of the lost messages as there is room for tombstones, those of the first ranges first; by queue."""
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
    """The records that take the place of the ``size`` bytes at ``physical_offset``, one behind the other.

    ``lost``: as ``that_fit`` returned. With ``ends_file`` they leave at least the room of a blank record, which ends
    the file; see ``blank``.
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
    """Records without a message that fill ``[at, end)``."""
    if at == end:
        return
    count = -((at - end) // SURPLUS_BYTES_MAX)
    for number in range(count, 0, -1):
        size = (end - at) // number
        room = size - _bytes_min(0, checksum=checksum)
        topic = SURPLUS_TOPIC[: room if room > 0 else size - RECORD_BYTES_MIN]
        yield Tombstone(topic, 0, 0, SysFlag.TRANSACTION_ROLLBACK, at, size)
        at += size


def blank(size: int) -> bytes:
    """The head of a blank record, which says that the ``size`` bytes up to the file's end are not used."""
    return struct.pack(">ii", size, MAGIC_BLANK)
