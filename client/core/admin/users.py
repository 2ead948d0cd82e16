"""Users of the broker as an administrator sees and changes them. Passwords stay here: the broker gets verifiers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from ....protocol import commands
from ....protocol.auth.permissions import Grant, Permissions
from ....protocol.auth.scram import Verifier
from ....protocol.auth.users import verifier_row
from ....protocol.errors import RemoteProtocolError
from ..rpc.operation import Operation, nothing, operation, unpack_body
from ..rpc.session import Answer


@dataclass(frozen=True, slots=True)
class UserInfo:
    """One user and its grants."""

    user: str
    grants: Sequence[Grant]


def users(user: str = "") -> Operation[list[UserInfo]]:
    """List all users by name, or one."""

    def decode(answer: Answer) -> list[UserInfo]:
        rows = unpack_body(answer)
        if not isinstance(rows, list):
            raise RemoteProtocolError(f"expected users as a list, got {type(rows).__name__}")
        return [UserInfo(row["user"], Permissions.parse(row["grants"], row["user"]).grants) for row in rows]

    return operation(commands.AUTH_LIST_USER, decode, user=user)


def create_user(user: str, verifier: Verifier, grants: Iterable[Grant]) -> Operation[None]:
    """Add a user."""
    body = {"scram": verifier_row(verifier), "grants": _rows(grants)}
    return operation(commands.AUTH_CREATE_USER, nothing, msgpack.packb(body), user=user)


def update_user(
    user: str, verifier: Verifier | None = None, grant: Iterable[Grant] = (), revoke: Iterable[Grant] | None = ()
) -> Operation[None]:
    """Change the password or the grants of a user. ``revoke``: None revokes all."""
    body: dict[str, Any] = {}
    if verifier is not None:
        body["scram"] = verifier_row(verifier)
    if granted := _rows(grant):
        body["grant"] = granted
    if revoke is None:
        body["revoke"] = None
    elif revoked := _rows(revoke):
        body["revoke"] = revoked
    return operation(commands.AUTH_UPDATE_USER, nothing, msgpack.packb(body), user=user)


def delete_user(user: str) -> Operation[None]:
    """Remove a user."""
    return operation(commands.AUTH_DELETE_USER, nothing, user=user)


def _rows(grants: Iterable[Grant]) -> list[dict[str, Any]]:
    return [grant.as_json() for grant in grants]
