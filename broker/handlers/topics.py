"""Topics: create, change, delete and list them, and show the offsets of their queues."""

from __future__ import annotations

import dataclasses
from functools import partial

import msgpack

from ...protocol import commands
from ...protocol.auth.permissions import TOPIC
from ...protocol.commands import (
    QUEUE_STATS_STRUCT,
    Command,
    EmptyAnswer,
    TopicRequest,
    TopicsAnswer,
    TopicStatsAnswer,
    UpdateAndCreateTopicRequest,
)
from ...protocol.errors import BrokerError, InvalidParameter, NoPermission, TopicExistsAlready, TopicNotExist
from ...protocol.fields import decode_fields
from ...protocol.frames import Frame
from ...protocol.names import check_name, is_system_topic
from ...protocol.storage.delivery import RETRY_TOPIC_PREFIX
from ..store import TopicConfig
from ..store.tables.config_files import RETENTION_FOREVER
from .audit import audit, topic_values
from .context import Peer

AS_IT_IS = -2
"""Value of ``retention_hours`` that keeps the topic's retention; a new topic then has none of its own."""


def update_and_create_topic(peer: Peer, frame: Frame) -> None:
    """Create or change a topic; respond once the table is on disk."""
    request = decode_fields(UpdateAndCreateTopicRequest, frame.fields)
    _check_own(check_name("topic", request.topic))
    _check_retention(request)
    broker = peer.broker
    if request.topic in broker.topic_changes.pending:
        broker.topic_changes.when_done(request.topic, lambda _: peer.handle(frame))
        return
    old = broker.store.topics.get(request.topic)
    if old is None:
        new = TopicConfig(
            name=request.topic,
            read_queues=request.read_queues,
            write_queues=request.write_queues,
            perm=request.perm,
            order=request.order,
            retention_hours=max(request.retention_hours, RETENTION_FOREVER)
            if request.retention_hours != AS_IT_IS
            else 0,
            retention_bytes=max(request.retention_bytes, 0),
        )
    else:
        if request.read_queues < old.read_queues or request.write_queues < old.write_queues:
            raise TopicExistsAlready(
                f"topic {old.name} has {old.read_queues} read queues and {old.write_queues} write queues; "
                "queues can be added, but not removed",
                read_queues=old.read_queues,
                write_queues=old.write_queues,
            )
        new = dataclasses.replace(
            old,
            read_queues=request.read_queues,
            write_queues=request.write_queues,
            perm=request.perm,
            order=request.order,
            retention_hours=old.retention_hours if request.retention_hours == AS_IT_IS else request.retention_hours,
            retention_bytes=old.retention_bytes if request.retention_bytes < 0 else request.retention_bytes,
        )
    if new == old:
        peer.answer(frame, EmptyAnswer())
    else:
        broker.topic_changes.put(new, partial(_changed, peer, frame, commands.UPDATE_AND_CREATE_TOPIC, old, new))


def delete_topic_in_broker(peer: Peer, frame: Frame) -> None:
    """Delete a topic and its queues. The end offsets are kept, so that a topic created again continues from them."""
    request = decode_fields(TopicRequest, frame.fields)
    _check_own(request.topic)
    broker = peer.broker
    if request.topic in broker.topic_changes.pending:
        broker.topic_changes.when_done(request.topic, lambda _: peer.handle(frame))
        return
    old = broker.store.topics.get(request.topic)
    if old is None:
        raise TopicNotExist(f"topic {request.topic} does not exist")
    changed = partial(_changed, peer, frame, commands.DELETE_TOPIC_IN_BROKER, old, None)
    broker.topic_changes.delete(request.topic, changed)


def _check_own(topic: str) -> None:
    if is_system_topic(topic):
        raise NoPermission(f"topic {topic} is a system topic of the broker; it cannot be created, changed or deleted")


def _check_retention(request: UpdateAndCreateTopicRequest) -> None:
    """Raise if a retention rule would delete messages that a group still has to receive again."""
    has_rule = request.retention_hours > 0 or request.retention_bytes > 0
    if has_rule and request.topic.startswith(RETRY_TOPIC_PREFIX):
        group = request.topic.removeprefix(RETRY_TOPIC_PREFIX)
        raise InvalidParameter(
            f"topic {request.topic} holds messages that group {group} still has to receive again; it cannot have a "
            "retention of its own"
        )


def _changed(
    peer: Peer,
    frame: Frame,
    command: Command,
    old: TopicConfig | None,
    new: TopicConfig | None,
    error: BrokerError | None,
) -> None:
    if error is not None:
        peer.fail(frame, error)
        return
    config = new or old
    assert config is not None
    topic = config.name
    audit(peer, command, f"topic {topic}", topic_values(old), topic_values(new))
    peer.answer(frame, EmptyAnswer())
    peer.broker.holds.wake_topic(topic)


def get_all_topic_config(peer: Peer, frame: Frame) -> None:
    """Return every topic that the user may see, including system topics."""
    topics = [
        {
            "topic": config.name,
            "read_queues": config.read_queues,
            "write_queues": config.write_queues,
            "perm": config.perm,
            "order": config.order,
            "system": is_system_topic(config.name),
            "retention_hours": config.retention_hours,
            "retention_bytes": config.retention_bytes,
        }
        for config in peer.broker.store.topics
        if peer.access is None or peer.access.sees(TOPIC, config.name)
    ]
    peer.answer(frame, TopicsAnswer(count=len(topics)), msgpack.packb(topics))


def get_topic_stats_info(peer: Peer, frame: Frame) -> None:
    """Return both ends of each queue of a topic, and the store time of its last message."""
    request = decode_fields(TopicRequest, frame.fields)
    store = peer.broker.store
    if store.topics.get(request.topic) is None:
        raise TopicNotExist(f"topic {request.topic} does not exist")

    def done(stats: list[tuple[int, int, int, int]]) -> None:
        body = b"".join([QUEUE_STATS_STRUCT.pack(*entry) for entry in stats])
        peer.answer(frame, TopicStatsAnswer(count=len(stats)), body)

    peer.after_dispatch(
        frame, lambda: peer.read(frame, lambda hot: store.queue_reads.topic_stats(request.topic, hot=hot), done)
    )
