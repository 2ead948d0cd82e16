"""Queue offsets: by time, first and last, and the committed offsets of consumer groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgpack

from ...protocol.auth.permissions import GROUP, QUERY, TOPIC
from ...protocol.commands import (
    CONSUMER_OFFSET_STRUCT,
    UPDATE_CONSUMER_OFFSET,
    ConsumerOffsetsAnswer,
    ConsumeStatsRequest,
    EmptyAnswer,
    OffsetAnswer,
    QueryConsumerOffsetRequest,
    QueueRequest,
    RowsAnswer,
    SearchOffsetByTimestampRequest,
    StoreTimeAnswer,
    TimeOffsetAnswer,
    UpdateConsumerOffsetRequest,
)
from ...protocol.errors import CommitIllegal, EpochFenced, InvalidParameter, QueueNotExist, TopicNotExist
from ...protocol.fields import decode_fields
from ...protocol.names import check_client_group, check_name
from ...protocol.storage.delivery import DEAD_LETTER_TOPIC_PREFIX, MEMBER_SEPARATOR, RETRY_TOPIC_PREFIX, popped_from
from ..store import WouldBlock

if TYPE_CHECKING:
    from ..delivery.groups.coordinator import GroupCoordinator
    from ..requests.request import Request
    from ..store import MessageStore
    from ..store.read.queue_reads import QueueReads

NOTHING_COMMITTED = -1
REFUSED_SHOWN_MAX = 128
"""Maximum number of queues that a refused commit names; a header must not hold more than 256 items."""
HOT_STATS_ROWS_MAX = 256
"""Above this number of rows a reader thread does the lookup, so that the loop is not blocked."""
HOT_TIMED_ROWS_MAX = 16
"""The same for rows with the store time of the next message: each takes a record's head."""


async def search_offset_by_timestamp(request: Request, store: MessageStore) -> None:
    params = decode_fields(SearchOffsetByTimestampRequest, request.frame.fields)
    topic, queue, timestamp_ms = params.topic, params.queue, params.timestamp_ms
    store.topics.check_readable(topic)
    # Before the search: if the time has come, every message of that time or later is behind what the search sees.
    left_ms = max(0, timestamp_ms - store.commitlog.next_store_ms())
    await request.dispatched()
    offset = await request.read(lambda hot: store.queue_reads.offset_by_time(topic, queue, timestamp_ms, hot=hot))
    request.respond(TimeOffsetAnswer(offset, left_ms))


async def get_max_offset(request: Request, store: MessageStore) -> None:
    params = decode_fields(QueueRequest, request.frame.fields)
    store.topics.check_readable(params.topic)
    await request.dispatched()
    request.respond(OffsetAnswer(offset=store.queue_reads.max_offset(params.topic, params.queue)))


async def get_min_offset(request: Request, store: MessageStore) -> None:
    params = decode_fields(QueueRequest, request.frame.fields)
    store.topics.check_readable(params.topic)
    offset = await request.read(lambda hot: store.queue_reads.min_offset(params.topic, params.queue, hot=hot))
    request.respond(OffsetAnswer(offset=offset))


async def get_earliest_msg_storetime(request: Request, store: MessageStore) -> None:
    """Return the store time of the queue's first message, or -1 if the queue is empty."""
    params = decode_fields(QueueRequest, request.frame.fields)
    store.topics.check_readable(params.topic)
    await request.dispatched()
    timestamp_ms = await request.read(
        lambda hot: store.queue_reads.earliest_store_time(params.topic, params.queue, hot=hot)
    )
    request.respond(StoreTimeAnswer(timestamp_ms=timestamp_ms))


def query_consumer_offset(request: Request, store: MessageStore) -> None:
    """Return the committed offsets of a group in a topic, for one queue or for all."""
    params = decode_fields(QueryConsumerOffsetRequest, request.frame.fields)
    check_name("group", params.group)
    store.topics.check_readable(params.topic)
    committed = store.consumer_offsets.committed(params.group, params.topic)
    entries = [
        CONSUMER_OFFSET_STRUCT.pack(queue, offset)
        for queue, offset in sorted(committed.items())
        if params.queue in (-1, queue)
    ]
    request.respond(ConsumerOffsetsAnswer(count=len(entries)), b"".join(entries))


async def update_consumer_offset(request: Request, store: MessageStore, groups: GroupCoordinator) -> None:
    """Commit a group's progress.

    An invalid offset refuses the whole commit. Queues that the member does not hold are refused, and the others are
    still committed. Progress is written to disk with the next checkpoint; where a group begins with a queue, and what
    an operator did with dead letters, before the answer.
    """
    params = decode_fields(UpdateConsumerOffsetRequest, request.frame.fields)
    check_client_group(params.group)
    store.topics.check_readable(params.topic)
    body_bytes = request.frame.body_end - request.frame.body_at
    if body_bytes != params.count * CONSUMER_OFFSET_STRUCT.size:
        raise InvalidParameter(
            f"expected {params.count * CONSUMER_OFFSET_STRUCT.size} bytes of body for {params.count} offsets, got "
            f"{body_bytes}"
        )
    entries: list[tuple[int, int]] = list(CONSUMER_OFFSET_STRUCT.iter_unpack(request.frame.body))

    _check_queues(store, params.topic, entries)
    # A larger offset may follow a message that is acknowledged and not dispatched yet.
    if any(offset > store.queue_reads.end_offset(params.topic, queue) for queue, offset in entries):
        await request.dispatched()
    request.check_may_save()
    name, held, fenced = _who_commits(groups, params, entries)
    # All checks before the first commit, so that a refused request changes nothing.
    _check_commit(store, params.topic, held)
    groups.check_may_commit(name, ((params.topic, queue) for queue, _ in held))
    table = store.consumer_offsets
    if params.topic.startswith(DEAD_LETTER_TOPIC_PREFIX):
        # An operator has purged the dead letters or sent them again, so the audit log records it.
        target = f"group {params.group}, topic {params.topic}"
        request.audit(UPDATE_CONSUMER_OFFSET, target, table.committed(name, params.topic), dict(held))
        table.keep(name, params.topic)
    else:
        groups.ensure_group(params.group)
    for queue, offset in held:
        # A commit never moves progress back; only a reset does.
        if offset > (table.committed_of(name, params.topic, queue) or -1):
            table.commit(name, params.topic, queue, offset)
    if table.is_unsaved(name, params.topic):
        await request.saved()
    if fenced is not None:
        raise fenced
    request.respond(EmptyAnswer())


def _who_commits(
    groups: GroupCoordinator, params: UpdateConsumerOffsetRequest, entries: list[tuple[int, int]]
) -> tuple[str, list[tuple[int, int]], EpochFenced | None]:
    """Return the name that the offsets are stored under, the entries of queues that the member holds, and an error
    that names the other queues, if there are any.

    Raises if the group has no such member, or if a client that is not a member would move a running group.
    """
    if not params.member:
        groups.check_idle(
            params.group,
            "only they may commit its progress; consume as a member, or stop them and use reset",
            params.topic,
        )
        return params.group, entries, None
    held = []
    refused: list[int] = []
    fenced: EpochFenced | None = None
    for queue, offset in entries:
        try:
            groups.check_holder(params.group, params.member, params.epoch, params.topic, queue)
        except EpochFenced as error:
            fenced = fenced or error
            refused.append(queue)
        else:
            held.append((queue, offset))
    if fenced is not None:
        fenced.details["refused"] = refused[:REFUSED_SHOWN_MAX]
    return groups.progress_name(params.group, params.member), held, fenced


def _check_queues(store: MessageStore, name: str, entries: list[tuple[int, int]]) -> None:
    topic = store.topics.get(name)
    assert topic is not None, "checked before"
    for queue, _ in entries:
        if not store.queue_reads.is_there(topic, queue):
            raise QueueNotExist(f"topic {name} has no queue {queue}; it has {topic.queues}", queues=topic.queues)


def _check_commit(store: MessageStore, topic: str, entries: list[tuple[int, int]]) -> None:
    for queue, offset in entries:
        if offset < 0:
            raise InvalidParameter(f"offset {offset} of topic {topic}, queue {queue} must not be negative")
        max_offset = store.queue_reads.end_offset(topic, queue)
        if offset > max_offset:
            raise CommitIllegal(
                f"offset {offset} cannot be committed for topic {topic}, queue {queue}: "
                f"its next message will have offset {max_offset}",
                queue=queue,
                max_offset=max_offset,
            )


async def get_consume_stats(request: Request, store: MessageStore, groups: GroupCoordinator) -> None:
    """Return the progress of one or all groups in one or all topics, with both ends of each queue."""
    params = decode_fields(ConsumeStatsRequest, request.frame.fields)
    if params.group:
        check_name("group", params.group)
    if params.topic:
        store.topics.check_readable(params.topic)

    await request.dispatched()
    wanted = [
        row
        for row in _all_queues(store, groups, uncommitted=params.uncommitted)
        if params.group in ("", row[0]) and params.topic in ("", row[1]) and sees_progress(request, row[0], row[1])
    ]
    times = params.times and params.uncommitted
    rows = await request.read(lambda hot: _consume_stats(store, wanted, times, hot))
    shown = rows if params.uncommitted else [row[:6] for row in rows]
    request.respond(RowsAnswer(count=len(rows)), msgpack.packb(shown))


def sees_progress(request: Request, group: str, topic: str) -> bool:
    """Return whether the user may see the progress of a group in a topic."""
    access = request.peer.access
    group = group.partition(MEMBER_SEPARATOR)[0]
    topic = popped_from(group, topic)
    return access is None or (access.allows(QUERY, GROUP, group) and access.allows(QUERY, TOPIC, topic))


def _all_queues(
    store: MessageStore, groups: GroupCoordinator, *, uncommitted: bool
) -> list[tuple[str, str, int, int, bool]]:
    """Return ``(group, topic, queue, committed, known)`` for all committed offsets, sorted.

    ``uncommitted``: also for the other queues of their topics, except dead letters, which their group does not read.
    Without it also for those of retry topics: what is there waits for the group, even if nothing of it was read yet.
    """
    rows = []
    for name, topic, committed, from_first in groups.all_progress():
        rows += [(name, topic, queue, offset, True) for queue, offset in committed.items()]
        config = store.topics.get(topic)
        is_asked = (
            not topic.startswith(DEAD_LETTER_TOPIC_PREFIX) if uncommitted else topic.startswith(RETRY_TOPIC_PREFIX)
        )
        if config is not None and is_asked:
            others = set(range(config.read_queues)) - committed.keys()
            rows += [(name, topic, queue, NOTHING_COMMITTED, from_first) for queue in others]
    return sorted(rows)


def _consume_stats(
    store: MessageStore, wanted: list[tuple[str, str, int, int, bool]], times: bool, hot: bool
) -> list[tuple[str | int, ...]]:
    """Return the rows of the response: those of ``wanted`` whose queue exists, with its min and max offset.

    ``times``: also with the store time of the next message.
    """
    if hot and len(wanted) > (HOT_TIMED_ROWS_MAX if times else HOT_STATS_ROWS_MAX):
        raise WouldBlock
    rows: list[tuple[str | int, ...]] = []
    for group, topic, queue, next_offset, known in wanted:
        try:
            min_offset, max_offset = (
                store.queue_reads.min_offset(topic, queue, hot=hot),
                store.queue_reads.max_offset(topic, queue),
            )
        except (QueueNotExist, TopicNotExist):
            continue  # deleted; its committed offsets stay for a topic that is created again
        row = (group, topic, queue, next_offset, min_offset, max_offset, known or min_offset == max_offset)
        if times:
            first = max(next_offset, min_offset)
            rows.append((*row, next_stored_ms(store.queue_reads, (topic, queue), first, max_offset, hot=hot)))
        else:
            rows.append(row)
    return rows


def next_stored_ms(reads: QueueReads, queue: tuple[str, int], first: int, end: int, *, hot: bool) -> int:
    """Return the store time of the message at offset ``first``, the next one to read, in ms; -1 if that is ``end``
    or the queue is deleted."""
    if first >= end:
        return -1
    try:
        found = reads.stored_ms(*queue, first, hot=hot)
    except (QueueNotExist, TopicNotExist):
        return -1
    return -1 if found is None else found
