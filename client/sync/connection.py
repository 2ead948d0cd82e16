"""One TCP connection, used by one thread at a time."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from ...protocol.commands import Command, HelloAnswer
from ...protocol.errors import ConnectionFailed, FlintError, RemoteProtocolError
from ...protocol.frames import decode_answer_of_one
from ..core.rpc.access import NO_ACCESS, ClientAccess
from ..core.rpc.address import Address
from ..core.rpc.connection_errors import (
    SilenceLimit,
    broke,
    closed_here,
    closed_there,
    leads_no_longer,
    no_broker,
    no_hello,
    not_greeted,
    share_seconds,
    unanswered,
    unreachable,
)
from ..core.rpc.operation import Operation
from ..core.rpc.session import Answer, Session, advance
from ..endpoint import client_name, packed_address, set_options

if TYPE_CHECKING:
    from .tls import TlsSocket


# ---- Decides when polling in a loop for a response is cheaper than sleeping until it arrives.
#
# An idle CPU halts, and waking it takes tens of microseconds; in a virtual machine that is longer than the
# broker takes to respond. So a waiting thread polls for a short while before it sleeps. It does so only where
# it can pay off: if there is a second CPU for the broker, if no other thread of the process has much to do
# (the polling thread occupies the interpreter), and, after polling in vain, only once in a number of waits.

LOOK_SECONDS = 250e-6
"""Maximum time of polling: several times the latency of a broker that answers from memory, about that of a disk."""
LOOK_USUAL = 2.0
"""Polling ends after this multiple of the usual wait: what takes longer is probably not a matter of microseconds."""
LOOK_SECONDS_MIN = 50e-6
"""Minimum time of polling, however short the usual wait is."""
SKIPPED_MAX = 256
"""Maximum number of consecutive waits that sleep at once after polling was in vain."""
JUDGED_EVERY = 64
"""Number of waits after which the load of the other threads is measured again."""
OTHERS_SHARE_MAX = 0.02
"""Maximum share of a CPU that the other threads may use together while this one polls."""


class Pollable(Protocol):
    """What ``select.poll()`` returns."""

    def poll(self, timeout: int, /) -> object:
        """Return whether there is an event, after at most ``timeout`` milliseconds."""


class SpinWait:
    """The polling policy of one connection: learns from each wait whether polling is worth it for the next.

    ``clock``: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._alone = False
        self._judge_in = 1
        """Waits until the load of the other threads is measured again."""
        self._judged_at = clock()
        self._others_before = _cpu_of_other_threads()
        self._usual_seconds = LOOK_SECONDS
        """Moving average of the waits that polling ended."""
        self._skip = 0
        """Number of waits still to skip."""
        self._skips = 1
        """Number of waits to skip after the next poll in vain; doubles each time."""

    def worthwhile(self) -> bool:
        """Return whether to poll before sleeping this time."""
        self._judge_in -= 1
        if not self._judge_in:
            self._judge()
        if self._skip:
            self._skip -= 1
            return False
        return self._alone

    def _judge(self) -> None:
        """Measure whether other threads have been busy since the last time."""
        self._judge_in = JUDGED_EVERY
        now, others = self._clock(), _cpu_of_other_threads()
        busy = others - self._others_before > OTHERS_SHARE_MAX * (now - self._judged_at)
        self._alone = not busy and processors() > 1
        self._judged_at, self._others_before = now, others

    def look(self, reads: Pollable) -> bool:
        """Poll until there is something to read or the time is over; returns whether there is something."""
        clock, poll = self._clock, reads.poll
        began = now = clock()
        end = began + min(LOOK_SECONDS, max(LOOK_SECONDS_MIN, LOOK_USUAL * self._usual_seconds))
        while now < end:
            if poll(0):
                self._skips = 1
                self._usual_seconds += (now - began - self._usual_seconds) / 8
                return True
            now = clock()
        self._usual_seconds = LOOK_SECONDS
        self._skip = self._skips
        self._skips = min(self._skips * 2, SKIPPED_MAX)
        return False


def processors() -> int:
    """Return the number of CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_of_other_threads() -> float:
    """Return the seconds of CPU time that all threads except the calling one have used so far."""
    return time.process_time() - time.thread_time()


_JOIN_BYTES_MAX = 16 * 1024
"""A head and a body that are together shorter than this are sent in one piece."""
_CHECKED_AFTER_SECONDS = 1.0
"""A connection that was idle for longer is checked before use: the broker may have closed it."""

AnswerOfOne: TypeAlias = tuple[int, int, int, int, int]
"""What ``decode_answer_of_one`` returns."""
Readiness = Callable[[bool, float | None], None]


class Connection:
    """A connection that has completed HELLO. Not thread-safe, except ``interrupt`` and ``end``.

    ``push`` sends without waiting; ``receive`` waits for responses (and sends what ``push`` could not); ``exchange``
    sends one request and waits for its response. After any error except ``RequestTimeout`` the connection is unusable.
    """

    def __init__(self, sock: socket.socket | TlsSocket, address: Address) -> None:
        self.address = address
        self.in_use = threading.Lock()
        """Held by the user of the connection while another thread may call ``end``."""
        self._sock = sock
        self._closed = False
        self._session = Session()
        self._unsent: deque[memoryview] = deque()
        self._gathers = hasattr(sock, "sendmsg")  # sockets on Windows and TLS sockets have none
        self._pending: Callable[[], int] | None = getattr(sock, "pending", None)
        self._wait = _readiness(sock)
        self.active_at = time.monotonic()
        """When bytes last arrived, or left after they had to wait."""

    @classmethod
    def open(cls, address: Address, timeout: float, access: ClientAccess = NO_ACCESS) -> Connection:
        """Connect, say HELLO and authenticate, within ``timeout`` seconds.

        Raises ``ConnectionFailed``, or the broker's refusal.
        """
        deadline = time.monotonic() + timeout
        context = access.context()
        try:
            sock = socket.create_connection(address, timeout=timeout)
        except OSError as error:
            raise unreachable(address, error) from error
        set_options(sock)
        if context is None:
            sock.setblocking(False)
            connection = cls(sock, address)
        else:
            from .tls import TlsSocket

            connection = cls(TlsSocket.connect(sock, address, context, deadline), address)
        try:
            connection._greet(access, deadline, timeout)
        except RemoteProtocolError as error:
            connection.close()
            raise no_broker(address, error) from error
        except BaseException:
            connection.close()
            raise
        return connection

    def _greet(self, access: ClientAccess, deadline: float, timeout: float) -> None:
        greeting = self._session.greeting(access.client_name or client_name(), access)
        request = advance(greeting, None)
        while request is not None:
            try:
                self.push(request)
                answers = self._receive_until(deadline)
            except ConnectionFailed as error:
                if self._session.limits is not None:
                    raise
                raise not_greeted(error, tls=self._pending is not None) from error
            if not answers:
                raise no_hello(self.address, timeout)
            request = advance(greeting, answers[0])

    def _receive_until(self, deadline: float) -> list[Answer]:
        """Return the next responses, or none if none arrives until ``deadline``."""
        while not (answers := self.receive(deadline - time.monotonic())):
            if time.monotonic() >= deadline:
                break
        return answers

    @property
    def limits(self) -> HelloAnswer:
        """The limits that the broker announced in its HELLO response."""
        limits = self._session.limits
        assert limits is not None, "HELLO was not answered"
        return limits

    @property
    def local_address(self) -> bytes:
        """This end's address, 4 or 16 bytes."""
        return packed_address(self._sock.getsockname()[0])

    @property
    def congested(self) -> bool:
        """True if some pushed bytes have not been sent yet."""
        return bool(self._unsent)

    def new_request_id(self) -> int:
        """Return the id for a request whose frame the caller builds."""
        return self._session.new_request_id()

    def request(self, command: Command, fields: dict[str, Any], body: bytes | memoryview = b"") -> int:
        request_id, head = self._session.request(command, fields, len(body))
        self.push(head, body)
        return request_id

    def push(self, head: bytes, body: bytes | memoryview = b"") -> None:
        """Send as much as possible without waiting; ``receive`` sends the rest."""
        if self._unsent:
            self._unsent.extend((memoryview(head), memoryview(body)))
            return
        size = len(head) + len(body)
        try:
            if size > _JOIN_BYTES_MAX and self._gathers and isinstance(self._sock, socket.socket):
                sent = self._sock.sendmsg((head, body))
            else:
                head = b"".join((head, body)) if body else head
                body = b""
                sent = self._sock.send(head)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise broke(self.address, error) from error
        if sent < size:
            self._keep_unsent(sent, head, body)

    def _keep_unsent(self, sent: int, *parts: bytes | memoryview) -> None:
        for part in parts:
            if sent < len(part):
                self._unsent.append(memoryview(part)[sent:])
            sent = max(0, sent - len(part))

    def exchange_single(self, frame: bytes, timeout: float) -> AnswerOfOne | list[Answer]:
        """Send a PRODUCE frame of one message, when nothing else is under way, and wait for its response.

        Returns the decoded response, or what else arrived: none if ``timeout`` seconds are over or part of the frame
        is still unsent. Raises ``ConnectionFailed`` if the connection is lost.
        """
        self.push(frame)
        if self._unsent:
            return []
        self._wait(False, timeout)
        parser = self._session.parser
        try:
            count = self._sock.recv_into(parser.writable())
        except BlockingIOError:
            return []
        except OSError as error:
            raise broke(self.address, error) from error
        if not count:
            raise closed_there(self.address)
        parser.received(count)
        answer = decode_answer_of_one(parser.buffer, parser.start, parser.end)
        if answer is None:
            return self._session.answers()
        parser.start = parser.end
        return answer

    @property
    def is_plain(self) -> bool:
        """True if the connection is not encrypted."""
        return self._pending is None

    def receive(self, timeout: float | None) -> list[Answer]:
        """Wait up to ``timeout`` seconds (None: forever) for bytes, and return the responses that are then complete.

        May return none before the time is over. Raises ``ConnectionFailed`` if the connection is lost, or the broker
        does not lead its replica set any more.
        """
        if self._closed:  # its descriptor number may belong to another file by now
            raise closed_here(self.address)
        self._check_refusal()
        if timeout is None or timeout > 0:
            self._wait(bool(self._unsent), timeout)
        if self._unsent:
            self._send_unsent()
        parser = self._session.parser
        try:
            count = self._sock.recv_into(parser.writable())
        except BlockingIOError:
            return []
        except OSError as error:
            raise broke(self.address, error) from error
        if not count:
            raise closed_there(self.address)
        self.active_at = time.monotonic()
        parser.received(count)
        if self._pending is not None and self._pending():
            self._receive_pending()
        answers = self._session.answers()
        if not answers:
            self._check_refusal()
        return answers

    def _check_refusal(self) -> None:
        if self._session.refusal is not None:
            raise leads_no_longer(self.address, self._session.refusal)

    def _receive_pending(self) -> None:
        """Receive the bytes that TLS has already decrypted: polling the descriptor does not show them."""
        assert self._pending is not None
        parser = self._session.parser
        try:
            while self._pending():
                parser.received(self._sock.recv_into(parser.writable()))
        except BlockingIOError:
            return
        except OSError as error:
            raise broke(self.address, error) from error

    def _send_unsent(self) -> None:
        unsent = self._unsent
        try:
            while unsent:
                sent = self._sock.send(unsent[0])
                self.active_at = time.monotonic()
                if sent < len(unsent[0]):
                    unsent[0] = unsent[0][sent:]
                    return
                unsent.popleft()
        except BlockingIOError:
            return
        except OSError as error:
            raise broke(self.address, error) from error

    def probe(self) -> None:
        """Send a request that the broker answers at once; ``receive`` leaves its response out."""
        self.push(self._session.probe())

    def exchange(self, operation: Operation[Any], timeout: float) -> Answer:
        """Send one request and return its response. Raises as ``answer_to``."""
        request_id = self.request(operation.command, operation.fields, operation.body)
        return self.answer_to(request_id, operation, timeout)

    def answer_to(self, request_id: int, operation: Operation[Any], timeout: float) -> Answer:
        """Return the response to a request that was sent. Raises ``RequestTimeout`` if none arrives in time, and
        ``ConnectionFailed`` while there is still time for another connection if nothing arrives."""
        began = time.monotonic()
        seconds = operation.own_seconds(timeout)
        silence, look_seconds = SilenceLimit(seconds, began), share_seconds(seconds)
        remaining = timeout
        while True:
            for answer in self.receive(min(remaining, look_seconds)):
                if answer.request_id == request_id:
                    return answer
            now = time.monotonic()
            remaining = began + timeout - now
            if remaining <= 0:
                raise unanswered(self.address, operation.command.name, timeout)
            look_seconds = silence.check(self, now)

    def is_alive(self) -> bool:
        """Return whether the connection is usable after a pause: the broker may have closed it meanwhile."""
        if time.monotonic() - self.active_at < _CHECKED_AFTER_SECONDS:
            return True
        try:
            return not self.receive(0)  # no request is outstanding, so any response would be out of step
        except FlintError:
            return False

    def interrupt(self) -> None:
        """Make a thread that waits on the connection fail with ``ConnectionFailed``. Callable from any thread."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def shut_down(self) -> None:
        """Interrupt the user of the connection; close it if it is not in use. Callable from any thread."""
        self.interrupt()
        # If it is in use, its user closes it after the interrupt.
        if self.in_use.acquire(blocking=False):
            self.close()
            self.in_use.release()

    def close(self) -> None:
        """Close the socket; idempotent."""
        self._closed = True
        self._unsent.clear()
        self._sock.close()


def _readiness(sock: socket.socket | TlsSocket) -> Readiness:
    """Return a function ``(write, timeout)`` that waits until ``sock`` is readable (or, with ``write``, writable)."""
    if not hasattr(select, "poll"):  # Windows

        def wait_select(write: bool, timeout: float | None) -> None:
            select.select([sock], [sock] if write else [], [], timeout)

        return wait_select

    reads = select.poll()
    reads.register(sock, select.POLLIN)
    both = select.poll()
    both.register(sock, select.POLLIN | select.POLLOUT)
    patience = SpinWait()

    def wait_poll(write: bool, timeout: float | None) -> None:
        if not write and patience.worthwhile() and patience.look(reads):
            return
        # poll() counts in milliseconds: round up, or a shorter wait would spin.
        milliseconds = None if timeout is None else min(int(timeout * 1000) + 1, 86_400_000)
        (both if write else reads).poll(milliseconds)

    return wait_poll
