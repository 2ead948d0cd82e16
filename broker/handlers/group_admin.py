"""Administration of consumer groups: list them, show members and progress, reset offsets, delete a group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgpack

from ...protocol.auth.permissions import GROUP, TOPIC
from ...protocol.commands import (
    CONSUMER_OFFSET_STRUCT,
    DELETE_SUBSCRIPTIONGROUP,
    INVOKE_BROKER_TO_RESET_OFFSET,
    ConsumerOffsetsAnswer,
    DeleteGroupRequest,
    EmptyAnswer,
    EmptyRequest,
    GroupMembersAnswer,
    GroupRequest,
    GroupsAnswer,
    ResetOffsetRequest,
)
from ...protocol.errors import CommitIllegal, GroupNotExist, InvalidParameter, QueueNotExist, TopicNotExist
from ...protocol.fields import decode_fields
from ...protocol.frames import Frame
from ...protocol.names import check_client_group
from ...protocol.storage.delivery import retry_topic
from ..delivery.groups.assignment import Queue
from ..delivery.groups.group import CLUSTERING, EMPTY, ConsumerGroup, Member
from ..store import MessageStore, WouldBlock
from .audit import audit
from .context import Broker, Peer
from .offsets import HOT_STATS_ROWS_MAX, NOTHING_COMMITTED, sees_progress
from .pull import check_readable

RESETS = ("first", "last", "time", "offset")


def get_all_groups(peer: Peer, frame: Frame) -> None:
    """Return every group that has ever existed and was not deleted."""
    decode_fields(EmptyRequest, frame.fields)
    broker = peer.broker
    rows = []
    for name, topics in sorted(broker.groups.known().items()):
        partial = False
        if peer.access is not None:
            if not peer.access.sees(GROUP, name):
                continue
            partial = not all(sees_progress(peer, name, topic) for topic in topics)
            topics = {topic for topic in topics if peer.access.sees(TOPIC, topic)}
        group = broker.groups.groups.get(name)
        rows.append(
            {
                "group": name,
                "mode": group.mode if group is not None else CLUSTERING,
                "state": EMPTY if group is None else group.state,
                "members": len(group.members) if group is not None else 0,
                "epoch": group.epoch if group is not None else 0,
                "topics": sorted(topics - {retry_topic(name)}),
                "partial": partial,
                "retry_times_max": broker.store.groups.retry_times_max(name),
            }
        )
    peer.answer(frame, GroupsAnswer(count=len(rows)), msgpack.packb(rows))


def get_group_members(peer: Peer, frame: Frame) -> None:
    """Return one group: its members, their queues, and the progress in each queue."""
    request = decode_fields(GroupRequest, frame.fields)
    name = _existing(peer.broker, request.group)
    broker = peer.broker
    group = broker.groups.groups.get(name)
    queues = _queues(peer, name)
    from_first = {topic for topic, _ in queues if broker.groups.begins_at_first(name, topic)}
    partial = not all(_sees(peer, topic) for topic in broker.groups.known()[name])

    def done(ends: dict[Queue, tuple[int, int]]) -> None:
        content = {
            "group": name,
            "mode": group.mode if group is not None else CLUSTERING,
            "state": EMPTY if group is None else group.state,
            "epoch": group.epoch if group is not None else 0,
            "members": [_member(peer, member) for _, member in sorted(group.members.items())] if group else [],
            "queues": [
                [
                    *queue,
                    member,
                    committed,
                    broker.groups.pulled.get((name, *queue), -1),
                    *ends[queue],
                    committed != NOTHING_COMMITTED or queue[0] in from_first or ends[queue][0] == ends[queue][1],
                ]
                for queue, member, committed in _progress(broker, name, group, queues)
                if queue in ends
            ],
            "delayed": broker.delays.pending_of(retry_topic(name)),
            "partial": partial,
        }
        peer.answer(frame, GroupMembersAnswer(group=name), msgpack.packb(content))

    peer.after_dispatch(frame, lambda: peer.read(frame, lambda hot: _queue_ends(broker.store, queues, hot), done))


def _progress(
    broker: Broker, name: str, group: ConsumerGroup | None, queues: list[Queue]
) -> Iterator[tuple[Queue, str, int]]:
    """Yield (queue, member, committed offset): once per queue, or in a broadcasting group once per member and queue."""
    committed_of = broker.store.consumer_offsets.committed_of
    if group is None or group.clustering:
        held = group.held if group is not None else {}
        for queue in queues:
            yield queue, held.get(queue, ""), _or_none(committed_of(name, *queue))
        return
    for member in sorted(group.members):
        for queue in queues:
            if queue in group.members[member].granted:
                committed, begins = broker.groups.committed_of(name, member, *queue), group.members[member].begins
                yield queue, member, _or_none(begins.get(queue) if committed is None else committed)


def _or_none(committed: int | None) -> int:
    return NOTHING_COMMITTED if committed is None else committed


def _existing(broker: Broker, name: str) -> str:
    check_client_group(name)
    if name not in broker.groups.known():
        raise GroupNotExist(f"group {name} does not exist: no client has consumed or committed under that name")
    return name


def _queues(peer: Peer, name: str) -> list[Queue]:
    """Return the queues of all of the group's topics that exist and that the user may see."""
    queues = []
    for topic in sorted(peer.broker.groups.known()[name] | {retry_topic(name)}):
        config = peer.broker.store.topics.get(topic)
        if config is not None and _sees(peer, topic):
            queues += [(topic, queue_id) for queue_id in range(config.read_queues)]
    return queues


def _queue_ends(store: MessageStore, queues: list[Queue], hot: bool) -> dict[Queue, tuple[int, int]]:
    if hot and len(queues) > HOT_STATS_ROWS_MAX:
        raise WouldBlock
    ends = {}
    for topic, queue_id in queues:
        try:
            ends[topic, queue_id] = (
                store.queue_reads.min_offset(topic, queue_id, hot=hot),
                store.queue_reads.max_offset(topic, queue_id),
            )
        except (TopicNotExist, QueueNotExist):
            continue  # deleted in the meantime
    return ends


def _sees(peer: Peer, topic: str) -> bool:
    return peer.access is None or peer.access.sees(TOPIC, topic)


def _member(peer: Peer, member: Member) -> dict[str, Any]:
    now = peer.broker.loop.time()
    return {
        "member": member.name,
        "client": member.remote.client,
        "address": f"{member.remote.address[0]}:{member.remote.address[1]}",
        "epoch": member.joined_epoch,
        "since_ms": int((now - member.joined_at) * 1000),
        "heartbeat_ms": int((now - member.heard_at) * 1000),
        "orderly": member.orderly,
        "queues": len(member.granted),
        "subscriptions": [
            [s.topic, s.tags, s.filter] for _, s in sorted(member.subscriptions.items()) if _sees(peer, s.topic)
        ],
    }


def delete_group(peer: Peer, frame: Frame) -> None:
    """Delete a group without members and its retry topic; its dead letters stay."""
    request = decode_fields(DeleteGroupRequest, frame.fields)
    broker = peer.broker
    name = _existing(broker, request.group)
    group = broker.groups.groups.get(name)
    broker.groups.check_idle(name, "stop them, then delete it")
    if group is not None:  # ``check_idle`` does not cover broadcasting groups, whose members keep their own progress
        raise InvalidParameter(f"group {name} has {len(group.members)} live members; stop them, then delete it")
    was_known = sorted(broker.groups.known().get(name, ()))
    broker.groups.forget(name)
    audit(peer, DELETE_SUBSCRIPTIONGROUP, f"group {name}", {"topics": was_known})
    broker.counters.forget_group(name)
    own = retry_topic(name)
    if broker.store.topics.get(own) is None or own in broker.topic_changes.pending:
        peer.answer(frame, EmptyAnswer())
        return
    broker.topic_changes.delete(own, peer.later(frame, lambda: peer.answer(frame, EmptyAnswer())))


def reset_offset(peer: Peer, frame: Frame) -> None:
    """Move a group's committed offsets to the beginning, the end, a time or given offsets."""
    request = decode_fields(ResetOffsetRequest, frame.fields)
    check_client_group(request.group)
    if request.to not in RESETS:
        raise InvalidParameter(f"to must be first, last, time or offset, not {request.to!r}")
    broker = peer.broker
    check_readable(broker, request.topic)
    config = broker.store.topics.get(request.topic)
    queues = config.queues if config is not None else 0
    if request.queue >= queues:
        raise QueueNotExist(f"topic {request.topic} has no queue {request.queue}; it has {queues}", queues=queues)
    running = broker.groups.groups.get(request.group)
    if running is not None and not running.clustering:
        raise InvalidParameter(
            f"group {request.group} is broadcasting: each of its members keeps its own progress, so the group has none "
            "to reset"
        )
    if not request.force:
        broker.groups.check_idle(
            request.group, "stop them first, or reset with force: they continue from the new offsets", request.topic
        )
    given = _given_offsets(frame, request)
    wanted = list(given) if request.to == "offset" else [request.queue] if request.queue >= 0 else list(range(queues))
    if not set(wanted) <= set(range(queues)):
        raise QueueNotExist(f"topic {request.topic} has no queue {max(wanted)}; it has {queues}", queues=queues)

    def done(offsets: dict[int, int]) -> None:
        before = broker.store.consumer_offsets.committed(request.group, request.topic)
        broker.groups.check_may_commit(request.group, request.topic, offsets)
        broker.groups.enter(request.group)
        broker.groups.reset(request.group, request.topic, offsets)
        audit(
            peer,
            INVOKE_BROKER_TO_RESET_OFFSET,
            f"group {request.group}, topic {request.topic}",
            {queue: before[queue] for queue in sorted(offsets) if queue in before},
            dict(sorted(offsets.items())),
        )
        body = b"".join(CONSUMER_OFFSET_STRUCT.pack(queue_id, offset) for queue_id, offset in sorted(offsets.items()))
        peer.answer(frame, ConsumerOffsetsAnswer(count=len(offsets)), body)

    peer.after_dispatch(
        frame,
        lambda: peer.read(
            frame,
            lambda hot: {queue_id: _target(broker.store, request, given, queue_id, hot) for queue_id in wanted},
            done,
        ),
    )


def _given_offsets(frame: Frame, request: ResetOffsetRequest) -> dict[int, int]:
    body_bytes = frame.body_end - frame.body_at
    if body_bytes != request.count * CONSUMER_OFFSET_STRUCT.size:
        raise InvalidParameter(
            f"expected {request.count * CONSUMER_OFFSET_STRUCT.size} bytes of body for {request.count} offsets, got "
            f"{body_bytes}"
        )
    if (request.to == "offset") != (request.count > 0):
        raise InvalidParameter("a reset with to = offset needs offsets in the body, and any other must have none")
    return dict(CONSUMER_OFFSET_STRUCT.iter_unpack(frame.body))


def _target(store: MessageStore, request: ResetOffsetRequest, given: dict[int, int], queue_id: int, hot: bool) -> int:
    topic = request.topic
    max_offset = store.queue_reads.max_offset(topic, queue_id)
    if request.to == "last":
        return max_offset
    if request.to == "time":
        return store.queue_reads.offset_by_time(topic, queue_id, request.timestamp_ms, hot=hot)
    if request.to == "first":
        return store.queue_reads.min_offset(topic, queue_id, hot=hot)
    if not 0 <= given[queue_id] <= max_offset:
        raise CommitIllegal(
            f"offset {given[queue_id]} of queue {queue_id} of {topic!r} must be in [0, {max_offset}]; nothing was "
            "reset",
            queue=queue_id,
            max_offset=max_offset,
        )
    return given[queue_id]
