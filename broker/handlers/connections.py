"""GET_CONNECTIONS and GET_RIGHTS: the open connections, and what the user of this connection may do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack

from ...protocol.commands import ConnectionsAnswer, EmptyRequest, GetConnectionsRequest, RightsAnswer
from ...protocol.fields import decode_fields
from ..requests.request import Request


def get_connections(request: Request, list_connections: Callable[[int, int], list[tuple[Any, ...]]]) -> None:
    """Return the next open connections, in the order in which they were opened."""
    params = decode_fields(GetConnectionsRequest, request.frame.fields)
    rows = list_connections(params.after, params.max_count)
    request.respond(ConnectionsAnswer(count=len(rows)), msgpack.packb(rows))


def get_rights(request: Request) -> None:
    """Return the name and the grants of the connection's user."""
    decode_fields(EmptyRequest, request.frame.fields)
    user = request.peer.user
    grants = [] if user is None else list(user.permissions)
    name = "" if user is None else user.name
    request.respond(RightsAnswer(user=name, count=len(grants)), msgpack.packb(grants))
