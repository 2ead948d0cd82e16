"""Queue offsets by time and at both ends, and what consumer groups have committed."""

from __future__ import annotations

from ....protocol.commands import (
    CONSUMER_OFFSET_STRUCT,
    ConsumerOffsetsAnswer,
    EmptyAnswer,
    OffsetAnswer,
    QueryConsumerOffsetRequest,
    QueueRequest,
    SearchOffsetByTimestampRequest,
    StoreTimeAnswer,
    UpdateConsumerOffsetRequest,
)
from ....protocol.errors import InvalidParameter, QueueNotExist
from ....protocol.fields import decode_fields
from ....protocol.frames import Frame
from ....protocol.names import check_name
from .context import Broker, Peer
from .pull import check_readable


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
    check_name("group", request.group)
    check_readable(peer.broker, request.topic)
    body_bytes = frame.body_end - frame.body_at
    if body_bytes != request.count * CONSUMER_OFFSET_STRUCT.size:
        raise InvalidParameter(
            f"a body of {body_bytes} bytes; {request.count} offsets take {request.count * CONSUMER_OFFSET_STRUCT.size}"
        )
    entries: list[tuple[int, int]] = list(CONSUMER_OFFSET_STRUCT.iter_unpack(frame.body))

    def commit() -> None:
        _check_commit(peer.broker, request.topic, entries)
        for queue, offset in entries:
            peer.broker.store.consumer_offsets.commit(request.group, request.topic, queue, offset)
        peer.answer(frame, EmptyAnswer())

    _check_queues(peer.broker, request.topic, entries)
    if all(offset <= peer.broker.store.max_offset(request.topic, queue) for queue, offset in entries):
        commit()
    else:
        peer.after_dispatch(frame, commit)


def _check_queues(broker: Broker, name: str, entries: list[tuple[int, int]]) -> None:
    topic = broker.store.topics.get(name)
    assert topic is not None, "checked before"
    for queue, _ in entries:
        if not 0 <= queue < topic.queues:
            raise QueueNotExist(f"topic {name} has no queue {queue}; it has {topic.queues}", queues=topic.queues)


def _check_commit(broker: Broker, topic: str, entries: list[tuple[int, int]]) -> None:
    for queue, offset in entries:
        max_offset = broker.store.max_offset(topic, queue)
        if not 0 <= offset <= max_offset:
            raise InvalidParameter(
                f"offset {offset} cannot be committed for topic {topic}, queue {queue}: "
                f"its next message will have offset {max_offset}"
            )
