"""Permissions of a connection's user: cached checks for every request, and the refusal messages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from ...protocol.auth.permissions import ADMIN, ANY, BROKER, CONSUME, GROUP, PUBLISH, QUERY, TOPIC, Need, Permissions
from ...protocol.errors import ConfigurationError, NoPermission

log = logging.getLogger(__name__)

NAME_CHARS_MAX = 255
"""Longest name whose checks are cached: no topic or group has a longer name."""
QUERY_BROKER = Need((QUERY,), BROKER)
REMEMBERED_MAX = 4_096
"""Maximum number of cached checks of a user; when it is reached, the cache is cleared."""


class UserRights:
    """The rights of one user. Runs on the event loop; all connections of the user share it.

    ``name``: the user. Each need is checked against the grants once, and again after ``change``.
    """

    __slots__ = ("_met", "name", "permissions", "publishes")

    def __init__(self, name: str, permissions: Permissions) -> None:
        self.name = name
        self.permissions = permissions
        self.publishes: set[str] = set()
        """Topics that the user may publish to, as far as checked. A PRODUCE looks only here."""
        self._met: dict[Need, bool] = {}

    def change(self, permissions: Permissions) -> None:
        """Replace the user's grants, for all connections at once."""
        self.permissions = permissions
        self.publishes.clear()
        self._met.clear()

    def meets(self, need: Need) -> bool:
        """Return whether the user has the permission."""
        met = self._met.get(need)
        if met is None and len(need.name) > NAME_CHARS_MAX:  # a client could fill the cache with long names
            return self.permissions.meets(need)
        if met is None:
            # Both at once: ``publishes`` has only topics that were checked, so this bounds it too.
            if len(self._met) >= REMEMBERED_MAX:
                self._met.clear()
                self.publishes.clear()
            met = self._met[need] = self.permissions.meets(need)
        return met

    def check(self, need: Need) -> None:
        """Raise ``NoPermission``, with the missing permission and how to grant it, if the user lacks it.

        The message does not reveal whether the topic or group exists.
        """
        if not self.meets(need):
            raise NoPermission(self.refusal(need))

    def refusal(self, need: Need) -> str:
        """Return the message that names the missing permission and the command that grants it."""
        return f"user {self.name} has no permission: {need}; grant it with {_grant_command(self.name, need)}"

    def check_publish(self, topic: str) -> None:
        """Check that the user may publish to a topic, and cache that in ``publishes``. Raises ``NoPermission``."""
        self.check(Need((PUBLISH,), TOPIC, topic))
        self.publishes.add(topic)

    def allows(self, action: str, kind: str, name: str = "") -> bool:
        """Return whether the user may do one action on one object."""
        return self.meets(Need((action,), kind, name))

    def sees(self, kind: str, name: str) -> bool:
        """Return whether lists show this topic or group to the user: it needs any right on it."""
        return self.permissions.sees(kind, name)

    @property
    def sees_all(self) -> bool:
        """Return whether the user may see statistics of the whole broker."""
        return self.meets(QUERY_BROKER)


def _grant_command(user: str, need: Need) -> str:
    """Return the command that grants the missing permission."""
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
    """The rights of all users, by name. ``changed`` is called when a user may have lost rights."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._by_user: dict[str, UserRights] = {}
        self._raw: dict[str, object] = {}
        self._changed = changed

    def of(self, name: str, raw: object) -> UserRights:
        """Return the rights of a user. ``raw``: its grants as stored in the users file."""
        access = self._by_user.get(name)
        if access is None:
            self._raw[name] = raw
            access = self._by_user[name] = UserRights(name, _parsed(name, raw))
        elif raw != self._raw[name]:
            self._change(access, raw)
            self._changed()
        return access

    def _change(self, access: UserRights, raw: object) -> None:
        self._raw[access.name] = raw
        access.change(_parsed(access.name, raw))

    def update(self, users: Mapping[str, object]) -> None:
        """Apply a change of the users file. ``users``: grants of all users; users missing from it lose all rights."""
        changed = False
        for name, access in self._by_user.items():
            raw = users.get(name, ())
            if raw != self._raw[name]:
                self._change(access, raw)
                changed = True
        if changed:
            self._changed()


def _parsed(name: str, raw: object) -> Permissions:
    try:
        return Permissions.parse(raw, name)
    except ConfigurationError as error:
        log.error("%s; the user has no permissions until this is fixed", error)
        return Permissions()
