"""HELLO: the broker's name, version and limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import __version__
from ...protocol.auth.scram import MECHANISM
from ...protocol.commands import PROTOCOL_VERSION, READ_FROM_ANY, HelloAnswer, HelloRequest
from ...protocol.errors import VersionNotSupported
from ...protocol.fields import decode_fields

if TYPE_CHECKING:
    from ..config import Settings
    from ..replication.member.replica_member import ReplicaMember
    from ..requests.request import Request
    from ..security.authenticator import Authenticator

VERSION = __version__


def hello(
    request: Request,
    settings: Settings,
    auto_create: bool,
    authenticator: Authenticator | None,
    member: ReplicaMember | None,
) -> None:
    """Answer HELLO, even a repeated one. It must come first on a connection, before AUTH if the broker requires it."""
    params = decode_fields(HelloRequest, request.frame.fields)
    if params.protocol != PROTOCOL_VERSION:
        raise VersionNotSupported(
            f"this broker does not support protocol version {params.protocol}; use {PROTOCOL_VERSION}",
            protocol=PROTOCOL_VERSION,
        )
    request.source.greet(params.client)
    request.peer.reads_any = params.read_from == READ_FROM_ANY
    request.respond(
        HelloAnswer(
            protocol=PROTOCOL_VERSION,
            broker=settings.server.name,
            version=VERSION,
            flush=settings.flush.policy,
            frame_bytes_max=settings.limits.frame_bytes_max,
            produce_frame_bytes_max=settings.limits.produce_frame_bytes_max,
            message_bytes_max=settings.store.message_bytes_max,
            auto_create_queues=settings.topics.default_queues if auto_create else 0,
            auth_required=authenticator is not None,
            auth="" if authenticator is None else MECHANISM,
            role="" if member is None else "primary" if member.refusal() is None else "follower",
            primary="" if member is None else member.primary_address,
        )
    )
