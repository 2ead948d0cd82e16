"""Which producers are alive, by producer group: whom to ask how a transaction ended."""

from __future__ import annotations

from collections.abc import Callable

from .remote import Remote


class ProducerGroups:
    """Live producers by group and name. ``clock``: seconds, never going back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._groups: dict[str, dict[str, tuple[Remote, float]]] = {}
        self._turn = 0

    def heart_beat(self, group: str, member: str, remote: Remote, session_seconds: float) -> None:
        """A producer is alive, and will be asked over ``remote`` from now on."""
        members = self._groups.setdefault(group, {})
        before = members.get(member)
        members[member] = (remote, self._clock() + session_seconds)
        if before is None or before[0] is not remote:
            remote.when_lost(lambda: self._lost(group, member, remote))

    def leave(self, group: str, member: str) -> None:
        """A producer goes."""
        members = self._groups.get(group, {})
        members.pop(member, None)
        if not members:
            self._groups.pop(group, None)

    def _lost(self, group: str, member: str, remote: Remote) -> None:
        present = self._groups.get(group, {}).get(member)
        if present is not None and present[0] is remote:
            self.leave(group, member)

    def one_of(self, group: str, topic: str) -> Remote | None:
        """A live producer of the group that may publish to ``topic``, another one each time; None: there is none."""
        now = self._clock()
        for member, (remote, until) in list(self._groups.get(group, {}).items()):
            if remote.lost or until < now:
                self.leave(group, member)
        members = [each for each in self._groups.get(group, {}).values() if each[0].may_publish(topic)]
        if not members:
            return None
        self._turn += 1
        return members[self._turn % len(members)][0]

    def members(self) -> list[tuple[str, str, Remote]]:
        """(group, name, connection) of all, sorted."""
        return [
            (group, member, remote)
            for group, members in sorted(self._groups.items())
            for member, (remote, _) in sorted(members.items())
        ]
