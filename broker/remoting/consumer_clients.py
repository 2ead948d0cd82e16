"""Live RocketMQ consumers by group, as their heartbeats say. They share the queues among themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ...protocol.errors import LimitReached
from ...protocol.remoting import codes
from .client import RemotingClient

EXPIRY_S = 120.0
"""Time without a heartbeat after which a client has left (RocketMQ's ``CHANNEL_EXPIRED_TIMEOUT``)."""


@dataclass(frozen=True, slots=True)
class ClientSubscription:
    """A client's subscription to a topic. ``expression``: tags or an SQL92 condition, as ``expression_type`` says."""

    topic: str
    expression: str = "*"
    expression_type: str = "TAG"
    version: int = 0


@dataclass(slots=True, eq=False)
class ConsumerClient:
    """One client in one group. ``heard_at``: seconds of the loop's clock."""

    client_id: str
    remote: RemotingClient
    language: str
    version: int
    heard_at: float
    cancel_lost: Callable[[], None] = field(default=lambda: None)


@dataclass(slots=True, eq=False)
class ClientGroup:
    """The clients of one group. What they consume and how is what the last heartbeat said."""

    name: str
    consume_type: str = ""
    message_model: str = ""
    consume_from: str = ""
    subscriptions: dict[str, ClientSubscription] = field(default_factory=dict)
    clients: dict[str, ConsumerClient] = field(default_factory=dict)


class ConsumerClients:
    """The groups with live clients. ``clock``: seconds, monotonic; ``groups_max``: maximum number of groups."""

    def __init__(self, clock: Callable[[], float], groups_max: int) -> None:
        self._clock = clock
        self._groups_max = groups_max
        self.groups: dict[str, ClientGroup] = {}

    def heart_beat(
        self, heard: ClientGroup, client_id: str, remote: RemotingClient, language: str, version: int
    ) -> None:
        """Take a heartbeat of a client. ``heard``: the group as the heartbeat describes it, without clients.

        Raises ``LimitReached`` or, if the connection has too many groups, ``InvalidParameter``.
        """
        group = self.groups.get(heard.name)
        if group is None:
            if len(self.groups) >= self._groups_max:
                raise LimitReached(
                    f"group {heard.name} cannot have live clients: {len(self.groups)} groups have some, which is "
                    "limits.groups_max; stop some, or raise the limit"
                )
            group = ClientGroup(heard.name)
        before = group.clients.get(client_id)
        changed = before is None or group.subscriptions.keys() != heard.subscriptions.keys()
        if before is None or before.remote is not remote:
            # Registered first, because that can be refused; then the client keeps its old connection.
            cancel = remote.when_lost(lambda: self._lost(heard.name, client_id, remote))
            if before is not None:
                before.cancel_lost()
            group.clients[client_id] = ConsumerClient(client_id, remote, language, version, self._clock(), cancel)
        else:
            before.heard_at = self._clock()
        self.groups[heard.name] = group
        group.consume_type, group.message_model = heard.consume_type, heard.message_model
        group.consume_from, group.subscriptions = heard.consume_from, heard.subscriptions
        if changed:
            self._notify(group)

    def leave(self, name: str, client_id: str) -> None:
        """Remove a client from a group; do nothing if it is not in it."""
        group = self.groups.get(name)
        client = group.clients.pop(client_id, None) if group is not None else None
        if group is None or client is None:
            return
        client.cancel_lost()
        if group.clients:
            self._notify(group)
        else:
            del self.groups[name]

    def _lost(self, name: str, client_id: str, remote: RemotingClient) -> None:
        group = self.groups.get(name)
        client = group.clients.get(client_id) if group is not None else None
        if client is not None and client.remote is remote:
            self.leave(name, client_id)

    def _notify(self, group: ClientGroup) -> None:
        """Let every client of the group share the queues again."""
        for client in group.clients.values():
            client.remote.send_one_way(codes.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group.name})
