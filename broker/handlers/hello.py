"""HELLO: the broker's name, version and limits."""

from __future__ import annotations

from ... import __version__
from ...protocol.auth.scram import MECHANISM
from ...protocol.commands import PROTOCOL_VERSION, HelloAnswer, HelloRequest
from ...protocol.errors import VersionNotSupported
from ...protocol.fields import decode_fields
from ...protocol.frames import Frame
from .context import Peer

VERSION = __version__


def hello(peer: Peer, frame: Frame) -> None:
    """Answer HELLO, also a repeated one. It must come first on a connection, before AUTH if the broker requires it."""
    request = decode_fields(HelloRequest, frame.fields)
    if request.protocol != PROTOCOL_VERSION:
        raise VersionNotSupported(
            f"this broker does not support protocol version {request.protocol}; use {PROTOCOL_VERSION}",
            protocol=PROTOCOL_VERSION,
        )
    settings = peer.broker.settings
    peer.greet(request.client)
    peer.answer(
        frame,
        HelloAnswer(
            protocol=PROTOCOL_VERSION,
            broker=settings.server.name,
            version=VERSION,
            flush=settings.flush.policy,
            frame_bytes_max=settings.limits.frame_bytes_max,
            produce_frame_bytes_max=settings.limits.produce_frame_bytes_max,
            message_bytes_max=settings.store.message_bytes_max,
            auto_create_queues=settings.topics.default_queues if peer.broker.auto_create else 0,
            auth_required=peer.broker.authenticator is not None,
            auth="" if peer.broker.authenticator is None else MECHANISM,
        ),
    )
