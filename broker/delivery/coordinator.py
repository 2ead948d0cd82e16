"""All consumer groups of a broker: who consumes what, and how far they are."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from ...protocol.commands import NOTIFY_CONSUMER_IDS_CHANGED, HeartBeatRequest, IdsChangedRequest
from ...protocol.delivery import MEMBER_SEPARATOR, RETRY_TOPIC_PREFIX, dead_letter_topic, retry_topic
from ...protocol.errors import GroupRunning, LimitReached, NoPermission
from ...protocol.fields import I64_MAX
from ..store import MessageStore
from .assignment import Queue
from .group import CLUSTERING, ConsumerGroup, Member, Subscription
from .remote import Remote

log = logging.getLogger(__name__)

SWEEP_SECONDS = 0.25
SETTLING_SECONDS = 2.0
"""After a start of the broker, the queues of a group that was there before are given out only this much later, but to
those who say that they still hold them: others may not have come back yet."""
LOST_SECONDS = 3.0
"""A member whose connection went is given at most this long to come back."""
MEMBERS_AT_ONCE_MAX = 64
"""In a group of more members the queues are not shared out anew each time that one of them comes or goes."""
REBALANCE_SECONDS = 0.05
"""They are shared out for all that come and go within so long."""
HEARTBEATS_A_SESSION = 3
LEGACY_MEMBER_SEPARATOR = "|"
"""The separator of earlier releases. A group's name may have it: where there is such a group, the progress is its."""
INTERVAL_MS_MAX = 3_000


class GroupCoordinator:
    """Groups by name. ``clock``: seconds, never going back; ``call_later``: calls back after so many of them."""

    def __init__(
        self,
        store: MessageStore,
        clock: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], object],
        *,
        groups_max: int = sys.maxsize,
        offsets_max: int = sys.maxsize,
    ) -> None:
        self.groups_max = groups_max
        self.offsets_max = offsets_max
        """What all groups and their members together may have committed, one offset a queue."""
        self._store = store
        self._clock = clock
        self._call_later = call_later
        self.groups: dict[str, ConsumerGroup] = {}
        self.pulled: dict[tuple[str, str, int], int] = {}
        """By group, topic and queue: behind the last message that a member was given; of clustering groups alone."""
        self.rebalances = 0
        """How often the queues of a group were meant for its members in another way than before."""
        self.offsets_moved = 0
        """How often a group was moved on because retention had taken what it would have read next."""
        self._settling_until = clock() + SETTLING_SECONDS
        self._known_before = {*store.groups.names(), *(group for group, _, _ in store.consumer_offsets.rows())}
        self._awaited: dict[str, set[str]] = {}
        """By group: topics that were not there when a member asked for them; they are read from their first message."""
        self._topics_version = -1
        self._sweep_due = False
        self._to_rebalance: set[ConsumerGroup] = set()
        """Large groups whose queues are to be shared out anew."""
        # Larger than in any run before, so that what a member remembers of that one is old.
        self._first_epoch = self.run = time.time_ns() // 1_000_000

    # ---- members

    def heart_beat(
        self,
        remote: Remote,
        request: HeartBeatRequest,
        subscriptions: Mapping[str, Subscription],
        held: Collection[Queue],
    ) -> tuple[ConsumerGroup, Member]:
        """A member joins (epoch 0) or stays. Raises what the client has to know."""
        if not self._store.groups.may_consume(request.group):
            raise NoPermission(
                f"group {request.group} is switched off (consumeEnable in config/subscriptionGroup.json)"
            )
        now = self._clock()
        group = self.groups.get(request.group)
        if request.epoch:
            group = group or self._group(request.group)
            member = group.find(request.member, request.epoch)
            if member.remote is not remote:
                self._connect(group, member, remote)
            if group.heard(member, held, now):
                self._grant(group, asking=member)
        else:
            group, member = self._join(remote, request, subscriptions, held, now)
        member.told_epoch = group.epoch
        self._sweep_soon()
        return group, member

    def _join(
        self,
        remote: Remote,
        request: HeartBeatRequest,
        subscriptions: Mapping[str, Subscription],
        held: Collection[Queue],
        now: float,
    ) -> tuple[ConsumerGroup, Member]:
        group = self.groups.get(request.group) or ConsumerGroup(request.group, request.mode, self._first_epoch)
        group.check_join(request.member, remote, request.mode, subscriptions)
        self.check_may_be(request.group)
        if not group.members:
            group.mode = request.mode
        wanted = dict(subscriptions)
        if group.clustering:
            own = retry_topic(request.group)
            wanted[own] = Subscription(own)
        session_seconds = request.session_timeout_ms / 1000
        member = Member(
            request.member, remote, 0, session_seconds, wanted, request.orderly, now, now + session_seconds, now
        )
        before = group.members.get(request.member)
        if before is not None:
            before.forget()
        self._connect(group, member, remote)
        self.groups[request.group] = group
        self._store.groups.ensure(request.group)
        awaited = self._awaited.setdefault(request.group, set())
        awaited.update(topic for topic in wanted if self._store.topics.get(topic) is None)
        group.join(member, held)
        awaited &= group.topics()  # a member that joins anew may want others than before
        log.info("group %s: %s joined from %s:%d", group.name, member.name, *remote.address)
        self._rebalance_soon(group, asking=member)
        return group, member

    def _group(self, name: str) -> ConsumerGroup:
        """The group, or one without members, in which nobody is found."""
        return self.groups.get(name) or ConsumerGroup(name, CLUSTERING, self._first_epoch)

    def _connect(self, group: ConsumerGroup, member: Member, remote: Remote) -> None:
        forget = remote.when_lost(lambda: self._lost(group, member, remote))
        member.forget()
        member.remote, member.forget = remote, forget

    def _lost(self, group: ConsumerGroup, member: Member, remote: Remote) -> None:
        if group.members.get(member.name) is member and member.remote is remote:
            member.deadline = min(member.deadline, self._clock() + min(LOST_SECONDS, member.session_seconds))
            self._sweep_soon()

    def leave(self, name: str, member_name: str, epoch: int) -> None:
        """A member goes; its queues are given to others at once. Raises ``MemberUnknown`` or ``EpochFenced``."""
        group = self._group(name)
        member = group.find(member_name, epoch or I64_MAX)
        log.info("group %s: %s left", name, member.name)
        self._gone(group, member.name)
        self._rebalance_soon(group)

    def _gone(self, group: ConsumerGroup, member_name: str) -> None:
        group.members[member_name].forget()
        group.leave(member_name)
        if not group.members:
            self._first_epoch = max(self._first_epoch, group.epoch)
            del self.groups[group.name]
            self._awaited.pop(group.name, None)

    # ---- assignment

    def queues_of(self, group: ConsumerGroup) -> list[Queue]:
        """Every queue that members of the group may read."""
        queues = []
        for topic in group.topics():
            config = self._store.topics.get(topic)
            if config is not None and config.readable:
                queues += [(topic, queue_id) for queue_id in range(config.read_queues)]
        return queues

    def missing_topics(self, member: Member) -> list[str]:
        """Return the topics that a member asked for and that are not there, or cannot be read."""
        topics = self._store.topics
        return [
            name
            for name in member.subscriptions
            if ((config := topics.get(name)) is None or not config.readable) and not name.startswith(RETRY_TOPIC_PREFIX)
        ]

    def _rebalance_soon(self, group: ConsumerGroup, asking: Member | None = None) -> None:
        """Share out the group's queues anew: at once in a small group; in a large one a little later, for all members
        that come and go until then. ``asking``: the member that is answered afterwards, so that it need not be told."""
        if len(group.members) <= MEMBERS_AT_ONCE_MAX:
            self._rebalance(group, asking)
        elif group not in self._to_rebalance:
            self._to_rebalance.add(group)
            self._call_later(REBALANCE_SECONDS, lambda: self._rebalance_now(group))

    def _rebalance_now(self, group: ConsumerGroup) -> None:
        self._to_rebalance.discard(group)
        self._rebalance(group)

    def _rebalance(self, group: ConsumerGroup, asking: Member | None = None) -> None:
        if group.members:
            self.rebalances += group.rebalance(self.queues_of(group))
            self._grant(group, asking)

    def _grant(self, group: ConsumerGroup, asking: Member | None = None) -> None:
        """Give out what is free, and tell who is concerned."""
        # After a crash the tables may not know of groups that were there.
        new = group.name not in self._known_before and self._store.ended_clean
        group.grant(new or self._clock() >= self._settling_until)
        for member in group.to_tell():
            if member is not asking:
                member.remote.tell(NOTIFY_CONSUMER_IDS_CHANGED, IdsChangedRequest(group.name, group.epoch))

    def _sweep_soon(self) -> None:
        if not self._sweep_due:
            self._sweep_due = True
            self._call_later(SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        self._sweep_due = False
        now = self._clock()
        changed = self._store.topics.version != self._topics_version or now < self._settling_until + 2 * SWEEP_SECONDS
        self._topics_version = self._store.topics.version
        for group in list(self.groups.values()):
            expired = group.expired(now)
            for name in expired:
                log.warning("group %s: %s is gone: it was not heard of in time", group.name, name)
                self._gone(group, name)
            if expired or changed:
                self._rebalance(group)
        if self.groups:
            self._sweep_soon()

    # ---- which groups there are

    def names(self, committed: Iterable[tuple[str, str, object]]) -> set[str]:
        """Their names; ``committed``: all rows of the table of offsets. Any thread."""
        found = {*self._store.groups.names(), *list(self.groups)}
        for name, topic, _ in committed:
            group = self._owner(name)
            if topic != dead_letter_topic(group):
                found.add(group)
        return found

    def known(self) -> dict[str, set[str]]:
        """By group, every one that was ever there and was not deleted: the topics of which it has committed something
        or that its members want. How far its dead letters are dealt with makes no group."""
        found: dict[str, set[str]] = {name: set() for name in self._store.groups.names()}
        for name, topic, _ in self._store.consumer_offsets.rows():
            group = self._owner(name)
            if topic != dead_letter_topic(group):
                found.setdefault(group, set()).add(topic)
        for name, running in list(self.groups.items()):
            found.setdefault(name, set()).update(running.topics())
        return found

    def _owner(self, progress_name: str) -> str:
        """The group whose progress is kept under this name: of a broadcasting one also ``group:member``.

        An earlier release wrote ``group|member``, which is shown as that group's where no group has this name.
        """
        group, separator, _ = progress_name.partition(MEMBER_SEPARATOR)
        if separator or self._store.groups.has(progress_name):
            return group
        at = progress_name.find(LEGACY_MEMBER_SEPARATOR)
        while at >= 0:
            if self._store.groups.has(progress_name[:at]):
                return progress_name[:at]
            at = progress_name.find(LEGACY_MEMBER_SEPARATOR, at + 1)
        return progress_name

    # ---- how many there may be

    def check_may_be(self, group_name: str) -> None:
        """Raise ``LimitReached`` where the group would be one too many."""
        groups = self._store.groups
        if not groups.has(group_name) and len(groups) >= self.groups_max:
            raise LimitReached(
                f"group {group_name} is not there yet, and the broker has {len(groups)} groups: limits.groups_max is "
                f"{self.groups_max}; delete groups that are not used (flintmq group delete), or raise the limit",
                groups_max=self.groups_max,
            )

    def check_may_commit(self, progress_name: str, topic: str, queues: Iterable[int]) -> None:
        """Raise ``LimitReached`` where offsets of these queues would be too many."""
        offsets = self._store.consumer_offsets
        new = sum(offsets.committed_of(progress_name, topic, queue) is None for queue in queues)
        if new and len(offsets) + new > self.offsets_max:
            raise LimitReached(
                f"{progress_name} has committed nothing of {new} of these queues of topic {topic} yet, and the broker "
                f"keeps {len(offsets)} offsets: limits.committed_offsets_max is {self.offsets_max}; delete groups that "
                "are not used (flintmq group delete), or raise the limit",
                committed_offsets_max=self.offsets_max,
            )

    def check_may_send_back(self, group_name: str) -> None:
        """Raise ``LimitReached`` where the group has no retry topic yet and there are too many of them. Who sends back
        need not be a member, so it makes no group."""
        topics = self._store.topics
        if topics.get(retry_topic(group_name)) is not None:
            return
        self.check_may_be(group_name)
        if (count := sum(config.name.startswith(RETRY_TOPIC_PREFIX) for config in topics)) >= self.groups_max:
            raise LimitReached(
                f"group {group_name} has no retry topic yet, and the broker has those of {count} groups: "
                f"limits.groups_max is {self.groups_max}; delete those that are not used (flintmq topic delete), "
                "or raise the limit",
                groups_max=self.groups_max,
            )

    def enter(self, group_name: str) -> None:
        """A group is used: keep it among those that there are. Raises ``LimitReached``."""
        self.check_may_be(group_name)
        self._store.groups.ensure(group_name)

    # ---- progress

    def progress_name(self, group_name: str, member: str) -> str:
        """Under which name offsets are kept: the group's; of each member where every one gets all messages."""
        group = self.groups.get(group_name)
        return group_name if group is None or group.clustering else f"{group_name}{MEMBER_SEPARATOR}{member}"

    def committed_of(self, group_name: str, member: str, topic: str, queue_id: int) -> int | None:
        """What is committed of a queue: by the group, or by its member where every one gets all messages.

        Where the member has committed nothing, what it had committed with an earlier release counts.
        """
        offsets = self._store.consumer_offsets
        name = self.progress_name(group_name, member)
        committed = offsets.committed_of(name, topic, queue_id)
        if committed is None and name != group_name:
            before = f"{group_name}{LEGACY_MEMBER_SEPARATOR}{member}"
            if not self._store.groups.has(before):
                committed = offsets.committed_of(before, topic, queue_id)
        return committed

    def begins_at_first(self, group: str, topic: str) -> bool:
        """Whether a queue of which the group has committed nothing is read from its first message, whatever the group
        wishes: it was made after the group had begun to read the topic."""
        return (
            topic.startswith(RETRY_TOPIC_PREFIX)
            or topic in self._awaited.get(group, ())
            or bool(self._store.consumer_offsets.committed(group, topic))
        )

    def progress(self) -> Iterator[tuple[str, str, dict[int, int], bool]]:
        """Yield, for each topic that a group reads: the name under which its progress is kept, the topic, what is
        committed by queue, and whether the other queues are read from their first message (else the first member that
        gets one says where the group begins). Any thread."""
        wanted: dict[tuple[str, str], dict[int, int]] = {}
        for group in list(self.groups.values()):
            if group.clustering:
                wanted |= {(group.name, topic): {} for topic in group.topics()}
                continue
            for member in list(group.members.values()):
                name = self.progress_name(group.name, member.name)
                wanted |= {(name, topic): {} for topic in member.subscriptions}
                for (topic, queue_id), begin in list(member.begins.items()):
                    wanted[name, topic][queue_id] = begin
        for name in self._store.groups.names():
            if self._store.topics.get(own := retry_topic(name)) is not None:
                wanted.setdefault((name, own), {})
        for name, topic, offsets in self._store.consumer_offsets.rows():
            offsets = {**wanted.pop((name, topic), {}), **offsets}
            yield name, topic, offsets, self.begins_at_first(self._owner(name), topic)
        for (name, topic), begins in wanted.items():
            yield name, topic, begins, self.begins_at_first(self._owner(name), topic)

    def check_holder(self, group_name: str, member: str, epoch: int, topic: str, queue_id: int) -> None:
        """Raise unless the member holds the queue in that epoch."""
        self._group(group_name).check_holder(member, epoch, topic, queue_id)

    def note_pulled(self, group_name: str, topic: str, queue_id: int, next_offset: int) -> None:
        """The member that holds a queue was given what lies in front of ``next_offset``."""
        group = self.groups.get(group_name)
        if group is not None and group.clustering:
            self.pulled[group_name, topic, queue_id] = next_offset

    def check_idle(self, group_name: str, what: str, topic: str = "") -> None:
        """Raise ``GroupRunning`` where the group has live members that share its progress; ``topic``: in this one."""
        group = self.groups.get(group_name)
        if group is not None and group.clustering and group.members and (not topic or topic in group.topics()):
            names = ", ".join(sorted(group.members)[:5])
            raise GroupRunning(
                f"group {group_name} has {len(group.members)} live members ({names}): {what}",
                members=len(group.members),
            )

    def reset(self, group_name: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Move a group's progress, back or forth; members that hold the queues begin there anew."""
        group = self.groups.get(group_name)
        for queue_id, next_offset in offsets.items():
            self._store.consumer_offsets.commit(group_name, topic, queue_id, next_offset)
            self.pulled.pop((group_name, topic, queue_id), None)
            if group is not None:
                group.regrant((topic, queue_id))
        if group is not None:
            self._rebalance(group)

    def forget(self, group_name: str) -> None:
        """A group is deleted. How far its dead letters are dealt with stays, as they do."""
        own = dead_letter_topic(group_name)
        for name in {name for name, _, _ in self._store.consumer_offsets.rows()}:
            if name.partition(MEMBER_SEPARATOR)[0] == group_name:
                self._store.consumer_offsets.forget(name, keep_topic=own)
        self._store.groups.remove(group_name)
        for key in [key for key in self.pulled if key[0] == group_name]:
            del self.pulled[key]
