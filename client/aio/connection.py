"""One TCP connection: it parses bytes as the loop reads them, and passes the responses to a receiver."""

from __future__ import annotations

import asyncio
import copy
import select
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from math import inf
from typing import Any, Protocol, TypeVar, cast

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

# ---- A client's clock and its only timer: deadlines and silence are judged here, after everything that
# arrived was read.
#
# The clock stops while the loop is blocked. A program that computes for 40 s without awaiting anything has
# not waited for its broker for 40 s: the responses may be in the socket, and a message may not even have been
# sent. So that time counts towards no deadline, and the client reads the sockets to their end before it
# judges anything late. Both are needed, because some loops run timers before they look at the sockets.

TICK_SECONDS = 0.25
"""Interval of the timer while anything is pending."""
STALL_SECONDS = 0.1
"""A tick that is later than this was delayed by a blocked loop."""
READS_MAX = 256
"""Number of reads after which lateness is judged even if more has arrived: more than any socket buffer holds."""


class Watched(Protocol):
    """An object that has deadlines."""

    def next_due(self, now: float) -> float:
        """Return when ``judge`` is next due (seconds of the client's clock), infinite if nothing is pending."""

    def judge(self, now: float) -> None:
        """Handle what is due at ``now``."""


class Watch:
    """The clock and timer of one client. ``connections``: all open ones."""

    def __init__(self, life: ClientRuntime) -> None:
        self._life = life
        self._watched: list[Watched] = []
        self.connections: set[Connection] = set()
        self._stalled = 0.0
        """Total seconds for which the loop was blocked while something was pending."""
        self.timer: asyncio.Handle | None = None
        """Set while something is pending."""
        self._expected = inf
        """When the timer should run, in monotonic seconds."""
        self._reads_before: int | None = None

    def add(self, watched: Watched) -> None:
        """Judge ``watched`` from now on."""
        self._watched.append(watched)

    def remove(self, watched: Watched) -> None:
        """Stop judging ``watched``."""
        self._watched.remove(watched)

    def now(self) -> float:
        """Return the client's clock: monotonic seconds minus those for which the loop was blocked."""
        real = time.monotonic()
        if real - self._expected > STALL_SECONDS:
            self._stalled += real - self._expected
            # Otherwise the next call would count the same time again.
            self._expected = real
        return real - self._stalled

    def wake(self, due: float) -> None:
        """Make sure the timer runs at ``due`` at the latest."""
        if self.timer is not None:
            if due - self.now() > self._expected - time.monotonic():
                return
            self.timer.cancel()
        self._schedule(due, self.now())

    def stop(self) -> None:
        """Stop the timer."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self._watched.clear()

    def _schedule(self, due: float, now: float) -> None:
        if due == inf:
            self.timer, self._expected = None, inf
            return
        seconds = min(TICK_SECONDS, max(0.0, due - now))
        self._expected = time.monotonic() + seconds
        self.timer = self._life.loop.call_later(seconds, self._life.guarded, "the timer", self._tick)

    def _tick(self) -> None:
        now = self.now()
        if self._due(now) <= now:
            if self._must_read_first():
                self._expected = time.monotonic()
                self.timer = self._life.loop.call_soon(self._life.guarded, "the timer", self._tick)
                return
            self._reads_before = None
            for watched in list(self._watched):
                if watched.next_due(now) <= now:
                    watched.judge(now)
        self._schedule(self._due(now), now)

    def _due(self, now: float) -> float:
        return min((watched.next_due(now) for watched in self._watched), default=inf)

    def _must_read_first(self) -> bool:
        """Return whether bytes have arrived that the loop has not read yet."""
        reads = sum(connection.reads for connection in self.connections)
        if self._reads_before is None:
            self._reads_before = reads
        if reads - self._reads_before > READS_MAX:
            return False
        return any(connection.has_unread() for connection in self.connections)


# ---- Waits for futures with a deadline on the client's clock.

T = TypeVar("T")
Late = Callable[[], FlintError | float | None]
"""Creates the error of a wait whose time is over, or returns a new end of it; None: the wait just ends, without a
result."""


class Waits:
    """All waits of a client's calls, kept here so that no call outlives its client."""

    def __init__(self, life: ClientRuntime, watch: Watch) -> None:
        self._life = life
        self._watch = watch
        self._waiting: dict[asyncio.Future[object], tuple[float, Late]] = {}
        self._limits: dict[asyncio.Timeout, float] = {}
        life.add(self)
        watch.add(self)

    async def wait(self, future: asyncio.Future[T], deadline: float, late: Late) -> T:
        """Return the future's result; raise the error from ``late`` when the time is over. If the wait is cancelled, so
        is the future."""
        self._life.check()
        waiting: asyncio.Future[object] = future  # type: ignore[assignment] # Future is invariant
        self._waiting[waiting] = (deadline, late)
        if deadline != inf:
            self._watch.wake(deadline)
        try:
            return await future
        finally:
            del self._waiting[waiting]
            del future, waiting  # else the raised error would be a local of a frame in its own traceback

    @asynccontextmanager
    async def limit(self, seconds: float) -> AsyncGenerator[None, None]:
        """Limit a block like ``asyncio.timeout``, on the client's clock."""
        async with asyncio.timeout(None) as limit:
            deadline = self._limits[limit] = self._watch.now() + seconds
            self._watch.wake(deadline)
            try:
                yield
            finally:
                del self._limits[limit]

    async def pause(self, seconds: float) -> None:
        """Return after this many seconds."""
        future: asyncio.Future[None] = self._life.loop.create_future()
        await self.wait(future, self._watch.now() + seconds, lambda: None)

    def next_due(self, now: float) -> float:
        """Return the earliest deadline of all waits."""
        due = min((deadline for deadline, _ in self._waiting.values()), default=inf)
        return min(due, *self._limits.values()) if self._limits else due

    def judge(self, now: float) -> None:
        """End the waits whose deadline is over."""
        for future, (deadline, late) in list(self._waiting.items()):
            if deadline <= now and not future.done():
                outcome = late()
                if outcome is None:
                    future.set_result(None)
                elif isinstance(outcome, float):
                    self._waiting[future] = (outcome, late)
                else:
                    future.set_exception(outcome)
        for limit, deadline in self._limits.items():
            if deadline <= now and not limit.expired():
                limit.reschedule(self._life.loop.time())

    def fail(self, error: FlintError) -> None:
        """Fail all waits with ``error``."""
        for future in self._waiting:
            if not future.done():
                future.set_exception(copy.copy(error))


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

    ``reads``: number of reads so far; ``congested``: do not write more now; ``gone``: no longer usable.
    """

    def __init__(self, address: Address, life: ClientRuntime, watch: Watch) -> None:
        self.address = address
        self.receiver: AnswerReceiver | None = None
        self.on_asked: Callable[[list[Asked]], None] | None = None
        """Called with the broker's requests to this side; if None, they are ignored."""
        self.reads = 0
        self._active_at = watch.now()
        self._unsent_bytes = 0
        self.congested = False
        self.gone = False
        self.closed: asyncio.Future[None] = life.loop.create_future()
        """Done when the connection is completely closed."""
        self._life = life
        self._watch = watch
        self._session = Session()
        self._awaited: asyncio.Future[Answer] | None = None
        """The response that the greeting waits for."""
        self._failure: FlintError | None = None
        """Reason why the connection is no longer usable."""
        self._transport: asyncio.Transport | None = None
        self._has_unread: Callable[[], bool] = bool

    @classmethod
    async def open(
        cls, address: Address, timeout: float, access: ClientAccess, life: ClientRuntime, watch: Watch, waits: Waits
    ) -> Connection:
        """Connect, say HELLO and authenticate, within ``timeout`` seconds.

        Raises ``ConnectionFailed``, or the broker's refusal.
        """
        connection = cls(address, life, watch)
        context = access.context()
        usable = False
        try:
            async with waits.limit(timeout):
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
        """When bytes last arrived, or were last seen to have left after they had to wait: client's clock."""
        unsent_bytes = 0 if self._transport is None else self._transport.get_write_buffer_size()
        if unsent_bytes < self._unsent_bytes:
            self._active_at = self._watch.now()
        self._unsent_bytes = unsent_bytes
        return self._active_at

    # ---- sending

    def new_request_id(self) -> int:
        """Return the id for a request whose frame the caller builds."""
        return self._session.new_request_id()

    def request(self, operation: Operation[Any]) -> int:
        """Send a request; returns its id."""
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
        """Close the connection and tell the receiver why."""
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
        """Set up the connected socket."""
        self._transport = cast(asyncio.Transport, transport)
        # Given up while the loop was still connecting.
        if self.gone or self._life.ended:
            self.gone = True
            self._transport.abort()
            return
        self._watch.connections.add(self)
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        sock = transport.get_extra_info("socket")
        set_options(sock)
        self._has_unread = _readability(sock.fileno())

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes."""
        return self._session.parser.writable()

    def buffer_updated(self, nbytes: int) -> None:
        """Parse the ``nbytes`` that arrived and pass on what is complete."""
        self.reads += 1
        self._active_at = self._watch.now()
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
        self._watch.connections.discard(self)
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
