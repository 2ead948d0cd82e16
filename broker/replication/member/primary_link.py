"""The connection of a follower to its primary, by FlintMQ's protocol, with its TLS and authentication."""

from __future__ import annotations

import asyncio
import logging
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from ....protocol import commands
from ....protocol.auth.scram import MECHANISM, ClientExchange, ScramError, prepare
from ....protocol.commands import (
    PROTOCOL_VERSION,
    AuthAnswer,
    AuthRequest,
    Command,
    HelloAnswer,
    HelloRequest,
    ReplicateAnswer,
    ReplicateLogRequest,
    ReplicateTableRequest,
    ReportPositionRequest,
)
from ....protocol.errors import SUCCESS, AuthenticationFailed, FlintError, RemoteProtocolError, error_from_answer
from ....protocol.fields import decode_fields, encode_fields
from ....protocol.frames import ONE_WAY, REQUEST, RESPONSE, Frame, FrameParser, encode_head
from ....protocol.text_files import first_line
from ..core.messages import Hello, Message, PositionReport, Refusal
from .wire import encode_epochs, piece_of, request_of, welcome_of

log = logging.getLogger(__name__)

FRAME_BYTES_MAX = 65 * 1024 * 1024
"""Maximum size of a frame: a piece of the log is whole records, and one may have 64 MiB."""
KEEP_BYTES = 4 * 1024 * 1024
CONNECT_S = 2.0
"""Maximum time to connect, greet and authenticate."""


@dataclass(frozen=True, slots=True)
class LinkAccess:
    """How a member connects to another one."""

    name: str
    """Name of this client, for the other one's list of connections."""
    user: str = ""
    """Empty: the brokers do not authenticate."""
    password_file: str = ""
    tls: ssl.SSLContext | None = None


class LinkOwner(Protocol):
    """The user of a link. All methods are called on the loop."""

    def link_received(self, link: PrimaryLink, message: Message, body: memoryview) -> None:
        """Take a message of the core; ``body``: the bytes of a piece, valid during the call."""

    def link_alive(self, link: PrimaryLink) -> None:
        """Note that bytes have come."""

    def link_table(self, link: PrimaryLink, part: ReplicateTableRequest, body: bytes) -> None:
        """Take a part of a table."""

    def link_lost(self, link: PrimaryLink, reason: str) -> None:
        """Take the end of the connection, unless this side closed it."""


class PrimaryLink(asyncio.BufferedProtocol):
    """An open connection. ``number``: the core's number of it."""

    def __init__(self, number: int, owner: LinkOwner, loop: asyncio.AbstractEventLoop) -> None:
        self.number = number
        self._owner = owner
        self._loop = loop
        self._parser = FrameParser(FRAME_BYTES_MAX, KEEP_BYTES)
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._answer: asyncio.Future[Frame] | None = None
        self._closed = False
        self._request_id = 0

    async def open(self, host: str, port: int, access: LinkAccess) -> None:
        """Connect, greet and authenticate. Raises ``OSError``, ``TimeoutError`` or ``FlintError``; the link is closed
        then."""
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._loop.create_connection(lambda: self, host, port, ssl=access.tls)
                await self._greet(access)
        # On a cancellation too, because the transport may already be open.
        except BaseException:
            self.close()
            raise

    async def _greet(self, access: LinkAccess) -> None:
        hello = HelloRequest(protocol=PROTOCOL_VERSION, client=access.name)
        limits = decode_fields(HelloAnswer, await self._ask(commands.HELLO, hello))
        if not limits.auth_required:
            if access.user:
                # Or anyone who answers at the primary's address could send this member users of its own.
                raise AuthenticationFailed(
                    f"the primary asks for no login, and replication.user is {access.user!r}: it proves nothing about "
                    "itself, so nothing is taken from it. Set security.auth = scram there, or remove the user here"
                )
            return
        if not access.user:
            raise AuthenticationFailed("the primary requires a user: set replication.user and password_file")
        # On a thread, like the proof: a file may be slow, and the proof takes thousands of hashes.
        password = await self._loop.run_in_executor(None, _password, access.password_file)
        exchange = ClientExchange(access.user, password)
        try:
            first = await self._auth(exchange.first(), MECHANISM)
            proof = await self._loop.run_in_executor(None, exchange.final, first)
            # The answer proves that the other side knows the password's verifier, too: no stranger can send a log.
            exchange.check(await self._auth(proof))
        except ScramError as error:
            raise AuthenticationFailed(f"user {access.user!r} at the primary: {error}") from None
        except AuthenticationFailed as error:
            raise AuthenticationFailed(
                f"user {access.user!r} at the primary: {error.message}; see replication.user and {access.password_file}"
            ) from None

    async def _auth(self, message: str, mechanism: str = "") -> str:
        fields = await self._ask(commands.AUTH, AuthRequest(message=message, mechanism=mechanism))
        return decode_fields(AuthAnswer, fields).message

    async def _ask(self, command: Command, request: Any) -> dict[str, Any]:
        # One future is enough: the greeting asks one thing at a time, and nothing else is sent before its end.
        self._answer = self._loop.create_future()
        self._send(REQUEST, command, request)
        frame = await self._answer
        self._answer = None
        if frame.code != SUCCESS:
            raise error_from_answer(frame.code, frame.fields)
        return frame.fields

    def _send(self, kind: int, command: Command, request: Any, body: bytes = b"") -> None:
        self._request_id += 1
        head = encode_head(kind, command.code, self._request_id, encode_fields(request), len(body))
        self._transport.write(head + body)

    # ---- sending ----

    def send_hello(self, hello: Hello, file_bytes: int) -> None:
        """Send the follower's first message; ``file_bytes``: size of its log's files."""
        self._send(REQUEST, commands.REPLICATE, request_of(hello, file_bytes), encode_epochs(hello.epochs))

    def send_report(self, report: PositionReport, tables: int) -> None:
        """Report the position; ``tables``: number of the last version of a table that is on disk with all before it."""
        request = ReportPositionRequest(
            epoch=report.epoch,
            written=report.written,
            flushed=report.flushed,
            complete=report.complete,
            tables=tables,
            stops=report.stops,
        )
        self._send(ONE_WAY, commands.REPORT_POSITION, request)

    def close(self) -> None:
        """Close the connection; the owner hears nothing more of it."""
        self._closed = True
        if self._transport is not None:
            # Not ``close``, which would first write out what a silent primary never takes.
            self._transport.abort()

    # ---- what the transport calls ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over the transport."""
        self._transport = cast(asyncio.Transport, transport)
        if self._closed:
            # The attempt was given up while the connection was being made.
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes."""
        return self._parser.writable()

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the bytes that arrived."""
        self._parser.received(nbytes)
        self._owner.link_alive(self)
        try:
            # A frame may make the owner close this link; what follows it is void.
            while not self._closed and (frame := self._parser.next_frame()) is not None:
                self._take(frame)
        except FlintError as error:
            self._lose(f"it sent what cannot be understood: {error}")

    def _take(self, frame: Frame) -> None:
        if self._answer is not None and frame.kind == RESPONSE:
            # The time limit may have cancelled it in this turn of the loop.
            if not self._answer.done():
                self._answer.set_result(frame)
        elif frame.kind == RESPONSE and frame.code == SUCCESS:
            # After the greeting, REPLICATE is the only request of this side.
            welcome = welcome_of(decode_fields(ReplicateAnswer, frame.fields), bytes(frame.body))
            self._owner.link_received(self, welcome, memoryview(b""))
        elif frame.kind == RESPONSE:
            error = error_from_answer(frame.code, frame.fields)
            epoch = error.details.get("epoch")
            refusal = Refusal(epoch if isinstance(epoch, int) else 0, error.message)
            self._owner.link_received(self, refusal, memoryview(b""))
        elif frame.code == commands.REPLICATE_LOG.code:
            piece = piece_of(decode_fields(ReplicateLogRequest, frame.fields), frame.body_end - frame.body_at)
            self._owner.link_received(self, piece, frame.body)
        elif frame.code == commands.REPLICATE_TABLE.code:
            self._owner.link_table(self, decode_fields(ReplicateTableRequest, frame.fields), bytes(frame.body))
        else:
            raise RemoteProtocolError(f"command {frame.code} is not for a follower")

    def eof_received(self) -> bool:
        """Close the connection: the primary sends nothing more."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the owner."""
        self._lose(str(exc) if exc is not None else "the primary closed it")

    def _lose(self, reason: str) -> None:
        if self._answer is not None and not self._answer.done():
            # ``open`` raises this and closes the link; ``link_lost`` is for a link that was open.
            self._answer.set_exception(ConnectionResetError(reason))
        elif not self._closed:
            self.close()
            self._owner.link_lost(self, reason)


def _password(path: str) -> str:
    return prepare(first_line(Path(path).read_bytes()))
