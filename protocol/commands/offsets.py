"""Where queues begin and end, and where a group goes on."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ..fields import I64_MAX, boolean, integer, text
from ..layout import GROUP_BYTES_MAX
from .common import MEMBER_CHARS_MAX, QUEUES_MAX

CONSUMER_OFFSET_STRUCT = struct.Struct(">iq")
"""A queue and its next offset in the body of the consumer-offset commands."""


@dataclass(slots=True)
class QueueRequest:
    """A question about one queue."""

    topic: str = text("topic", 32767, 1)
    queue: int = integer("queue of the topic", 0, QUEUES_MAX - 1)


@dataclass(slots=True)
class SearchOffsetByTimestampRequest:
    """The first offset whose store time is not before a moment."""

    topic: str = text("topic", 32767, 1)
    queue: int = integer("queue of the topic", 0, QUEUES_MAX - 1)
    timestamp_ms: int = integer("ms since 1970 UTC")


@dataclass(slots=True)
class OffsetAnswer:
    """A queue offset."""

    offset: int = integer("queue offset")


@dataclass(slots=True)
class StoreTimeAnswer:
    """Store time of a queue's first message."""

    timestamp_ms: int = integer("ms since 1970 UTC; -1: the queue is empty", -1)


@dataclass(slots=True)
class QueryConsumerOffsetRequest:
    """What a group has committed."""

    group: str = text("consumer group", GROUP_BYTES_MAX, 1)
    topic: str = text("topic", 32767, 1)
    queue: int = integer("queue of the topic; -1: all", -1, QUEUES_MAX - 1, -1)


@dataclass(slots=True)
class ConsumerOffsetsAnswer:
    """Body: count × (i32 queue, i64 next offset), only queues that have one."""

    count: int = integer("entries in the body")


@dataclass(slots=True)
class UpdateConsumerOffsetRequest:
    """Commit a group's progress. Body: count × (i32 queue, i64 next offset)."""

    group: str = text("consumer group", GROUP_BYTES_MAX, 1)
    topic: str = text("topic", 32767, 1)
    count: int = integer("entries in the body", 1, QUEUES_MAX)
    member: str = text("the group's member that commits; empty: none", MEMBER_CHARS_MAX, default="")
    epoch: int = integer("of the member's assignment", 0, I64_MAX, 0)


@dataclass(slots=True)
class ConsumeStatsRequest:
    """How far consumer groups are."""

    group: str = text("consumer group; empty: all", GROUP_BYTES_MAX, default="")
    topic: str = text("topic; empty: all", 32767, default="")
    uncommitted: bool = boolean("also queues of which the group has committed nothing", False)


@dataclass(slots=True)
class ConsumeStatsAnswer:
    """Body: one msgpack array of arrays ``[group, topic, queue, committed, min_offset, max_offset]``, and with
    ``uncommitted`` a seventh item ``known``."""

    count: int = integer("rows in the body")
