"""Users of the broker as an administrator sees and changes them. Passwords stay here: the broker gets verifiers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ....protocol import commands
from ....protocol.auth.access_keys import AccessKey, make_access_key
from ....protocol.auth.permissions import Grant, Permissions
from ....protocol.auth.scram import make_verifier
from ....protocol.auth.users import verifier_row
from ..rpc.operation import Operation, nothing, operation, pack_body, unpack_rows
from ..rpc.session import Answer


@dataclass(frozen=True, slots=True)
class AccessKeyInfo:
    """One access key of a user, without its secret. ``created_ms``: milliseconds since the epoch."""

    key: str
    created_ms: int


@dataclass(frozen=True, slots=True)
class UserInfo:
    """One user, its grants, and its access keys for RocketMQ's clients."""

    user: str
    grants: Sequence[Grant]
    access_keys: Sequence[AccessKeyInfo] = ()


def users(user: str | None = None, *, timeout: float | None = None) -> Operation[list[UserInfo]]:
    """Return the users of the broker by name, or one of them. This and every change of users needs ``admin`` on the
    broker. Raises ``UserNotExist``."""

    def decode(answer: Answer) -> list[UserInfo]:
        rows = unpack_rows(answer, "users")
        return [
            UserInfo(
                row["user"],
                Permissions.parse(row["grants"], row["user"]).grants,
                [AccessKeyInfo(each["key"], each["created_ms"]) for each in row.get("access_keys", ())],
            )
            for row in rows
        ]

    return operation(commands.AUTH_LIST_USER, decode, timeout=timeout, user=user or "")


def create_user(
    user: str, password: str, grants: Iterable[Grant] = (), *, timeout: float | None = None
) -> Operation[None]:
    """Add a user with these ``grants``. Raises ``UserExistsAlready``."""
    body = {"scram": verifier_row(make_verifier(password)), "grants": _rows(grants)}
    return operation(commands.AUTH_CREATE_USER, nothing, pack_body(body), timeout=timeout, user=user)


def change_user(
    user: str,
    *,
    password: str | None = None,
    grant: Iterable[Grant] = (),
    revoke: Iterable[Grant] | None = (),
    timeout: float | None = None,
) -> Operation[None]:
    """Change a user's password, which closes its connections, or its grants. ``revoke``: None revokes all.

    Raises ``UserNotExist``, and ``InvalidParameter`` for a grant that the user does not have.
    """
    body: dict[str, Any] = {}
    if password is not None:
        body["scram"] = verifier_row(make_verifier(password))
    if granted := _rows(grant):
        body["grant"] = granted
    if revoke is None:
        body["revoke"] = None
    elif revoked := _rows(revoke):
        body["revoke"] = revoked
    return operation(commands.AUTH_UPDATE_USER, nothing, pack_body(body), timeout=timeout, user=user)


def add_access_key(user: str, *, key: str = "", secret: str = "", timeout: float | None = None) -> Operation[AccessKey]:
    """Add an access key to a user, with which RocketMQ's clients sign as that user; return it with its secret, which
    the broker shows to no client. ``key``, ``secret``: values that clients already have; empty: random ones.

    Raises ``UserNotExist``; ``InvalidParameter`` if a user has that key, or if this one has too many; and
    ``ConfigurationError`` for invalid values. The secret passes the connection as it is, so use TLS.
    """
    made = make_access_key(key, secret)
    body = pack_body({"access_key": made.as_json()})
    return operation(commands.AUTH_UPDATE_USER, lambda answer: made, body, timeout=timeout, user=user)


def remove_access_key(user: str, key: str, *, timeout: float | None = None) -> Operation[None]:
    """Remove an access key; clients that sign with it lose their access at once.

    Raises ``UserNotExist``, and ``InvalidParameter`` if the user does not have it.
    """
    body = pack_body({"remove_access_key": key})
    return operation(commands.AUTH_UPDATE_USER, nothing, body, timeout=timeout, user=user)


def delete_user(user: str, *, timeout: float | None = None) -> Operation[None]:
    """Remove a user and close its connections. Raises ``UserNotExist``."""
    return operation(commands.AUTH_DELETE_USER, nothing, timeout=timeout, user=user)


def _rows(grants: Iterable[Grant]) -> list[dict[str, Any]]:
    return [grant.as_json() for grant in grants]
