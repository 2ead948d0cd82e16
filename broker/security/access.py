"""What the user of a connection may do, asked for every request and remembered, and how it is refused."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from ...protocol.errors import ConfigurationError, NoPermission
from ...protocol.permissions import ADMIN, ANY, BROKER, CONSUME, GROUP, PUBLISH, QUERY, TOPIC, Need, Permissions

log = logging.getLogger(__name__)

NAME_CHARS_MAX = 255
"""Of longer names nothing is remembered: there is no such topic or group."""
QUERY_BROKER = Need((QUERY,), BROKER)
REMEMBERED_MAX = 4_096
"""Answers that are remembered of one user; beyond that all are worked out anew."""


class Access:
    """One user's rights while the broker runs. Belongs to the event loop; shared by the user's connections.

    ``name``: the user. What its grants say is worked out once for each need, and again after ``change``.
    """

    __slots__ = ("_met", "name", "permissions", "publishes")

    def __init__(self, name: str, permissions: Permissions) -> None:
        self.name = name
        self.permissions = permissions
        self.publishes: set[str] = set()
        """Topics that the user was found to be allowed to publish to: all that a PRODUCE has to look at."""
        self._met: dict[Need, bool] = {}

    def change(self, permissions: Permissions) -> None:
        """The user's grants are others now; holds for every connection at once."""
        self.permissions = permissions
        self.publishes.clear()
        self._met.clear()

    def meets(self, need: Need) -> bool:
        """Whether the user may do that."""
        met = self._met.get(need)
        if met is None and len(need.name) > NAME_CHARS_MAX:
            return self.permissions.meets(need)
        if met is None:
            if len(self._met) >= REMEMBERED_MAX:
                self._met.clear()
                self.publishes.clear()
            met = self._met[need] = self.permissions.meets(need)
        return met

    def check(self, need: Need) -> None:
        """Raise ``NoPermission``, naming what is missing and how to grant it, where the user may not do that.

        Whether there is such a topic or group is not said.
        """
        if not self.meets(need):
            raise NoPermission(self.refusal(need))

    def refusal(self, need: Need) -> str:
        """Say what the user lacks, and how to grant it."""
        return f"user {self.name} has no permission: {need}; grant it with {_how(self.name, need)}"

    def check_publish(self, topic: str) -> None:
        """As ``check`` of publishing to a topic, and remembered in ``publishes``."""
        self.check(Need((PUBLISH,), TOPIC, topic))
        self.publishes.add(topic)

    def allows(self, action: str, kind: str, name: str = "") -> bool:
        """Whether one action on one object is allowed."""
        return self.meets(Need((action,), kind, name))

    def sees(self, kind: str, name: str) -> bool:
        """Whether lists show this topic or group to the user: it has any right on it."""
        return self.permissions.sees(kind, name)

    @property
    def sees_all(self) -> bool:
        """Whether figures of the whole broker are shown to the user."""
        return self.meets(QUERY_BROKER)


def _how(user: str, need: Need) -> str:
    """The command that gives what is missing."""
    action = need.actions[0]
    if need.kind == BROKER:
        option = "--admin" if action == ADMIN else "--query-broker"
    elif need.kind == GROUP:
        option = f"{_GROUP_OPTIONS[action]} {_quoted(need.name)}"
    else:
        option = f"--{_TOPIC_OPTIONS[action]} {_quoted(need.name)}"
    return f"`flintmq user grant {user} {option}`"


_TOPIC_OPTIONS = {PUBLISH: "publish", CONSUME: "consume", QUERY: "query", ADMIN: "manage"}
_GROUP_OPTIONS = {PUBLISH: "--producer-group", CONSUME: "--group", QUERY: "--query-group", ADMIN: "--manage-group"}


def _quoted(name: str) -> str:
    if name == ANY or len(name) > NAME_CHARS_MAX:
        return "NAME"
    return f"'{name}'" if not name.replace("_", "").replace("-", "").isalnum() else name


class AccessTable:
    """The rights of all users, by name. ``changed`` is called when somebody's may have become fewer."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._by_user: dict[str, Access] = {}
        self._raw: dict[str, object] = {}
        self._changed = changed

    def of(self, name: str, raw: object) -> Access:
        """The rights of a user. ``raw``: its grants as they stand in the file of users."""
        access = self._by_user.get(name)
        if access is None:
            self._raw[name] = raw
            access = self._by_user[name] = Access(name, _parsed(name, raw))
        elif raw != self._raw[name]:
            self._change(access, raw)
            self._changed()
        return access

    def _change(self, access: Access, raw: object) -> None:
        self._raw[access.name] = raw
        access.change(_parsed(access.name, raw))

    def update(self, users: Mapping[str, object]) -> None:
        """The file of users changed: ``users`` has everybody's grants. Who is not in it may nothing any more."""
        others = False
        for name, access in self._by_user.items():
            raw = users.get(name, ())
            if raw != self._raw[name]:
                self._change(access, raw)
                others = True
        if others:
            self._changed()


def _parsed(name: str, raw: object) -> Permissions:
    try:
        return Permissions.parse(raw, name)
    except ConfigurationError as error:
        log.error("%s; the user has no permissions until that is put right", error)
        return Permissions()
