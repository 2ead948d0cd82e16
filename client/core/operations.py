"""The requests that a client can send, as values: a driver sends an ``Operation`` and passes the response to
``decode``.

Several dependent steps form a *plan*: a generator that yields lists of operations, receives the list of their results,
and returns its own result. The same plans run on every driver.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import msgpack

from ...protocol import commands
from ...protocol.commands import CONSUMER_OFFSET_STRUCT, QUEUE_STATS_STRUCT, Command
from ...protocol.errors import (
    PULL_NOT_FOUND,
    PULL_RETRY_IMMEDIATELY,
    SUCCESS,
    InvalidParameter,
    RemoteProtocolError,
    error_from_answer,
)
from ...protocol.fields import decode_fields, encode_fields
from ..errors import InvalidArgument
from .batch import Batch, Found
from .session import Answer
from .stored import StoredMessage
from .tags import EVERYTHING, TagFilter
from .topics import ConsumeStats, QueueStats, TopicInfo

T = TypeVar("T")
Plan: TypeAlias = Generator[list["Operation[Any]"], list[Any], T]

ALL_QUEUES = -1


@dataclass(slots=True)
class Operation(Generic[T]):
    """One request. ``decode`` makes the result from a successful response; ``hold_seconds``: how long the broker may
    hold the response because the request asks for it."""

    command: Command
    fields: dict[str, Any]
    decode: Callable[[Answer], T]
    body: bytes = b""
    hold_seconds: float = 0.0

    def result(self, answer: Answer) -> T:
        """Return the result of a response, or raise the error that it carries."""
        code = answer.code
        if code not in (SUCCESS, PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY):
            raise error_from_answer(code, answer.fields)
        try:
            return self.decode(answer)
        except (InvalidParameter, struct.error, TypeError, KeyError) as error:
            raise RemoteProtocolError(f"the response to {self.command.name} is malformed: {error}") from error


def operation(
    command: Command, decode: Callable[[Answer], T], body: bytes = b"", hold_seconds: float = 0.0, **arguments: Any
) -> Operation[T]:
    """Return an operation after checking the arguments against the command's rules."""
    try:
        fields = encode_fields(decode_fields(command.request, arguments))
    except InvalidParameter as error:
        raise InvalidArgument(str(error).removeprefix(f"{command.request.__name__}.")) from None
    return Operation(command, fields, decode, body, hold_seconds)


def nothing(answer: Answer) -> None:
    return None


# ---- messages


def pull(
    topic: str,
    queue: int,
    offset: int,
    max_count: int,
    max_bytes: int,
    wait_ms: int,
    tags: TagFilter = EVERYTHING,
    condition: str = "",
) -> Operation[Batch]:
    """Read stored messages of one queue. ``condition``: a filter expression for the broker; empty: none."""

    def decode(answer: Answer) -> Batch:
        head = decode_fields(commands.RecordsAnswer, answer.fields)
        return Batch(
            topic,
            queue,
            answer.body,
            head.count,
            next_offset=head.next_offset,
            min_offset=head.min_offset,
            max_offset=head.max_offset,
            lost=head.lost,
            go_on=answer.code == PULL_RETRY_IMMEDIATELY,
            tags=tags,
        )

    return operation(
        commands.PULL,
        decode,
        hold_seconds=wait_ms / 1000 if type(wait_ms) is int else 0.0,
        topic=topic,
        queue=queue,
        offset=offset,
        max_count=max_count,
        max_bytes=max_bytes,
        wait_ms=wait_ms,
        tags=tags.expression,
        filter=condition,
    )


def query(topic: str, key: str, begin_ms: int, end_ms: int, max_count: int, cursor: str | None) -> Operation[Found]:
    """Find messages by a key."""

    def decode(answer: Answer) -> Found:
        head = decode_fields(commands.QueryByKeyAnswer, answer.fields)
        return Found(topic, answer.body, head.count, head.cursor or None, head.index_behind_bytes, head.damaged)

    return operation(
        commands.QUERY_BY_KEY,
        decode,
        topic=topic,
        key=key,
        begin_ms=begin_ms,
        end_ms=end_ms,
        max_count=max_count,
        cursor=cursor or "",
    )


def view_message(message_id: str, topic: str | None) -> Operation[StoredMessage]:
    """Find one message by either form of id."""

    def decode(answer: Answer) -> StoredMessage:
        head = decode_fields(commands.ViewMessageAnswer, answer.fields)
        found = Found(topic or "", answer.body, head.count, None, 0)
        if len(found) != 1:
            raise RemoteProtocolError(f"expected one message for an id, got {len(found)}")
        return found[0]

    return operation(commands.VIEW_MESSAGE_BY_ID, decode, id=message_id, topic=topic or "")


# ---- offsets


def _offset(answer: Answer) -> int:
    offset: int = decode_fields(commands.OffsetAnswer, answer.fields).offset
    return offset


def min_offset(topic: str, queue: int) -> Operation[int]:
    """Get the first readable offset of a queue."""
    return operation(commands.GET_MIN_OFFSET, _offset, topic=topic, queue=queue)


def max_offset(topic: str, queue: int) -> Operation[int]:
    """Get the offset that the queue's next message will have."""
    return operation(commands.GET_MAX_OFFSET, _offset, topic=topic, queue=queue)


def offset_at(topic: str, queue: int, timestamp_ms: int) -> Operation[int]:
    """Get the first offset stored at or after ``timestamp_ms``; the queue's max offset if nothing was."""
    return operation(commands.SEARCH_OFFSET_BY_TIMESTAMP, _offset, topic=topic, queue=queue, timestamp_ms=timestamp_ms)


def committed(group: str, topic: str, queue: int = ALL_QUEUES) -> Operation[dict[int, int]]:
    """Get the offsets that a group has committed, by queue; queues without one are left out."""

    def decode(answer: Answer) -> dict[int, int]:
        head = decode_fields(commands.ConsumerOffsetsAnswer, answer.fields)
        _check_body(answer, head.count * CONSUMER_OFFSET_STRUCT.size)
        return dict(CONSUMER_OFFSET_STRUCT.iter_unpack(answer.body))

    return operation(commands.QUERY_CONSUMER_OFFSET, decode, group=group, topic=topic, queue=queue)


def commit(group: str, topic: str, offsets: Mapping[int, int]) -> Operation[None]:
    """Commit a group's offsets, by queue."""
    if not isinstance(offsets, Mapping) or not offsets:
        raise InvalidArgument(f"offsets is {offsets!r:.60}; it must map at least one queue to its next offset")
    try:
        body = b"".join(CONSUMER_OFFSET_STRUCT.pack(queue, offset) for queue, offset in offsets.items())
    except struct.error as error:
        raise InvalidArgument(f"offsets must map queues to offsets, both integers: {error}") from None
    return operation(commands.UPDATE_CONSUMER_OFFSET, nothing, body=body, group=group, topic=topic, count=len(offsets))


def consume_stats(group: str, topic: str, *, uncommitted: bool = False) -> Operation[list[ConsumeStats]]:
    """Get the progress of groups by group, topic and queue; an empty name means all. ``uncommitted``: include queues in
    which a group has not committed an offset."""

    def decode(answer: Answer) -> list[ConsumeStats]:
        rows = unpack_body(answer)
        if not isinstance(rows, list):
            raise RemoteProtocolError(f"expected consume stats as a list, got {type(rows).__name__}")
        return [ConsumeStats(*row) for row in rows]

    return operation(commands.GET_CONSUME_STATS, decode, group=group, topic=topic, uncommitted=uncommitted)


# ---- topics and the broker


def topic_stats(topic: str) -> Operation[list[QueueStats]]:
    """Get the offsets and counts of each queue of a topic, in the order of the queues."""

    def decode(answer: Answer) -> list[QueueStats]:
        head = decode_fields(commands.TopicStatsAnswer, answer.fields)
        _check_body(answer, head.count * QUEUE_STATS_STRUCT.size)
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


def runtime_info() -> Operation[dict[str, Any]]:
    """Get the broker's runtime status."""

    def decode(answer: Answer) -> dict[str, Any]:
        info = unpack_body(answer)
        if not isinstance(info, dict):
            raise RemoteProtocolError(f"expected runtime info as a map, got {type(info).__name__}")
        return info

    return operation(commands.GET_BROKER_RUNTIME_INFO, decode)


def unpack_body(answer: Answer) -> Any:
    try:
        return msgpack.unpackb(answer.body, strict_map_key=True)
    except (ValueError, msgpack.UnpackException) as error:
        raise RemoteProtocolError(f"expected a msgpack body: {error}") from error


def _check_body(answer: Answer, body_bytes: int) -> None:
    if len(answer.body) != body_bytes:
        raise RemoteProtocolError(f"expected a body of {body_bytes} bytes, got {len(answer.body)}")
