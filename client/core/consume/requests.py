"""The requests of readers, as operations: pulling and finding messages, offsets, commits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

from ....protocol import commands
from ....protocol.commands import CONSUMER_OFFSET_STRUCT
from ....protocol.errors import PULL_RETRY_IMMEDIATELY, RemoteProtocolError
from ....protocol.fields import I64_MAX, decode_fields
from ....protocol.times import duration_millis, last_millis
from ..rpc.operation import Operation, Plan, check_body, nothing, operation, pull_operation
from ..rpc.session import Answer
from ..times import check_moment, to_millis
from ..topics import ALL_QUEUES, encode_offsets
from .batch import EVERYTHING, Batch, Found, StoredMessage, TagFilter, check_filter, parse_tags


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
        return batch_of(answer, topic, queue, tags)

    hold_seconds = wait_ms / 1000 if type(wait_ms) is int else 0.0
    return pull_operation(
        decode, hold_seconds, offset, topic, queue, max_count, max_bytes, wait_ms, tags.expression, condition
    )


def batch_of(answer: Answer, topic: str, queue: int, tags: TagFilter) -> Batch:
    """Return the messages in the response to a pull."""
    head = answer.records or decode_fields(commands.RecordsAnswer, answer.fields)
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


def query(
    topic: str,
    key: str,
    since: datetime | None = None,
    until: datetime | None = None,
    max_count: int = 32,
    cursor: str | None = None,
    *,
    timeout: float | None = None,
) -> Operation[Found]:
    """Return the messages with this key or id, newest first, up to ``max_count`` (at most 64) a page.

    ``since``, ``until``: aware datetimes that limit the store time, both included. ``cursor``: the previous page's.
    """
    begin_ms = 0 if since is None else to_millis("since", since)
    end_ms = I64_MAX if until is None else last_millis(check_moment("until", until))
    return replace(query_between(topic, key, begin_ms, end_ms, max_count, cursor), timeout=timeout)


def query_between(
    topic: str, key: str, begin_ms: int, end_ms: int, max_count: int, cursor: str | None
) -> Operation[Found]:
    """Find messages by a key; the store times are in ms since 1970 UTC, the last one included."""

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


def message(message_id: str, topic: str | None = None, *, timeout: float | None = None) -> Operation[StoredMessage]:
    """Return the message with this id, of either form. ``topic``: the only topic to search for a unique key; None:
    search all.

    Raises ``MessageNotFound``.
    """

    def decode(answer: Answer) -> StoredMessage:
        head = decode_fields(commands.ViewMessageAnswer, answer.fields)
        found = Found(topic or "", answer.body, head.count, None, 0)
        if len(found) != 1:
            raise RemoteProtocolError(f"expected one message for an id, got {len(found)}")
        return found[0]

    return operation(commands.VIEW_MESSAGE_BY_ID, decode, timeout=timeout, id=message_id, topic=topic or "")


def _offset(answer: Answer) -> int:
    offset: int = decode_fields(commands.OffsetAnswer, answer.fields).offset
    return offset


def min_offset(topic: str, queue: int = 0, *, timeout: float | None = None) -> Operation[int]:
    """Return the first readable offset of a queue."""
    return operation(commands.GET_MIN_OFFSET, _offset, timeout=timeout, topic=topic, queue=queue)


def max_offset(topic: str, queue: int = 0, *, timeout: float | None = None) -> Operation[int]:
    """Return the offset that the queue's next message will have."""
    return operation(commands.GET_MAX_OFFSET, _offset, timeout=timeout, topic=topic, queue=queue)


def offset_at(topic: str, queue: int, moment: datetime, *, timeout: float | None = None) -> Operation[int]:
    """Return the offset of a queue's first message that was stored at or after ``moment``, an aware datetime."""
    return replace(offset_at_ms(topic, queue, to_millis("moment", moment)), timeout=timeout)


def offset_at_ms(topic: str, queue: int, timestamp_ms: int) -> Operation[int]:
    """Get the first offset stored at or after ``timestamp_ms``; the queue's max offset if nothing was."""
    return operation(
        commands.SEARCH_OFFSET_BY_TIMESTAMP,
        lambda answer: _time_bound(answer).offset,
        topic=topic,
        queue=queue,
        timestamp_ms=timestamp_ms,
    )


class TimeBound(NamedTuple):
    """Where a time is in a queue: the offset of the first message stored at it or later.

    ``left_ms``: ms after which the time has come by the broker's clock; until then ``offset`` may still grow.
    """

    offset: int
    left_ms: int


def _time_bound(answer: Answer) -> TimeBound:
    head = decode_fields(commands.TimeOffsetAnswer, answer.fields)
    return TimeBound(head.offset, head.left_ms)


def time_bound(topic: str, queue: int, timestamp_ms: int) -> Operation[TimeBound]:
    """Get where a time is in a queue."""
    return operation(
        commands.SEARCH_OFFSET_BY_TIMESTAMP, _time_bound, topic=topic, queue=queue, timestamp_ms=timestamp_ms
    )


def committed(group: str, topic: str, *, timeout: float | None = None) -> Operation[dict[int, int]]:
    """Return the offsets that a group has committed, by queue; queues without one are left out."""

    def decode(answer: Answer) -> dict[int, int]:
        head = decode_fields(commands.ConsumerOffsetsAnswer, answer.fields)
        check_body(answer, head.count * CONSUMER_OFFSET_STRUCT.size)
        return dict(CONSUMER_OFFSET_STRUCT.iter_unpack(answer.body))

    return operation(
        commands.QUERY_CONSUMER_OFFSET, decode, timeout=timeout, group=group, topic=topic, queue=ALL_QUEUES
    )


def commit(group: str, topic: str, offsets: Mapping[int, int], *, timeout: float | None = None) -> Operation[None]:
    """Commit a group's offsets, by queue: the offset after the last processed message."""
    body = encode_offsets(offsets)
    return operation(
        commands.UPDATE_CONSUMER_OFFSET, nothing, body, timeout=timeout, group=group, topic=topic, count=len(offsets)
    )


# ---- Pulling from one queue: as many requests as it takes to find a wanted message.


def pull_found(
    topic: str,
    queue: int,
    offset: int,
    max_count: int,
    max_bytes: int,
    wait_ms: int,
    tags: str | Iterable[str] | None,
    condition: str | None,
    deadline: float,
    clock: Callable[[], float],
) -> Plan[Batch]:
    """Return the plan of a consumer's ``pull``. If the broker searched a long range without finding a wanted message,
    the plan continues after it, until ``deadline`` (monotonic seconds, on ``clock``)."""
    wanted = parse_tags(tags)
    sought = check_filter(condition)
    operation = pull(topic, queue, offset, max_count, max_bytes, wait_ms, wanted, sought)
    held_until = clock() + operation.hold_seconds
    while True:
        batch: Batch = (yield [operation])[0]
        if batch or not (wanted.wanted or sought) or batch.next_offset >= batch.max_offset:
            return batch
        # No message in the range that the broker searched is wanted: continue after it.
        if batch.next_offset <= offset or clock() >= deadline:
            return batch
        left_ms = max(0, duration_millis(held_until - clock()))
        operation = pull(topic, queue, batch.next_offset, max_count, max_bytes, left_ms, wanted, sought)
        offset = batch.next_offset
