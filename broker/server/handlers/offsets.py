"""Queue offsets by time and at both ends, and what consumer groups have committed."""

from __future__ import annotations

import msgpack

from ....protocol.commands import (
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
from ....protocol.delivery import DEAD_LETTER_TOPIC_PREFIX
from ....protocol.errors import CommitIllegal, InvalidParameter, QueueNotExist, TopicNotExist
from ....protocol.fields import decode_fields
from ....protocol.frames import Frame
from ....protocol.names import check_client_group, check_name
from ....protocol.permissions import GROUP, QUERY, TOPIC
from ...store import MessageStore, WouldBlock
from .auditing import audit
from .context import Broker, Peer
from .pull import check_readable

HOT_STATS_ROWS_MAX = 256
"""More rows than this are looked up in a reader thread, so that the loop goes on."""


def search_offset_by_timestamp(peer: Peer, frame: Frame) -> None:
    """The first offset whose store time is not before a moment."""
    request = decode_fields(SearchOffsetByTimestampRequest, frame.fields)
    check_readable(peer.broker, request.topic)
    store = peer.broker.store
    peer.after_dispatch(
        frame,
        lambda: peer.read(
            frame,
            lambda hot: store.offset_by_time(request.topic, request.queue, request.timestamp_ms, hot),
            lambda offset: peer.answer(frame, OffsetAnswer(offset=offset)),
        ),
    )


def get_max_offset(peer: Peer, frame: Frame) -> None:
    """The offset that the queue's next message will have."""
    request = decode_fields(QueueRequest, frame.fields)
    check_readable(peer.broker, request.topic)

    def answer() -> None:
        peer.answer(frame, OffsetAnswer(offset=peer.broker.store.max_offset(request.topic, request.queue)))

    peer.after_dispatch(frame, answer)


def get_min_offset(peer: Peer, frame: Frame) -> None:
    """The queue's first readable offset."""
    request = decode_fields(QueueRequest, frame.fields)
    check_readable(peer.broker, request.topic)
    store = peer.broker.store
    peer.read(
        frame,
        lambda hot: store.min_offset(request.topic, request.queue, hot),
        lambda offset: peer.answer(frame, OffsetAnswer(offset=offset)),
    )


def get_earliest_msg_storetime(peer: Peer, frame: Frame) -> None:
    """Store time of the queue's first message, -1 where it has none."""
    request = decode_fields(QueueRequest, frame.fields)
    check_readable(peer.broker, request.topic)
    store = peer.broker.store
    peer.after_dispatch(
        frame,
        lambda: peer.read(
            frame,
            lambda hot: store.earliest_store_time(request.topic, request.queue, hot),
            lambda timestamp_ms: peer.answer(frame, StoreTimeAnswer(timestamp_ms=timestamp_ms)),
        ),
    )


def query_consumer_offset(peer: Peer, frame: Frame) -> None:
    """What a group has committed of a topic: of one queue, or of all."""
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
    """Commit a group's progress, of all queues named or of none; written to disk with the next checkpoint."""
    request = decode_fields(UpdateConsumerOffsetRequest, frame.fields)
    check_client_group(request.group)
    check_readable(peer.broker, request.topic)
    body_bytes = frame.body_end - frame.body_at
    if body_bytes != request.count * CONSUMER_OFFSET_STRUCT.size:
        raise InvalidParameter(
            f"a body of {body_bytes} bytes; {request.count} offsets take {request.count * CONSUMER_OFFSET_STRUCT.size}"
        )
    entries: list[tuple[int, int]] = list(CONSUMER_OFFSET_STRUCT.iter_unpack(frame.body))

    def commit() -> None:
        name = _who_commits(peer.broker, request, entries)
        _check_commit(peer.broker, request.topic, entries)
        table = peer.broker.store.consumer_offsets
        if request.topic.startswith(DEAD_LETTER_TOPIC_PREFIX):  # dead letters are purged, or were sent again
            target = f"group {request.group}, topic {request.topic}"
            audit(peer, UPDATE_CONSUMER_OFFSET, target, table.committed(name, request.topic), dict(entries))
        for queue, offset in entries:
            if offset > (table.committed_of(name, request.topic, queue) or -1):
                table.commit(name, request.topic, queue, offset)
        peer.answer(frame, EmptyAnswer())

    _check_queues(peer.broker, request.topic, entries)
    if all(offset <= peer.broker.store.max_offset(request.topic, queue) for queue, offset in entries):
        commit()
    else:
        peer.after_dispatch(frame, commit)


def _who_commits(broker: Broker, request: UpdateConsumerOffsetRequest, entries: list[tuple[int, int]]) -> str:
    """Under which name the offsets are kept. Raises where the member does not hold the queues, or where somebody who
    is no member would move a running group."""
    if not request.member:
        broker.groups.check_idle(
            request.group,
            "only they commit its progress; consume as a member, or stop them and use reset",
            request.topic,
        )
        return request.group
    for queue, _ in entries:
        broker.groups.check_holder(request.group, request.member, request.epoch, request.topic, queue)
    return broker.groups.progress_name(request.group, request.member)


def _check_queues(broker: Broker, name: str, entries: list[tuple[int, int]]) -> None:
    topic = broker.store.topics.get(name)
    assert topic is not None, "checked before"
    for queue, _ in entries:
        if not 0 <= queue < topic.queues:
            raise QueueNotExist(f"topic {name} has no queue {queue}; it has {topic.queues}", queues=topic.queues)


def _check_commit(broker: Broker, topic: str, entries: list[tuple[int, int]]) -> None:
    for queue, offset in entries:
        if offset < 0:
            raise InvalidParameter(f"offset {offset} of topic {topic}, queue {queue} is below 0")
        max_offset = broker.store.max_offset(topic, queue)
        if offset > max_offset:
            raise CommitIllegal(
                f"offset {offset} cannot be committed for topic {topic}, queue {queue}: "
                f"its next message will have offset {max_offset}",
                queue=queue, max_offset=max_offset,
            )  # fmt: skip


def get_consume_stats(peer: Peer, frame: Frame) -> None:
    """How far groups are, beside what their queues hold: of one group or all, of one topic or all."""
    request = decode_fields(ConsumeStatsRequest, frame.fields)
    if request.group:
        check_name("group", request.group)
    if request.topic:
        check_readable(peer.broker, request.topic)
    store = peer.broker.store

    def read() -> None:
        wanted = [
            row
            for row in store.consumer_offsets.all_committed()
            if request.group in ("", row[0]) and request.topic in ("", row[1]) and _sees(peer, row[0], row[1])
        ]
        peer.read(frame, lambda hot: _consume_stats(store, wanted, hot), done)

    def done(rows: list[tuple[str, str, int, int, int, int]]) -> None:
        peer.answer(frame, ConsumeStatsAnswer(count=len(rows)), msgpack.packb(rows))

    peer.after_dispatch(frame, read)


def _sees(peer: Peer, group: str, topic: str) -> bool:
    """Whether the user may know how far a group is in a topic."""
    access = peer.access
    return access is None or (access.allows(QUERY, GROUP, group) and access.allows(QUERY, TOPIC, topic))


def _consume_stats(
    store: MessageStore, committed: list[tuple[str, str, int, int]], hot: bool
) -> list[tuple[str, str, int, int, int, int]]:
    """The rows of the answer: those of ``committed`` whose queue is there, with its min and max offset."""
    if hot and len(committed) > HOT_STATS_ROWS_MAX:
        raise WouldBlock
    rows = []
    for group, topic, queue, next_offset in committed:
        try:
            min_offset, max_offset = store.min_offset(topic, queue, hot), store.max_offset(topic, queue)
        except (QueueNotExist, TopicNotExist):
            continue  # deleted, perhaps just now; what was committed stays for a topic made anew
        rows.append((group, topic, queue, next_offset, min_offset, max_offset))
    return rows
