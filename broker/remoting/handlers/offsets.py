"""Offsets of queues and of groups: the ends of a queue, its offsets by time, and the committed offset of a group."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ....protocol.auth.permissions import GROUP, QUERY, Need
from ....protocol.errors import GroupNotExist, InvalidParameter
from ....protocol.names import check_client_group
from ....protocol.remoting import codes, fastjson
from ...handlers.offsets import sees_progress
from ..rules import check

if TYPE_CHECKING:
    from ...delivery.groups.coordinator import GroupCoordinator
    from ...store import MessageStore
    from ..gateway import RemotingGateway
    from ..request import RemotingRequest

_QUEUE_MAX = 2**31 - 1
_I64_MAX = 2**63 - 1
_TIME_MS_MIN = -(2**63)
LOWER, UPPER = "LOWER", "UPPER"
YOUNG_SHARE = 0.4
"""Share of the machine's memory that the log since a message may take for the message to count as still in memory."""
MEMORY_BYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _queue(request: RemotingRequest, store: MessageStore) -> tuple[str, int]:
    """Return topic and queue of the request. Raises if the topic cannot be read."""
    topic = request.ext.text("topic")
    store.topics.check_readable(topic)
    return topic, request.ext.integer("queueId", high=_QUEUE_MAX)


async def get_max_offset(request: RemotingRequest, store: MessageStore) -> None:
    topic, queue = _queue(request, store)
    await request.dispatched()
    request.reply({"offset": str(store.queue_reads.max_offset(topic, queue))})


async def get_min_offset(request: RemotingRequest, store: MessageStore) -> None:
    topic, queue = _queue(request, store)
    offset = await request.read(lambda hot: store.queue_reads.min_offset(topic, queue, hot=hot))
    request.reply({"offset": str(offset)})


async def get_earliest_msg_storetime(request: RemotingRequest, store: MessageStore) -> None:
    """Return the store time of the queue's first message in ms, or -1 if the queue is empty."""
    topic, queue = _queue(request, store)
    await request.dispatched()
    stored_ms = await request.read(lambda hot: store.queue_reads.earliest_store_time(topic, queue, hot=hot))
    request.reply({"timestamp": str(stored_ms)})


async def search_offset_by_timestamp(request: RemotingRequest, store: MessageStore) -> None:
    """Return the first offset whose message was stored at a time or later; for ``UPPER`` the last at it or earlier."""
    topic, queue = _queue(request, store)
    timestamp_ms = max(request.ext.integer("timestamp", low=_TIME_MS_MIN), 0)
    boundary = request.ext.text("boundaryType", LOWER).upper() or LOWER
    if boundary not in (LOWER, UPPER):
        raise InvalidParameter(f"boundaryType must be {LOWER} or {UPPER}, got {boundary[:40]!r}")
    reads = store.queue_reads

    def find(hot: bool) -> int:
        if boundary == LOWER:
            return reads.offset_by_time(topic, queue, timestamp_ms, hot=hot)
        # The last message at a time or earlier is the one before the first after it.
        after = reads.offset_by_time(topic, queue, min(timestamp_ms + 1, _I64_MAX), hot=hot)
        return max(after - 1, reads.min_offset(topic, queue, hot=hot))

    await request.dispatched()
    request.reply({"offset": str(await request.read(find))})


async def query_consumer_offset(request: RemotingRequest, store: MessageStore) -> None:
    """Return the committed offset of a group in a queue.

    A group that has committed nothing gets 0 if the queue still has its first message and that one is young: so a new
    group misses nothing of a young topic, whatever its start rule. ``setZeroIfNotFound`` = false forbids that.
    """
    ext = request.ext
    group, may_be_zero = ext.text("consumerGroup"), ext.flag("setZeroIfNotFound", True)
    topic, queue = _queue(request, store)
    committed = store.consumer_offsets.committed_of(group, topic, queue)
    if committed is not None:
        request.reply({"offset": str(committed)})
        return
    if not may_be_zero:
        request.reply(code=codes.QUERY_NOT_FOUND, remark="Not found, do not set to zero, maybe this group boot first")
        return
    await request.dispatched()
    if await request.read(lambda hot: _is_young(store, topic, queue, hot)):
        request.reply({"offset": "0"})
    else:
        remark = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
        request.reply(code=codes.QUERY_NOT_FOUND, remark=remark)


def _is_young(store: MessageStore, topic: str, queue: int, hot: bool) -> bool:
    """Return whether the queue still has its first message, and the log since then could be in memory."""
    if store.queue_reads.min_offset(topic, queue, hot=hot) > 0:
        return False
    log_bytes = store.queue_reads.log_bytes_since(topic, queue, 0, hot=hot)
    return log_bytes is not None and log_bytes < YOUNG_SHARE * MEMORY_BYTES


async def update_consumer_offset(
    request: RemotingRequest, gateway: RemotingGateway, groups: GroupCoordinator, store: MessageStore
) -> None:
    """Set the committed offset of a group in a queue, also backwards.

    An offset beyond the queue's end is kept; the next pull there is told the end. A commit that is older than a reset
    by an operator is ignored. Unless it only moves on, the offset is on disk before the answer.
    """
    ext = request.ext
    group, offset = check_client_group(ext.text("consumerGroup")), ext.integer("commitOffset")
    if not store.groups.has(group):
        raise GroupNotExist(f"Group {group} not exist! Its clients send heartbeats first, which create it")
    topic, queue = _queue(request, store)
    config = store.topics.get(topic)
    if config is None or not store.queue_reads.is_there(config, queue):
        store.queue_reads.max_offset(topic, queue)  # raises
    ignored = gateway.consumers.was_reset(group, (topic, queue))
    request.check_may_save()
    gateway.commit(group, topic, queue, offset)
    remark = "Offset has been previously reset" if ignored else None
    if store.consumer_offsets.is_unsaved(group, topic):
        await request.saved()
    request.reply(remark=remark)


def query_correction_offset(request: RemotingRequest, store: MessageStore) -> None:
    """Return for each queue of a topic the smallest committed offset of all groups that the user may see, but some.

    A queue in which a group to compare with is behind that offset gets the largest number instead.
    """
    ext = request.ext
    topic = ext.text("topic")
    left_out = {name for name in ext.text("filterGroups", "").split(",") if name}
    compared = ext.text("compareGroup", "")
    if compared:
        check(request, Need((QUERY,), GROUP, compared))
    found: dict[int, int] = {}
    for group, of, offsets in store.consumer_offsets.rows():
        if of == topic and group not in left_out and sees_progress(request, group, topic):
            for queue, offset in offsets.items():
                found[queue] = min(found.get(queue, offset), offset)
    for queue, offset in store.consumer_offsets.committed(compared, topic).items() if compared else ():
        if found.get(queue, -1) > offset:
            found[queue] = _I64_MAX
    request.reply(body=fastjson.encode({"correctionOffsets": found}))
