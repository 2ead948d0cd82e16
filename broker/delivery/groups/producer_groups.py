"""Live producers by producer group: the clients that the broker asks how a transaction ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ..client_handle import ClientHandle
    from .consumer_clients import ClientOwners


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
