"""Consumer groups as an operator sees them, and the operations on them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from datetime import datetime
from typing import Any

from ....protocol import commands
from ....protocol.commands import CONSUMER_OFFSET_STRUCT
from ....protocol.errors import RemoteProtocolError
from ....protocol.fields import decode_fields
from ....protocol.storage.delivery import RETRY_TOPIC_PREFIX
from ..rpc.operation import Operation, nothing, operation, unpack_body
from ..rpc.session import Answer
from ..times import from_millis
from ..topics import encode_offsets


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """One group. ``state``: ``empty`` (it has no members), ``rebalancing`` or ``stable``; ``retry_times_max``: number
    of redeliveries before a message becomes a dead letter; ``partial``: the group has topics whose progress the user
    may not see; ``topics``: those that the group reads, without its retry topics; ``kind``: ``native``, ``remoting`` if
    RocketMQ's clients share its queues, ``work`` if its consumers lease messages, empty without consumers."""

    group: str
    mode: str
    state: str
    members: int
    epoch: int
    topics: Sequence[str]
    retry_times_max: int
    partial: bool = False
    kind: str = ""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One member. ``since_ms``, ``heartbeat_ms``: time since it joined, and since its last heartbeat;
    ``subscriptions``: (topic, tags, filter) each."""

    member: str
    client: str
    address: str
    epoch: int
    since_ms: int
    heartbeat_ms: int
    orderly: bool
    queues: int
    subscriptions: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class GroupQueue:
    """A group's progress in one queue. ``member``: the one that the queue is assigned to, or empty; ``committed``: the
    committed offset, -1: none; ``pulled``: the offset after the last message that a member received, -1: none;
    ``known``: False if no offset is committed and the group's first member will set the start rule;
    ``next_stored_ms``: store time of the next message to read, ms since 1970 UTC, or -1; ``leased``: number of
    messages that consumers of a work group have popped and not settled."""

    topic: str
    queue: int
    member: str
    committed: int
    pulled: int
    min_offset: int
    max_offset: int
    known: bool = True
    next_stored_ms: int = -1
    leased: int = 0

    @property
    def next_stored_at(self) -> datetime | None:
        """Store time of the next message to read; its age is the lag in time. None if everything is read."""
        return from_millis(self.next_stored_ms) if self.next_stored_ms >= 0 else None

    @property
    def lag(self) -> int:
        """Number of stored messages that are not consumed yet; an upper bound if not ``known``."""
        return max(self.max_offset - max(self.committed, self.min_offset), 0)

    @property
    def deleted_unread(self) -> int:
        """Number of messages that retention deleted before the group read them; 0 if nothing is committed."""
        return max(self.min_offset - self.committed, 0) if self.committed >= 0 else 0

    @property
    def in_flight(self) -> int:
        """Number of those messages that a member has received, or that are leased."""
        if self.leased:
            return min(self.leased, self.lag)
        return min(max(self.pulled - max(self.committed, self.min_offset), 0), self.lag) if self.member else 0

    @property
    def ready(self) -> int:
        """Number of those messages that no member has received."""
        return self.lag - self.in_flight


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """One group in full. ``queues``: one row for each queue, in a broadcasting group for each queue and member;
    ``delayed``: messages that wait for redelivery and are in no queue of the group yet; ``partial``: the group has
    topics that the user may not see; ``kind``: as in ``GroupInfo``; ``waiting``: RocketMQ clients that get nothing as
    long as the group has native members. The member of a queue of RocketMQ's clients is the one that read it last."""

    group: str
    mode: str
    state: str
    epoch: int
    members: Sequence[GroupMember] = field(default_factory=tuple)
    queues: Sequence[GroupQueue] = field(default_factory=tuple)
    delayed: int = 0
    partial: bool = False
    kind: str = ""
    waiting: Sequence[str] = ()


def groups(*, timeout: float | None = None) -> Operation[list[GroupInfo]]:
    """Return every consumer group, by name."""

    def decode(answer: Answer) -> list[GroupInfo]:
        return [_of(GroupInfo, row | {"topics": _wanted(row)}) for row in _rows(unpack_body(answer))]

    return operation(commands.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, decode, timeout=timeout)


def group(group: str, *, timeout: float | None = None) -> Operation[GroupStatus]:
    """Return one group: its members, their assignments and the progress in each queue. Raises ``GroupNotExist``."""

    def decode(answer: Answer) -> GroupStatus:
        content = unpack_body(answer)
        if not isinstance(content, dict):
            raise RemoteProtocolError(f"expected a group as a map, got {type(content).__name__}")
        members = [_of(GroupMember, row) for row in _rows(content.get("members"))]
        queues = [GroupQueue(*row[:10]) for row in _rows(content.get("queues"))]
        delayed = int(content.get("delayed", 0))
        name, mode, state, epoch = (content[name] for name in ("group", "mode", "state", "epoch"))
        partial, kind = bool(content.get("partial")), str(content.get("kind", ""))
        waiting = [str(client) for client in content.get("waiting", ())]
        return GroupStatus(name, mode, state, epoch, members, queues, delayed, partial, kind, waiting)

    return operation(commands.GET_CONSUMER_CONNECTION_LIST, decode, timeout=timeout, group=group)


def delete_group(group: str, *, timeout: float | None = None) -> Operation[None]:
    """Delete a group's committed offsets and its retry topic; its dead letters stay. Raises ``GroupRunning`` while
    the group has members."""
    return operation(commands.DELETE_SUBSCRIPTIONGROUP, nothing, timeout=timeout, group=group)


def reset_offsets(group: str, topic: str, offsets: Mapping[int, int], force: bool) -> Operation[dict[int, int]]:
    """Return the operation that sets a group's committed offsets, by queue. Raises ``InvalidArgument``."""
    body = encode_offsets(offsets)
    return operation(
        commands.INVOKE_BROKER_TO_RESET_OFFSET,
        _offsets,
        body,
        group=group,
        topic=topic,
        to="offset",
        count=len(offsets),
        force=force,
    )


def _offsets(answer: Answer) -> dict[int, int]:
    decode_fields(commands.ConsumerOffsetsAnswer, answer.fields)
    return dict(CONSUMER_OFFSET_STRUCT.iter_unpack(answer.body))


def _rows(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise RemoteProtocolError(f"expected a list of rows, got {type(value).__name__}")
    return value


def _wanted(row: dict[str, Any]) -> list[str]:
    """Return a group's topics without its retry topics; a work group has one for each of its topics."""
    return [topic for topic in row["topics"] if not topic.startswith(RETRY_TOPIC_PREFIX)]


def _of(cls: type[Any], row: dict[str, Any]) -> Any:
    fields = dataclasses.fields(cls)
    return cls(**{each.name: row[each.name] for each in fields if each.name in row or each.default is MISSING})
