"""All consumer groups of a broker: their members, their assignments and their progress."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from ....protocol.commands import NOTIFY_CONSUMER_IDS_CHANGED, IdsChangedRequest
from ....protocol.errors import (
    BrokerError,
    GroupNotExist,
    GroupRunning,
    LimitReached,
    NoPermission,
    ServiceNotAvailable,
)
from ....protocol.fields import I64_MAX
from ....protocol.names import check_client_group
from ....protocol.storage.delivery import (
    MEMBER_SEPARATOR,
    OFFSET_MOVED_TOPIC,
    RETRY_TOPIC_PREFIX,
    dead_letter_topic,
    popped_from,
    retry_topic,
)
from ....protocol.storage.record import PROPERTY_KEYS, PROPERTY_TAGS, Record, encode_properties
from ...store import TopicConfig
from ..old_retries import is_alone, pop_retry_topics
from .clients import ConsumerClients, live_members
from .group import CLUSTERING, ConsumerGroup, Member, MemberSubscription, SubscriptionMemory

if TYPE_CHECKING:
    from ....protocol.commands import HeartBeatRequest
    from ...store import MessageStore
    from ..client_handle import ClientHandle
    from ..writer import RecordWriter
    from .group import Queue

log = logging.getLogger(__name__)

SWEEP_SECONDS = 0.25
"""Interval at which the broker looks for members to remove and for changed topics, while there are members."""
SETTLING_SECONDS = 2.0
"""Time after a start of the broker in which queues of groups that existed before are granted only to members that still
hold them: other members may not have reconnected yet."""
LOST_SECONDS = 3.0
"""Maximum time for a member to come back after its connection was lost."""
MEMBERS_AT_ONCE_MAX = 64
"""Largest group that is rebalanced immediately whenever a member joins or leaves."""
REBALANCE_SECONDS = 0.05
"""Delay of a rebalance in a larger group; it covers all members that join or leave in the meantime."""
HEARTBEATS_A_SESSION = 3
"""Minimum number of heartbeats within a member's session timeout."""
INTERVAL_MS_MAX = 3_000
"""Maximum time between two heartbeats, however long the session timeout is."""


class GroupCoordinator:
    """The consumer groups by name. ``clock``: monotonic, in seconds; ``call_later``: calls back after some seconds."""

    def __init__(
        self,
        store: MessageStore,
        clock: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], object],
        *,
        groups_max: int = sys.maxsize,
        offsets_max: int = sys.maxsize,
        subscription_bytes_max: int = sys.maxsize,
    ) -> None:
        self.groups_max = groups_max
        self.offsets_max = offsets_max
        """Maximum number of committed offsets, one for each queue, of all groups and their members together."""
        self._store = store
        self._clock = clock
        self._call_later = call_later
        self.groups: dict[str, ConsumerGroup] = {}
        self.subscription_memory = SubscriptionMemory(subscription_bytes_max)
        self.clients = ConsumerClients(
            clock, call_later, self.members_of, lambda: self.groups_max, self.subscription_memory
        )
        self.pulled: dict[tuple[str, str, int], int] = {}
        """By group, topic and queue: offset after the last message that a member got. Only for clustering groups."""
        self.rebalances = 0
        """Number of rebalances that changed an assignment."""
        self.offsets_moved = 0
        """Number of times that a group was moved forward because retention had deleted its next messages."""
        self._settling_until = clock() + SETTLING_SECONDS
        self._known_before = {*store.groups.names(), *(group for group, _, _ in store.consumer_offsets.rows())}
        self._awaited: dict[str, set[str]] = {}
        """By broadcasting group: topics that did not exist when a member subscribed; they are read from their first
        message. Clustering groups note that beside their offsets, where it outlives the broker."""
        self._topics_version = -1
        self._sweep_due = False
        self._to_rebalance: set[ConsumerGroup] = set()
        """Large groups with a scheduled rebalance."""
        # Larger than in any earlier run of the broker, so that epochs that members remember from it are outdated.
        self._first_epoch = self.run = time.time_ns() // 1_000_000

    # ---- members

    def heart_beat(
        self,
        remote: ClientHandle,
        request: HeartBeatRequest,
        subscriptions: Mapping[str, MemberSubscription],
        held: Collection[Queue],
    ) -> tuple[ConsumerGroup, Member]:
        """Let a member join (epoch 0) or stay. Raises a ``BrokerError`` for the client."""
        if not self._store.groups.may_consume(request.group):
            raise NoPermission(
                f"group {request.group} is disabled; to enable it, set its consumeEnable in "
                "config/subscriptionGroup.json"
            )
        now = self._clock()
        group = self.groups.get(request.group)
        if request.epoch:
            group = group or self._group(request.group)
            member = group.find(request.member, request.epoch)
            if member.remote is not remote:
                self._connect(group, member, remote)
            if group.take_heartbeat(member, held, now):
                self._grant(group, asking=member)
        else:
            group, member = self._join(remote, request, subscriptions, held, now)
        member.told_epoch = group.epoch  # by the response to this heartbeat
        self._sweep_soon()
        return group, member

    def _join(
        self,
        remote: ClientHandle,
        request: HeartBeatRequest,
        subscriptions: Mapping[str, MemberSubscription],
        held: Collection[Queue],
        now: float,
    ) -> tuple[ConsumerGroup, Member]:
        group = self.groups.get(request.group) or ConsumerGroup(request.group, request.mode, self._first_epoch)
        group.check_join(request.member, remote, request.mode, subscriptions)
        self.check_may_be(request.group)
        self.clients.check_none(request.group)
        if not group.members:
            group.mode = request.mode
        wanted = dict(subscriptions)
        if group.clustering:
            own = retry_topic(request.group)
            wanted[own] = MemberSubscription(own)
        missing = [
            topic
            for topic in wanted
            if self._store.topics.get(topic) is None and not topic.startswith(RETRY_TOPIC_PREFIX)
        ]
        if group.clustering:
            self.check_may_begin(request.group, missing)
        session_seconds = request.session_timeout_ms / 1000
        member = Member(
            request.member, remote, 0, session_seconds, wanted, request.orderly, now, now + session_seconds, now
        )
        before = group.members.get(request.member)
        more = member.kept_bytes - (before.kept_bytes if before is not None else 0)
        self.subscription_memory.check(f"{request.member} in group {request.group}", more)
        if before is not None:
            before.cancel_lost()
        self._connect(group, member, remote)
        self.subscription_memory.bytes += more
        self.groups[request.group] = group
        self._store.groups.ensure(request.group)
        group.join(member, held)
        if group.clustering:
            for topic in missing:
                self._store.consumer_offsets.begin(request.group, topic)
        else:
            awaited = self._awaited.setdefault(request.group, set())
            awaited.update(missing)
            awaited &= group.topics()  # a member that joins again may have dropped topics
        log.info("group %s: %s joined from %s:%d", group.name, member.name, *remote.address)
        self._rebalance_soon(group, asking=member)
        return group, member

    def _group(self, name: str) -> ConsumerGroup:
        """Return the group, or an empty one, so that a look-up raises ``MemberUnknown``."""
        return self.groups.get(name) or ConsumerGroup(name, CLUSTERING, self._first_epoch)

    def _connect(self, group: ConsumerGroup, member: Member, remote: ClientHandle) -> None:
        # Register first: this can be refused, and the member must then keep its old connection.
        cancel_lost = remote.when_lost(lambda: self._lost(group, member, remote), member.kept_bytes)
        member.cancel_lost()
        member.remote, member.cancel_lost = remote, cancel_lost

    def _lost(self, group: ConsumerGroup, member: Member, remote: ClientHandle) -> None:
        if group.members.get(member.name) is member and member.remote is remote:
            member.deadline = min(member.deadline, self._clock() + min(LOST_SECONDS, member.session_seconds))
            self._sweep_soon()

    def remove_member(self, name: str, member_name: str, epoch: int) -> None:
        """Remove a member; others get its queues at once. Raises ``MemberUnknown`` or ``EpochFenced``."""
        group = self._group(name)
        member = group.find(member_name, epoch or I64_MAX)
        log.info("group %s: %s left", name, member.name)
        self._drop_member(group, member.name)
        self._rebalance_soon(group)

    def _drop_member(self, group: ConsumerGroup, member_name: str) -> None:
        member = group.members[member_name]
        member.cancel_lost()
        self.subscription_memory.bytes -= member.kept_bytes
        group.leave(member_name)
        if not group.members:
            # A later group of this name must not reuse an epoch that a former member may still send.
            self._first_epoch = max(self._first_epoch, group.epoch)
            del self.groups[group.name]
            self._awaited.pop(group.name, None)
            self.clients.members_left(group.name)

    def members_of(self, name: str) -> Collection[str]:
        """Return the names of a group's live members; RocketMQ's clients are in ``clients``."""
        group = self.groups.get(name)
        return group.members.keys() if group is not None else ()

    # ---- assignment

    def queues_of(self, group: ConsumerGroup) -> list[Queue]:
        """Return every queue that members of the group may read."""
        queues = []
        for topic in group.topics():
            config = self._store.topics.get(topic)
            if config is not None and config.readable:
                queues += [(topic, queue_id) for queue_id in range(config.read_queues)]
        return queues

    def missing_topics(self, member: Member) -> list[str]:
        """Return the topics that a member subscribes to but that do not exist or are not readable."""
        topics = self._store.topics
        return [
            name
            for name in member.subscriptions
            if ((config := topics.get(name)) is None or not config.readable) and not name.startswith(RETRY_TOPIC_PREFIX)
        ]

    def _rebalance_soon(self, group: ConsumerGroup, asking: Member | None = None) -> None:
        """Rebalance the group: a small one at once, a large one a little later, for all changes until then.

        ``asking``: the member whose request is being served; its response tells it, so it gets no notification.
        """
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
        """Grant the free queues, and notify the members whose assignment changed."""
        # After a crash the tables may not contain every group that existed, so no group counts as new.
        new = group.name not in self._known_before and self._store.ended_clean
        group.grant(new or self._clock() >= self._settling_until)
        for member in group.to_tell():
            # One that does not read learns of it from the response to its next heartbeat.
            if member is not asking and member.remote.may_be_sent():
                member.remote.tell(NOTIFY_CONSUMER_IDS_CHANGED, IdsChangedRequest(group.name, group.epoch))

    def _sweep_soon(self) -> None:
        if not self._sweep_due:
            self._sweep_due = True
            self._call_later(SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        self._sweep_due = False
        now = self._clock()
        # Queues that were withheld while the broker settled become free without any change: rebalance once after that.
        changed = self._store.topics.version != self._topics_version or now < self._settling_until + 2 * SWEEP_SECONDS
        self._topics_version = self._store.topics.version
        for group in list(self.groups.values()):
            expired = group.expired(now)
            for name in expired:
                log.warning("group %s: removed %s: it sent no heartbeat in time", group.name, name)
                self._drop_member(group, name)
            if expired or changed:
                self._rebalance(group)
        # Without members there is nothing to watch; the next heartbeat starts the sweeps again.
        if self.groups:
            self._sweep_soon()

    # ---- existing groups

    def group_names(self, committed: Iterable[tuple[str, str, object]]) -> set[str]:
        """Return the names of all groups. ``committed``: all rows of the offset table. Any thread."""
        found = {*self._store.groups.names(), *list(self.groups)}
        for name, topic, _ in committed:
            group = self._owner(name)
            if topic != dead_letter_topic(group):
                found.add(group)
        return found

    def retry_topics(self, group: str, topics: Iterable[str]) -> list[str]:
        """Return the topics that exist with messages that the group gets again, popped from ``topics`` or not."""
        store = self._store
        names = [retry_topic(group), *(name for topic in topics for name in pop_retry_topics(store, group, topic))]
        return [name for name in names if store.topics.get(name) is not None]

    def _may_be_of_others(self, group: str, topic: str) -> bool:
        """Return whether the topic is an old retry topic of the group in which other groups may have messages, too."""
        return popped_from(group, topic) != topic and not is_alone(self._store, topic)

    def existing(self, name: str) -> str:
        """Return the name of a group that exists. Raises ``GroupNotExist``."""
        check_client_group(name)
        if name not in self.known_topics():
            raise GroupNotExist(f"group {name} does not exist: no client has consumed or committed under that name")
        return name

    def known_topics(self) -> dict[str, set[str]]:
        """Return, for every group that has not been deleted, the topics that it has committed or its members want.

        A committed offset in a group's dead letters alone does not make a group.
        """
        found: dict[str, set[str]] = {name: set() for name in self._store.groups.names()}
        for name, topic, _ in self._store.consumer_offsets.rows():
            group = self._owner(name)
            if topic != dead_letter_topic(group) and not self._may_be_of_others(group, topic):
                found.setdefault(group, set()).add(topic)
        for name, running in list(self.groups.items()):
            found.setdefault(name, set()).update(running.topics())
        for name, shared in list(self.clients.groups.items()):
            found.setdefault(name, set()).update(shared.subscriptions)
        return found

    def _owner(self, progress_name: str) -> str:
        """Return the group whose progress has this name: ``group``, or ``group:member`` for a broadcasting group."""
        return progress_name.partition(MEMBER_SEPARATOR)[0]

    # ---- limits

    def check_may_be(self, group_name: str) -> None:
        """Raise ``LimitReached`` if the group is new and the broker has the maximum number of groups."""
        groups = self._store.groups
        if not groups.has(group_name) and len(groups) >= self.groups_max:
            raise LimitReached(
                f"group {group_name} cannot be created: the broker has {len(groups)} groups and limits.groups_max is "
                f"{self.groups_max}; delete unused groups (flintmq group delete), or raise the limit",
                groups_max=self.groups_max,
            )

    def check_may_commit(self, progress_name: str, queues: Iterable[tuple[str, int]]) -> None:
        """Raise ``LimitReached`` if committing these queues (topic, queue) would exceed the maximum of offsets."""
        committed_of = self._store.consumer_offsets.committed_of
        new = [topic for topic, queue in queues if committed_of(progress_name, topic, queue) is None]
        self._check_offsets(progress_name, new)

    def _check_offsets(self, progress_name: str, new: list[str]) -> None:
        offsets = self._store.consumer_offsets
        if new and len(offsets) + len(new) > self.offsets_max:
            where = f"topic {new[0]}" if len(set(new)) == 1 else f"{len(set(new))} topics"
            raise LimitReached(
                f"{progress_name} cannot commit {len(new)} more queues of {where}: the broker stores {len(offsets)} "
                f"offsets and limits.committed_offsets_max is {self.offsets_max}; delete unused groups "
                "(flintmq group delete), or raise the limit",
                committed_offsets_max=self.offsets_max,
            )

    def check_may_begin(self, group_name: str, topics: Iterable[str]) -> None:
        """Raise ``LimitReached`` if beginning with these topics would exceed the maximum of offsets."""
        offsets = self._store.consumer_offsets
        self._check_offsets(group_name, [topic for topic in topics if not offsets.has_begun(group_name, topic)])

    def check_may_send_back(self, group_name: str) -> None:
        """Raise ``LimitReached`` if the group has no retry topic yet and the broker has the maximum number of them.

        The limit counts retry topics too: a client that sends back need not be a member, so the group may not exist.
        """
        topics = self._store.topics
        if topics.get(retry_topic(group_name)) is not None:
            return
        self.check_may_be(group_name)
        if (count := sum(config.name.startswith(RETRY_TOPIC_PREFIX) for config in topics)) >= self.groups_max:
            raise LimitReached(
                f"the retry topic of group {group_name} cannot be created: the broker has {count} retry topics and "
                f"limits.groups_max is {self.groups_max}; delete some (flintmq topic delete), or raise the limit",
                groups_max=self.groups_max,
            )

    def ensure_group(self, group_name: str) -> None:
        """Create the group unless it exists. Raises ``LimitReached``."""
        self.check_may_be(group_name)
        self._store.groups.ensure(group_name)

    # ---- progress

    def progress_name(self, group_name: str, member: str) -> str:
        """Return the name for the group's offsets: in a broadcasting group each member has its own."""
        group = self.groups.get(group_name)
        return group_name if group is None or group.clustering else f"{group_name}{MEMBER_SEPARATOR}{member}"

    def committed_of(self, group_name: str, member: str, topic: str, queue_id: int) -> int | None:
        """Return the committed offset of a queue: the group's, or the member's in a broadcasting group."""
        return self._store.consumer_offsets.committed_of(self.progress_name(group_name, member), topic, queue_id)

    def begins_at_first(self, group: str, topic: str) -> bool:
        """Return whether queues without a committed offset are read from their first message despite the start rule.

        They are if the topic or the queue was created after the group had begun to read the topic.
        """
        return (
            topic.startswith(RETRY_TOPIC_PREFIX)
            or topic in self._awaited.get(group, ())
            or self._store.consumer_offsets.has_begun(group, topic)
        )

    def all_progress(self) -> Iterator[tuple[str, str, dict[int, int], bool]]:
        """Yield (name of the progress, topic, committed offset by queue, from first) for each topic that a group reads.

        ``from first``: other queues are read from their first message; if false, the start rule of the first member
        that gets one decides. Any thread.
        """
        wanted: dict[tuple[str, str], dict[int, int]] = {}
        # Copies, because the loop may change these while another thread iterates.
        for group in list(self.groups.values()):
            if group.clustering:
                wanted |= {(group.name, topic): {} for topic in group.topics()}
                continue
            for member in list(group.members.values()):
                name = self.progress_name(group.name, member.name)
                wanted |= {(name, topic): {} for topic in member.subscriptions}
                for (topic, queue_id), begin in list(member.begins.items()):
                    wanted[name, topic][queue_id] = begin
        for name, shared in list(self.clients.groups.items()):
            if shared.clustering:
                wanted |= {(name, topic): {} for topic in shared.subscriptions}
        for name in self._store.groups.names():
            if self._store.topics.get(own := retry_topic(name)) is not None:
                wanted.setdefault((name, own), {})
        rows = list(self._store.consumer_offsets.rows())
        for name, topic in [*wanted, *((name, topic) for name, topic, _ in rows)]:
            for own in pop_retry_topics(self._store, name, topic):
                if self._store.topics.get(own) is not None:
                    wanted.setdefault((name, own), {})
        for name, topic, offsets in rows:
            if self._may_be_of_others(name, topic):
                continue
            offsets = {**wanted.pop((name, topic), {}), **offsets}
            yield name, topic, offsets, self.begins_at_first(self._owner(name), topic)
        for (name, topic), begins in wanted.items():
            yield name, topic, begins, self.begins_at_first(self._owner(name), topic)

    def check_holder(self, group_name: str, member: str, epoch: int, topic: str, queue_id: int) -> None:
        """Raise unless the member holds the queue in that epoch."""
        self._group(group_name).check_holder(member, epoch, topic, queue_id)

    def note_pulled(self, group_name: str, topic: str, queue_id: int, next_offset: int) -> None:
        """Note that a live member or client of the group got the messages of a queue below ``next_offset``."""
        group = self.groups.get(group_name) or self.clients.groups.get(group_name)
        if group is not None and group.clustering:
            self.pulled[group_name, topic, queue_id] = next_offset

    def check_idle(self, group_name: str, what: str, topic: str = "") -> None:
        """Raise ``GroupRunning`` if live consumers share the group's progress, in ``topic`` if given."""
        self.clients.check_not_popping(group_name, what, topic)
        group, shared = self.groups.get(group_name), self.clients.sharing(group_name)
        live: Collection[str] = ()
        if group is not None and group.clustering and (not topic or topic in group.topics()):
            live = group.members
        elif shared is not None and shared.clustering and (not topic or topic in shared.subscriptions):
            live = shared.clients
        if live:
            names = ", ".join(sorted(live)[:5])
            raise GroupRunning(f"group {group_name} has {live_members(len(live))} ({names}): {what}", members=len(live))

    def reset_offsets(self, group_name: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Move a group's progress back or forward; members that hold the queues start again there."""
        group = self.groups.get(group_name)
        for queue_id, next_offset in offsets.items():
            self._store.consumer_offsets.commit(group_name, topic, queue_id, next_offset)
            self.pulled.pop((group_name, topic, queue_id), None)
            self.clients.reset(group_name, (topic, queue_id), next_offset)
            if group is not None:
                group.regrant((topic, queue_id))
        if group is not None:
            self._rebalance(group)

    def delete_progress(self, group_name: str) -> None:
        """Delete a group's progress, except in its dead letters, which stay."""
        own = dead_letter_topic(group_name)
        for name in {name for name, _, _ in self._store.consumer_offsets.rows()}:
            if name.partition(MEMBER_SEPARATOR)[0] == group_name:
                self._store.consumer_offsets.forget(name, keep_topic=own)
        self._store.groups.remove(group_name)
        for key in [key for key in self.pulled if key[0] == group_name]:
            del self.pulled[key]


# ---- Changes of groups and of their progress that must not be forgotten: made on the event loop, confirmed
# when they are on disk.

Done = Callable[[BrokerError | None], None]


class GroupChanges:
    """The writes of these changes. All that wait when a write begins share it (group commit).

    Belongs to the event loop. ``writers``: threads that write to the disk.
    """

    def __init__(self, store: MessageStore, loop: asyncio.AbstractEventLoop, writers: Executor) -> None:
        self._store = store
        self._loop = loop
        self._writers = writers
        self.replicate: Callable[[Callable[[], None]], object] = lambda done: done()
        """Called after a write; calls its argument when other brokers that must have the changes do, too."""
        self._waiting: list[Done] = []
        self._written: list[Done] = []
        """Callbacks of the write that runs, or that other brokers do not have yet."""
        self._running = False
        self._given_up: BrokerError | None = None

    @property
    def pending(self) -> bool:
        """Return whether there may be a change that is not confirmed yet."""
        return self._running or self._unsaved()

    def _unsaved(self) -> bool:
        return self._store.consumer_offsets.unsaved or self._store.groups.unsaved

    def when_saved(self, done: Done) -> None:
        """Call ``done`` on the loop, with the error or None, when all changes made by now are confirmed."""
        if self._given_up is not None:
            self._loop.call_soon(done, self._given_up)
            return
        self._waiting.append(done)
        if not self._running:
            self._running = True
            # Not before the next turn of the loop, so that other changes of this turn share the write.
            self._loop.call_soon(self._next)

    def give_up(self, error: BrokerError) -> None:
        """Call all waiting callbacks, and every later one, with ``error``: no change is confirmed any more."""
        self._given_up = error
        ended, self._written, self._waiting = [*self._written, *self._waiting], [], []
        for done in ended:
            done(error)

    def _next(self) -> None:
        if not self._waiting:
            self._running = False
            return
        self._written, self._waiting = self._waiting, []
        if not self._unsaved():
            # They came while the last write ran, which had everything: another one would hold up those that come next.
            self.replicate(lambda: self._confirmed(None))
            return
        work = self._loop.run_in_executor(self._writers, self._write)
        work.add_done_callback(self._on_disk)

    def _write(self) -> None:
        # In this order: a start takes a missing table of offsets beside groups for lost.
        self._store.consumer_offsets.save()
        if self._store.groups.unsaved:
            self._store.groups.persist()

    def _on_disk(self, work: asyncio.Future[None]) -> None:
        error = work.exception()
        if error is None:
            self.replicate(lambda: self._confirmed(None))
            return
        log.error("could not write the tables of the groups", exc_info=error)
        self._confirmed(
            ServiceNotAvailable(
                f"the tables of the groups of {self._store.path} cannot be written: {error}; the change may be lost if "
                "the broker ends now. Check the disk"
            )
        )

    def _confirmed(self, error: BrokerError | None) -> None:
        if self._given_up is None:
            written, self._written = self._written, []
            for done in written:
                done(error)
            self._next()


# ---- Groups that missed messages because retention deleted them: they continue at the first that exists, and
# RocketMQ's record OFFSET_MOVED_EVENT says so.

TOPIC = TopicConfig(OFFSET_MOVED_TOPIC, read_queues=1, write_queues=1)


class OffsetMover:
    """Moves groups whose next messages have expired."""

    def __init__(self, store: MessageStore, groups: GroupCoordinator, writer: RecordWriter, broker_name: str) -> None:
        self._store = store
        self._groups = groups
        self._writer = writer
        self._broker_name = broker_name

    def move(self, group: str, member: str, topic: str, queue_id: int, asked: int, moved_to: int) -> None:
        """Move a group that asked for expired messages to the first that exist, and store an event about it."""
        groups, offsets = self._groups, self._store.consumer_offsets
        name = groups.progress_name(group, member)
        committed = offsets.committed_of(name, topic, queue_id)
        if committed is not None and committed >= moved_to:
            return  # already moved; members may ask several times with the old offset
        if committed is None and not self._store.groups.has(group):
            return  # a reader that uses the name without being a group: it has no members and no progress
        log.warning(
            "group %s: messages %d to %d of topic %s, queue %d were removed before it had consumed them",
            group,
            asked,
            moved_to - 1,
            topic,
            queue_id,
        )
        groups.offsets_moved += 1
        # An offset that is there is overwritten; a new one counts towards limits.committed_offsets_max.
        has_room = committed is not None or len(offsets) < groups.offsets_max
        if has_room and (name == group or committed is not None):  # most broadcasting members commit nothing
            offsets.commit(name, topic, queue_id, moved_to)
        record = offset_moved_record(
            self._broker_name, group, topic, queue_id, asked, moved_to, self._store.commitlog.store_host
        )

        def made(error: BrokerError | None) -> None:
            # The event is information only: the group has been moved, whether or not it can be stored.
            try:
                if error is not None:
                    raise error
                self._writer.append_records([record])
            except BrokerError as failure:
                log.error("cannot store the event that group %s was moved: %s", group, failure)

        self._writer.with_topics([TOPIC], made)


def offset_moved_record(
    broker_name: str, group: str, topic: str, queue_id: int, asked: int, moved_to: int, born_host: bytes
) -> Record:
    """Return the event's record: the group asked for offset ``asked`` of a queue that now begins at ``moved_to``."""
    event = {
        "consumerGroup": group,
        "messageQueue": {"brokerName": broker_name, "queueId": queue_id, "topic": topic},
        "offsetNew": moved_to,
        "offsetRequest": asked,
    }
    return Record(
        topic=OFFSET_MOVED_TOPIC.encode(),
        body=json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode(),
        properties=encode_properties({PROPERTY_KEYS: group, PROPERTY_TAGS: group}),
        born_timestamp=time.time_ns() // 1_000_000,
        born_host=born_host,
    )
