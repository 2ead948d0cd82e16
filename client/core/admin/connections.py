"""The broker's connections, and the rights of the client's own user."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ....protocol import commands
from ....protocol.auth.permissions import Permissions
from ....protocol.commands import CONNECTIONS_MAX
from ....protocol.fields import decode_fields
from ..rpc.operation import Operation, nothing, operation, unpack_rows
from ..rpc.session import Answer
from ..times import from_millis
from .users import UserInfo


@dataclass(frozen=True, slots=True)
class ConnectionInfo:
    """An open connection. ``id``: its number since the start of the broker; ``host``, ``port``: the client's address;
    ``user``: empty if the broker has no users; ``client``: the name with which the client introduced itself.

    ``opened_ms``: when it was opened, ms since 1970 UTC; ``idle_ms``: for how long nothing has arrived and no request
    has been waiting; ``frames_in``, ``bytes_in``, ``bytes_out``: counts since it was opened, without TLS;
    ``held_pulls``: number of pulls that wait for messages; ``tls``: whether it is encrypted.
    """

    id: int
    host: str
    port: int
    user: str
    client: str
    opened_ms: int
    idle_ms: int
    frames_in: int
    bytes_in: int
    bytes_out: int
    held_pulls: int
    tls: bool

    @property
    def opened_at(self) -> datetime:
        """Time at which it was opened."""
        return from_millis(self.opened_ms)


def connections(
    after: int = 0, *, max_count: int = CONNECTIONS_MAX, timeout: float | None = None
) -> Operation[list[ConnectionInfo]]:
    """Return at most ``max_count`` open connections (1 to 1,000) whose ids follow ``after``, by id.

    If there are ``max_count`` of them, call it again with the last id. Needs ``query`` on the broker.
    """

    def decode(answer: Answer) -> list[ConnectionInfo]:
        return [ConnectionInfo(*row) for row in unpack_rows(answer, "connections")]

    return operation(commands.GET_CONNECTIONS, decode, timeout=timeout, after=after, max_count=max_count)


def close_connection(connection: int, opened_ms: int = -1, *, timeout: float | None = None) -> Operation[None]:
    """Close the connection with this ``id``; its client is told, and may connect again. Needs ``admin`` on the broker.

    ``opened_ms``: as listed, so that a broker that has restarted since then closes no other one. Raises
    ``InvalidParameter`` if it is not open any more.
    """
    return operation(commands.CLOSE_CONNECTION, nothing, timeout=timeout, connection=connection, opened_ms=opened_ms)


def whoami(*, timeout: float | None = None) -> Operation[UserInfo]:
    """Return the client's own user and its grants. The name is empty if the broker has no users; every client may then
    do everything."""

    def decode(answer: Answer) -> UserInfo:
        user = decode_fields(commands.RightsAnswer, answer.fields).user
        return UserInfo(user, Permissions.parse(unpack_rows(answer, "grants"), user).grants)

    return operation(commands.GET_RIGHTS, decode, timeout=timeout)
