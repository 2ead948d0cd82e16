"""One TCP connection: it parses bytes as the loop reads them, and passes the responses to a receiver."""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import Callable
from typing import Any, Protocol, cast

from ...protocol.commands import HelloAnswer
from ...protocol.errors import ConnectionFailed, FlintError, RemoteProtocolError
from ..core.rpc.access import ClientAccess
from ..core.rpc.address import Address
from ..core.rpc.connection_errors import (
    broke,
    closed_there,
    leads_no_longer,
    no_broker,
    no_hello,
    not_greeted,
    unreachable,
)
from ..core.rpc.operation import Operation
from ..core.rpc.session import Answer, Asked, Session, advance
from ..endpoint import client_name, packed_address, set_options
from .runtime import ClientRuntime

_JOIN_BYTES_MAX = 16 * 1024
"""A head and a body that are together no longer than this are sent in one piece."""
_WRITE_BUFFER_BYTES = 256 * 1024
"""Unsent bytes above which a connection is congested."""


class AnswerReceiver(Protocol):
    """The user of a connection."""

    def received(self, answers: list[Answer]) -> None:
        """Handle responses. May raise ``RemoteProtocolError`` for one that cannot be right."""

    def lost(self, error: FlintError) -> None:
        """Handle the loss of the connection, unless this side closed it."""

    def writable(self) -> None:
        """Continue to send: the connection is no longer congested."""


class Connection(asyncio.BufferedProtocol):
    """A connection that has completed HELLO. Set ``receiver`` before sending anything.

    ``congested``: do not write more now; ``gone``: no longer usable.
    """

    def __init__(self, address: Address, life: ClientRuntime) -> None:
        self.address = address
        self.receiver: AnswerReceiver | None = None
        self.on_asked: Callable[[list[Asked]], None] | None = None
        """Called with the broker's requests to this side; if None, they are ignored."""
        self._active_at = time.monotonic()
        self._unsent_bytes = 0
        self.congested = False
        self.gone = False
        self.closed: asyncio.Future[None] = life.loop.create_future()
        """Done when the connection is completely closed."""
        self._life = life
        self._session = Session()
        self._awaited: asyncio.Future[Answer] | None = None
        """The response that the greeting waits for."""
        self._failure: FlintError | None = None
        """Reason why the connection is no longer usable."""
        self._transport: asyncio.Transport | None = None
        self._has_unread: Callable[[], bool] = bool

    @classmethod
    async def open(cls, address: Address, timeout: float, access: ClientAccess, life: ClientRuntime) -> Connection:
        """Connect, say HELLO and authenticate, within ``timeout`` seconds.

        Raises ``ConnectionFailed``, or the broker's refusal.
        """
        connection = cls(address, life)
        context = access.context()
        usable = False
        try:
            async with asyncio.timeout(timeout):
                await life.loop.create_connection(
                    lambda: connection,
                    address.host,
                    address.port,
                    ssl=context,
                    server_hostname=None if context is None else address.host,
                )
                await connection._greet(access)
                usable = True
        except TimeoutError as error:
            if connection._transport is None:
                raise unreachable(address, OSError("timed out")) from error
            raise no_hello(address, timeout) from error
        except OSError as error:
            if context is not None and _in_handshake(error):
                from ..core.rpc.tls import handshake_failed

                raise handshake_failed(address, error) from error
            raise unreachable(address, error) from error
        except RemoteProtocolError as error:
            raise no_broker(address, error) from error
        finally:
            if not usable:
                connection.abort()
                connection._ended()  # a loop that was still connecting does not always call ``connection_lost``
        return connection

    async def _greet(self, access: ClientAccess) -> None:
        greeting = self._session.greeting(access.client_name or client_name(), access)
        request = advance(greeting, None)
        while request is not None:
            if self._failure is not None:
                raise self._failure
            self._awaited = self._life.loop.create_future()
            self.write(request)
            answer = await self._awaited
            self._awaited = None
            if access.user:  # deriving keys takes milliseconds, and a password function may block: use a thread
                request = await self._life.loop.run_in_executor(None, advance, greeting, answer)
            else:
                request = advance(greeting, answer)
        if self._failure is not None:
            raise self._failure

    @property
    def limits(self) -> HelloAnswer:
        """The limits that the broker announced in its HELLO response."""
        limits = self._session.limits
        assert limits is not None, "HELLO was not answered"
        return limits

    @property
    def local_address(self) -> bytes:
        """This end's address, 4 or 16 bytes."""
        assert self._transport is not None
        return packed_address(self._transport.get_extra_info("sockname")[0])

    def has_unread(self) -> bool:
        """Return whether bytes have arrived that the loop has not read yet."""
        return not self.gone and self._has_unread()

    @property
    def active_at(self) -> float:
        """When bytes last arrived, or were last seen to have left after they had to wait: monotonic."""
        unsent_bytes = 0 if self._transport is None else self._transport.get_write_buffer_size()
        if unsent_bytes < self._unsent_bytes:
            self._active_at = time.monotonic()
        self._unsent_bytes = unsent_bytes
        return self._active_at

    # ---- sending

    def new_request_id(self) -> int:
        """Return the id for a request whose frame the caller builds."""
        return self._session.new_request_id()

    def request(self, operation: Operation[Any]) -> int:
        request_id, head = self._session.request(operation.command, operation.fields, len(operation.body))
        self.write(head, operation.body)
        return request_id

    def write(self, head: bytes, body: bytes | memoryview = b"") -> None:
        """Send a frame; the transport buffers what cannot be sent now."""
        transport = self._transport
        if transport is None or self.gone or transport.is_closing():
            return  # the sender learns of it through ``lost``
        if not body:
            transport.write(head)
        elif len(head) + len(body) <= _JOIN_BYTES_MAX:
            transport.write(b"".join((head, body)))
        else:
            transport.writelines((head, body))

    def probe(self) -> None:
        """Send a request that the broker answers at once; the receiver does not get its response."""
        if request := self._session.probe():
            self.write(request)

    def reply(self, asked: Asked, code: int, fields: dict[str, Any], body: bytes = b"") -> None:
        """Respond to a request of the broker; does nothing for a one-way frame."""
        if asked.wants_answer:
            self.write(self._session.reply(asked, code, fields, len(body)), body)

    # ---- the end

    def abort(self) -> None:
        """Close at once, without telling the receiver. Idempotent."""
        self.gone = True
        self.receiver = self.on_asked = None
        if self._awaited is not None:
            self._awaited.cancel()
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, error: FlintError) -> None:
        # Kept here, because ``abort`` clears it.
        receiver = self.receiver
        self._failure = error
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_exception(error)
        self.abort()
        if receiver is not None:
            receiver.lost(error)

    # ---- what the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # Given up while the loop was still connecting.
        if self.gone or self._life.ended:
            self.gone = True
            self._transport.abort()
            return
        self._life.connections.add(self)
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        sock = transport.get_extra_info("socket")
        set_options(sock)
        self._has_unread = _readability(sock.fileno())

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._session.parser.writable()

    def buffer_updated(self, nbytes: int) -> None:
        """Parse the ``nbytes`` that arrived and pass on what is complete."""
        self._active_at = time.monotonic()
        try:
            self._session.parser.received(nbytes)
            answers = self._session.answers()
            if answers:
                if self._awaited is not None and not self._awaited.done():
                    self._awaited.set_result(answers.pop(0))
                if answers and self.receiver is not None:
                    self.receiver.received(answers)
            if self._session.asked:
                asked = self._session.take_asked()
                if self.on_asked is not None:
                    self.on_asked(asked)
            if self._session.refusal is not None:
                self._guarded_fail(leads_no_longer(self.address, self._session.refusal))
        except RemoteProtocolError as error:
            self._guarded_fail(error)
        except Exception as error:  # noqa: BLE001 - any error must reach the waiting callers
            self._life.die("reading answers", error)

    def eof_received(self) -> bool:
        """Let the transport close this side too: the broker has closed the connection."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Report that the socket is closed, unless this side closed it."""
        self._ended()
        if self.gone:
            return
        error: ConnectionFailed
        if isinstance(exc, OSError):
            error = broke(self.address, exc)
        else:
            error = closed_there(self.address)
        if self._session.limits is None and self._transport is not None:
            tls = self._transport.get_extra_info("sslcontext") is not None
            error = not_greeted(error, tls=tls)
        self._guarded_fail(error)

    def _ended(self) -> None:
        self._life.connections.discard(self)
        if not self.closed.done():
            self.closed.set_result(None)

    def pause_writing(self) -> None:
        """Stop sending: too many bytes are unsent."""
        self.congested = True

    def resume_writing(self) -> None:
        """Resume sending: the unsent bytes went out."""
        self.congested = False
        if self.receiver is not None:
            self._life.guarded("sending", self.receiver.writable)

    def _guarded_fail(self, error: FlintError) -> None:
        self._life.guarded("the end of a connection", lambda: self._fail(error))


def _in_handshake(error: OSError) -> bool:
    """Return whether TLS failed after the other end was reached. Avoids importing ``ssl``, which only TLS needs."""
    return type(error).__module__ == "ssl" or isinstance(
        error, ConnectionResetError | ConnectionAbortedError | BrokenPipeError
    )


def _readability(descriptor: int) -> Callable[[], bool]:
    """Return a function that tells whether a socket is readable right now."""
    if not hasattr(select, "poll"):  # Windows
        return lambda: bool(select.select([descriptor], [], [], 0)[0])
    reads = select.poll()
    reads.register(descriptor, select.POLLIN)
    return lambda: bool(reads.poll(0))
