"""One TCP connection, used by one thread at a time."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...protocol.commands import Command, HelloAnswer
from ...protocol.errors import ConnectionFailed, FlintError, RemoteProtocolError
from ..core.access import NO_ACCESS, Access
from ..core.address import Address
from ..core.session import Answer, Asked, Session, advance
from ..core.troubles import (
    broke,
    closed_here,
    closed_there,
    no_broker,
    no_hello,
    not_greeted,
    unanswered,
    unreachable,
)
from ..endpoint import client_name, packed_address
from .patience import Patience

if TYPE_CHECKING:
    from .tls import TlsSocket

_JOIN_BYTES_MAX = 16 * 1024
"""A head and a body that are shorter together go out as one piece."""
_PROBE_AFTER_SECONDS = 1.0
"""A connection that was idle for longer is looked at before it is used: the broker may have closed it."""

Readiness = Callable[[bool, float | None], None]


class Connection:
    """A connection that was greeted and can be used. Not safe for two threads, except ``interrupt`` and ``end``.

    ``push`` sends without waiting, ``receive`` waits for what comes (and sends what could not go out before);
    ``exchange`` does one request and its answer. Everything but ``RequestTimeout`` leaves the connection useless.
    """

    def __init__(self, sock: socket.socket | TlsSocket, address: Address) -> None:
        self.address = address
        self.in_use = threading.Lock()
        """Held by who uses the connection while ``end`` may be called."""
        self._sock = sock
        self._closed = False
        self._session = Session()
        self._unsent: deque[memoryview] = deque()
        self._gathers = hasattr(sock, "sendmsg")  # of Windows no socket can, and no TLS
        self._pending: Callable[[], int] | None = getattr(sock, "pending", None)
        self._wait = _readiness(sock)
        self._used_at = time.monotonic()

    @classmethod
    def open(cls, address: Address, timeout: float, access: Access = NO_ACCESS) -> Connection:
        """Connect, say HELLO and prove who this is, within ``timeout`` seconds.

        Raises ``ConnectionFailed``, or what the broker says.
        """
        deadline = time.monotonic() + timeout
        context = access.context()
        try:
            sock = socket.create_connection(address, timeout=timeout)
        except OSError as error:
            raise unreachable(address, error) from error
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
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

    def _greet(self, access: Access, deadline: float, timeout: float) -> None:
        greeting = self._session.greeting(client_name(), access)
        request = advance(greeting, None)
        while request is not None:
            try:
                self.push(request)
                answers = self._receive_until(deadline)
            except ConnectionFailed as error:
                if self._session.limits is not None:
                    raise
                raise not_greeted(self.address, error, tls=self._pending is not None) from error
            if not answers:
                raise no_hello(self.address, timeout)
            request = advance(greeting, answers[0])

    def _receive_until(self, deadline: float) -> list[Answer]:
        """The next answers; none where none came until ``deadline``."""
        while not (answers := self.receive(deadline - time.monotonic())):
            if time.monotonic() >= deadline:
                break
        return answers

    @property
    def limits(self) -> HelloAnswer:
        """What the broker said of itself."""
        limits = self._session.limits
        assert limits is not None, "HELLO was not answered"
        return limits

    @property
    def local_address(self) -> bytes:
        """This end's address, 4 or 16 bytes."""
        return packed_address(self._sock.getsockname()[0])

    def fileno(self) -> int:
        """The socket's descriptor, for who waits for several things at once."""
        return self._sock.fileno()

    @property
    def congested(self) -> bool:
        """Whether some of what was pushed has not gone out yet."""
        return bool(self._unsent)

    def new_request_id(self) -> int:
        """The id of a request whose frame the caller makes."""
        return self._session.new_request_id()

    def request(self, command: Command, fields: dict[str, Any], body: bytes | memoryview = b"") -> int:
        """Push a request; returns its id."""
        request_id, head = self._session.request(command, fields, len(body))
        self.push(head, body)
        return request_id

    def push(self, head: bytes, body: bytes | memoryview = b"") -> None:
        """Send as much as goes out without waiting; ``receive`` sends the rest."""
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

    def receive(self, timeout: float | None) -> list[Answer]:
        """Wait up to ``timeout`` seconds (None: for ever) for bytes, and return the answers that are whole by then.

        May return none although time is left. Raises ``ConnectionFailed`` where the connection went.
        """
        if self._closed:  # its descriptor's number may belong to something else by now
            raise closed_here(self.address)
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
        parser.received(count)
        if self._pending is not None and self._pending():
            self._receive_pending()
        return self._session.answers()

    def _receive_pending(self) -> None:
        """What TLS has decrypted already nobody could see at the descriptor."""
        assert self._pending is not None
        parser = self._session.parser
        try:
            while self._pending():
                parser.received(self._sock.recv_into(parser.writable()))
        except BlockingIOError:
            return
        except OSError as error:
            raise broke(self.address, error) from error

    def take_asked(self) -> list[Asked]:
        """What the broker asked of this side since the last call; it arrives with ``receive``."""
        return self._session.take_asked()

    def reply(self, asked: Asked, code: int, fields: dict[str, Any], body: bytes = b"") -> None:
        """Push the answer to what the broker asked; nothing for a one-way frame."""
        if asked.wants_answer:
            self.push(self._session.reply(asked, code, fields, len(body)), body)

    def _send_unsent(self) -> None:
        unsent = self._unsent
        try:
            while unsent:
                sent = self._sock.send(unsent[0])
                if sent < len(unsent[0]):
                    unsent[0] = unsent[0][sent:]
                    return
                unsent.popleft()
        except BlockingIOError:
            return
        except OSError as error:
            raise broke(self.address, error) from error

    def exchange(self, command: Command, fields: dict[str, Any], body: bytes, timeout: float) -> Answer:
        """One request and its answer. Raises ``RequestTimeout`` where none comes in time."""
        deadline = time.monotonic() + timeout
        request_id = self.request(command, fields, body)
        remaining = timeout
        while True:
            for answer in self.receive(remaining):
                if answer.request_id == request_id:
                    self._used_at = time.monotonic()
                    return answer
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise unanswered(self.address, command.name, timeout)

    def is_alive(self) -> bool:
        """Whether it can be used after a pause: not where the broker closed it meanwhile."""
        if time.monotonic() - self._used_at < _PROBE_AFTER_SECONDS:
            return True
        try:
            return not self.receive(0)  # nothing was asked, so an answer would be out of step
        except FlintError:
            return False

    def interrupt(self) -> None:
        """From any thread: whoever waits here gets ``ConnectionFailed``."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """From any thread: ``interrupt`` who uses the connection; close it where nobody does."""
        self.interrupt()
        if self.in_use.acquire(blocking=False):
            self.close()
            self.in_use.release()

    def close(self) -> None:
        """Close the socket; idempotent."""
        self._closed = True
        self._unsent.clear()
        self._sock.close()


def _readiness(sock: socket.socket | TlsSocket) -> Readiness:
    """A function ``(write, timeout)`` that waits until ``sock`` can be read (or, with ``write``, written)."""
    if not hasattr(select, "poll"):  # Windows

        def wait_select(write: bool, timeout: float | None) -> None:
            select.select([sock], [sock] if write else [], [], timeout)

        return wait_select

    reads = select.poll()
    reads.register(sock, select.POLLIN)
    both = select.poll()
    both.register(sock, select.POLLIN | select.POLLOUT)
    patience = Patience()

    def wait_poll(write: bool, timeout: float | None) -> None:
        if not write and patience.worthwhile() and patience.look(reads):
            return
        # A millisecond is the unit of poll: round up, or a wait for less would spin.
        milliseconds = None if timeout is None else min(int(timeout * 1000) + 1, 86_400_000)
        (both if write else reads).poll(milliseconds)

    return wait_poll
