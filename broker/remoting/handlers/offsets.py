"""Offsets of queues and of groups: QUERY_CONSUMER_OFFSET, UPDATE_CONSUMER_OFFSET, and the ends of a queue."""

from __future__ import annotations

from ....protocol.remoting import codes
from ...handlers.pull import check_readable
from ...store import MessageStore
from ..gateway import RemotingGateway
from ..request import RemotingRequest

_QUEUE_MAX = 2**31 - 1


def _queue(request: RemotingRequest) -> tuple[str, int]:
    """Return topic and queue of the request. Raises if the topic cannot be read."""
    topic = request.ext.text("topic")
    check_readable(request.broker, topic)
    return topic, request.ext.integer("queueId", high=_QUEUE_MAX)


def get_max_offset(request: RemotingRequest, store: MessageStore) -> None:
    """Return the offset that the queue's next message will have."""
    topic, queue = _queue(request)
    request.after_dispatch(lambda: request.reply({"offset": str(store.queue_reads.max_offset(topic, queue))}))


def get_min_offset(request: RemotingRequest, store: MessageStore) -> None:
    """Return the queue's first readable offset."""
    topic, queue = _queue(request)
    request.read(
        lambda hot: store.queue_reads.min_offset(topic, queue, hot=hot),
        lambda offset: request.reply({"offset": str(offset)}),
    )


def search_offset_by_timestamp(request: RemotingRequest, store: MessageStore) -> None:
    """Return the first offset whose message was stored at a time or later."""
    topic, queue = _queue(request)
    timestamp_ms = request.ext.integer("timestamp", low=-(2**63))
    request.after_dispatch(
        lambda: request.read(
            lambda hot: store.queue_reads.offset_by_time(topic, queue, max(timestamp_ms, 0), hot=hot),
            lambda offset: request.reply({"offset": str(offset)}),
        )
    )


def query_consumer_offset(request: RemotingRequest, store: MessageStore) -> None:
    """Return the committed offset of a group in a queue."""
    ext = request.ext
    group = ext.text("consumerGroup")
    topic, queue = _queue(request)
    committed = store.consumer_offsets.committed_of(group, topic, queue)
    if committed is not None:
        request.reply({"offset": str(committed)})
    else:
        request.reply(
            code=codes.QUERY_NOT_FOUND, remark="Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
        )


def update_consumer_offset(request: RemotingRequest, gateway: RemotingGateway) -> None:
    """Set the committed offset of a group in a queue, also backwards."""
    ext = request.ext
    group, offset = ext.text("consumerGroup"), ext.integer("commitOffset")
    topic, queue = _queue(request)
    gateway.commit(group, topic, queue, offset)
    request.reply()
