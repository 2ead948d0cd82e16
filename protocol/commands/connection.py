"""The first requests of a connection: HELLO and AUTH."""

from __future__ import annotations

from dataclasses import dataclass

from ..fields import I32_MAX, I64_MAX, boolean, integer, text
from .common import QUEUES_MAX, EmptyAnswer, EmptyRequest
from .table import Command
from .users import USER_CHARS_MAX

PROTOCOL_VERSION = 1
READ_FROM_ANY = "any"
"""Value of HELLO's ``read_from``."""


@dataclass(slots=True)
class HelloRequest:
    """The first request of every connection."""

    protocol: int = integer("version of this protocol that the client speaks", 1, I32_MAX)
    client: str = text("name of the client, for logs and lists", 256, default="")
    read_from: str = text(
        "`any`: a follower of a replica set may answer reads on this connection; else only the primary does",
        16,
        default="",
    )


@dataclass(slots=True)
class HelloAnswer:
    """The broker's name, release, limits and authentication mechanisms."""

    protocol: int = integer("protocol version of this connection from now on")
    broker: str = text("the broker's name", 256)
    version: str = text("the broker's release", 64)
    flush: str = text("`sync` or `async`: the weakest guarantee of an acknowledgement", 8)
    frame_bytes_max: int = integer("largest frame in either direction")
    produce_frame_bytes_max: int = integer("largest PRODUCE frame")
    message_bytes_max: int = integer("largest stored record of a produced message")
    auto_create_queues: int = integer(
        "number of queues of a topic that its first message creates; 0: topics are not created", 0, QUEUES_MAX, 4
    )
    auth_required: bool = boolean("whether the client must authenticate before any other request", False)
    auth: str = text("mechanisms of AUTH, separated by spaces; empty: the broker does not serve AUTH", 256, default="")
    role: str = text("`primary` or `follower` in a replica set, empty for a broker on its own", 16, default="")
    primary: str = text(
        "HOST:PORT of the set's primary; empty outside of a set, or while no member leads", 300, default=""
    )


@dataclass(slots=True)
class AuthRequest:
    """Authenticate: one request carries the client's first message, a second one its proof. The broker closes the
    connection if either fails."""

    message: str = text("the client's message, in the mechanism's format", 1024, 1)
    mechanism: str = text("with the first message: `SCRAM-SHA-256`", 64, default="")


@dataclass(slots=True)
class AuthAnswer:
    """The broker's message of the exchange. Its second one proves that the broker has the user's verifier."""

    message: str = text("the broker's message, in the mechanism's format", 1024)
    done: bool = boolean("whether the connection is authenticated now", False)


CONNECTIONS_MAX = 1000
"""Maximum number of connections in one GET_CONNECTIONS response."""


@dataclass(slots=True)
class GetConnectionsRequest:
    """List the open connections, in the order in which they were opened."""

    after: int = integer("id after which to begin, such as the last one of the previous response", 0, I64_MAX, 0)
    max_count: int = integer("maximum number of connections in the response", 1, CONNECTIONS_MAX, CONNECTIONS_MAX)


@dataclass(slots=True)
class ConnectionsAnswer:
    """Body: one msgpack array of `[id, host, port, user, client, opened_ms, idle_ms, frames_in, bytes_in, bytes_out,
    held_pulls, tls]`. `id` counts the connections since the start of the broker; `user` and `client` are empty if
    unknown; `idle_ms` is the time for which nothing has arrived and no request has waited, to about a second; bytes are
    counted without TLS."""

    count: int = integer("number of connections in the body; fewer than `max_count`: there are no more")


@dataclass(slots=True)
class CloseConnectionRequest:
    """Close a connection. Its client is told why, and may connect again."""

    connection: int = integer("`id` of GET_CONNECTIONS", 0, I64_MAX)
    opened_ms: int = integer(
        "its `opened_ms`, because a broker that restarts begins to count again; -1: not compared", -1, I64_MAX, -1
    )


@dataclass(slots=True)
class RightsAnswer:
    """Body: one msgpack array of the user's grants, as in AUTH_CREATE_USER."""

    user: str = text("name of the user; empty: the broker has no users, and every client may do all", USER_CHARS_MAX)
    count: int = integer("number of grants in the body")


HELLO = Command("HELLO", 1000, HelloRequest, HelloAnswer)
AUTH = Command("AUTH", 1001, AuthRequest, AuthAnswer)
GET_CONNECTIONS = Command("GET_CONNECTIONS", 1013, GetConnectionsRequest, ConnectionsAnswer)
GET_RIGHTS = Command("GET_RIGHTS", 1014, EmptyRequest, RightsAnswer)
CLOSE_CONNECTION = Command("CLOSE_CONNECTION", 1017, CloseConnectionRequest, EmptyAnswer)
