"""Consumer groups: heartbeats and leaving."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgpack

from ...protocol.auth.permissions import CONSUME, GROUP, TOPIC, Need
from ...protocol.commands import (
    CONSUMER_OFFSET_STRUCT,
    ConsumerOffsetsAnswer,
    DeleteGroupRequest,
    EmptyAnswer,
    EmptyRequest,
    GroupInfo,
    GroupMember,
    GroupMembersAnswer,
    GroupQueue,
    GroupRequest,
    GroupStatus,
    HeartBeatAnswer,
    HeartBeatRequest,
    ResetOffsetRequest,
    RowsAnswer,
    UnregisterClientRequest,
)
from ...protocol.errors import InvalidParameter, NoPermission, QueueNotExist, TopicNotExist
from ...protocol.fields import decode_fields
from ...protocol.names import check_client_group, check_name
from ...protocol.rows import pack_rows
from ...protocol.storage.delivery import UNREADABLE_TOPICS, popped_from, retry_topic
from ..delivery.groups.coordinator import HEARTBEATS_A_SESSION, INTERVAL_MS_MAX
from ..delivery.groups.group import BROADCASTING, CLUSTERING, EMPTY, STABLE, MemberSubscription
from ..delivery.old_retries import pop_retry_topics
from ..delivery.pop.table import QueueKey
from ..filters import compile_filter
from ..store import WouldBlock
from .msgpack_body import ArrayBody
from .offsets import NOTHING_COMMITTED, next_stored_ms, sees_progress
from .pull import PARSED_AT_ONCE_CHARS, parse_tags

if TYPE_CHECKING:
    from ...protocol.frames import Frame
    from ..delivery.client_handle import ClientHandle
    from ..delivery.groups.admin import GroupAdmin
    from ..delivery.groups.clients import ProducerGroups
    from ..delivery.groups.coordinator import GroupCoordinator
    from ..delivery.groups.group import ConsumerGroup, Member, Queue
    from ..delivery.pop.service import PopService
    from ..delivery.scheduled.worker import Delays
    from ..requests.request import Request
    from ..store import MessageStore

SUBSCRIPTIONS_MAX = 1_000
"""Maximum number of a member's subscriptions."""
SUBSCRIPTION_CHARS_MAX = 128 * 1024
"""Maximum size of all subscriptions of a member, because the broker keeps them as long as the member lives."""
TAGS_CHARS_MAX = 4_096
"""Maximum length of a subscription's tags, the same as in a PULL."""
AT_ONCE_BYTES_MAX = 4 * 1024
"""Longest body of a heartbeat that is decoded on the event loop. If a member joins, its filters are parsed too, and it
is ``PARSED_AT_ONCE_CHARS``."""
OWNED_MAX = 65_536
"""Maximum number of queues that a member may hold."""
MISSING_SHOWN_MAX = 100
"""Maximum number of missing topics that a heartbeat response names."""
KINDS = ("consumer", "producer")
STARTS = ("first", "last", "time")


async def heart_beat(
    request: Request, store: MessageStore, groups: GroupCoordinator, producer_groups: ProducerGroups
) -> None:
    """Add a member to its group or keep it there; respond with its assignment."""
    params = decode_fields(HeartBeatRequest, request.frame.fields)
    check_client_group(params.group)
    if params.kind not in KINDS:
        raise InvalidParameter(f"kind must be consumer or producer, not {params.kind!r}")
    interval_ms = min(params.session_timeout_ms // HEARTBEATS_A_SESSION, INTERVAL_MS_MAX)
    if params.kind == "producer":
        producer_groups.heart_beat(params.group, params.member, request.peer, params.session_timeout_ms / 1000)
        request.respond(HeartBeatAnswer(epoch=1, interval_ms=interval_ms))
        return
    if params.mode not in (CLUSTERING, BROADCASTING):
        raise InvalidParameter(f"mode must be {CLUSTERING} or {BROADCASTING}, not {params.mode!r}")
    if params.start not in STARTS:
        raise InvalidParameter(f"start must be first, last or time, not {params.start!r}")

    # Only a member that joins tells the broker what it subscribes to.
    joins = not params.epoch
    if len(request.frame.body) <= (PARSED_AT_ONCE_CHARS if joins else AT_ONCE_BYTES_MAX):
        subscriptions, owned = _decode_body(request.frame.body, joins=joins)
    else:
        blob = memoryview(bytes(request.frame.body))
        subscriptions, owned = await request.in_order(request.in_reader(lambda: _decode_body(blob, joins=joins)))
    if request.peer.access is not None:
        for topic in subscriptions:
            request.peer.access.check(Need((CONSUME,), TOPIC, topic))
    group, member = groups.heart_beat(request.peer, params, subscriptions, owned)
    await _Assignment(request, store, groups, params, group, member, interval_ms).answer()


def _decode_body(blob: memoryview, *, joins: bool) -> tuple[dict[str, MemberSubscription], list[Queue]]:
    body = ArrayBody(blob, "msgpack [[[topic, tags, filter], …], [[topic, queue], …]]")
    body.row(2)
    if (count := body.array()) > SUBSCRIPTIONS_MAX:
        raise InvalidParameter(f"a member may have at most {SUBSCRIPTIONS_MAX} subscriptions, got {count}")
    wanted = []
    for _ in range(count):
        body.row(3)
        wanted.append((body.text(), body.text(), body.text()))
    if (chars := sum(len(text) for row in wanted for text in row)) > SUBSCRIPTION_CHARS_MAX:
        raise InvalidParameter(
            f"names, tags and filters of a member's subscriptions may have at most {SUBSCRIPTION_CHARS_MAX:,} "
            f"characters together, got {chars:,}"
        )
    if (count := body.array()) > OWNED_MAX:
        raise InvalidParameter(f"a member may own at most {OWNED_MAX} queues, got {count}")
    held = []
    for _ in range(count):
        body.row(2)
        held.append((body.text(), body.integer()))
    body.end()

    # The contents only now, when the body is known to be well-formed and within its bounds.
    found: dict[str, MemberSubscription] = {}
    for topic, tags, expression in wanted:
        check_name("topic", topic)
        if topic in UNREADABLE_TOPICS:
            raise NoPermission(f"topic {topic} is the broker's own and cannot be consumed")
        if topic in found:
            raise InvalidParameter(f"topic {topic} is subscribed twice; give all tags in one subscription: a || b")
        if len(tags) > TAGS_CHARS_MAX:
            raise InvalidParameter(
                f"the tags of topic {topic} have {len(tags)} characters; the maximum is {TAGS_CHARS_MAX}"
            )
        if tags and joins:
            # Only its pulls use them, but a mistake is to be reported to a member that joins.
            parse_tags(tags)
        if expression and joins:
            compile_filter(expression)
        found[topic] = MemberSubscription(topic, tags, expression)
    return found, held


@dataclass(frozen=True, slots=True)
class _Assignment:
    """The response to a heartbeat: each assigned queue with the offset to continue from."""

    request: Request
    store: MessageStore
    groups: GroupCoordinator
    params: HeartBeatRequest
    group: ConsumerGroup
    member: Member
    interval_ms: int

    async def answer(self) -> None:
        """Respond at once if all queues have an offset; otherwise look up the missing start offsets first."""
        missing = [queue for queue in self.group.assignment(self.member) if self._committed(queue) is None]
        await self._send(await self._start_offsets(missing) if missing else {})

    async def _start_offsets(self, missing: list[Queue]) -> dict[Queue, int]:
        groups = self.groups
        first = {queue for queue in missing if groups.begins_at_first(self.group.name, queue[0])}
        if self.group.clustering:
            # The start rule applies to a topic once, for all queues at that time, including queues of other members.
            # A queue that still has no offset later was added later, and is read from its first message.
            begun = {topic for topic, queue_id in missing if (topic, queue_id) not in first}
            own = set(missing)
            missing += [queue for queue in groups.queues_of(self.group) if queue[0] in begun and queue not in own]
        if self.left_ms:  # the other queues begin when the time has come: a later heartbeat gets them
            missing = [queue for queue in missing if queue in first]
        await self.request.dispatched()
        return await self.request.read(lambda hot: self._begins(missing, first, hot))

    @property
    def left_ms(self) -> int:
        """Time until the beginning that the member asked for, ms; 0: none, or it is not in the future."""
        if self.params.start != "time":
            return 0
        return max(0, self.params.start_ms - self.store.commitlog.next_store_ms())

    def _committed(self, queue: Queue) -> int | None:
        committed = self.groups.committed_of(self.group.name, self.member.name, *queue)
        return self.member.begins.get(queue) if committed is None else committed

    def _begins(self, missing: list[Queue], first: set[Queue], hot: bool) -> dict[Queue, int]:
        reads, begins = self.store.queue_reads, {}
        for topic, queue_id in missing:
            try:
                if (topic, queue_id) in first or self.params.start == "first":
                    begins[topic, queue_id] = reads.min_offset(topic, queue_id, hot=hot)
                elif self.params.start == "last":
                    begins[topic, queue_id] = reads.max_offset(topic, queue_id)
                else:
                    begins[topic, queue_id] = reads.offset_by_time(topic, queue_id, self.params.start_ms, hot=hot)
            except (TopicNotExist, QueueNotExist):
                continue  # deleted in the meantime: the next assignment will not contain it
        return begins

    async def _send(self, begins: dict[Queue, int]) -> None:
        """Store the start offsets and send the response.

        The start offsets are committed at once, because a member that takes the queue over must not begin later.
        """
        store, groups = self.store, self.groups
        rows: list[tuple[str, int, int, int]] = []
        waits_ms = 0
        for queue, granted in self.group.assignment(self.member).items():
            next_offset = self._committed(queue)
            if next_offset is None:
                if queue not in begins:
                    waits_ms = self.left_ms
                    continue  # granted in the meantime, or begins later: a later heartbeat delivers it
                next_offset = begins[queue]
            rows.append((*queue, next_offset, granted))
        # Before the first commit: all of them fit, or none is made.
        if self.group.clustering:
            groups.check_may_commit(self.group.name, begins)
        for queue, next_offset in begins.items():
            # Another member may have got its answer during the read, and may have committed since.
            if self._committed(queue) is None:
                if self.group.clustering:
                    store.consumer_offsets.commit(self.group.name, *queue, next_offset)
                else:
                    self.member.begins[queue] = next_offset
        answer = HeartBeatAnswer(
            epoch=self.group.epoch,
            count=len(rows),
            interval_ms=min(self.interval_ms, waits_ms or self.interval_ms),
            retry_times_max=store.groups.retry_times_max(self.group.name),
            run=groups.run,
            missing=" ".join(groups.missing_topics(self.member)[:MISSING_SHOWN_MAX]),
        )
        # Even if another request has made the change: no member may continue from an offset that the group would forget
        # in a crash.
        await self.request.saved()
        self.request.respond(answer, msgpack.packb(rows))


def unregister_client(request: Request, groups: GroupCoordinator, producer_groups: ProducerGroups) -> None:
    params = decode_fields(UnregisterClientRequest, request.frame.fields)
    if params.kind == "producer":
        producer_groups.leave(params.group, params.member, request.peer.user_name)
    else:
        groups.remove_member(params.group, params.member, params.epoch)
    request.respond(EmptyAnswer())


# ---- Administration of consumer groups: list them, show members and progress, reset offsets, delete a group.

HOT_QUEUES_MAX = 16
"""Number of queues above which a reader thread finds the next messages of a group: each takes a record's head."""


def get_all_subscriptiongroup_config(request: Request, store: MessageStore, groups: GroupCoordinator) -> None:
    """Return every group that has ever existed and was not deleted."""
    decode_fields(EmptyRequest, request.frame.fields)
    rows = []
    for name, topics in sorted(groups.known_topics().items()):
        partial = False
        if request.peer.access is not None:
            if not request.peer.access.sees(GROUP, name):
                continue
            partial = not all(sees_progress(request, name, topic) for topic in topics)
            topics = {topic for topic in topics if request.peer.access.sees(TOPIC, topic)}
        rows.append(
            GroupInfo(
                group=name,
                **_condition(groups, name),
                members=len(_members(request, groups, name)),
                topics=sorted(topics - {retry_topic(name)}),
                partial=partial,
                retry_times_max=store.groups.retry_times_max(name),
            )
        )
    request.respond(RowsAnswer(count=len(rows)), pack_rows(rows))


async def get_consumer_connection_list(
    request: Request, store: MessageStore, groups: GroupCoordinator, delays: Delays, pops: PopService
) -> None:
    """Return one group: its members, their queues, and the progress in each queue."""
    params = decode_fields(GroupRequest, request.frame.fields)
    name = groups.existing(params.group)
    topics = groups.known_topics()[name]
    queues = _queues(request, store, name, topics.union(groups.retry_topics(name, topics)))
    from_first = {topic for topic, _ in queues if groups.begins_at_first(name, topic)}
    partial = not all(_sees(request, topic) for topic in topics)

    # On the loop and all at one moment; only the ends of the queues may have to be read from disk.
    progress = list(_progress(store, groups, name, queues))
    members = _members(request, groups, name)
    retry_topics = {retry_topic(name)}.union(*(pop_retry_topics(store, name, topic) for topic in topics))

    await request.dispatched()
    ends = await request.read(lambda hot: _queue_ends(store, queues, progress, hot))
    status = GroupStatus(
        group=name,
        **_condition(groups, name),
        waiting=sorted(groups.clients.waiting(name)),
        members=members,
        queues=[
            GroupQueue(
                *queue,
                member,
                committed,
                groups.pulled.get((name, *queue), -1),
                *ends.bounds[queue],
                # True if the lag is known: by an offset, by the rule for later queues, or since the queue is empty.
                committed != NOTHING_COMMITTED
                or queue[0] in from_first
                or ends.bounds[queue][0] == ends.bounds[queue][1],
                ends.next_ms[queue, committed],
                pops.table.in_flight_in(QueueKey(name, *queue)),
            )
            for queue, member, committed in progress
            if queue in ends.bounds
        ],
        delayed=sum(map(delays.pending_of, retry_topics)),
        partial=partial,
    )
    request.respond(GroupMembersAnswer(group=name), pack_rows(status))


def _progress(
    store: MessageStore, groups: GroupCoordinator, name: str, queues: list[Queue]
) -> Iterator[tuple[Queue, str, int]]:
    """Yield (queue, member, committed offset): once per queue, or in a broadcasting group once per member and queue."""
    group: ConsumerGroup | None = groups.groups.get(name)
    committed_of = store.consumer_offsets.committed_of
    if group is None or group.clustering:
        shared = groups.clients.sharing(name)
        held = group.held if group is not None else shared.pulled_by if shared is not None else {}
        for queue in queues:
            yield queue, held.get(queue, ""), _or_none(committed_of(name, *queue))
        return
    for member in sorted(group.members):
        for queue in queues:
            if queue in group.members[member].granted:
                committed, begins = groups.committed_of(name, member, *queue), group.members[member].begins
                yield queue, member, _or_none(begins.get(queue) if committed is None else committed)


def _or_none(committed: int | None) -> int:
    return NOTHING_COMMITTED if committed is None else committed


def _queues(request: Request, store: MessageStore, group: str, topics: set[str]) -> list[Queue]:
    """Return the queues of those of a group's topics that exist and that the user may see."""
    queues = []
    for topic in sorted(topics):
        config = store.topics.get(topic)
        if config is not None and _sees(request, popped_from(group, topic)):
            queues += [(topic, queue_id) for queue_id in range(config.read_queues)]
    return queues


@dataclass(slots=True)
class _Ends:
    """``bounds``: min and max offset of each queue that still exists; ``next_ms``: store time of the next message to
    read, by queue and committed offset; -1: everything is read."""

    bounds: dict[Queue, tuple[int, int]] = field(default_factory=dict)
    next_ms: dict[tuple[Queue, int], int] = field(default_factory=dict)


def _queue_ends(store: MessageStore, queues: list[Queue], progress: list[tuple[Queue, str, int]], hot: bool) -> _Ends:
    if hot and len(queues) > HOT_QUEUES_MAX:
        raise WouldBlock
    ends, reads = _Ends(), store.queue_reads
    for queue in queues:
        with contextlib.suppress(TopicNotExist, QueueNotExist):  # deleted in the meantime
            ends.bounds[queue] = reads.min_offset(*queue, hot=hot), reads.max_offset(*queue)
    for queue, _, committed in progress:
        low, high = ends.bounds.get(queue, (0, 0))
        ends.next_ms[queue, committed] = next_stored_ms(reads, queue, max(committed, low), high, hot=hot)
    return ends


def _sees(request: Request, topic: str) -> bool:
    return request.peer.access is None or request.peer.access.sees(TOPIC, topic)


def _condition(groups: GroupCoordinator, name: str) -> dict[str, Any]:
    """Return the kind of a group's live consumers, "" if it has none; and its mode, state and epoch."""
    group, shared = groups.groups.get(name), groups.clients.sharing(name)
    if group is not None:
        return {"kind": "native", "mode": group.mode, "state": group.state, "epoch": group.epoch}
    if shared is not None:
        # Its clients share the queues among themselves: whether they have settled is not known.
        mode = CLUSTERING if shared.clustering else BROADCASTING
        return {"kind": "remoting", "mode": mode, "state": STABLE, "epoch": 0}
    if groups.clients.popping_of(name, ""):
        return {"kind": "work", "mode": CLUSTERING, "state": STABLE, "epoch": 0}
    return {"kind": "", "mode": CLUSTERING, "state": EMPTY, "epoch": 0}


def _members(request: Request, groups: GroupCoordinator, name: str) -> list[GroupMember]:
    """Return the rows of a group's live members, or of the RocketMQ clients that share its queues, by name."""
    group, shared = groups.groups.get(name), groups.clients.sharing(name)
    rows = []
    for member in group.members.values() if group is not None else ():
        wanted = [(each.topic, each.tags, each.filter) for each in member.subscriptions.values()]
        queues = len(member.granted)
        times = (member.joined_at, member.heard_at)
        rows.append(
            _member(
                request, member.name, member.remote, times, wanted, queues, member.joined_epoch, orderly=member.orderly
            )
        )
    for client_id, client in shared.clients.items() if shared is not None else ():
        assert shared is not None
        wanted = [
            # RocketMQ has one text for both kinds of selection; the response has a column for each.
            (each.topic, "", each.expression) if each.expression_type == "SQL92" else (each.topic, each.expression, "")
            for each in client.subscriptions.values()
        ]
        queues = sum(reader == client_id for reader in shared.pulled_by.values())
        times = (client.joined_at, client.heard_at)
        rows.append(
            _member(
                request,
                client_id,
                client.identity.remote,
                times,
                wanted,
                queues,
                orderly=groups.clients.locks.holds_any(name, client_id),
            )
        )
    return sorted(rows, key=lambda row: row.member)


def _member(
    request: Request,
    name: str,
    remote: ClientHandle,
    times: tuple[float, float],
    wanted: list[tuple[str, str, str]],
    queues: int,
    epoch: int = 0,
    *,
    orderly: bool,
) -> GroupMember:
    """Return the row of a member. ``times``: when it joined, and when it was heard last."""
    now = asyncio.get_running_loop().time()
    return GroupMember(
        name,
        remote.client,
        f"{remote.address[0]}:{remote.address[1]}",
        epoch,
        since_ms=int((now - times[0]) * 1000),
        heartbeat_ms=int((now - times[1]) * 1000),
        orderly=orderly,
        queues=queues,
        subscriptions=[row for row in sorted(wanted) if _sees(request, row[0])],
    )


async def delete_subscriptiongroup(request: Request, group_admin: GroupAdmin) -> None:
    """Delete a group without members and its retry topics; its dead letters stay."""
    params = decode_fields(DeleteGroupRequest, request.frame.fields)
    await group_admin.delete(request, params.group)
    request.respond(EmptyAnswer())


async def invoke_broker_to_reset_offset(request: Request, group_admin: GroupAdmin) -> None:
    """Move a group's committed offsets to the beginning, the end, a time or given offsets."""
    params = decode_fields(ResetOffsetRequest, request.frame.fields)
    offsets = await group_admin.reset(request, params, _given_offsets(request.frame, params))
    body = b"".join(CONSUMER_OFFSET_STRUCT.pack(queue_id, offset) for queue_id, offset in offsets.items())
    request.respond(ConsumerOffsetsAnswer(count=len(offsets)), body)


def _given_offsets(frame: Frame, params: ResetOffsetRequest) -> dict[int, int]:
    body_bytes = frame.body_end - frame.body_at
    if body_bytes != params.count * CONSUMER_OFFSET_STRUCT.size:
        raise InvalidParameter(
            f"expected {params.count * CONSUMER_OFFSET_STRUCT.size} bytes of body for {params.count} offsets, got "
            f"{body_bytes}"
        )
    if (params.to == "offset") != (params.count > 0):
        raise InvalidParameter("a reset with to = offset needs offsets in the body, and any other must have none")
    return dict(CONSUMER_OFFSET_STRUCT.iter_unpack(frame.body))
