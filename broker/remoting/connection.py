"""A RocketMQ client's connection: ``ClientConnection`` with remoting frames instead of FlintMQ's."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import ClassVar

from ...protocol.errors import (
    AuthenticationFailed,
    AuthenticationRequired,
    BrokerError,
    FrameIllegal,
    RemoteProtocolError,
)
from ...protocol.frames import RESPONSE, Frame
from ...protocol.remoting.codes import client_name
from ...protocol.remoting.command import (
    LENGTHS,
    HeaderIllegal,
    RemotingFrame,
    decode_frame,
    encode_head,
    header_end,
    is_flintmq,
)
from ...protocol.remoting.signature import ACCESS_KEY
from ..budgets import ReceiveBudget, SharingParser
from ..net.connection import ClientConnection
from ..net.server import Listener
from ..requests.broker import Broker
from ..requests.connected_client import encode_error as encode_native_error
from ..requests.request import KeptHeaders
from ..security.users import User
from .gateway import RemotingClient, RemotingGateway
from .registry import ROUTE_CODES, handlers_for, unsupported
from .repeated_sends import RepeatedSends
from .request import RemotingRequest
from .results import code_of, remark_of
from .signatures import SignatureCheck

log = logging.getLogger(__name__)

UNSIGNED_BYTES_MAX = 128 * 1024
"""Largest frame of a client that has signed nothing yet and whose body is received before its access key is known:
heartbeats and questions are smaller."""
_OF_FLINTMQ = (
    "this port, remoting.listen, serves RocketMQ's clients; FlintMQ's own clients connect to the address "
    "of server.listen, or of the context"
)


class RemotingParser(SharingParser):
    """Turns received bytes into remoting frames.

    ``vet``: if not None, it is called once with the header of each frame over ``UNSIGNED_BYTES_MAX`` before memory is
    spent on the body; it may end the connection.
    """

    __slots__ = ("_vetted", "vet")

    def __init__(self, frame_bytes_max: int, memory: ReceiveBudget) -> None:
        super().__init__(frame_bytes_max, memory)
        self.vet: Callable[[RemotingFrame], None] | None = None
        self._vetted = False

    def next_frame(self) -> RemotingFrame | None:
        """Return the next complete frame, or None until more bytes arrive. Raises ``RemoteProtocolError``."""
        start, pending = self.start, self.end - self.start
        if pending < 4:
            return None
        frame_length = int.from_bytes(self.buffer[start : start + 4], "big")
        self._check_frame_length(frame_length)
        frame_end = start + 4 + frame_length
        if frame_end > self.end:
            if pending >= LENGTHS.size:
                self._look_ahead(start, frame_end)
            return None
        frame = decode_frame(self.buffer, start, frame_end)
        self.start = frame_end
        self._vetted = False
        return frame

    def _look_ahead(self, start: int, frame_end: int) -> None:
        """Refuse a frame by its lengths, or by its header, before the rest of it arrives."""
        body_at = header_end(self.buffer, start, frame_end)
        large = frame_end - start > UNSIGNED_BYTES_MAX
        if large and self.vet is not None and not self._vetted and body_at <= self.end:
            # Once for each frame: this method is called at each of its pieces.
            self._vetted = True
            self.vet(decode_frame(self.buffer, start, self.end))


class RemotingConnection(ClientConnection):
    """An accepted connection of a RocketMQ client. ``gateway``: the state of all of them."""

    parser: RemotingParser

    __slots__ = ("check", "gateway", "handlers_by_code", "header_type", "log_begin")

    CLIENT: ClassVar[type[RemotingClient]] = RemotingClient
    PARSER: ClassVar[type[RemotingParser]] = RemotingParser
    REPEATED: ClassVar[type[KeptHeaders]] = RepeatedSends

    def __init__(
        self,
        broker: Broker,
        address: tuple[str, int],
        on_lost: Callable[[ClientConnection], None],
        gateway: RemotingGateway,
    ) -> None:
        super().__init__(broker, address, on_lost)
        self.gateway = gateway
        self.log_begin = broker.store.write_offset
        """Physical offset of the log's end when the connection was opened: older messages came by others."""
        self.handlers_by_code = handlers_for(broker)
        self.check: SignatureCheck | None = None
        """Check of each request's signature; None on a broker without users."""
        if broker.authenticator is not None:
            self.check = SignatureCheck(self, broker.authenticator)
            # Without a login there is no moment from which larger frames may come: each is vetted by its header.
            self.parser.frame_bytes_max = broker.limits.frame_bytes_max
            self.parser.vet = self._vet
        self.header_type = 0
        """Type of the header of the last request, for errors that answer none in particular."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over the transport of the connected socket."""
        super().connection_made(transport)
        self.gateway.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything that this connection held or waited for."""
        self.gateway.connections.discard(self)
        super().connection_lost(exc)

    def encode_error(self, error: BrokerError, request_id: int) -> bytes:
        """Return the encoded error response to a request; 0 if it answers none."""
        return encode_refusal(error, request_id, self.header_type)

    def handle(self, frame: Frame) -> None:
        """Call the handler of a request, and respond with the error that it raises."""
        assert isinstance(frame, RemotingFrame), "frames of this connection's parser"
        if frame.kind == RESPONSE:
            if not self.peer.response_arrived(frame):
                log.debug("unexpected response to request %d", frame.request_id)
            return
        if not self.peer.client:
            # This name holds until a heartbeat says more.
            self.peer.client = client_name(frame.language, frame.version)
        self.header_type = frame.header_type
        request = RemotingRequest(self, frame)
        try:
            # The check may keep the frame until its turn.
            if self.check is not None and not self._passes(self.check, frame):
                return
            handler = self.handlers_by_code.get(frame.code)
            if handler is None:
                raise unsupported(frame.code)
            waits = handler(request)
            if waits is not None:
                request.begin(waits)
        except BrokerError as error:
            request.fail(error)
        except Exception as error:  # noqa: BLE001 - one request must not take its connection, or the broker, down
            request.fail_unexpectedly(error)

    def _passes(self, check: SignatureCheck, frame: RemotingFrame) -> bool:
        """Return whether the request may be handled now, as ``SignatureCheck.passes``.

        Name servers answer questions for routes without a signature, or with a wrong one: what the client sends next is
        refused, and only that refusal reaches its program.
        """
        if frame.code not in ROUTE_CODES or not self.gateway.open_routes:
            return check.passes(frame)
        # Not every client signs these questions, so the connection must not be closed for the lack of a signature.
        self.authenticate_by = 0.0
        try:
            return ACCESS_KEY not in frame.fields or check.passes(frame)
        except AuthenticationFailed:
            return True

    def _vet(self, frame: RemotingFrame) -> None:
        assert self.check is not None, "set together"
        try:
            self.check.knows(frame)
        except BrokerError as error:
            # No handler has seen this frame, and the answer must have its form.
            self.header_type = frame.header_type
            self.turn_away(error, frame.request_id)

    def admit(self, user: User) -> None:
        """Accept the requests of ``user``; each of them is checked again."""
        self.peer.user = user
        self.authenticate_by = 0.0
        self.parser.vet = None
        log.debug("connection from %s:%d is user %s", *self.peer.address, user.name)

    def users_changed(self) -> None:
        """Close the connection if the user or the access key of its last request was removed."""
        before, authenticator = self.peer.user, self.broker.authenticator
        if before is None or authenticator is None or self.check is None:
            return
        found = authenticator.users.with_access_key(self.check.access_key)
        if found is not None and found[0].name == before.name:
            self.peer.user = found[0]
            return
        gone = f"access key {self.check.access_key!r} of user {before.name!r} was removed"
        self.turn_away(AuthenticationRequired(f"{gone} after this connection used it"), 0)

    def refuse_bytes(self, error: RemoteProtocolError) -> None:
        """Close the connection because the bytes at the parser's start are not a frame, with an answer that its client
        understands."""
        parser = self.parser
        if is_flintmq(parser.buffer, parser.start, parser.end):
            self.turn_away(FrameIllegal(_OF_FLINTMQ), 0, encode_native_error)
        else:
            opaque = error.opaque if isinstance(error, HeaderIllegal) else 0
            self.turn_away(FrameIllegal(str(error)), opaque)


def encode_refusal(error: BrokerError, opaque: int, header_type: int = 0) -> bytes:
    """Return an encoded response that carries an error."""
    return encode_head(RESPONSE, code_of(error), opaque, None, 0, remark=remark_of(error), header_type=header_type)


# ---- The listener of the gateway: what the server needs to accept RocketMQ's clients.


def remoting_listener(gateway: RemotingGateway, sockets: list[socket.socket]) -> Listener:
    """Return the listener of a gateway for ``sockets``."""
    connect = partial(RemotingConnection, gateway=gateway)
    return Listener(sockets, "remoting.listen", connect, encode_refusal)
