"""Rights that people grant to users, and generated passwords: shared by ``flintmq user`` and the console."""

from __future__ import annotations

import base64
import secrets
from dataclasses import dataclass

from ...protocol.auth.permissions import ADMIN, BROKER, CONSUME, GROUP, PUBLISH, QUERY, TOPIC, Grant, make_grant
from .display import real_name

GENERATED_BYTES = 18
"""Random bytes of a generated password: 24 characters."""
PASSWORD_CHARS_SHORT = 8
"""Length below which people are warned: the broker's pauses after a failed login only slow down guessing."""


@dataclass(frozen=True, slots=True)
class Right:
    """One right that can be granted: an action on a kind of object. ``text``: what it allows."""

    action: str
    kind: str
    text: str


RIGHTS = {
    "publish": Right(PUBLISH, TOPIC, "Send to a topic."),
    "consume": Right(CONSUME, TOPIC, "Read a topic."),
    "query": Right(QUERY, TOPIC, "Look up messages and offsets of a topic; reading it includes this."),
    "manage": Right(ADMIN, TOPIC, "Create, change and delete a topic."),
    "group": Right(CONSUME, GROUP, "Join a consumer group, commit for it, and read its retry topic."),
    "query_group": Right(QUERY, GROUP, "See members and lag of a group; joining it includes this."),
    "manage_group": Right(ADMIN, GROUP, "Reset and delete a group."),
    "producer_group": Right(PUBLISH, GROUP, "Send transactions as a producer group."),
    "query_broker": Right(QUERY, BROKER, "See figures, settings and lists of the whole broker."),
    "admin": Right(ADMIN, BROKER, "Everything, including the broker's own topics."),
}
"""Rights by the names that people choose from; those on the broker take no further name."""


def grant_of(right: str, name: str, prefix: bool, where: str) -> Grant:
    """Return the grant of a right on the topic or group that a person typed; ``prefix``: on all that begin with it.

    ``where``: the beginning of the error. Raises ``ConfigurationError`` for an invalid name.
    """
    found = RIGHTS[right]
    if found.kind == BROKER:
        return Grant(frozenset((found.action,)), BROKER)
    # A pattern stays as it is, to be refused.
    real = name if "*" in name else real_name(name, "topic" if found.kind == TOPIC else "group")
    return make_grant((found.action,), found.kind, real, prefix, where)


def generate_password() -> str:
    return base64.urlsafe_b64encode(secrets.token_bytes(GENERATED_BYTES)).decode()


def password_warning(password: str) -> str:
    """Return what to tell a person about a password; empty: it is long enough."""
    is_short = len(password) < PASSWORD_CHARS_SHORT
    return f"a password of {len(password)} characters is easy to guess" if is_short else ""
