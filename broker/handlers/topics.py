"""Topics: create, change, delete and list them, and show the offsets of their queues."""

from __future__ import annotations

import contextlib
import heapq
from typing import TYPE_CHECKING

from ...protocol.auth.permissions import TOPIC
from ...protocol.commands import (
    QUEUE_STATS_STRUCT,
    EmptyAnswer,
    GetTopicsStatsRequest,
    QueueStats,
    ReadingGroup,
    RowsAnswer,
    TopicInfo,
    TopicRequest,
    TopicStatsAnswer,
    TopicTotals,
    TopicView,
    UpdateAndCreateTopicRequest,
)
from ...protocol.errors import TopicNotExist
from ...protocol.fields import decode_fields
from ...protocol.names import is_system_topic
from ...protocol.rows import pack_rows
from ..requests.counters import Traffic
from ..store import WouldBlock
from .offsets import sees_progress

if TYPE_CHECKING:
    from ..delivery.groups.coordinator import GroupCoordinator
    from ..delivery.topic_changes import TopicService
    from ..requests.counters import Counters
    from ..requests.request import Request
    from ..store import MessageStore

_DELETED = (0, 0, 0, -1)
"""Totals of a topic that was deleted since the names were chosen: without a row, the page would seem to be the last."""
_NO_TRAFFIC = Traffic()


async def update_and_create_topic(request: Request, topics: TopicService) -> None:
    """Create or change a topic; respond once the table is on disk."""
    params = decode_fields(UpdateAndCreateTopicRequest, request.frame.fields)
    await topics.change(request, params)
    request.respond(EmptyAnswer())


async def delete_topic_in_broker(request: Request, topics: TopicService) -> None:
    """Delete a topic and its queues. The end offsets are kept, so that a topic created again continues from them."""
    params = decode_fields(TopicRequest, request.frame.fields)
    await topics.delete(request, params.topic)
    request.respond(EmptyAnswer())


def get_all_topic_config(request: Request, store: MessageStore) -> None:
    topics = [
        TopicInfo(
            config.name,
            config.read_queues,
            config.write_queues,
            config.perm,
            config.order,
            is_system_topic(config.name),
            config.retention_hours,
            config.retention_bytes,
        )
        for config in store.topics
        if request.peer.access is None or request.peer.access.sees(TOPIC, config.name)
    ]
    request.respond(RowsAnswer(count=len(topics)), pack_rows(topics))


async def get_topic_stats_info(request: Request, store: MessageStore) -> None:
    """Return both ends of each queue of a topic, and the store time of its last message."""
    params = decode_fields(TopicRequest, request.frame.fields)
    store.topics.existing(params.topic)
    await request.dispatched()
    stats = await request.read(lambda hot: store.queue_reads.topic_stats(params.topic, hot=hot))
    request.respond(TopicStatsAnswer(count=len(stats)), b"".join([QUEUE_STATS_STRUCT.pack(*entry) for entry in stats]))


async def get_topics_stats(request: Request, store: MessageStore, counters: Counters) -> None:
    params = decode_fields(GetTopicsStatsRequest, request.frame.fields)
    access = request.peer.access
    reads, produced, pulled = store.queue_reads, counters.produced, counters.pulled

    def read(hot: bool) -> tuple[int, bytes]:
        # Counting and packing thousands of queues takes too long for a turn of the event loop.
        if hot:
            raise WouldBlock
        rows = []
        for name in names:
            totals = _DELETED
            with contextlib.suppress(TopicNotExist):
                totals = reads.topic_totals(name)
            into, out = produced.by_topic.get(name, _NO_TRAFFIC), pulled.by_topic.get(name, _NO_TRAFFIC)
            rows.append(TopicTotals(name, *totals, into.messages, into.bytes, out.messages, out.bytes))
        return len(rows), pack_rows(rows)

    # On the loop, to which the table belongs; ``read`` runs in a thread.
    names = heapq.nsmallest(
        params.max_count,
        (
            config.name
            for config in store.topics
            if config.name > params.after and (access is None or access.sees(TOPIC, config.name))
        ),
    )
    await request.dispatched()
    count, body = await request.read(read)
    request.respond(RowsAnswer(count=count), body)


async def topic_show(request: Request, store: MessageStore, groups: GroupCoordinator, counters: Counters) -> None:
    """Return one topic with its queues, and the groups that read it, of those that the user may query."""
    name = decode_fields(TopicRequest, request.frame.fields).topic
    store.topics.existing(name)
    reads = store.queue_reads

    def read(hot: bool) -> tuple[list[QueueStats], int]:
        queues = [QueueStats(*row) for row in reads.topic_stats(name, hot=hot)]
        sizes = (reads.log_bytes_since(name, each.queue, each.min_offset, hot=hot) for each in queues)
        return queues, max((size for size in sizes if size is not None), default=0)

    await request.dispatched()
    queues, log_bytes = await request.read(read)
    config = store.topics.existing(name)  # it may have been deleted meanwhile
    into, out = (traffic.by_topic.get(name, _NO_TRAFFIC) for traffic in (counters.produced, counters.pulled))
    view = TopicView(
        name,
        config.read_queues,
        config.write_queues,
        config.perm,
        config.retention_hours,
        config.retention_bytes,
        log_bytes,
        into.messages,
        out.messages,
        queues,
        [
            _reader(store, groups, group, name, queues)
            for group, topics in sorted(groups.known_topics().items())
            if name in topics and sees_progress(request, group, name)
        ],
    )
    request.respond(EmptyAnswer(), pack_rows(view))


def _reader(
    store: MessageStore, groups: GroupCoordinator, group: str, topic: str, queues: list[QueueStats]
) -> ReadingGroup:
    committed = store.consumer_offsets.committed(group, topic)
    running, shared = groups.groups.get(group), groups.clients.sharing(group)
    return ReadingGroup(
        group,
        len(running.members) if running is not None else len(shared.clients) if shared is not None else 0,
        sum(max(each.max_offset - max(committed.get(each.queue, 0), each.min_offset), 0) for each in queues),
        groups.begins_at_first(group, topic) or all(each.queue in committed or not each.count for each in queues),
    )
