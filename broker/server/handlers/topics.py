"""Topics: create, change, delete, list, and what is in their queues."""

from __future__ import annotations

import dataclasses
from functools import partial

import msgpack

from ....protocol import commands
from ....protocol.commands import (
    QUEUE_STATS_STRUCT,
    Command,
    EmptyAnswer,
    TopicRequest,
    TopicsAnswer,
    TopicStatsAnswer,
    UpdateAndCreateTopicRequest,
)
from ....protocol.delivery import RETRY_TOPIC_PREFIX
from ....protocol.errors import BrokerError, InvalidParameter, NoPermission, TopicExistsAlready, TopicNotExist
from ....protocol.fields import decode_fields
from ....protocol.frames import Frame
from ....protocol.names import check_name, is_system_topic
from ....protocol.permissions import TOPIC
from ...store import TopicConfig
from ...store.config_files import RETENTION_FOREVER
from .auditing import audit, topic_values
from .context import Peer

AS_IT_IS = -2
"""In place of ``retention_hours``: what the topic has, for a new one none."""


def update_and_create_topic(peer: Peer, frame: Frame) -> None:
    """Create a topic, or change one; answered when the table is on disk."""
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
                f"topic {old.name} has {old.read_queues} queues to read and {old.write_queues} to write; "
                "queues can be added, not taken away",
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
    """Delete a topic and its queues; the ends of the queues are kept, so that a topic made anew goes on from there."""
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
        raise NoPermission(f"topic {topic} is the broker's own; it cannot be created, changed or deleted")


def _check_retention(request: UpdateAndCreateTopicRequest) -> None:
    """Raise for a rule that would take away what a group has still to try again."""
    has_rule = request.retention_hours > 0 or request.retention_bytes > 0
    if has_rule and request.topic.startswith(RETRY_TOPIC_PREFIX):
        group = request.topic.removeprefix(RETRY_TOPIC_PREFIX)
        raise InvalidParameter(
            f"topic {request.topic} holds what group {group} has still to try again: it takes no retention of its own"
        )


def _changed(
    peer: Peer, frame: Frame, command: Command, old: TopicConfig | None, new: TopicConfig | None,
    error: BrokerError | None,
) -> None:  # fmt: skip
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
    """Every topic that the user may see, the broker's own too."""
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
    """Both ends of each queue of a topic, and when its last message was stored."""
    request = decode_fields(TopicRequest, frame.fields)
    store = peer.broker.store
    if store.topics.get(request.topic) is None:
        raise TopicNotExist(f"topic {request.topic} does not exist")

    def done(stats: list[tuple[int, int, int, int]]) -> None:
        body = b"".join([QUEUE_STATS_STRUCT.pack(*entry) for entry in stats])
        peer.answer(frame, TopicStatsAnswer(count=len(stats)), body)

    peer.after_dispatch(frame, lambda: peer.read(frame, lambda hot: store.topic_stats(request.topic, hot), done))
