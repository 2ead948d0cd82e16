"""Topics as the broker describes them, the progress of groups in them, and the operations on them.

The clients' methods have the arguments and docstrings of these operations.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from ...protocol import commands
from ...protocol.commands import (
    CONSUMER_OFFSET_STRUCT,
    QUEUE_STATS_STRUCT,
    TOPICS_STATS_MAX,
    ConsumeStats,
    QueueStats,
    TopicInfo,
    TopicTotals,
    TopicView,
)
from ...protocol.fields import decode_fields
from ...protocol.rows import decode_rows
from ..errors import InvalidArgument
from .rpc.operation import Operation, check_body, fetching, listing, nothing, operation, unpack_body
from .rpc.session import Answer

ALL_QUEUES = -1


def topic_stats(topic: str, *, timeout: float | None = None) -> Operation[list[QueueStats]]:
    """Return the offsets and counts of each queue of a topic, in the order of the queues."""

    def decode(answer: Answer) -> list[QueueStats]:
        head = decode_fields(commands.TopicStatsAnswer, answer.fields)
        check_body(answer, head.count * QUEUE_STATS_STRUCT.size)
        return sorted((QueueStats(*row) for row in QUEUE_STATS_STRUCT.iter_unpack(answer.body)), key=_queue)

    return operation(commands.GET_TOPIC_STATS_INFO, decode, timeout=timeout, topic=topic)


def topic(topic: str, *, timeout: float | None = None) -> Operation[TopicView]:
    """Return one topic: its configuration, its queues, its traffic, and the groups that read it, of those that the user
    may query. Needs ``query`` on the topic."""
    return fetching(commands.TOPIC_SHOW, timeout=timeout, topic=topic)


def topics_stats(
    after: str = "", *, max_count: int = TOPICS_STATS_MAX, timeout: float | None = None
) -> Operation[list[TopicTotals]]:
    """Return the figures of at most ``max_count`` topics (1 to 1,000) whose names follow ``after``, by name.

    System topics are included, and topics that the user may not see are left out. If there are ``max_count`` of them,
    call it again with the last name.
    """
    return listing(commands.GET_TOPICS_STATS, timeout=timeout, after=after, max_count=max_count)


def _queue(stats: QueueStats) -> int:
    return stats.queue


def topics(*, system: bool = False, timeout: float | None = None) -> Operation[dict[str, TopicInfo]]:
    """Return the topics by name; ``system``: include the broker's own."""

    def decode(answer: Answer) -> dict[str, TopicInfo]:
        found = decode_rows(TopicInfo, unpack_body(answer))
        return {topic.topic: topic for topic in sorted(found, key=_name) if system or not topic.system}

    return operation(commands.GET_ALL_TOPIC_CONFIG, decode, timeout=timeout)


def _name(topic: TopicInfo) -> str:
    return topic.topic


def create_topic(
    topic: str,
    queues: int = 4,
    *,
    read_queues: int | None = None,
    write_queues: int | None = None,
    perm: int = 6,
    order: bool = False,
    retention_hours: int | None = None,
    retention_bytes: int | None = None,
    timeout: float | None = None,
) -> Operation[None]:
    """Create a topic, or change an existing one; queues can be added but not removed.

    ``queues``: number of queues for reading and for writing, unless ``read_queues`` or ``write_queues`` is given;
    ``perm``: 4 (readable) + 2 (writable). ``retention_hours``: how long messages are kept; 0: as long as the broker
    keeps its log, -1: forever. ``retention_bytes``: maximum bytes of the topic's records, the newest are kept; 0:
    no limit. For both, None leaves the topic's value unchanged.
    """
    retention: dict[str, Any] = {}
    for name, value in (("retention_hours", retention_hours), ("retention_bytes", retention_bytes)):
        if value is not None:
            if value < (-1 if name == "retention_hours" else 0):
                raise InvalidArgument(f"{name} is {value}; it must not be negative (-1 hours: forever)")
            retention[name] = value
    return operation(
        commands.UPDATE_AND_CREATE_TOPIC,
        nothing,
        timeout=timeout,
        topic=topic,
        read_queues=queues if read_queues is None else read_queues,
        write_queues=queues if write_queues is None else write_queues,
        perm=perm,
        order=order,
        **retention,
    )


def delete_topic(topic: str, *, timeout: float | None = None) -> Operation[None]:
    """Delete a topic; its messages can no longer be read."""
    return operation(commands.DELETE_TOPIC_IN_BROKER, nothing, timeout=timeout, topic=topic)


def created_queues(client_name: str) -> Operation[int]:
    """Get the number of queues that the broker gives to a topic created by its first message. It is part of the
    response to HELLO, which may be sent again at any time. ``client_name``: the name of the first HELLO."""

    def decode(answer: Answer) -> int:
        count: int = decode_fields(commands.HelloAnswer, answer.fields).auto_create_queues
        return count

    return operation(commands.HELLO, decode, protocol=commands.PROTOCOL_VERSION, client=client_name)


def consume_stats(
    group: str | None = None,
    topic: str | None = None,
    *,
    uncommitted: bool = False,
    times: bool = False,
    timeout: float | None = None,
) -> Operation[list[ConsumeStats]]:
    """Return the progress of groups by group, topic and queue: of one group or (None) all, in one topic or all.

    Queues in which a group has not committed an offset are left out unless ``uncommitted`` is set. Set it to sum up
    lags, and with it ``times`` to learn when the next message of each queue was stored.
    """
    if times and not uncommitted:
        raise InvalidArgument("times needs uncommitted: the lag in time includes queues without a committed offset")
    return listing(
        commands.GET_CONSUME_STATS,
        timeout=timeout,
        group=group or "",
        topic=topic or "",
        uncommitted=uncommitted,
        times=times,
    )


def encode_offsets(offsets: Mapping[int, int]) -> bytes:
    """Return the body of a request that sets offsets, by queue. Raises ``InvalidArgument``."""
    if not isinstance(offsets, Mapping) or not offsets:
        raise InvalidArgument(f"offsets is {offsets!r:.60}; it must map at least one queue to its next offset")
    try:
        return b"".join(CONSUMER_OFFSET_STRUCT.pack(queue, offset) for queue, offset in offsets.items())
    except struct.error as error:
        raise InvalidArgument(f"offsets must map queues to offsets, both integers: {error}") from None
