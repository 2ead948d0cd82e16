"""Topics as the broker describes them, the progress of groups in them, and the operations on them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ...protocol import commands
from ...protocol.commands import QUEUE_STATS_STRUCT
from ...protocol.errors import RemoteProtocolError
from ...protocol.fields import decode_fields
from ..errors import InvalidArgument
from .rpc.operation import Operation, check_body, nothing, operation, unpack_body
from .rpc.session import Answer
from .times import from_millis

ALL_QUEUES = -1
EMPTY_QUEUE_MS = -1


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic's configuration. ``system``: it belongs to the broker itself; ``perm``: 4 readable + 2 writable.

    ``retention_hours``: how long its messages are kept; 0: as long as the broker keeps its log, -1: forever.
    ``retention_bytes``: maximum bytes of its records, the newest are kept; 0: no limit.
    """

    topic: str
    read_queues: int
    write_queues: int
    perm: int = 6
    order: bool = False
    system: bool = False
    retention_hours: int = 0
    retention_bytes: int = 0

    @property
    def name(self) -> str:
        """The same as ``topic``."""
        return self.topic

    @property
    def queues(self) -> int:
        """Queues that can be read."""
        return self.read_queues


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The contents of one queue: offsets in ``[min_offset, max_offset)``."""

    queue: int
    min_offset: int
    max_offset: int
    last_stored_ms: int
    """Store time of its last message in ms since 1970 UTC, -1 if the queue is empty."""

    @property
    def count(self) -> int:
        """Number of messages in the queue."""
        return self.max_offset - self.min_offset

    @property
    def last_stored_at(self) -> datetime | None:
        """Store time of its last message, None if the queue is empty."""
        return from_millis(self.last_stored_ms) if self.last_stored_ms != EMPTY_QUEUE_MS else None


@dataclass(frozen=True, slots=True)
class ConsumeStats:
    """A group's progress in one queue, which has the offsets in ``[min_offset, max_offset)``.

    ``committed``: offset of the next message to read; -1: the group has not committed one in this queue. In that case
    it reads the queue from its first message, unless ``known`` is False: then it has not started with the topic, and
    its first member will set the start rule.
    """

    group: str
    topic: str
    queue: int
    committed: int
    min_offset: int
    max_offset: int
    known: bool = True

    @property
    def lag(self) -> int:
        """Number of messages still to read; an upper bound if not ``known``."""
        return max(0, self.max_offset - max(self.committed, self.min_offset))


def topic_stats(topic: str) -> Operation[list[QueueStats]]:
    """Get the offsets and counts of each queue of a topic, in the order of the queues."""

    def decode(answer: Answer) -> list[QueueStats]:
        head = decode_fields(commands.TopicStatsAnswer, answer.fields)
        check_body(answer, head.count * QUEUE_STATS_STRUCT.size)
        return sorted((QueueStats(*row) for row in QUEUE_STATS_STRUCT.iter_unpack(answer.body)), key=_queue)

    return operation(commands.GET_TOPIC_STATS_INFO, decode, topic=topic)


def _queue(stats: QueueStats) -> int:
    return stats.queue


def topics() -> Operation[list[TopicInfo]]:
    """Get all topics of the broker, including its own, by name."""

    def decode(answer: Answer) -> list[TopicInfo]:
        rows = unpack_body(answer)
        if not isinstance(rows, list):
            raise RemoteProtocolError(f"expected topics as a list, got {type(rows).__name__}")
        known = TopicInfo.__dataclass_fields__
        return sorted((TopicInfo(**{name: row[name] for name in known if name in row}) for row in rows), key=_name)

    return operation(commands.GET_ALL_TOPIC_CONFIG, decode)


def _name(topic: TopicInfo) -> str:
    return topic.topic


def create_topic(
    topic: str,
    read_queues: int,
    write_queues: int,
    perm: int,
    order: bool,
    retention_hours: int | None = None,
    retention_bytes: int | None = None,
) -> Operation[None]:
    """Create a topic, or change an existing one. Retention: None leaves it unchanged."""
    retention: dict[str, Any] = {}
    for name, value in (("retention_hours", retention_hours), ("retention_bytes", retention_bytes)):
        if value is not None:
            if value < (-1 if name == "retention_hours" else 0):
                raise InvalidArgument(f"{name} is {value}; it must not be negative (-1 hours: forever)")
            retention[name] = value
    return operation(
        commands.UPDATE_AND_CREATE_TOPIC,
        nothing,
        topic=topic,
        read_queues=read_queues,
        write_queues=write_queues,
        perm=perm,
        order=order,
        **retention,
    )


def delete_topic(topic: str) -> Operation[None]:
    """Delete a topic and all of its messages."""
    return operation(commands.DELETE_TOPIC_IN_BROKER, nothing, topic=topic)


def created_queues(client_name: str) -> Operation[int]:
    """Get the number of queues that the broker gives to a topic created by its first message. It is part of the
    response to HELLO, which may be sent again at any time. ``client_name``: the name of the first HELLO."""

    def decode(answer: Answer) -> int:
        count: int = decode_fields(commands.HelloAnswer, answer.fields).auto_create_queues
        return count

    return operation(commands.HELLO, decode, protocol=commands.PROTOCOL_VERSION, client=client_name)


def consume_stats(group: str, topic: str, *, uncommitted: bool = False) -> Operation[list[ConsumeStats]]:
    """Get the progress of groups by group, topic and queue; an empty name means all. ``uncommitted``: include queues in
    which a group has not committed an offset."""

    def decode(answer: Answer) -> list[ConsumeStats]:
        rows = unpack_body(answer)
        if not isinstance(rows, list):
            raise RemoteProtocolError(f"expected consume stats as a list, got {type(rows).__name__}")
        return [ConsumeStats(*row) for row in rows]

    return operation(commands.GET_CONSUME_STATS, decode, group=group, topic=topic, uncommitted=uncommitted)
