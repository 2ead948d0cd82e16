"""The connections between members, by FlintMQ's protocol: a follower's to its primary, and those that a primary has
accepted, with the tables that it sends on them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
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
    ReplicationRefused,
    error_from_answer,
)
from ....protocol.fields import decode_fields, encode_fields
from ....protocol.frames import ONE_WAY, REQUEST, RESPONSE, Frame, FrameParser, encode_head
from ....protocol.text_files import first_line
from ...addresses import parse_address
from ...background.flush import Notice
from ..core.configuration import Epoch, Epochs
from ..core.messages import Hello, LogPiece, Message, PositionReport, Refusal, Welcome
from .tables import Table, TableCopy, TableWriter

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


class PrimaryLink(asyncio.BufferedProtocol):
    """An open connection. ``number``: the core's number of it."""

    def __init__(self, number: int, owner: FollowedPrimary, loop: asyncio.AbstractEventLoop) -> None:
        self.number = number
        self._owner = owner
        self._loop = loop
        self._parser = FrameParser(FRAME_BYTES_MAX, KEEP_BYTES)
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._answer: asyncio.Future[Frame] | None = None
        self._closed = False
        self._request_id = 0
        self._direct: socket.socket | None = None
        """The connection, for the disk's thread; None: that cannot send on it."""
        self._noticing = False
        """True while the disk's thread may use ``_direct``."""

    async def open(self, host: str, port: int, access: LinkAccess) -> None:
        """Connect, greet and authenticate. Raises ``OSError``, ``TimeoutError`` or ``FlintError``; the link is closed
        then."""
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._loop.create_connection(lambda: self, host, port, ssl=access.tls)
                await self._greet(access)
            if access.tls is None:
                with contextlib.suppress(OSError):  # then too many files are open, and the loop sends every report
                    # A descriptor of its own stays this connection's until the disk's thread has sent.
                    fd = os.dup(self._transport.get_extra_info("socket").fileno())
                    self._direct = socket.socket(fileno=fd)
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
        if self._noticing:
            # Two frames must not mix; should the thread be sending now, the primary takes what it says later.
            self._owner.withdraw_notice()
        self._transport.write(self._frame(kind, command, request, body))

    def _frame(self, kind: int, command: Command, request: Any, body: bytes = b"") -> bytes:
        self._request_id += 1
        return encode_head(kind, command.code, self._request_id, encode_fields(request), len(body)) + body

    # ---- sending ----

    def send_hello(self, hello: Hello, file_bytes: int) -> None:
        """Send the follower's first message; ``file_bytes``: size of its log's files."""
        request = ReplicateRequest(
            cluster_id=hello.cluster_id, epoch=hello.epoch, member=hello.member, end=hello.end, file_bytes=file_bytes
        )
        self._send(REQUEST, commands.REPLICATE, request, encode_epochs(hello.epochs))

    def send_report(self, report: PositionReport, tables: int) -> None:
        """Report the position; ``tables``: number of the last version of a table that is on disk with all before it."""
        self._send(ONE_WAY, commands.REPORT_POSITION, _position(report, tables))

    def notice(self, report: PositionReport, tables: int, sent: Callable[[], None]) -> Notice | None:
        """Return the report as a notice for the disk's thread, None if that cannot send on this connection now.
        ``sent``: called once it was sent."""
        # What waits in the transport would have to be sent first.
        direct = self._direct
        if direct is None or self._closed or self._noticing or self._transport.get_write_buffer_size():
            return None
        content = self._frame(ONE_WAY, commands.REPORT_POSITION, _position(report, tables))
        self._noticing = True

        def done(count: int) -> None:
            self._noticing = False
            if self._closed:
                direct.close()
            elif count == len(content):
                sent()
            elif count > 0:
                self._lose(f"it took only {count} bytes of a report")

        return Notice(direct.fileno(), content, done)

    def close(self) -> None:
        """Close the connection; the owner hears nothing more of it."""
        if self._closed:
            return
        self._closed = True
        if self._direct is not None:
            # Nothing may be sent from here on, also not by the disk's thread, which may still use the descriptor.
            with contextlib.suppress(OSError):  # the primary has closed it
                self._direct.shutdown(socket.SHUT_RDWR)
            if not self._noticing:
                self._direct.close()
        if self._transport is not None:
            # Not ``close``, which would first write out what a silent primary never takes.
            self._transport.abort()

    # ---- what the transport calls ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._closed:
            # The attempt was given up while the connection was being made.
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._parser.writable()

    def buffer_updated(self, nbytes: int) -> None:
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
            answer = decode_fields(ReplicateAnswer, frame.fields)
            welcome = Welcome(answer.epoch, answer.begin, answer.restart, decode_epochs(bytes(frame.body)))
            self._owner.link_received(self, welcome, memoryview(b""))
        elif frame.kind == RESPONSE:
            error = error_from_answer(frame.code, frame.fields)
            epoch = error.details.get("epoch")
            refusal = Refusal(epoch if isinstance(epoch, int) else 0, error.message)
            self._owner.link_received(self, refusal, memoryview(b""))
        elif frame.code == commands.REPLICATE_LOG.code:
            piece, body_bytes = decode_fields(ReplicateLogRequest, frame.fields), frame.body_end - frame.body_at
            if piece.end - piece.offset != body_bytes:
                raise InvalidParameter(
                    f"a piece from {piece.offset:,} to {piece.end:,} has a body of {body_bytes:,} bytes"
                )
            message = LogPiece(piece.epoch, piece.offset, piece.end, piece.confirmed)
            self._owner.link_received(self, message, frame.body)
        elif frame.code == commands.REPLICATE_TABLE.code:
            self._owner.link_table(self, decode_fields(ReplicateTableRequest, frame.fields), bytes(frame.body))
        else:
            raise RemoteProtocolError(f"command {frame.code} is not for a follower")

    def eof_received(self) -> bool:
        """Close the connection: the primary sends nothing more."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(str(exc) if exc is not None else "the primary closed it")

    def _lose(self, reason: str) -> None:
        if self._answer is not None and not self._answer.done():
            # ``open`` raises this and closes the link; ``link_lost`` is for a link that was open.
            self._answer.set_exception(ConnectionResetError(reason))
        elif not self._closed:
            self.close()
            self._owner.link_lost(self, reason)


def _position(report: PositionReport, tables: int) -> ReportPositionRequest:
    return ReportPositionRequest(
        epoch=report.epoch,
        written=report.written,
        flushed=report.flushed,
        complete=report.complete,
        tables=tables,
        stops=report.stops,
    )


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

    def withdraw_notice(self) -> None:
        """Have the disk's thread send no notice, unless it is sending it already."""


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
        self._told: tuple[PositionReport, int] | None = None
        """Report, with its number of tables, that the disk's thread has just sent."""
        self._epoch = -1
        """Epoch of which tables are taken now; -1: of none, because no primary has welcomed this member."""

    @property
    def has_all_tables(self) -> bool:
        """Whether each table of the primary is on disk as it came on the present connection."""
        return self._tables.has_all

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
            self._last_report = self._told = None
            self._tables.begin(number)
            link.send_hello(hello, file_bytes)

    def report(self, number: int, report: PositionReport) -> None:
        link = self._current(number)
        if link is None:
            return
        told, self._told = self._told, None
        self._last_report = report
        tables = self._tables.saved
        # What was written since will be told when it is on disk, too.
        if told is None or told != (replace(report, written=told[0].written), tables):
            link.send_report(report, tables)

    def notice(self, number: int, report: PositionReport) -> Notice | None:
        """Return a report for the disk's thread to send, None if it cannot."""
        link = self._current(number)
        # The first report of a connection says that the log is cut, and is the core's.
        if link is None or self._last_report is None:
            return None
        tables = self._tables.saved

        def sent() -> None:
            self._told = report, tables

        return link.notice(report, tables, sent)

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

    def withdraw_notice(self) -> None:
        """Have the disk's thread send no notice, unless it is sending it already."""
        self._member.withdraw_notice()

    def link_alive(self, link: PrimaryLink) -> None:
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


# ---- The connections of followers to this primary. Each has a negative number, so that the core can tell it
# from the connections that this member opened itself.

PART_BYTES = 256 * 1024
"""Maximum size of a part of a table. On a slow line nothing else is sent while it is, heartbeats included."""
UNSAVED_MAX = 1_000
"""Maximum number of versions of tables that were sent to a follower and that it does not have on disk: further ones
wait until it reports, and give way to newer ones meanwhile."""


class FollowerHandle(Protocol):
    """The other end of a connection that asked to follow this member. All methods are for the event loop."""

    def welcome(self, answer: Any, body: bytes) -> None:
        """Respond to its REPLICATE."""

    def refuse(self, error: ReplicationRefused) -> None:
        """Respond to its REPLICATE with an error."""

    def tell(self, command: Command, request: Any, body: bytes | bytearray = b"") -> None:
        """Send a one-way frame."""

    def unsent_bytes(self) -> int:
        """Return how much of what it was told waits here because the other end does not take it."""

    def close(self) -> None:
        """Close the connection."""


@dataclass(slots=True)
class _Version:
    """A version of a table that a follower does not have on disk."""

    table: str
    first: int
    """Number of the oldest change of the table that it does not have on disk either."""
    since: float
    """Time at which that change was made."""
    content: bytes
    sent_bytes: int = 0


@dataclass(slots=True)
class AcceptedLink:
    """A follower's connection, and the tables that it does not have on disk."""

    handle: FollowerHandle
    member: str
    welcomed: bool = False
    versions: int = 0
    """Number of versions of tables that were sent on this connection; the follower reports such a number."""
    _due: dict[str, _Version] = field(default_factory=dict)
    """By table, the newest version, of which nothing was sent yet."""
    _sending: _Version | None = None
    _sent: deque[tuple[int, int, float]] = field(default_factory=deque)
    """Versions that were sent and not reported: number on this connection, ``first`` and ``since``."""
    _told_bytes: int = 0
    _part_end: int = 0
    """Number of bytes told up to the end of the last part of a table."""
    _taken_bytes: int = 0
    _unsent_bytes: int = 0

    def put(self, table: str, change: int, content: bytes, now: float) -> None:
        """Note a new version of a table; ``change``: number of the oldest change that the other end may lack."""
        earlier = self._due.get(table)
        # In the place of the earlier one, so that a table which changes all the time has its turn, and no more.
        first, since = (earlier.first, earlier.since) if earlier is not None else (change, now)
        self._due[table] = _Version(table, first, since, content)

    def tell(self, command: Command, request: Any, body: bytes | bytearray = b"") -> None:
        self._told_bytes += len(body)
        self.handle.tell(command, request, body)

    def send_parts(self, epoch: int) -> bool:
        """Send parts of tables as long as the other end takes them. Return whether more can be sent once it does."""
        while self.handle.unsent_bytes() <= self._told_bytes - self._part_end:
            if self._sending is None:
                if not self._due or len(self._sent) >= UNSAVED_MAX:
                    return False
                self._sending = self._due.pop(next(iter(self._due)))
                self.versions += 1
            version = self._sending
            at = version.sent_bytes
            part = version.content[at : at + PART_BYTES]
            version.sent_bytes += len(part)
            is_last = version.sent_bytes == len(version.content)
            # An empty table is one empty part: the follower must report its number, too.
            request = ReplicateTableRequest(epoch=epoch, table=version.table, version=self.versions, last=is_last)
            self.tell(commands.REPLICATE_TABLE, request, part)
            self._part_end = self._told_bytes
            if is_last:
                self._sent.append((self.versions, version.first, version.since))
                self._sending = None
        return True

    def reported(self, versions: int) -> None:
        """Note that the follower has all versions up to this number on disk."""
        while self._sent and self._sent[0][0] <= versions:
            self._sent.popleft()

    def unsaved(self) -> list[tuple[int, float]]:
        """Return the number and the time of changes that the follower does not have on disk; the oldest is among
        them."""
        waiting = [*self._due.values(), *([self._sending] if self._sending is not None else [])]
        return [*((first, since) for _, first, since in self._sent), *((each.first, each.since) for each in waiting)]

    @property
    def is_saved(self) -> bool:
        """True if the follower has all versions on disk."""
        return not (self._sent or self._due or self._sending)

    def takes_bytes(self) -> bool:
        """Return whether the other end has taken bytes, of more than it had room for, since the last call."""
        unsent = self.handle.unsent_bytes()
        taken = self._told_bytes - unsent
        # Without a backlog it is the system that takes what is told, also for a process that hangs.
        takes = self._unsent_bytes > 0 and taken > self._taken_bytes
        self._unsent_bytes, self._taken_bytes = unsent, taken
        return takes


class AcceptedLinks:
    """All of them. ``read_log``: function that returns the log's bytes between two physical offsets."""

    def __init__(self, read_log: Callable[[int, int], bytearray]) -> None:
        self._read_log = read_log
        self._links: dict[int, AcceptedLink] = {}
        self._count = 0

    def add(self, handle: FollowerHandle, member: str) -> int:
        """Take over a connection; return its number."""
        self._count += 1
        self._links[-self._count] = AcceptedLink(handle, member)
        return -self._count

    def remove(self, number: int) -> None:
        self._links.pop(number, None)

    def get(self, number: int) -> AcceptedLink | None:
        """Return the connection with a number, None if it has ended."""
        return self._links.get(number)

    def close(self, number: int) -> None:
        link = self._links.pop(number, None)
        if link is not None:
            link.handle.close()

    def send(self, number: int, message: Message) -> None:
        """Send a message of the core, if the connection is still there."""
        link = self._links.get(number)
        if link is None:
            return
        match message:
            case Welcome():
                link.welcomed = True
                answer = ReplicateAnswer(epoch=message.epoch, begin=message.begin, restart=message.restart)
                link.handle.welcome(answer, encode_epochs(message.epochs))
            case Refusal():
                link.handle.refuse(ReplicationRefused(message.reason, epoch=message.epoch))
            case LogPiece():
                body = self._read_log(message.offset, message.end) if message.end > message.offset else b""
                request = ReplicateLogRequest(
                    epoch=message.epoch, offset=message.offset, end=message.end, confirmed=message.confirmed
                )
                link.tell(commands.REPLICATE_LOG, request, body)

    def welcomed(self) -> list[AcceptedLink]:
        """Return the connections that get tables: a follower without a welcome gets all of them with it."""
        return [link for link in self._links.values() if link.welcomed]

    def of_member(self, member: str) -> AcceptedLink | None:
        """Return a member's newest connection that was welcomed, None if there is none."""
        return next((link for link in reversed(self._links.values()) if link.welcomed and link.member == member), None)

    def that_take_bytes(self) -> list[int]:
        """Return the numbers of the connections whose other end has taken bytes since the last call."""
        return [number for number, link in self._links.items() if link.takes_bytes()]


POLL_S = 0.1
"""Time between two looks at the versions of all tables."""
SEND_S = 0.005
"""Time between two looks whether a follower has taken what was sent to it, while there is more."""
BYTES_PER_S = 10_000_000
"""A large table that changes all the time is sent at most at this rate, unless a caller waits."""


class TableSender:
    """The sender of one leadership. ``members``: function that returns the followers that must have a change, None if
    too few members are in sync for any change to be confirmed."""

    def __init__(
        self,
        tables: Sequence[Table],
        links: AcceptedLinks,
        epoch: int,
        members: Callable[[], frozenset[str] | None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._tables = tables
        self._links = links
        self._epoch = epoch
        self._members = members
        self._loop = loop
        self._kick = asyncio.Event()
        self._seen: dict[str, object] = {}
        self._read: dict[str, bytes] = {}
        """Content, by table."""
        self._rest_until: dict[str, float] = {}
        """Time before which a table is not sent again."""
        self._count = 0
        self._needed: int | None = None
        """Number of the last change that must be on a follower's disk before it joins the members in sync or takes the
        leadership over: all tables as they were at first, and what was confirmed or asked for since. None: they were
        not read yet."""
        self._unread: deque[Callable[[int], None]] = deque()
        """Callers whose change has not been read yet; they are called with its number."""
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        """(number of a change, caller that waits until the members have it)."""
        self._needs = 0
        """Number of calls of ``need`` whose tables have not been read yet."""
        self._again: asyncio.TimerHandle | None = None
        self._task = loop.create_task(self._run())

    def greet(self, number: int) -> None:
        """Send all tables to a follower that was just welcomed on the connection ``number``."""
        link = self._links.get(number)
        if link is not None:
            for name, content in self._read.items():
                # The first change, not the newest one: its disk may lack any of them.
                link.put(name, 1, content, self._loop.time())
            self._send()

    def when_saved(self, call: Callable[[], None]) -> None:
        """Call ``call`` once all members in sync have on disk what the tables contain now."""
        self._unread.append(lambda number: self._waiting.append((number, call)))
        self._kick.set()

    def need(self) -> None:
        """Let ``is_equipped`` require the tables as they are now."""
        self._needs += 1
        self._unread.append(self._need)
        self._kick.set()

    def _need(self, number: int) -> None:
        self._needs -= 1
        self._needed = max(self._needed or 0, number)

    def reported(self, link: AcceptedLink, versions: int) -> None:
        """Note how many versions of tables a follower has on disk."""
        if link.is_saved and not self._waiting:
            return
        link.reported(versions)
        self.saved()
        self._send()

    def saved(self) -> None:
        """Look again at what the followers have saved: one has reported, or the members in sync are others."""
        members = self._members() if self._waiting else None
        if members is None:
            return
        # If no follower is in sync, there is none to wait for.
        saved = min(map(self._saved_by, members), default=self._count)
        while self._waiting and self._waiting[0][0] <= saved:
            number, call = self._waiting.popleft()
            # Before the call, which acknowledges the change: a follower that joins from here on needs it too.
            self._needed = max(self._needed or 0, number)
            call()

    def _saved_by(self, member: str) -> int:
        """Return the number of the last change that a member has on disk together with all earlier ones; 0 for one
        without a connection."""
        link = self._links.of_member(member)
        if link is None:
            return 0
        return min((first - 1 for first, _ in link.unsaved()), default=self._count)

    def is_equipped(self, member: str) -> bool:
        """Return whether a follower has on disk what it needs to lead."""
        return self._needed is not None and not self._needs and self._saved_by(member) >= self._needed

    def behind_s(self, member: str) -> float:
        """Return for how many seconds a follower has lacked a change of a table; 0.0 for one without a connection."""
        link = self._links.of_member(member)
        if link is None or link.is_saved:
            return 0.0
        return self._loop.time() - min(since for _, since in link.unsaved())

    def _send(self) -> None:
        """Send what the followers take, and look again soon if they will take more."""
        if self._again is not None:
            self._again.cancel()
        more = [link.send_parts(self._epoch) for link in self._links.welcomed()]
        self._again = self._loop.call_later(SEND_S, self._send) if any(more) else None

    async def stop(self) -> None:
        """Send nothing more; callers that wait are not called."""
        if self._again is not None:
            self._again.cancel()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            # Not wait_for, which loses a cancellation that arrives together with the kick (before Python 3.12).
            with contextlib.suppress(TimeoutError):  # then it is time to look
                async with asyncio.timeout(POLL_S):
                    await self._kick.wait()
            self._kick.clear()
            callers, self._unread = self._unread, deque()
            try:
                await self._step(urgent=bool(callers))
            except OSError as error:
                log.error("cannot read a table to send it to the followers: %s; trying again", error)
                # In front of the callers that came during the step, and in their order.
                self._unread.extendleft(reversed(callers))
                continue
            if self._needed is None:
                self._needed = self._count
            # The callers' changes are among those counted: all tables were looked at after they asked.
            for call in callers:
                call(self._count)
            self.saved()

    async def _step(self, *, urgent: bool) -> None:
        for table in self._tables:
            if not urgent and self._loop.time() < self._rest_until.get(table.name, 0.0):
                continue
            version = table.version()  # before the content, which may be newer
            if table.name in self._seen and self._seen[table.name] == version:
                continue
            content = await self._loop.run_in_executor(None, table.read)
            self._seen[table.name] = version
            # The version changes with each write, also of the same content.
            if self._read.get(table.name) == content:
                continue
            self._count += 1
            now = self._loop.time()
            self._rest_until[table.name] = now + len(content) / BYTES_PER_S
            self._read[table.name] = content
            for link in self._links.welcomed():
                link.put(table.name, self._count, content, now)
            self._send()
