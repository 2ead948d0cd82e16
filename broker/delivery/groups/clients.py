"""RocketMQ's clients by consumer group, as their heartbeats describe them, and the producers of both protocols.

Clients of RocketMQ share the queues of a group among themselves, and the broker is not told how: it gives each of them
the list of all, and tells all of them when the list or the topics of one of them change. FlintMQ's own members are
assigned queues by the broker. Both in one group would read the same queues, so a group is of one kind at a time: that
of its first live consumer. Clients of RocketMQ that meet FlintMQ's members *wait*: they are in no list and get no
messages until those members are gone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ....protocol.commands import NOTIFY_CONSUMER_IDS_CHANGED, IdsChangedRequest
from ....protocol.errors import GroupKind, GroupRunning, LimitReached, NoPermission
from .group import memory_of

if TYPE_CHECKING:
    from ..client_handle import ClientHandle
    from .group import Queue, SubscriptionMemory


# ---- The user that each live client belongs to, by the id that the client gave itself.


class ClientOwners:
    """Owners of the ids of live RocketMQ clients and of producers, in whatever groups they are.

    An id belongs to the user who registered it first, until its last registration is gone: replies and questions are
    for the client that is behind it. On a broker without users all ids belong to the same one, whose name is empty.
    """

    def __init__(self) -> None:
        self._owners: dict[str, tuple[str, int]] = {}
        """User and number of registrations by id."""

    def check(self, client_id: str, user: str) -> None:
        """Raise ``NoPermission`` if another user has a live client with this id."""
        owner = self._owners.get(client_id)
        if owner is not None and owner[0] != user:
            raise NoPermission(
                f"client id {client_id} belongs to a live client of another user; give this client another id "
                "(instanceName), or stop the other one first"
            )

    def add(self, client_id: str, user: str) -> None:
        """Count a new registration in a group. Raises ``NoPermission``."""
        self.check(client_id, user)
        self._owners[client_id] = (user, self._owners.get(client_id, (user, 0))[1] + 1)

    def remove(self, client_id: str) -> None:
        user, count = self._owners.pop(client_id)
        if count > 1:
            self._owners[client_id] = (user, count - 1)


# ---- Locks on queues, for RocketMQ's clients that consume in order: only the holder of the lock may read the
# queue.

LOCK_S = 60.0
"""Life of a lock that is not renewed (RocketMQ's ``rebalance.lockMaxLiveTime``); clients renew it each 20 s."""
UNUSED_S = 30.0
"""Time without a renewal after which a client itself stops using a lock (``REBALANCE_LOCK_MAX_LIVE_TIME``)."""


@dataclass(slots=True)
class _Lock:
    holder: str
    renewed_at: float
    until: float


class QueueLocks:
    """The locks by group and queue; at most one for each queue that a group may read. ``clock``: seconds, monotonic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._groups: dict[str, dict[Queue, _Lock]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def lock(self, group: str, client_id: str, queues: Iterable[Queue]) -> list[Queue]:
        """Lock the queues that no other client holds; return those that the client holds now."""
        now = self._clock()
        locks = self._groups.setdefault(group, {})
        held = []
        for queue in queues:
            lock = locks.get(queue)
            # A client renews its own lock by locking again. One that expired is free: its holder stopped using it
            # before.
            if lock is None or lock.holder == client_id or lock.until <= now:
                locks[queue] = _Lock(client_id, now, now + LOCK_S)
                held.append(queue)
        if not locks:
            del self._groups[group]
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[Queue]) -> None:
        """Release those of the queues that the client holds."""
        locks = self._groups.get(group, {})
        for queue in queues:
            if (lock := locks.get(queue)) is not None and lock.holder == client_id:
                del locks[queue]
        if not locks:
            self._groups.pop(group, None)

    def holds_any(self, group: str, client_id: str) -> bool:
        now = self._clock()
        return any(lock.holder == client_id and lock.until > now for lock in list(self._groups.get(group, {}).values()))

    def release_all(self, group: str, client_id: str) -> None:
        """Release every queue that the client holds: it said that it has stopped."""
        self.unlock(group, client_id, list(self._groups.get(group, {})))

    def lost(self, group: str, client_id: str) -> None:
        """Shorten the locks of a client whose connection is lost. It may still be processing messages of the queues, so
        another client gets them only after the lost client has stopped using its locks by itself."""
        for lock in self._groups.get(group, {}).values():
            if lock.holder == client_id:
                lock.until = lock.renewed_at + UNUSED_S

    def forget_expired(self) -> None:
        now = self._clock()
        for group, locks in list(self._groups.items()):
            for queue in [queue for queue, lock in locks.items() if lock.until <= now]:
                del locks[queue]
            if not locks:
                del self._groups[group]


log = logging.getLogger(__name__)

EXPIRY_S = 120.0
"""Time without a heartbeat after which a client has left (RocketMQ's ``CHANNEL_EXPIRED_TIMEOUT``)."""
SWEEP_S = 5.0
"""Interval at which the broker looks for clients that have expired, while there are clients."""
NOTIFIED_AT_ONCE_MAX = 64
"""Largest group whose clients are notified immediately of each client that joins or leaves."""
NOTIFY_S = 0.05
"""Delay of the notification in a larger group; it covers all clients that join or leave in the meantime."""
NAMED_MAX = 5
"""Maximum number of clients that an error names."""
MESSAGE_MODELS = BROADCASTING, CLUSTERING = "BROADCASTING", "CLUSTERING"
"""RocketMQ's names, by number."""


def live_members(count: int) -> str:
    """Return ``1 live member``, ``2 live members``."""
    return f"{count} live {'member' if count == 1 else 'members'}"


@dataclass(frozen=True, slots=True)
class ClientSubscription:
    """A client's subscription to a topic. ``expression``: tags or an SQL92 condition, as ``expression_type`` says.

    ``version``: time at which the client made the subscription, in ms.
    """

    topic: str
    expression: str = "*"
    expression_type: str = "TAG"
    version: int = 0


@dataclass(frozen=True, slots=True)
class ClientRole:
    """How a client consumes in one group; the words are RocketMQ's.

    ``subscriptions``: by topic; None in a heartbeat that leaves them out because they have not changed.
    """

    consume_type: str = ""
    message_model: str = CLUSTERING
    consume_from: str = ""
    subscriptions: Mapping[str, ClientSubscription] | None = None


@dataclass(frozen=True, slots=True)
class ClientIdentity:
    """A client, as all of its heartbeats say. ``fingerprint``: hash of all of its roles, 0 if it sends none."""

    client_id: str
    remote: ClientHandle
    language: str
    version: int
    fingerprint: int = 0


@dataclass(slots=True, eq=False)
class ConsumerClient:
    """One client in one group. Times are seconds of the broker's clock."""

    identity: ClientIdentity
    role: ClientRole
    joined_at: float
    heard_at: float
    cancel_lost: Callable[[], None] = field(default=lambda: None)
    kept_bytes: int = 0
    """Memory of its subscriptions."""

    @property
    def subscriptions(self) -> Mapping[str, ClientSubscription]:
        """Return its subscriptions by topic; empty until a heartbeat has named them."""
        return self.role.subscriptions or {}


@dataclass(slots=True, eq=False)
class ClientGroup:
    """The clients of one group by id, and the resets of its offsets that no client has noticed yet."""

    name: str
    clients: dict[str, ConsumerClient] = field(default_factory=dict)
    resets: dict[Queue, int] = field(default_factory=dict)
    by_remote: dict[ClientHandle, str] = field(default_factory=dict)
    """Id of the client that each connection belongs to."""
    pulled_by: dict[Queue, str] = field(default_factory=dict)
    """By queue: id of the client that got messages of it last. The clients say nothing else about their shares."""

    @property
    def newest(self) -> ClientRole:
        """Return how the client consumes that was heard last. Any thread."""
        # A copy, because the loop may change the dict while another thread iterates.
        clients = list(self.clients.values())
        return max(clients, key=lambda client: client.heard_at).role if clients else ClientRole()

    @property
    def clustering(self) -> bool:
        """Return whether the clients share the messages; otherwise each gets all of them."""
        return self.newest.message_model != BROADCASTING

    @property
    def subscriptions(self) -> dict[str, ClientSubscription]:
        """Return the newest subscription to each topic. Any thread."""
        found: dict[str, ClientSubscription] = {}
        for client in list(self.clients.values()):
            for topic, subscription in client.subscriptions.items():
                if topic not in found or found[topic].version <= subscription.version:
                    found[topic] = subscription
        return found

    def subscription(self, topic: str, remote: ClientHandle) -> ClientSubscription | None:
        """Return the subscription that a pull from ``remote`` selects with; None if no client names the topic.

        It is that of the client itself, because clients of one group may differ while they are being replaced.
        """
        client = self.clients.get(self.by_remote.get(remote, ""))
        own = client.subscriptions.get(topic) if client is not None else None
        return own or self.subscriptions.get(topic)


class ConsumerClients:
    """The groups with live clients of RocketMQ.

    ``clock``: seconds, monotonic; ``call_later``: calls back after some seconds; ``members_of``: names of a group's
    live members of FlintMQ's own kind; ``groups_max``: returns the maximum number of groups; ``subscription_memory``:
    shared with those members.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], object],
        members_of: Callable[[str], Collection[str]],
        groups_max: Callable[[], int],
        subscription_memory: SubscriptionMemory,
    ) -> None:
        self._clock = clock
        self._call_later = call_later
        self._members_of = members_of
        self._groups_max = groups_max
        self._subscription_memory = subscription_memory
        self.popping_of: Callable[[str, str], int] = lambda name, topic: 0
        """Number of messages that consumers of a group have popped and not settled, and of consumers that wait; in a
        topic, if it is not empty."""
        self._sweep_due = False
        self._to_notify: set[str] = set()
        """Large groups with a scheduled notification."""
        self.groups: dict[str, ClientGroup] = {}
        self.locks = QueueLocks(clock)
        self.owners = ClientOwners()

    # ---- clients that come and go

    def heart_beat(self, name: str, identity: ClientIdentity, role: ClientRole) -> bool:
        """Take a heartbeat of a client for one group; return whether the client must send its subscriptions.

        Raises ``NoPermission`` if the client's id belongs to another user, ``LimitReached`` or, if the connection has
        too many groups, ``InvalidParameter``.
        """
        self.owners.check(identity.client_id, identity.remote.user_name)
        group = self.groups.get(name)
        if group is None:
            if len(self.groups) >= self._groups_max():
                raise LimitReached(
                    f"group {name} cannot have live clients: {len(self.groups)} groups have some, which is "
                    "limits.groups_max; stop some, or raise the limit"
                )
            group = ClientGroup(name)
        before = group.clients.get(identity.client_id)

        # The broker cannot fill in the subscriptions if it has never had them, or if it has those of other roles.
        unknown = role.subscriptions is None and (
            before is None or before.role.subscriptions is None or before.identity.fingerprint != identity.fingerprint
        )
        if role.subscriptions is None and before is not None:
            role = ClientRole(role.consume_type, role.message_model, role.consume_from, before.role.subscriptions)
        # Both can be refused, so they come before any change of the tables.
        before_bytes = before.kept_bytes if before is not None else 0
        kept_bytes = before_bytes
        if before is None or role.subscriptions is not before.role.subscriptions:
            kept_bytes = memory_of((each.topic, each.expression) for each in (role.subscriptions or {}).values())
        more = kept_bytes - before_bytes
        self._subscription_memory.check(f"client {identity.client_id} in group {name}", more)
        client = self._connected(group, before, identity, role, kept_bytes)
        self._subscription_memory.bytes += more
        if before is None:
            self.owners.add(identity.client_id, identity.remote.user_name)
        group.clients[identity.client_id] = client
        group.by_remote[identity.remote] = identity.client_id
        self.groups[name] = group
        self._sweep_soon()

        # Clients compute their shares from the ids and topics alone: another heartbeat changes nothing for them.
        if before is None or before.subscriptions.keys() != client.subscriptions.keys():
            self._changed(group, client, joined=before is None)
        return unknown

    def _connected(
        self,
        group: ClientGroup,
        before: ConsumerClient | None,
        identity: ClientIdentity,
        role: ClientRole,
        kept_bytes: int,
    ) -> ConsumerClient:
        """Return the client after its heartbeat; from now on the loss of its connection removes it."""
        now = self._clock()
        same = before is not None and before.identity.remote is identity.remote
        if before is not None and same and before.kept_bytes == kept_bytes:
            cancel = before.cancel_lost
        else:
            # Registered first, because that can be refused; then the client keeps its old connection.
            remote = identity.remote
            cancel = remote.when_lost(lambda: self._lost(group.name, identity.client_id, remote), kept_bytes)
            if before is not None:
                before.cancel_lost()
            if before is not None and not same:
                group.by_remote.pop(before.identity.remote, None)
        return ConsumerClient(identity, role, now if before is None else before.joined_at, now, cancel, kept_bytes)

    def _changed(self, group: ClientGroup, client: ConsumerClient, *, joined: bool) -> None:
        members = self._members_of(group.name)
        if not members:
            self._notify(group)
        elif joined:
            log.warning(
                "group %s: RocketMQ client %s waits, because the group has live members of FlintMQ's own kind (%s)",
                group.name,
                client.identity.client_id,
                _some(members),
            )

    def leave(self, name: str, client_id: str, user: str) -> None:
        """Remove a client from a group, and its locks, for ``user``; do nothing if it is not in it.

        Raises ``NoPermission`` if the client belongs to another user.
        """
        self.owners.check(client_id, user)
        self.locks.release_all(name, client_id)
        self._remove(name, client_id)

    def _remove(self, name: str, client_id: str) -> None:
        group = self.groups.get(name)
        client = group.clients.pop(client_id, None) if group is not None else None
        if group is None or client is None:
            return
        client.cancel_lost()
        self._subscription_memory.bytes -= client.kept_bytes
        self.owners.remove(client_id)
        # Another client may have introduced itself over the same connection since.
        if group.by_remote.get(client.identity.remote) == client_id:
            del group.by_remote[client.identity.remote]
        group.pulled_by = {queue: reader for queue, reader in group.pulled_by.items() if reader != client_id}
        if not group.clients:
            del self.groups[name]
        elif not self._members_of(name):
            self._notify(group)

    def _lost(self, name: str, client_id: str, remote: ClientHandle) -> None:
        group = self.groups.get(name)
        client = group.clients.get(client_id) if group is not None else None
        # The client may have come back over another connection meanwhile.
        if client is not None and client.identity.remote is remote:
            self.locks.lost(name, client_id)
            self._remove(name, client_id)

    def members_left(self, name: str) -> None:
        """Let the waiting clients of a group share its queues: its last member of FlintMQ's own kind has left."""
        group = self.groups.get(name)
        if group is not None:
            self._notify(group)

    def _notify(self, group: ClientGroup) -> None:
        """Let every client of the group share the queues again: of a large group a little later, for all changes until
        then."""
        if len(group.clients) <= NOTIFIED_AT_ONCE_MAX:
            self._notify_now(group)
        elif group.name not in self._to_notify:
            self._to_notify.add(group.name)
            self._call_later(NOTIFY_S, lambda: self._notify_now(group))

    def _notify_now(self, group: ClientGroup) -> None:
        self._to_notify.discard(group.name)
        for client in list(group.clients.values()):
            # One that does not read shares the queues again by itself, every 20 s. Epoch 0: these clients know none.
            if client.identity.remote.may_be_sent():
                client.identity.remote.tell(NOTIFY_CONSUMER_IDS_CHANGED, IdsChangedRequest(group.name, 0))

    def _sweep_soon(self) -> None:
        if not self._sweep_due:
            self._sweep_due = True
            self._call_later(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        self._sweep_due = False
        oldest = self._clock() - EXPIRY_S
        for group in list(self.groups.values()):
            for client_id, client in list(group.clients.items()):
                if client.heard_at < oldest:
                    log.warning("group %s: removed %s: no heartbeat for %d s", group.name, client_id, EXPIRY_S)
                    # It may be alive and only cut off, so its locks end as after the loss of its connection.
                    self.locks.lost(group.name, client_id)
                    self._remove(group.name, client_id)

        # Locks outlive their clients, and nothing but a sweep removes them.
        self.locks.forget_expired()
        if self.groups or len(self.locks):
            self._sweep_soon()

    # ---- which kind of consumers a group has

    def sharing(self, name: str) -> ClientGroup | None:
        """Return the group whose clients share the queues; None if it has none, or if they wait."""
        group = self.groups.get(name)
        return None if group is None or self._members_of(name) else group

    def all_sharing(self) -> list[ClientGroup]:
        """Return the groups whose clients share the queues. Any thread."""
        return [group for group in list(self.groups.values()) if not self._members_of(group.name)]

    def waiting(self, name: str) -> Collection[str]:
        """Return the ids of the clients that wait until the group's members of FlintMQ's own kind are gone."""
        group = self.groups.get(name)
        return group.clients if group is not None and self._members_of(name) else ()

    def check_none(self, name: str) -> None:
        """Raise ``GroupKind`` if RocketMQ's clients share the group's queues, or if consumers pop."""
        group = self.sharing(name)
        if group is not None:
            raise GroupKind(
                f"group {name} has {len(group.clients)} live RocketMQ clients ({_some(group.clients)}), which share "
                "its queues among themselves; a group has either those or FlintMQ's own members. Stop them first: the "
                "committed offsets stay; or use another group",
                members=len(group.clients),
            )

        if popping := self.popping_of(name, ""):
            raise GroupKind(
                f"group {name} is a work group: its consumers pop messages ({popping} are in flight or waited for), "
                "and hold no queues. Stop them first, and wait until their leases are over; or use another group",
                members=popping,
            )

    def check_not_popping(self, name: str, what: str, topic: str = "") -> None:
        """Raise ``GroupRunning`` if consumers of the group pop, from ``topic`` if given. ``what``: what to do about
        it."""
        if popping := self.popping_of(name, topic):
            raise GroupRunning(
                f"group {name} is a work group, and {popping} of its messages are in flight or waited for: {what}",
                members=popping,
            )

    def check_may_pop(self, name: str) -> None:
        """Raise ``GroupKind`` if the group has members of FlintMQ's own kind, or clients of RocketMQ that pull."""
        self.check_may_consume(name)
        group = self.groups.get(name)
        if group is not None and group.pulled_by:
            pulling = set(group.pulled_by.values())
            raise GroupKind(
                f"group {name} has {len(pulling)} live RocketMQ clients that pull ({_some(pulling)}), and a work group "
                "has only consumers that pop. Stop them first: the committed offsets stay; or use another group",
                members=len(pulling),
            )

    def check_may_consume(self, name: str) -> None:
        """Raise ``GroupKind`` if the group has members of FlintMQ's own kind."""
        members = self._members_of(name)
        if members:
            raise GroupKind(
                f"group {name} has live members of FlintMQ's own kind ({_some(members)}), to which the broker assigns "
                "the queues; a group has either those, or consumers of a work queue and RocketMQ's clients. Stop them "
                "first: the committed offsets stay, and this client continues there; or use another group",
                members=len(members),
            )

    def count(self) -> tuple[int, int]:
        """Return the number of clients that share queues, and of those that wait. Any thread."""
        everyone = sum(len(group.clients) for group in list(self.groups.values()))
        sharing = sum(len(group.clients) for group in self.all_sharing())
        # The sums are taken one after the other, and a client that leaves in between is only in the second.
        return sharing, max(everyone - sharing, 0)

    # ---- resets by an operator

    def reset(self, name: str, queue: Queue, offset: int) -> None:
        """Let the next pull of the queue by the group be told that it continues at ``offset``."""
        group = self.sharing(name)
        if group is not None and group.clustering:
            group.resets[queue] = offset

    def was_reset(self, name: str, queue: Queue) -> bool:
        """Return whether the queue was reset and no client has noticed it: what clients commit now is older."""
        group = self.groups.get(name)
        return group is not None and queue in group.resets

    def take_reset(self, name: str, queue: Queue) -> int | None:
        """Return the offset that the queue was reset to, once; None if it was not reset."""
        group = self.groups.get(name)
        return group.resets.pop(queue, None) if group is not None else None


def _some(names: Collection[str]) -> str:
    """Return the first names, and how many there are besides."""
    shown = ", ".join(sorted(names)[:NAMED_MAX])
    more = len(names) - NAMED_MAX
    return f"{shown} and {more} more" if more > 0 else shown


# ---- Live producers by producer group: the clients that the broker asks how a transaction ended.


class _Producer(NamedTuple):
    remote: ClientHandle
    until: float
    cancel_lost: Callable[[], None]
    """Cancels the callback for the loss of its connection."""


class ProducerGroups:
    """Live producers by group and name. ``clock``: monotonic, in seconds; ``owners``: of the names."""

    def __init__(self, clock: Callable[[], float], owners: ClientOwners) -> None:
        self._clock = clock
        self._owners = owners
        self._groups: dict[str, dict[str, _Producer]] = {}
        self._turn = 0

    def heart_beat(self, group: str, member: str, remote: ClientHandle, session_seconds: float) -> None:
        """Register a producer as alive; from now on the broker asks it over ``remote``.

        Raises ``NoPermission`` if the name belongs to another user, and ``InvalidParameter`` if the connection has too
        many.
        """
        self._owners.check(member, remote.user_name)
        before = self._groups.get(group, {}).get(member)
        if before is None or before.remote is not remote:
            # Register first: this can be refused, and the producer must then keep its old connection.
            cancel_lost = remote.when_lost(lambda: self._lost(group, member, remote))
            if before is not None:
                before.cancel_lost()
            else:
                self._owners.add(member, remote.user_name)
        else:
            cancel_lost = before.cancel_lost
        self._groups.setdefault(group, {})[member] = _Producer(remote, self._clock() + session_seconds, cancel_lost)

    def leave(self, group: str, member: str, user: str) -> None:
        """Remove a producer, for ``user``. Raises ``NoPermission`` if it belongs to another one."""
        self._owners.check(member, user)
        self._remove(group, member)

    def _remove(self, group: str, member: str) -> None:
        members = self._groups.get(group, {})
        gone = members.pop(member, None)
        if gone is not None:
            gone.cancel_lost()
            self._owners.remove(member)
        if not members:
            self._groups.pop(group, None)

    def _lost(self, group: str, member: str, remote: ClientHandle) -> None:
        present = self._groups.get(group, {}).get(member)
        # It may have come back over another connection, whose loss has a callback of its own.
        if present is not None and present.remote is remote:
            self._remove(group, member)

    def one_of(self, group: str, topic: str, preferred: ClientHandle | None = None) -> ClientHandle | None:
        """Return a live producer of the group that may publish to ``topic``: ``preferred`` if it is one, else the next
        in rotation, or None.

        It is one that reads what it is sent, if there is one.
        """
        # Producers that expired are removed when one is needed, so no timer is necessary.
        now = self._clock()
        for member, producer in list(self._groups.get(group, {}).items()):
            if producer.remote.lost or producer.until < now:
                self._remove(group, member)
        # A check shows the message to the producer that is asked, whose rights may have changed since it registered.
        members = [
            each.remote for each in self._groups.get(group, {}).values() if each.remote.may_publish(topic, group)
        ]
        members = [member for member in members if member.may_be_sent()] or members
        if not members:
            return None
        if preferred in members:
            return preferred
        # One counter for all groups: it only has to vary from call to call.
        self._turn += 1
        return members[self._turn % len(members)]

    def find(self, member: str) -> ClientHandle | None:
        """Return the connection of the producer with a name, in any group, or None."""
        for members in self._groups.values():
            producer = members.get(member)
            if producer is not None and not producer.remote.lost and producer.until >= self._clock():
                return producer.remote
        return None

    def members(self) -> list[tuple[str, str, ClientHandle]]:
        """Return (group, name, connection) of all producers, sorted."""
        return [
            (group, name, producer.remote)
            for group, members in sorted(self._groups.items())
            for name, producer in sorted(members.items(), key=lambda item: item[0])
        ]
