"""The connection of a follower to its primary, by FlintMQ's protocol, with its TLS and authentication."""

from __future__ import annotations

import asyncio
import logging
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import msgpack

from ....protocol import commands
from ....protocol.auth.scram import MECHANISM, ClientExchange, ScramError, prepare
from ....protocol.commands import (
    EPOCHS_MAX,
    PROTOCOL_VERSION,
    AuthAnswer,
    AuthRequest,
    Command,
    HelloAnswer,
    HelloRequest,
    ReplicateAnswer,
    ReplicateLogRequest,
    ReplicateRequest,
    ReplicateTableRequest,
    ReportPositionRequest,
)
from ....protocol.errors import (
    SUCCESS,
    AuthenticationFailed,
    FlintError,
    InvalidParameter,
    RemoteProtocolError,
    error_from_answer,
)
from ....protocol.fields import decode_fields, encode_fields
from ....protocol.frames import ONE_WAY, REQUEST, RESPONSE, Frame, FrameParser, encode_head
from ....protocol.text_files import first_line
from ...addresses import parse_address
from ..core.configuration import Epoch, Epochs
from ..core.messages import Hello, LogPiece, Message, PositionReport, Refusal, Welcome
from .tables import TableCopy, TableWriter

# ---- The core's messages as requests, responses and one-way frames of the protocol.

Bytes = bytes | memoryview


def encode_epochs(epochs: Epochs) -> bytes:
    """Return the body of a REPLICATE request or response."""
    packed: bytes = msgpack.packb([list(each) for each in epochs])
    return packed


def decode_epochs(body: Bytes) -> Epochs:
    """Return the epochs of such a body. Raises ``InvalidParameter`` unless numbers and offsets grow."""
    try:
        rows = msgpack.unpackb(body, max_array_len=EPOCHS_MAX)
        epochs = tuple(Epoch(number, start) for number, start in rows)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise InvalidParameter(f"the body is not an array of epochs: {error}") from error
    # Epochs count from 1, and the first one may start at 0.
    last = Epoch(0, -1)
    for epoch in epochs:
        if not (
            type(epoch.number) is type(epoch.start) is int and last.number < epoch.number and last.start < epoch.start
        ):
            raise InvalidParameter(f"epoch {tuple(epoch)} must not follow epoch {tuple(last)}")
        last = epoch
    return epochs


def hello_of(request: ReplicateRequest, body: Bytes) -> Hello:
    """Return the follower's first message. Raises ``InvalidParameter``."""
    return Hello(request.cluster_id, request.epoch, request.member, request.end, decode_epochs(body))


def request_of(hello: Hello, file_bytes: int) -> ReplicateRequest:
    """Return the request of a follower's first message; its body has the epochs."""
    return ReplicateRequest(
        cluster_id=hello.cluster_id, epoch=hello.epoch, member=hello.member, end=hello.end, file_bytes=file_bytes
    )


def welcome_of(answer: ReplicateAnswer, body: Bytes) -> Welcome:
    """Return the primary's response. Raises ``InvalidParameter``."""
    return Welcome(answer.epoch, answer.begin, answer.restart, decode_epochs(body))


def answer_of(welcome: Welcome) -> ReplicateAnswer:
    """Return the response of a primary; its body has the epochs."""
    return ReplicateAnswer(epoch=welcome.epoch, begin=welcome.begin, restart=welcome.restart)


def piece_of(request: ReplicateLogRequest, body_bytes: int) -> LogPiece:
    """Return the piece of a frame. Raises ``InvalidParameter`` if its body has another length than it says."""
    if request.end - request.offset != body_bytes:
        raise InvalidParameter(f"a piece from {request.offset:,} to {request.end:,} has a body of {body_bytes:,} bytes")
    return LogPiece(request.epoch, request.offset, request.end, request.confirmed)


def frame_of(piece: LogPiece) -> ReplicateLogRequest:
    """Return the frame of a piece; its body has the log's bytes."""
    return ReplicateLogRequest(epoch=piece.epoch, offset=piece.offset, end=piece.end, confirmed=piece.confirmed)


def position_of(request: ReportPositionRequest) -> PositionReport:
    """Return the position that a follower reports."""
    return PositionReport(request.epoch, request.written, request.flushed, request.complete, request.stops)


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


# ---- The primary that a member follows: the connection to it, and the tables that it sends.

REFUSED_PAUSE_S = 5.0
"""Pause after the primary did not accept the password: each attempt delays the others from this host."""


class FollowingMember(Protocol):
    """The member that follows. All methods are called on the loop."""

    def primary_connected(self, number: int) -> None:
        """Note that the connection is open."""

    def primary_lost(self, number: int, refused: bool) -> None:
        """Note that there is no connection; ``refused``: the primary's host said that no process listens."""

    def primary_alive(self, number: int) -> None:
        """Note that bytes of the primary have come."""

    def primary_said(self, number: int, message: Message, body: memoryview) -> None:
        """Take a message; ``body``: the bytes of a piece, valid during the call."""


class FollowedPrimary:
    """The primary of one member; it has at most one connection. ``number``: the core's number of the connection."""

    def __init__(
        self, access: LinkAccess, tables: TableCopy, member: FollowingMember, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._access = access
        self._tables = TableWriter(tables, self._table_saved, self._table_failed, loop)
        self._member = member
        self._loop = loop
        self.refusal = ""
        """Why this member does not follow: it cannot connect, or the primary refuses it; empty if it does."""
        self._link: PrimaryLink | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._number = 0
        """Number of the connection that was opened last, or is being opened."""
        self._logged = ""
        """Refusal that was logged last."""
        self._refused = ("", 0.0)
        """Address that refused the password last, and the time before which it is not asked again."""
        self._last_report: PositionReport | None = None
        self._epoch = -1
        """Epoch of which tables are taken now; -1: of none, because no primary has welcomed this member."""

    def connect(self, number: int, address: str) -> None:
        """Open the connection, to HOST:PORT."""
        self._number = number
        self._connecting = self._loop.create_task(self._connect(number, address))

    async def _connect(self, number: int, address: str) -> None:
        refused_by, until = self._refused
        if refused_by == address:
            await asyncio.sleep(until - self._loop.time())
        link = PrimaryLink(number, self, self._loop)
        try:
            host, port = parse_address(address)
            await link.open(host, port, self._access)
        # The host lives and no broker listens: the core counts these for a quick takeover.
        except ConnectionRefusedError:
            self._member.primary_lost(number, True)
        except (OSError, TimeoutError, FlintError) as error:
            reason = f"cannot follow the primary at {address}: {error or type(error).__name__}"
            if reason != self.refusal:
                log.warning("%s; trying again", reason)
            self.refusal = reason
            if isinstance(error, AuthenticationFailed):
                self._refused = address, self._loop.time() + REFUSED_PAUSE_S
            self._member.primary_lost(number, False)
        else:
            self._link = link
            self._member.primary_connected(number)

    def _current(self, number: int) -> PrimaryLink | None:
        return self._link if self._link is not None and self._link.number == number else None

    def greet(self, number: int, hello: Hello, file_bytes: int) -> None:
        """Send the first message; ``file_bytes``: size of the log's files."""
        link = self._current(number)
        if link is not None:
            self._last_report = None
            self._tables.begin(number)
            link.send_hello(hello, file_bytes)

    def report(self, number: int, report: PositionReport) -> None:
        """Report the position."""
        link = self._current(number)
        if link is not None:
            self._last_report = report
            link.send_report(report, self._tables.saved)

    def close(self, number: int) -> None:
        """Close the connection; the member hears nothing more of it."""
        link = self._current(number)
        if link is not None:
            link.close()
            self._forget_link()
        elif number == self._number and self._connecting is not None:
            self._connecting.cancel()

    def _forget_link(self) -> None:
        self._link, self._epoch = None, -1

    async def finish_tables(self) -> None:
        """Return when nothing of a primary before is written any more: this member begins to lead, and what has arrived
        is on disk first."""
        await self._tables.finish()

    async def stop(self) -> None:
        """Close the connection, drop the tables that wait, and wait for the one that is being written: the next life
        reads the same files."""
        if self._link is not None:
            self._link.close()
            self._forget_link()
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        self._tables.drop()
        await self._tables.finish()

    # ---- what the link calls ----

    def link_received(self, link: PrimaryLink, message: Message, body: memoryview) -> None:
        """Take a message of the core."""
        refusal = message.reason if isinstance(message, Refusal) else ""
        if refusal and self.refusal == refusal != self._logged:  # the first one may only be early
            log.warning("the primary refuses this member: %s; trying again", refusal)
            self._logged = refusal
        self.refusal = refusal
        self._member.primary_said(link.number, message, body)
        # The core may have closed the connection, for a welcome that it does not accept.
        if isinstance(message, Welcome) and link is self._link:
            self._epoch = message.epoch
            self._tables.drop()

    def link_alive(self, link: PrimaryLink) -> None:
        """Note that bytes have come."""
        self._member.primary_alive(link.number)

    def link_table(self, link: PrimaryLink, part: ReplicateTableRequest, body: bytes) -> None:
        """Take a part of a table, of the primary that has welcomed this member."""
        if part.epoch != self._epoch or link is not self._link:
            raise InvalidParameter(f"table {part.table} of epoch {part.epoch} came without a welcome to that epoch")
        try:
            self._tables.add(part, body)
        except ValueError as error:
            raise InvalidParameter(str(error)) from error

    def link_lost(self, link: PrimaryLink, reason: str) -> None:
        """Take the end of the connection."""
        if link is self._link:
            self._forget_link()
        log.info("the connection to the primary ended: %s", reason)
        self._member.primary_lost(link.number, False)

    def _table_saved(self) -> None:
        # At once, because a caller at the primary may wait for it; but the first report of a connection is the core's,
        # which says by it that the log is cut.
        if self._link is not None and self._last_report is not None:
            self._link.send_report(self._last_report, self._tables.saved)

    def _table_failed(self) -> None:
        link = self._link
        if link is not None:
            # A link that this side closes is silent, so the member is told here.
            link.close()
            self.link_lost(link, "a table cannot be written")
