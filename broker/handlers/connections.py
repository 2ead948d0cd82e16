"""GET_CONNECTIONS, CLOSE_CONNECTION and GET_RIGHTS: the open connections, and what the user of this one may do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgpack

from ...protocol.commands import (
    CLOSE_CONNECTION,
    CloseConnectionRequest,
    ConnectionsAnswer,
    EmptyAnswer,
    EmptyRequest,
    GetConnectionsRequest,
    RightsAnswer,
)
from ...protocol.errors import InvalidParameter
from ...protocol.fields import decode_fields
from ..addresses import format_address

if TYPE_CHECKING:
    from ..requests.request import Request


def get_connections(request: Request, list_connections: Callable[[int, int], list[tuple[Any, ...]]]) -> None:
    """Return the next open connections, in the order in which they were opened."""
    params = decode_fields(GetConnectionsRequest, request.frame.fields)
    rows = list_connections(params.after, params.max_count)
    request.respond(ConnectionsAnswer(count=len(rows)), msgpack.packb(rows))


def close_connection(request: Request, close_connection: Callable[[int, int], tuple[Any, ...] | None]) -> None:
    """Close a connection, which may be that of the request itself."""
    params = decode_fields(CloseConnectionRequest, request.frame.fields)
    row = close_connection(params.connection, params.opened_ms)
    if row is None:
        raise InvalidParameter(
            f"connection {params.connection} is not open any more; GET_CONNECTIONS (flintmq connections) has the open "
            "ones"
        )
    _, host, port, user, client, *_ = row
    before = {"address": format_address(host, port), "user": user, "client": client}
    request.audit(CLOSE_CONNECTION, f"connection {params.connection}", before)
    request.respond(EmptyAnswer())


def get_rights(request: Request) -> None:
    """Return the name and the grants of the connection's user."""
    decode_fields(EmptyRequest, request.frame.fields)
    user = request.peer.user
    grants = [] if user is None else list(user.permissions)
    name = "" if user is None else user.name
    request.respond(RightsAnswer(user=name, count=len(grants)), msgpack.packb(grants))
