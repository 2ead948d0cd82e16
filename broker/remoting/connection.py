"""A RocketMQ client's connection: ``ClientConnection`` with remoting frames instead of FlintMQ's."""

from __future__ import annotations

import asyncio
import logging
import secrets
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
    ACCESS_KEY,
    LENGTHS,
    HeaderIllegal,
    RemotingFrame,
    decode_frame,
    encode_head,
    header_end,
    is_flintmq,
    is_signed,
)
from ..addresses import format_address
from ..budgets import ReceiveBudget, SharingParser
from ..net.connection import ClientConnection
from ..net.server import Listener
from ..requests.broker import Broker
from ..requests.connected_client import encode_error as encode_native_error
from ..requests.request import KeptHeaders
from ..security.audit import Author
from ..security.users import NAME_CHARS_LOGGED, Authenticator, User
from .gateway import RemotingClient, RemotingGateway
from .registry import ROUTE_CODES, handlers_for, unsupported
from .repeated_sends import RepeatedSends
from .request import RemotingRequest, RemotingSource, code_of, remark_of

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
        super().connection_made(transport)
        self.gateway.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.gateway.connections.discard(self)
        super().connection_lost(exc)

    def encode_error(self, error: BrokerError, request_id: int) -> bytes:
        return encode_refusal(error, request_id, self.header_type)

    def handle(self, frame: Frame) -> None:
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
    return encode_head(RESPONSE, code_of(error), opaque, None, 0, remark=remark_of(error), header_type=header_type)


# ---- The listener of the gateway: what the server needs to accept RocketMQ's clients.


def remoting_listener(gateway: RemotingGateway, sockets: list[socket.socket]) -> Listener:
    connect = partial(RemotingConnection, gateway=gateway)
    return Listener(sockets, "remoting.listen", connect, encode_refusal)


# ---- Authentication of RocketMQ's clients: each request is signed with the access key of a user.

NO_KEY = (
    "this broker has users, and the request carries no AccessKey: give the client an access key (an AclClientRPCHook, "
    "or credentials in its settings); `flintmq user key add USER` makes one"
)
_NO_ONES_SECRET = secrets.token_bytes(40)


class SignatureCheck:
    """The check of one connection's requests. ``access_key``: the key that its last accepted request was signed with.

    A request with another key waits its turn after failed attempts with it from the same address, like a login. After a
    failure the connection stays open, because only then every client shows the reason to its program; what it sends
    before its next turn is refused without a look at the signature.
    """

    __slots__ = ("_authenticator", "_connection", "_failed", "access_key")

    def __init__(self, connection: RemotingSource, authenticator: Authenticator) -> None:
        self._connection = connection
        self._authenticator = authenticator
        self._failed = False
        self.access_key = ""

    def knows(self, frame: RemotingFrame) -> None:
        """Raise ``AuthenticationRequired`` or ``AuthenticationFailed`` if a frame has no access key that exists.

        Called for a frame whose header alone has arrived, before memory is spent on its body.
        """
        key = _key_of(frame)
        if self._authenticator.users.with_access_key(key) is None:
            raise AuthenticationFailed(_wrong(key))

    def passes(self, frame: RemotingFrame) -> bool:
        """Return whether the frame may be handled now; if not, it waits, and is handled or refused later.

        Raises ``AuthenticationRequired`` if it has no access key, ``AuthenticationFailed`` if its signature is wrong,
        and ``SystemBusy`` if too many attempts wait.
        """
        key = _key_of(frame)
        connection, backoff = self._connection, self._authenticator.backoff
        if key == self.access_key:
            # A key that was right on this connection needs no turn; a wrong signature with it is a failed attempt.
            if self._signer(frame, key) is not None:
                return True
        else:
            host = connection.peer.address[0]
            if backoff.must_wait(host, key):
                if self._failed:
                    raise AuthenticationFailed(_wrong(key))
                cancel = backoff.wait(host, key, lambda: connection.proceed(frame, lambda: self._turn(frame)))
                connection.peer.when_lost(cancel)
                connection.suspend()
                return False
            # The key may have been added a moment ago.
            self._authenticator.users.refresh()
        self._judge(frame, key)
        return True

    def _turn(self, frame: RemotingFrame) -> None:
        """Judge a frame that has waited, and handle or refuse it."""
        try:
            self._judge(frame, _key_of(frame))
        except AuthenticationFailed as error:
            RemotingRequest(self._connection, frame).fail(error)
        else:
            # Its key is the known one by now, so it need not wait again.
            self._connection.handle(frame)

    def _judge(self, frame: RemotingFrame, key: str) -> None:
        """Admit the user that has signed the frame. Raises ``AuthenticationFailed``, which is logged and audited."""
        user = self._signer(frame, key)
        connection, authenticator = self._connection, self._authenticator
        host = connection.peer.address[0]
        self._failed = user is None
        if user is None:
            error = AuthenticationFailed(_wrong(key))
            authenticator.record_failure(host, key, error.message)
            connection.broker.audit.write(
                "AUTH",
                f"access key {key[:NAME_CHARS_LOGGED]}",
                author=Author(address=format_address(*connection.peer.address), client=connection.peer.client),
                outcome=error.name,
                reason=error.message,
            )
            raise error
        self.access_key = key
        connection.admit(user)
        authenticator.successes += 1
        authenticator.backoff.record_success(host, key)

    def _signer(self, frame: RemotingFrame, key: str) -> User | None:
        """Return the user that has signed the frame; None if the key or the signature is wrong, which takes as long."""
        found = self._authenticator.users.with_access_key(key)
        secret = _NO_ONES_SECRET if found is None else found[1].secret.encode()
        right = is_signed(frame.fields, frame.body, frame.version, secret)
        return found[0] if found is not None and right else None


def _key_of(frame: RemotingFrame) -> str:
    key: str = frame.fields.get(ACCESS_KEY, "")
    if not key:
        raise AuthenticationRequired(NO_KEY)
    return key


def _wrong(key: str) -> str:
    return (
        f"access key {key[:NAME_CHARS_LOGGED]!r} is unknown, or its signature is wrong: compare the client's access "
        "key and secret key with those that `flintmq user key add USER` printed"
    )
