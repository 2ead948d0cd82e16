"""Users of the broker; only for administrators."""

from __future__ import annotations

from dataclasses import dataclass

from ..fields import integer, text
from .common import EmptyAnswer
from .table import Command

USER_CHARS_MAX = 64
USER_BODY_BYTES_MAX = 1024 * 1024
"""Maximum body size of a request that creates or changes a user."""


@dataclass(slots=True)
class CreateUserRequest:
    """Add a user to the broker's store. Body: one msgpack map `{scram, grants}`: a salted verifier as in `users.json`,
    so that the broker never sees the password, and the user's grants."""

    user: str = text("name of the user", USER_CHARS_MAX, 1)


@dataclass(slots=True)
class UpdateUserRequest:
    """Change a user. Body: one msgpack map with any of `scram` (a new password), `revoke` (an array of grants, or
    nil: all), `grant` (an array of grants), `remove_access_key` (the name of one) and `access_key` (a new one, a map
    `{key, secret, created_ms}` for clients of RocketMQ). The broker changes these in this order."""

    user: str = text("name of the user", USER_CHARS_MAX, 1)


@dataclass(slots=True)
class DeleteUserRequest:
    """Remove a user and all its grants."""

    user: str = text("name of the user", USER_CHARS_MAX, 1)


@dataclass(slots=True)
class ListUsersRequest:
    """List users, their grants and the names of their access keys."""

    user: str = text("name of the user; empty: all", USER_CHARS_MAX, default="")


@dataclass(slots=True)
class UsersAnswer:
    """Body: one msgpack array of maps `{user, grants, access_keys}`, sorted by name; an access key is a map
    `{key, created_ms}`."""

    count: int = integer("number of users in the body")


AUTH_CREATE_USER = Command("AUTH_CREATE_USER", 3001, CreateUserRequest, EmptyAnswer)
AUTH_UPDATE_USER = Command("AUTH_UPDATE_USER", 3002, UpdateUserRequest, EmptyAnswer)
AUTH_DELETE_USER = Command("AUTH_DELETE_USER", 3003, DeleteUserRequest, EmptyAnswer)
AUTH_LIST_USER = Command("AUTH_LIST_USER", 3005, ListUsersRequest, UsersAnswer)
