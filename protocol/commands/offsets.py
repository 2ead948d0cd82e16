"""Offsets of queues and of groups."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ..fields import I64_MAX, boolean, integer, text
from ..storage.layout import GROUP_BYTES_MAX
from .common import MEMBER_CHARS_MAX, QUEUES_MAX, EmptyAnswer
from .table import Command

CONSUMER_OFFSET_STRUCT = struct.Struct(">iq")
"""Queue and its next offset, in the body of the consumer-offset commands."""


@dataclass(slots=True)
class QueueRequest:
    """Query one queue."""

    topic: str = text("topic", 32767, 1)
    queue: int = integer("queue of the topic", 0, QUEUES_MAX - 1)


@dataclass(slots=True)
class SearchOffsetByTimestampRequest:
    """Find the first offset whose store time is at or after a time."""

    topic: str = text("topic", 32767, 1)
    queue: int = integer("queue of the topic", 0, QUEUES_MAX - 1)
    timestamp_ms: int = integer("ms since 1970 UTC")


@dataclass(slots=True)
class OffsetAnswer:
    """A queue offset."""

    offset: int = integer("queue offset")


@dataclass(slots=True)
class TimeOffsetAnswer:
    """The queue offset at a store time."""

    offset: int = integer("queue offset; the queue's max offset if nothing was stored at the time or later")
    left_ms: int = integer(
        "ms after which the time has come by the broker's clock; 0: it has, and the offset stays", 0, default=0
    )


@dataclass(slots=True)
class StoreTimeAnswer:
    """The store time of a queue's first message."""

    timestamp_ms: int = integer("ms since 1970 UTC; -1: the queue is empty", -1)


@dataclass(slots=True)
class QueryConsumerOffsetRequest:
    """Query a group's committed offsets."""

    group: str = text("consumer group", GROUP_BYTES_MAX, 1)
    topic: str = text("topic", 32767, 1)
    queue: int = integer("queue of the topic; -1: all", -1, QUEUES_MAX - 1, -1)


@dataclass(slots=True)
class ConsumerOffsetsAnswer:
    """Body: count × (i32 queue, i64 next offset), only for queues with a committed offset."""

    count: int = integer("number of entries in the body")


@dataclass(slots=True)
class UpdateConsumerOffsetRequest:
    """Commit a group's offsets. Body: count × (i32 queue, i64 next offset)."""

    group: str = text("consumer group", GROUP_BYTES_MAX, 1)
    topic: str = text("topic", 32767, 1)
    count: int = integer("number of entries in the body", 1, QUEUES_MAX)
    member: str = text("member that commits; empty: none", MEMBER_CHARS_MAX, default="")
    epoch: int = integer("epoch of the member's assignment", 0, I64_MAX, 0)


@dataclass(slots=True)
class ConsumeStatsRequest:
    """Query the progress of consumer groups."""

    group: str = text("consumer group; empty: all", GROUP_BYTES_MAX, default="")
    topic: str = text("topic; empty: all", 32767, default="")
    uncommitted: bool = boolean("also queues without a committed offset of the group", False)
    times: bool = boolean("with `uncommitted`: also the store time of the next message to read", False)


@dataclass(slots=True)
class ConsumeStatsAnswer:
    """Body: one msgpack array of arrays ``[group, topic, queue, committed, min_offset, max_offset]``; with
    ``uncommitted`` each has a seventh item ``known``, and with ``times`` too an eighth, ``next_stored_ms``: the store
    time of the next message to read (-1: everything is read)."""

    count: int = integer("number of rows in the body")


QUERY_CONSUMER_OFFSET = Command("QUERY_CONSUMER_OFFSET", 14, QueryConsumerOffsetRequest, ConsumerOffsetsAnswer)
UPDATE_CONSUMER_OFFSET = Command("UPDATE_CONSUMER_OFFSET", 15, UpdateConsumerOffsetRequest, EmptyAnswer, one_way=True)
SEARCH_OFFSET_BY_TIMESTAMP = Command("SEARCH_OFFSET_BY_TIMESTAMP", 29, SearchOffsetByTimestampRequest, TimeOffsetAnswer)
GET_MAX_OFFSET = Command("GET_MAX_OFFSET", 30, QueueRequest, OffsetAnswer)
GET_MIN_OFFSET = Command("GET_MIN_OFFSET", 31, QueueRequest, OffsetAnswer)
GET_EARLIEST_MSG_STORETIME = Command("GET_EARLIEST_MSG_STORETIME", 32, QueueRequest, StoreTimeAnswer)
GET_CONSUME_STATS = Command("GET_CONSUME_STATS", 208, ConsumeStatsRequest, ConsumeStatsAnswer)
