"""Consumer groups: heartbeats and leaving."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgpack

from ...protocol.auth.permissions import CONSUME, TOPIC, Need
from ...protocol.commands import EmptyAnswer, HeartBeatAnswer, HeartBeatRequest, UnregisterClientRequest
from ...protocol.errors import InvalidParameter, NoPermission, QueueNotExist, TopicNotExist
from ...protocol.fields import decode_fields
from ...protocol.names import check_client_group, check_name
from ...protocol.storage.delivery import UNREADABLE_TOPICS
from ..delivery.groups.coordinator import HEARTBEATS_A_SESSION, INTERVAL_MS_MAX
from ..delivery.groups.group import BROADCASTING, CLUSTERING, MemberSubscription
from ..filters import compile_filter
from .msgpack_body import ArrayBody
from .pull import PARSED_AT_ONCE_CHARS, parse_tags

if TYPE_CHECKING:
    from ..delivery.groups.assignment import Queue
    from ..delivery.groups.coordinator import GroupCoordinator
    from ..delivery.groups.group import ConsumerGroup, Member
    from ..delivery.groups.producer_groups import ProducerGroups
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


def heart_beat(
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

    def decoded(found: tuple[dict[str, MemberSubscription], list[Queue]]) -> None:
        subscriptions, owned = found
        if request.peer.access is not None:
            for topic in subscriptions:
                request.peer.access.check(Need((CONSUME,), TOPIC, topic))
        group, member = groups.heart_beat(request.peer, params, subscriptions, owned)
        _Assignment(request, store, groups, params, group, member, interval_ms).answer()

    # Only a member that joins tells the broker what it subscribes to.
    joins = not params.epoch
    if len(request.frame.body) <= (PARSED_AT_ONCE_CHARS if joins else AT_ONCE_BYTES_MAX):
        decoded(_decode_body(request.frame.body, joins=joins))
    else:
        blob = memoryview(bytes(request.frame.body))
        request.read_in_order(lambda: _decode_body(blob, joins=joins), decoded)


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

    def answer(self) -> None:
        """Respond at once if all queues have an offset; otherwise look up the missing start offsets first."""
        missing = [queue for queue in self.group.assignment(self.member) if self._committed(queue) is None]
        if not missing:
            self._send({})
            return
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
        self.request.after_dispatch(
            lambda: self.request.read(lambda hot: self._begins(missing, first, hot), self._send)
        )

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

    def _send(self, begins: dict[Queue, int]) -> None:
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
        self.request.after_saved(lambda: self.request.respond(answer, msgpack.packb(rows)))


def unregister_client(request: Request, groups: GroupCoordinator, producer_groups: ProducerGroups) -> None:
    """Remove a member from its group."""
    params = decode_fields(UnregisterClientRequest, request.frame.fields)
    if params.kind == "producer":
        producer_groups.leave(params.group, params.member, request.peer.user_name)
    else:
        groups.remove_member(params.group, params.member, params.epoch)
    request.respond(EmptyAnswer())
