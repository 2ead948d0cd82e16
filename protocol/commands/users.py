"""Users of the broker, for its administrators."""

from __future__ import annotations

from dataclasses import dataclass

from ..fields import integer, text

USER_CHARS_MAX = 64
USER_BODY_BYTES_MAX = 1024 * 1024
"""Largest body of a request that creates or changes a user."""


@dataclass(slots=True)
class CreateUserRequest:
    """Add a user to the broker's store. Body: one msgpack map `{scram, grants}`: a salted verifier as in `users.json`,
    so that the broker never sees a password, and the grants of the user."""

    user: str = text("name of the user", USER_CHARS_MAX, 1)


@dataclass(slots=True)
class UpdateUserRequest:
    """Change a user. Body: one msgpack map with any of `scram` (another password), `revoke` (an array of grants, or
    nil: all), `grant` (an array of grants). Grants are revoked before others are granted."""

    user: str = text("name of the user", USER_CHARS_MAX, 1)


@dataclass(slots=True)
class DeleteUserRequest:
    """Remove a user, with all that it may do."""

    user: str = text("name of the user", USER_CHARS_MAX, 1)


@dataclass(slots=True)
class ListUsersRequest:
    """Ask who may connect."""

    user: str = text("name of the user; empty: all", USER_CHARS_MAX, default="")


@dataclass(slots=True)
class UsersAnswer:
    """Body: one msgpack array of maps `{user, grants}`, by name."""

    count: int = integer("users in the body")
