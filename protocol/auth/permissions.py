"""Permissions of users: grants of actions on topics, groups and the broker. Whatever no grant allows is refused.

A grant in ``users.json`` names its actions and one object::

    {"actions": ["publish"], "topic": "orders"}
    {"actions": ["consume", "query"], "topicPrefix": "flights-"}
    {"actions": ["consume"], "group": "billing"}
    {"actions": ["admin"], "broker": true}

A prefix never covers the broker's own topics and groups: they need a grant that names them, or ``admin`` on the broker.
A grant on a group includes its retry topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import ConfigurationError, InvalidParameter
from ..names import SYSTEM_GROUP_PREFIX, SYSTEM_TOPIC_PREFIX, check_name, is_system_topic
from ..storage.delivery import DEAD_LETTER_TOPIC_PREFIX, RETRY_TOPIC_PREFIX

PUBLISH, CONSUME, QUERY, ADMIN = "publish", "consume", "query", "admin"
ACTIONS = (PUBLISH, CONSUME, QUERY, ADMIN)
"""All actions, in the order in which they are shown."""

TOPIC, GROUP, BROKER = "topic", "group", "broker"
"""Kinds of objects of a grant."""

BROKER_ACTIONS = (QUERY, ADMIN)
ANY = "*"
"""Stands for any topic or group; it is not a valid name."""
GRANTS_MAX = 10_000
"""Maximum number of grants of one user."""

PROTECTED_TOPIC_PREFIXES = (RETRY_TOPIC_PREFIX, DEAD_LETTER_TOPIC_PREFIX, SYSTEM_TOPIC_PREFIX, "RMQ_SYS_")
"""Prefixes of topics that a prefix grant does not cover."""

_OBJECTS = {"topic": TOPIC, "topicPrefix": TOPIC, "group": GROUP, "groupPrefix": GROUP, "broker": BROKER}
_IMPLIED_BY = {QUERY: (QUERY, CONSUME)}
"""Actions that allow each action: a user who may consume a topic may also look up its messages and see offsets."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Actions on one object, or (``prefix``) on all objects with the prefix ``name``. ``name``: empty for the
    broker."""

    actions: frozenset[str]
    kind: str
    name: str = ""
    prefix: bool = False

    @property
    def on(self) -> tuple[str, str, bool]:
        """The object of the grant."""
        return self.kind, self.name, self.prefix

    def as_json(self) -> dict[str, Any]:
        actions = [action for action in ACTIONS if action in self.actions]
        if self.kind == BROKER:
            return {"actions": actions, BROKER: True}
        return {"actions": actions, f"{self.kind}Prefix" if self.prefix else self.kind: self.name}

    def __str__(self) -> str:
        if self.kind == BROKER:
            return "the broker"
        return f"{self.kind}s that begin with {self.name!r}" if self.prefix else f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Need:
    """Permission that a request needs: one of ``actions`` on one object. Refusals name the first action."""

    actions: tuple[str, ...]
    kind: str
    name: str = ""

    def __str__(self) -> str:
        if self.kind == BROKER:
            return f"{self.actions[0]} on the broker"
        return f"{self.actions[0]} on {f'any {self.kind}' if self.name == ANY else f'{self.kind} {self.name[:255]}'}"


def is_protected(kind: str, name: str) -> bool:
    """Return whether the topic or group is the broker's own, so that no prefix covers it."""
    if kind == GROUP:
        return name.startswith(SYSTEM_GROUP_PREFIX)
    return is_system_topic(name) or name.startswith(PROTECTED_TOPIC_PREFIXES)


class Permissions:
    """All grants of one user."""

    def __init__(self, grants: Iterable[Grant] = ()) -> None:
        self.grants = tuple(grants)
        self.broker: frozenset[str] = frozenset()
        """Actions on the broker itself."""
        self._literal: dict[tuple[str, str], frozenset[str]] = {}
        self._prefixes: dict[str, list[tuple[str, frozenset[str]]]] = {TOPIC: [], GROUP: []}
        for grant in self.grants:
            if grant.kind == BROKER:
                self.broker |= grant.actions
            elif grant.prefix:
                self._prefixes[grant.kind].append((grant.name, grant.actions))
            else:
                key = (grant.kind, grant.name)
                self._literal[key] = self._literal.get(key, frozenset()) | grant.actions

    @classmethod
    def parse(cls, raw: object, user: str) -> Permissions:
        """Parse the grants of ``user`` from a file. Raises ``ConfigurationError``, which names the grant at fault."""
        if not isinstance(raw, list | tuple):
            raise ConfigurationError(f"permissions of user {user}: must be a list of grants, not {type(raw).__name__}")
        if len(raw) > GRANTS_MAX:
            raise ConfigurationError(f"permissions of user {user}: {len(raw)} grants; at most {GRANTS_MAX} are allowed")
        return cls(_parse(entry, f"grant {index} of user {user}") for index, entry in enumerate(raw))

    def as_json(self) -> list[dict[str, Any]]:
        return [grant.as_json() for grant in self.grants]

    def plus(self, grants: Iterable[Grant]) -> Permissions:
        """Return these permissions with more grants; actions on one object are merged into one grant."""
        found = {grant.on: grant for grant in self.grants}
        for grant in grants:
            before = found.get(grant.on)
            found[grant.on] = grant if before is None else replace(grant, actions=grant.actions | before.actions)
        return Permissions(found.values())

    def minus(self, grants: Iterable[Grant]) -> Permissions:
        """Return these permissions without some actions. Raises ``ConfigurationError`` if they have none of them."""
        found = {grant.on: grant for grant in Permissions().plus(self.grants).grants}
        for grant in grants:
            before = found.pop(grant.on, None)
            if before is None or before.actions.isdisjoint(grant.actions):
                raise ConfigurationError(f"there is no grant of {', '.join(sorted(grant.actions))} on {grant}")
            if left := before.actions - grant.actions:
                found[grant.on] = replace(before, actions=left)
        return Permissions(found.values())

    def allows(self, action: str, kind: str, name: str = "") -> bool:
        """Return whether any grant allows ``action`` on that object."""
        if ADMIN in self.broker:
            return True
        granted = self._granted(kind, name)
        return not granted.isdisjoint(_IMPLIED_BY.get(action, (action,)))

    def meets(self, need: Need) -> bool:
        """Return whether one of the actions of ``need`` is allowed."""
        if need.name == ANY:
            return any(self.allows_any(action, need.kind) for action in need.actions)
        return any(self.allows(action, need.kind, need.name) for action in need.actions)

    def allows_any(self, action: str, kind: str) -> bool:
        """Return whether ``action`` is allowed on at least one topic or group."""
        return ADMIN in self.broker or any(grant.kind == kind and action in grant.actions for grant in self.grants)

    def sees(self, kind: str, name: str) -> bool:
        """Return whether the user has any right on that object, so that lists show it."""
        return ADMIN in self.broker or bool(self._granted(kind, name))

    def _granted(self, kind: str, name: str) -> frozenset[str]:
        if kind == BROKER:
            return self.broker
        granted = self._literal.get((kind, name), frozenset())
        if not is_protected(kind, name):
            for prefix, actions in self._prefixes[kind]:
                if name.startswith(prefix):
                    granted |= actions
        elif kind == TOPIC and name.startswith(RETRY_TOPIC_PREFIX):
            of_group = self._granted(GROUP, name.removeprefix(RETRY_TOPIC_PREFIX))
            granted |= of_group & {CONSUME, QUERY}
        return granted


def _parse(entry: object, where: str) -> Grant:
    if not isinstance(entry, dict):
        raise ConfigurationError(f"{where}: must be an object with actions and their object")
    objects = [key for key in entry if key in _OBJECTS]
    unknown = [str(key)[:40] for key in entry if key not in _OBJECTS and key != "actions"]
    if unknown:
        raise ConfigurationError(f"{where}: unknown key {unknown[0]!r}; use actions, {', '.join(_OBJECTS)}")
    if len(objects) != 1:
        raise ConfigurationError(f"{where}: must have one of {', '.join(_OBJECTS)}, got {len(objects)} of them")
    key = objects[0]
    return make_grant(_actions(entry.get("actions"), where), _OBJECTS[key], entry[key], key.endswith("Prefix"), where)


def _actions(raw: object, where: str) -> Sequence[str]:
    if not isinstance(raw, list) or not raw or not all(isinstance(action, str) for action in raw):
        raise ConfigurationError(f"{where}: actions must be a list of {', '.join(ACTIONS)}")
    return raw


def make_grant(actions: Iterable[str], kind: str, name: object, prefix: bool, where: str) -> Grant:
    """Return a grant after checking it. ``name``: True for the broker; ``where``: the grant's name in the error.

    Raises ``ConfigurationError``.
    """
    wanted = frozenset(actions)
    allowed = BROKER_ACTIONS if kind == BROKER else ACTIONS
    for action in sorted(wanted):
        if action not in allowed:
            raise ConfigurationError(f"{where}: {action[:40]!r} is not an action on a {kind}; use {', '.join(allowed)}")
    if kind == BROKER:
        if name is not True:
            raise ConfigurationError(f"{where}: broker must be true")
        return Grant(wanted, kind)
    if not isinstance(name, str):
        raise ConfigurationError(f"{where}: the name of a {kind} must be a string, not {type(name).__name__}")
    try:
        if name or not prefix:
            check_name(kind, name)
    except InvalidParameter as error:
        raise ConfigurationError(f"{where}: {error.message}") from None
    if prefix and ((kind == TOPIC and name.startswith(PROTECTED_TOPIC_PREFIXES)) or is_protected(kind, name)):
        raise ConfigurationError(
            f"{where}: the prefix {name!r} covers nothing: a prefix never covers the broker's own {kind}s; name each"
        )
    return Grant(wanted, kind, name, prefix)
