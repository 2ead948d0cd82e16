"""One TCP connection: what arrives is parsed where the loop reads it, and handed to a receiver."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable
from typing import Any, Protocol, cast

from ...protocol.commands import HelloAnswer
from ...protocol.errors import ConnectionFailed, FlintError, RemoteProtocolError
from ..core.address import Address
from ..core.operations import Operation
from ..core.session import Answer, Asked, Session
from ..core.troubles import broke, closed_there, no_broker, no_hello, unreachable
from ..endpoint import client_name, packed_address
from .life import Life
from .waits import Waits
from .watch import Watch

_JOIN_BYTES_MAX = 16 * 1024
"""A head and a body that are shorter together go out as one piece."""
_WRITE_BUFFER_BYTES = 256 * 1024
"""Unsent bytes above which a connection is congested."""


class Receiver(Protocol):
    """Who uses a connection."""

    def received(self, answers: list[Answer]) -> None:
        """Answers have come. ``RemoteProtocolError`` may be raised for one that cannot be right."""

    def lost(self, error: FlintError) -> None:
        """The connection went, and not because this side wanted it."""

    def writable(self) -> None:
        """The connection is not congested any more."""


class Connection(asyncio.BufferedProtocol):
    """A connection on which HELLO was answered. ``receiver`` is to be set before anything is sent.

    ``reads`` counts what came; ``congested``: more should not be written now; ``gone``: it is of no use any more.
    """

    def __init__(self, address: Address, life: Life, watch: Watch) -> None:
        self.address = address
        self.receiver: Receiver | None = None
        self.on_asked: Callable[[list[Asked]], None] | None = None
        """Gets what the broker asks of this side; where it is None, that is left alone."""
        self.reads = 0
        self.congested = False
        self.gone = False
        self.closed: asyncio.Future[None] = life.loop.create_future()
        """Done when nothing of it is left."""
        self._life = life
        self._watch = watch
        self._session = Session()
        self._greeted: asyncio.Future[None] = life.loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._has_unread: Callable[[], bool] = bool

    @classmethod
    async def open(cls, address: Address, timeout: float, life: Life, watch: Watch, waits: Waits) -> Connection:
        """Connect and say HELLO, within ``timeout`` seconds. Raises ``ConnectionFailed``, or what the broker says."""
        connection = cls(address, life, watch)
        try:
            async with waits.limit(timeout):
                await life.loop.create_connection(lambda: connection, address.host, address.port)
                connection.write(connection._session.hello(client_name()))
                await connection._greeted
        except TimeoutError as error:
            if connection._transport is None:
                raise unreachable(address, OSError("timed out")) from error
            raise no_hello(address, timeout) from error
        except OSError as error:
            raise unreachable(address, error) from error
        except RemoteProtocolError as error:
            raise no_broker(address, error) from error
        finally:
            if connection._session.limits is None:
                connection.abort()
                connection._ended()  # a loop that was still connecting need not say that it lost the connection
        return connection

    @property
    def limits(self) -> HelloAnswer:
        """What the broker said of itself."""
        limits = self._session.limits
        assert limits is not None, "HELLO was not answered"
        return limits

    @property
    def local_address(self) -> bytes:
        """This end's address, 4 or 16 bytes."""
        assert self._transport is not None
        return packed_address(self._transport.get_extra_info("sockname")[0])

    def has_unread(self) -> bool:
        """Whether something has arrived that the loop did not read yet."""
        return not self.gone and self._has_unread()

    # ---- sending

    def new_request_id(self) -> int:
        """The id of a request whose frame the caller makes."""
        return self._session.new_request_id()

    def request(self, operation: Operation[Any]) -> int:
        """Send a request; returns its id."""
        request_id, head = self._session.request(operation.command, operation.fields, len(operation.body))
        self.write(head, operation.body)
        return request_id

    def write(self, head: bytes, body: bytes | memoryview = b"") -> None:
        """Send a frame, or keep it until it goes out."""
        transport = self._transport
        if transport is None or self.gone or transport.is_closing():
            return  # who sent it learns from ``lost``
        if not body:
            transport.write(head)
        elif len(head) + len(body) <= _JOIN_BYTES_MAX:
            transport.write(b"".join((head, body)))
        else:
            transport.writelines((head, body))

    def reply(self, asked: Asked, code: int, fields: dict[str, Any], body: bytes = b"") -> None:
        """Answer what the broker asked; nothing for a one-way frame."""
        if asked.wants_answer:
            self.write(self._session.reply(asked, code, fields, len(body)), body)

    # ---- the end

    def abort(self) -> None:
        """Close at once; the receiver is not told. Idempotent."""
        self.gone = True
        self.receiver = self.on_asked = None
        if not self._greeted.done():
            self._greeted.cancel()
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, error: FlintError) -> None:
        """It is of no more use, and the receiver learns why."""
        receiver = self.receiver
        if not self._greeted.done():
            self._greeted.set_exception(error)
        self.abort()
        if receiver is not None:
            receiver.lost(error)

    # ---- what the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is connected."""
        self._transport = cast(asyncio.Transport, transport)
        if self.gone or self._life.ended:
            self.gone = True
            self._transport.abort()
            return
        self._watch.connections.add(self)
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._has_unread = _readability(sock.fileno())

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        return self._session.parser.writable()

    def buffer_updated(self, nbytes: int) -> None:
        """``nbytes`` arrived."""
        self.reads += 1
        try:
            self._session.parser.received(nbytes)
            answers = self._session.answers()
            if answers:
                if self._session.limits is None:
                    self._hello_answered(answers.pop(0))
                if answers and self.receiver is not None:
                    self.receiver.received(answers)
            if self._session.asked:
                asked = self._session.take_asked()
                if self.on_asked is not None:
                    self.on_asked(asked)
        except RemoteProtocolError as error:
            self._guarded_fail(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, who waits must learn it
            self._life.die("reading answers", error)

    def _hello_answered(self, answer: Answer) -> None:
        try:
            self._session.hello_answered(answer)
        except RemoteProtocolError:
            raise
        except FlintError as error:
            self._fail(error)
        else:
            if not self._greeted.done():
                self._greeted.set_result(None)

    def eof_received(self) -> bool:
        """The broker closed the connection: so does this side."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        self._ended()
        if self.gone:
            return
        error: ConnectionFailed
        if isinstance(exc, OSError):
            error = broke(self.address, exc)
        else:
            error = closed_there(self.address)
        self._guarded_fail(error)

    def _ended(self) -> None:
        self._watch.connections.discard(self)
        if not self.closed.done():
            self.closed.set_result(None)

    def pause_writing(self) -> None:
        """Much is unsent."""
        self.congested = True

    def resume_writing(self) -> None:
        """It went out."""
        self.congested = False
        if self.receiver is not None:
            self._life.guarded("sending", self.receiver.writable)

    def _guarded_fail(self, error: FlintError) -> None:
        self._life.guarded("the end of a connection", lambda: self._fail(error))


def _readability(descriptor: int) -> Callable[[], bool]:
    """A function that says whether a socket can be read right now."""
    if not hasattr(select, "poll"):  # Windows
        return lambda: bool(select.select([descriptor], [], [], 0)[0])
    reads = select.poll()
    reads.register(descriptor, select.POLLIN)
    return lambda: bool(reads.poll(0))
