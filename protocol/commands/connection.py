"""The first requests of a connection: HELLO and AUTH."""

from __future__ import annotations

from dataclasses import dataclass

from ..fields import I32_MAX, boolean, integer, text
from .common import QUEUES_MAX
from .table import Command

PROTOCOL_VERSION = 1


@dataclass(slots=True)
class HelloRequest:
    """The first request of every connection."""

    protocol: int = integer("version of this protocol that the client speaks", 1, I32_MAX)
    client: str = text("name of the client, for logs and lists", 256, default="")


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


HELLO = Command("HELLO", 1000, HelloRequest, HelloAnswer)
AUTH = Command("AUTH", 1001, AuthRequest, AuthAnswer)
