"""Queue offsets: by time, first and last, and the committed offsets of consumer groups."""

from __future__ import annotations

import msgpack

from ...protocol.auth.permissions import GROUP, QUERY, TOPIC
from ...protocol.commands import (
    CONSUMER_OFFSET_STRUCT,
    UPDATE_CONSUMER_OFFSET,
    ConsumerOffsetsAnswer,
    ConsumeStatsAnswer,
    ConsumeStatsRequest,
    EmptyAnswer,
    OffsetAnswer,
    QueryConsumerOffsetRequest,
    QueueRequest,
    SearchOffsetByTimestampRequest,
    StoreTimeAnswer,
    UpdateConsumerOffsetRequest,
)
from ...protocol.errors import CommitIllegal, EpochFenced, InvalidParameter, QueueNotExist, TopicNotExist
from ...protocol.fields import decode_fields
from ...protocol.frames import Frame
from ...protocol.names import check_client_group, check_name
from ...protocol.storage.delivery import DEAD_LETTER_TOPIC_PREFIX, MEMBER_SEPARATOR
from ..store import MessageStore, WouldBlock
from .audit import audit
from .context import Broker, Peer
from .pull import check_readable

NOTHING_COMMITTED = -1
REFUSED_SHOWN_MAX = 128
"""Maximum number of queues that a refused commit names; a header must not hold more than 256 items."""
HOT_STATS_ROWS_MAX = 256
"""Above this number of rows a reader thread does the lookup, so that the loop is not blocked."""


def search_offset_by_timestamp(peer: Peer, frame: Frame) -> None:
    """Return the first offset whose store time is not before the given time."""
    request = decode_fields(SearchOffsetByTimestampRequest, frame.fields)
    check_readable(peer.broker, request.topic)
    store = peer.broker.store
    peer.after_dispatch(
        frame,
        lambda: peer.read(
            frame,
            lambda hot: store.queue_reads.offset_by_time(request.topic, request.queue, request.timestamp_ms, hot=hot),
            lambda offset: peer.answer(frame, OffsetAnswer(offset=offset)),
        ),
    )


def get_max_offset(peer: Peer, frame: Frame) -> None:
    """Return the offset that the queue's next message will have."""
    request = decode_fields(QueueRequest, frame.fields)
    check_readable(peer.broker, request.topic)

    def answer() -> None:
        peer.answer(frame, OffsetAnswer(offset=peer.broker.store.queue_reads.max_offset(request.topic, request.queue)))

    peer.after_dispatch(frame, answer)


def get_min_offset(peer: Peer, frame: Frame) -> None:
    """Return the queue's first readable offset."""
    request = decode_fields(QueueRequest, frame.fields)
    check_readable(peer.broker, request.topic)
    store = peer.broker.store
    peer.read(
        frame,
        lambda hot: store.queue_reads.min_offset(request.topic, request.queue, hot=hot),
        lambda offset: peer.answer(frame, OffsetAnswer(offset=offset)),
    )


def get_earliest_msg_storetime(peer: Peer, frame: Frame) -> None:
    """Return the store time of the queue's first message, or -1 if the queue is empty."""
    request = decode_fields(QueueRequest, frame.fields)
    check_readable(peer.broker, request.topic)
    store = peer.broker.store
    peer.after_dispatch(
        frame,
        lambda: peer.read(
            frame,
            lambda hot: store.queue_reads.earliest_store_time(request.topic, request.queue, hot=hot),
            lambda timestamp_ms: peer.answer(frame, StoreTimeAnswer(timestamp_ms=timestamp_ms)),
        ),
    )


def query_consumer_offset(peer: Peer, frame: Frame) -> None:
    """Return the committed offsets of a group in a topic, for one queue or for all."""
    request = decode_fields(QueryConsumerOffsetRequest, frame.fields)
    check_name("group", request.group)
    check_readable(peer.broker, request.topic)
    committed = peer.broker.store.consumer_offsets.committed(request.group, request.topic)
    entries = [
        CONSUMER_OFFSET_STRUCT.pack(queue, offset)
        for queue, offset in sorted(committed.items())
        if request.queue in (-1, queue)
    ]
    peer.answer(frame, ConsumerOffsetsAnswer(count=len(entries)), b"".join(entries))


def update_consumer_offset(peer: Peer, frame: Frame) -> None:
    """Commit a group's progress.

    An invalid offset refuses the whole commit. Queues that the member does not hold are refused, and the others are
    still committed. The table is written to disk with the next checkpoint.
    """
    request = decode_fields(UpdateConsumerOffsetRequest, frame.fields)
    check_client_group(request.group)
    check_readable(peer.broker, request.topic)
    body_bytes = frame.body_end - frame.body_at
    if body_bytes != request.count * CONSUMER_OFFSET_STRUCT.size:
        raise InvalidParameter(
            f"expected {request.count * CONSUMER_OFFSET_STRUCT.size} bytes of body for {request.count} offsets, got "
            f"{body_bytes}"
        )
    entries: list[tuple[int, int]] = list(CONSUMER_OFFSET_STRUCT.iter_unpack(frame.body))

    def commit() -> None:
        name, held, fenced = _who_commits(peer.broker, request, entries)
        _check_commit(peer.broker, request.topic, held)
        peer.broker.groups.check_may_commit(name, request.topic, (queue for queue, _ in held))
        if not request.topic.startswith(DEAD_LETTER_TOPIC_PREFIX):
            peer.broker.groups.enter(request.group)
        table = peer.broker.store.consumer_offsets
        # An operator has purged the dead letters or sent them again, so the audit log records it.
        if request.topic.startswith(DEAD_LETTER_TOPIC_PREFIX):
            target = f"group {request.group}, topic {request.topic}"
            audit(peer, UPDATE_CONSUMER_OFFSET, target, table.committed(name, request.topic), dict(held))
        for queue, offset in held:
            if offset > (table.committed_of(name, request.topic, queue) or -1):
                table.commit(name, request.topic, queue, offset)
        if fenced is not None:
            raise fenced
        peer.answer(frame, EmptyAnswer())

    _check_queues(peer.broker, request.topic, entries)
    if all(offset <= peer.broker.store.queue_reads.max_offset(request.topic, queue) for queue, offset in entries):
        commit()
    else:
        peer.after_dispatch(frame, commit)


def _who_commits(
    broker: Broker, request: UpdateConsumerOffsetRequest, entries: list[tuple[int, int]]
) -> tuple[str, list[tuple[int, int]], EpochFenced | None]:
    """Return the name that the offsets are stored under, the entries of queues that the member holds, and an error
    that names the other queues, if there are any.

    Raises if the group has no such member, or if a client that is not a member would move a running group.
    """
    if not request.member:
        broker.groups.check_idle(
            request.group,
            "only they may commit its progress; consume as a member, or stop them and use reset",
            request.topic,
        )
        return request.group, entries, None
    held = []
    refused: list[int] = []
    fenced: EpochFenced | None = None
    for queue, offset in entries:
        try:
            broker.groups.check_holder(request.group, request.member, request.epoch, request.topic, queue)
        except EpochFenced as error:
            fenced = fenced or error
            refused.append(queue)
        else:
            held.append((queue, offset))
    if fenced is not None:
        fenced.details["refused"] = refused[:REFUSED_SHOWN_MAX]
    return broker.groups.progress_name(request.group, request.member), held, fenced


def _check_queues(broker: Broker, name: str, entries: list[tuple[int, int]]) -> None:
    topic = broker.store.topics.get(name)
    assert topic is not None, "checked before"
    for queue, _ in entries:
        if not 0 <= queue < topic.queues:
            raise QueueNotExist(f"topic {name} has no queue {queue}; it has {topic.queues}", queues=topic.queues)


def _check_commit(broker: Broker, topic: str, entries: list[tuple[int, int]]) -> None:
    for queue, offset in entries:
        if offset < 0:
            raise InvalidParameter(f"offset {offset} of topic {topic}, queue {queue} must not be negative")
        max_offset = broker.store.queue_reads.max_offset(topic, queue)
        if offset > max_offset:
            raise CommitIllegal(
                f"offset {offset} cannot be committed for topic {topic}, queue {queue}: "
                f"its next message will have offset {max_offset}",
                queue=queue,
                max_offset=max_offset,
            )


def get_consume_stats(peer: Peer, frame: Frame) -> None:
    """Return the progress of one or all groups in one or all topics, with both ends of each queue."""
    request = decode_fields(ConsumeStatsRequest, frame.fields)
    if request.group:
        check_name("group", request.group)
    if request.topic:
        check_readable(peer.broker, request.topic)
    store = peer.broker.store

    def read() -> None:
        wanted = [
            row
            for row in _all_queues(peer.broker, uncommitted=request.uncommitted)
            if request.group in ("", row[0]) and request.topic in ("", row[1]) and sees_progress(peer, row[0], row[1])
        ]
        peer.read(frame, lambda hot: _consume_stats(store, wanted, hot), done)

    def done(rows: list[tuple[str, str, int, int, int, int, bool]]) -> None:
        shown = rows if request.uncommitted else [row[:6] for row in rows]
        peer.answer(frame, ConsumeStatsAnswer(count=len(rows)), msgpack.packb(shown))

    peer.after_dispatch(frame, read)


def sees_progress(peer: Peer, group: str, topic: str) -> bool:
    """Return whether the user may see the progress of a group in a topic."""
    access = peer.access
    group = group.partition(MEMBER_SEPARATOR)[0]
    return access is None or (access.allows(QUERY, GROUP, group) and access.allows(QUERY, TOPIC, topic))


def _all_queues(broker: Broker, *, uncommitted: bool) -> list[tuple[str, str, int, int, bool]]:
    """Return ``(group, topic, queue, committed, known)`` for all committed offsets, sorted.

    ``uncommitted``: also for the other queues of their topics, except dead letters, which their group does not read.
    """
    if not uncommitted:
        return [(*row, True) for row in broker.store.consumer_offsets.all_committed()]
    rows = []
    for name, topic, committed, from_first in broker.groups.progress():
        rows += [(name, topic, queue, offset, True) for queue, offset in committed.items()]
        config = broker.store.topics.get(topic)
        if config is not None and not topic.startswith(DEAD_LETTER_TOPIC_PREFIX):
            others = set(range(config.read_queues)) - committed.keys()
            rows += [(name, topic, queue, NOTHING_COMMITTED, from_first) for queue in others]
    return sorted(rows)


def _consume_stats(
    store: MessageStore, wanted: list[tuple[str, str, int, int, bool]], hot: bool
) -> list[tuple[str, str, int, int, int, int, bool]]:
    """Return the rows of the response: those of ``wanted`` whose queue exists, with its min and max offset."""
    if hot and len(wanted) > HOT_STATS_ROWS_MAX:
        raise WouldBlock
    rows = []
    for group, topic, queue, next_offset, known in wanted:
        try:
            min_offset, max_offset = (
                store.queue_reads.min_offset(topic, queue, hot=hot),
                store.queue_reads.max_offset(topic, queue),
            )
        except (QueueNotExist, TopicNotExist):
            continue  # deleted; its committed offsets stay for a topic that is created again
        rows.append((group, topic, queue, next_offset, min_offset, max_offset, known or min_offset == max_offset))
    return rows
