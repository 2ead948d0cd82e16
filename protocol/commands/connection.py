"""The first requests of a connection: HELLO and AUTH."""

from __future__ import annotations

from dataclasses import dataclass

from ..fields import I32_MAX, boolean, integer, text
from .common import QUEUES_MAX

PROTOCOL_VERSION = 1


@dataclass(slots=True)
class HelloRequest:
    """The first request of every connection."""

    protocol: int = integer("version of this protocol that the client speaks", 1, I32_MAX)
    client: str = text("who is calling, for logs and lists", 256, default="")


@dataclass(slots=True)
class HelloAnswer:
    """Who the broker is and what it accepts."""

    protocol: int = integer("version that both speak from here on")
    broker: str = text("the broker's name", 256)
    version: str = text("the broker's release", 64)
    flush: str = text("`sync` or `async`: the least that an acknowledgement means", 8)
    frame_bytes_max: int = integer("largest frame in either direction")
    produce_frame_bytes_max: int = integer("largest PRODUCE frame")
    message_bytes_max: int = integer("largest stored record of a produced message")
    auto_create_queues: int = integer(
        "queues that a topic gets at its first message; 0: none is made", 0, QUEUES_MAX, 4
    )
    auth_required: bool = boolean("whether AUTH must follow before anything else", False)
    auth: str = text(
        "mechanisms that AUTH may use, with blanks between them; empty: AUTH is not served", 256, default=""
    )


@dataclass(slots=True)
class AuthRequest:
    """Say who is calling, and prove it: the first, then the second message of the client. What fails closes the
    connection."""

    message: str = text("the client's message, as the mechanism has it", 1024, 1)
    mechanism: str = text("with the first message: `SCRAM-SHA-256`", 64, default="")


@dataclass(slots=True)
class AuthAnswer:
    """The broker's answer to it; that to the second message proves who the broker is."""

    message: str = text("the broker's message, as the mechanism has it", 1024)
    done: bool = boolean("whether the connection is the user's from here on", False)
