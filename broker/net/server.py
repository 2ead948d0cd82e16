"""The listening sockets and the connections that they accepted."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import heapq
import ipaddress
import logging
import math
import socket
import termios
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...protocol.commands import ConnectionInfo
from ...protocol.errors import (
    AuthenticationRequired,
    BrokerError,
    ConfigurationError,
    FlushDiskTimeout,
    FrameIllegal,
    ServiceNotAvailable,
    SystemBusy,
)
from ..addresses import format_address, parse_address, unmapped
from ..budgets import FLOOR_BYTES
from ..config import BUSY_RETRY_AFTER_MS
from ..requests.broker import Broker
from ..requests.connected_client import ConnectedClient, encode_error
from ..requests.request import author
from ..security.audit import user_changes
from ..security.tls import handshake_failure
from ..security.users import User
from ..store import descriptors_max, store_descriptors
from .connection import STOP_MEMORY, STOP_SUSPENDED, ClientConnection
from .tls_transport import TlsTransport

# ---- Periodic check of each connection's timeouts: the broker answers or closes a connection that takes too
# long.

log = logging.getLogger(__name__)

HALF_FRAME_S = 60.0
"""Time for a frame to arrive completely after its first byte; a client program may pause meanwhile."""
SILENT_S = 10.0
"""While memory is short, the broker closes an inactive connection that holds a partial frame, or unsent responses,
after this time."""


def sweep(connection: ClientConnection, now: float) -> None:
    """Check all timeouts of one connection. ``now``: seconds of the loop's clock."""
    limits = connection.broker.limits
    if connection.responses.leave_short_way is not None:
        connection.settle(_flush_deadline(connection))
    if connection.reads != connection.reads_seen:
        connection.reads_seen = connection.reads
        connection.idle_since = now
    if connection.responses.unflushed:
        _sweep_unflushed(connection)
    # A connection that is being closed has this deadline only.
    if connection.close_by:
        if now > connection.close_by:
            connection.abort()
    elif connection.responses.paused and not connection.peer.follower:  # a primary looks after its followers itself
        _sweep_slow_reader(connection, now)
    elif connection.authenticate_by and now > connection.authenticate_by and not connection.stops & STOP_SUSPENDED:
        # Not while suspended: then the broker itself delays the attempt, after earlier failures (``LoginBackoff``).
        timeout_ms = connection.broker.settings.security.auth_timeout_ms
        connection.turn_away(
            AuthenticationRequired(f"not authenticated within security.auth_timeout_ms, {timeout_ms} ms"), 0
        )
    elif connection.half_since and not connection.stops & ~STOP_MEMORY:
        # For any other stop, the rest of the frame may have arrived, and the broker has not read it.
        _sweep_half_frame(connection, now)
    elif connection.stops or connection.deferred.held_pulls or not connection.is_idle():
        connection.idle_since = now
    elif now - connection.idle_since > limits.idle_timeout_ms / 1000:
        log.debug("connection from %s:%d closed: idle", *connection.peer.address)
        connection.finish()


def _sweep_half_frame(connection: ClientConnection, now: float) -> None:
    """Close a connection that began a frame and sends no more of it; sooner if others wait for the memory it holds."""
    crowds = (
        bool(connection.memory) and connection.parser.own_bytes > FLOOR_BYTES and now - connection.idle_since > SILENT_S
    )
    if not crowds and now - connection.half_since <= HALF_FRAME_S:
        return
    if connection.stops and _has_unread(connection):
        return  # the client has sent more; it is the broker that has not read it
    limit = f"{SILENT_S:.0f} s without a byte, while others wait for memory" if crowds else f"{HALF_FRAME_S:g} s"
    pending = connection.parser.pending_bytes
    connection.turn_away(FrameIllegal(f"frame incomplete for longer than {limit}: only {pending} bytes arrived"), 0)


def _has_unread(connection: ClientConnection) -> bool:
    """Return whether bytes have arrived that the broker has not read."""
    if connection.transport.get_extra_info("unread_bytes", 0):  # only ``TlsTransport`` knows this name
        return True
    sock = connection.transport.get_extra_info("socket")
    # The kernel's receive buffer, which the broker leaves unread while the connection is stopped.
    unread = fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(4))
    return any(unread)


def _flush_deadline(connection: ClientConnection) -> float:
    """Return the monotonic time since which no message may have waited for its flush."""
    return time.monotonic() - connection.broker.settings.flush.sync_timeout_ms / 1000


def _sweep_unflushed(connection: ClientConnection) -> None:
    """Answer requests whose flush takes too long; their messages are written."""
    timeout_ms = connection.broker.settings.flush.sync_timeout_ms
    since = _flush_deadline(connection)
    # In the order of the requests, so the first one has waited longest.
    if connection.responses.unflushed[0][4] < since:
        connection.responses.flushed(
            FlushDiskTimeout(
                f"the messages are written, but were not on disk within flush.sync_timeout_ms, {timeout_ms} ms; they "
                "may not survive a crash. Send them again with the same unique keys: they are stored only once",
                retry_after_ms=BUSY_RETRY_AFTER_MS,
            ),
            since,
        )


def _sweep_slow_reader(connection: ClientConnection, now: float) -> None:
    level = connection.transport.get_write_buffer_size()
    if level < connection.write_level:
        connection.write_level = level
        connection.write_since = now
    elif now - connection.write_since > _patience_s(connection):
        log.warning(
            "connection from %s:%d closed: client did not read %d response bytes", *connection.peer.address, level
        )
        connection.abort()


def _patience_s(connection: ClientConnection) -> float:
    """Return how long a client may read nothing; shorter while response memory is short."""
    seconds = connection.broker.limits.slow_reader_timeout_ms / 1000
    return min(seconds, SILENT_S) if connection.broker.send_memory.is_short() else seconds


BACKLOG = 1024
"""Maximum number of connections that the kernel holds until they are accepted."""
SOCKET_BYTES = 512 * 1024
"""Receive buffer of a socket (the kernel doubles it). Left alone, the kernel would buffer up to ``tcp_rmem``'s 6 MiB
and more for each connection that is not read; a thousand producers would exhaust its socket memory and all stall."""
ACCEPTS_A_TURN = 64
"""Maximum number of connections accepted before existing ones are served again."""
ACCEPT_PAUSE_S = 0.5
"""Pause after a failed accept; usually the process or the machine has run out of descriptors."""
CLOSED_BY_HAND = "an administrator closed this connection; the broker takes a new one"
REFUSAL_LOGGED_S = 1.0
"""Minimum time between two log lines about refused connections, which may come by the thousand."""
SWEEP_S = (0.05, 1.0)
"""Minimum and maximum time between two checks of all connections for expired timeouts."""
SWEPT_A_TURN = 256
"""Number of connections that are checked in one turn of the loop, which takes a fraction of a millisecond."""

_BROKEN_LISTENER = frozenset({errno.EBADF, errno.EINVAL, errno.ENOTSOCK})
"""Errors of accept() after which a retry is pointless."""


def bind(listen: str, setting: str = "server.listen", *, backlog: int = 0) -> list[socket.socket]:
    """Return sockets bound to every address that ``HOST:PORT`` resolves to; clients cannot connect until they listen.

    With port 0 all sockets get the same free port. ``setting``: name of the setting for error messages; ``backlog``:
    if not 0, listen at once. Raises ``ConfigurationError`` if an address cannot be bound.
    """
    host, port = parse_address(listen)
    sockets: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # A name may resolve to the same address more than once, which can be bound only once.
        for family, kind, protocol, _, address in dict.fromkeys(found):
            sock = socket.socket(family, kind, protocol)
            sockets.append(sock)
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                # Otherwise an IPv6 socket also takes IPv4, and the IPv4 socket of the same port cannot be bound.
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            port = port or sockets[0].getsockname()[1]
            sock.bind((address[0], port, *address[2:]))
        for sock in sockets if backlog else ():
            sock.listen(backlog)
    except OSError as error:
        for sock in sockets:
            sock.close()
        raise _cannot_listen(setting, listen, error) from None
    return sockets


def _cannot_listen(setting: str, listen: str, error: OSError) -> ConfigurationError:
    hint = (
        "another process listens there" if error.errno == errno.EADDRINUSE else f"choose another with --set {setting}="
    )
    return ConfigurationError(f"{setting} = {listen!r}: cannot listen there: {error.strerror or error}; {hint}")


def connections_possible() -> int:
    """Return the number of connections that the open-file limit allows, after the store's own descriptors."""
    return descriptors_max() - store_descriptors()


@dataclass(frozen=True, slots=True)
class Listener:
    """Sockets, and the protocol that their clients speak.

    ``setting``: name of the address's setting; ``connect``: makes a connection of the broker, the client's address, and
    the callback for the connection's end; ``encode_refusal``: encodes an error before there is a connection.
    """

    sockets: list[socket.socket]
    setting: str = "server.listen"
    connect: Callable[[Broker, tuple[str, int], Callable[[ClientConnection], None]], ClientConnection] = (
        ClientConnection
    )
    encode_refusal: Callable[[BrokerError, int], bytes] = encode_error


class Server:
    """The acceptor of connections, which also enforces their timeouts until ``stop``."""

    def __init__(self, broker: Broker, listeners: Sequence[Listener]) -> None:
        self._broker = broker
        self._listeners = {sock: listener for listener in listeners for sock in listener.sockets}
        self._connections: set[ClientConnection] = set()
        self._by_address: dict[str, int] = {}
        self._refusal_logged_at = -REFUSAL_LOGGED_S
        self._starting: set[asyncio.Task[None]] = set()
        self._accepting = False
        self._stopping = False
        self._all_gone = asyncio.Event()
        self._connections_max = 0
        self._descriptors_max = 0
        self._sweep_s = 0.0
        self._unswept: list[ClientConnection] = []
        """Connections whose timeouts are still to be checked in this round."""
        self._sweep_timer: asyncio.TimerHandle | None = None
        users = broker.authenticator.users if broker.authenticator is not None else None
        self._users_generation = users.generation if users is not None else 0
        self._users: list[User] = list(users or ())
        """The users as of the last check, to audit what changed since."""
        self.take_limits()
        broker.when_settings_change.append(lambda settings: self.take_limits())
        broker.users_changed = self._look_at_users
        broker.list_connections = self._list
        broker.close_connection = self._close

    def take_limits(self) -> None:
        limits = self._broker.limits
        self._descriptors_max = connections_possible()
        self._connections_max = min(limits.connections_max, self._descriptors_max)
        if self._connections_max < limits.connections_max:
            is_default = limits.connections_max == type(limits).model_fields["connections_max"].default
            # The default is a generous maximum; the log mentions it only if less than half of it is possible.
            is_news = not is_default or 2 * self._connections_max < limits.connections_max
            log.log(
                logging.INFO if is_news else logging.DEBUG,
                "at most %d connections can be open, although limits.connections_max is %d: of %d descriptors, %d are "
                "reserved for the store; raise the open-file limit (ulimit -Hn, LimitNOFILE)",
                self._connections_max,
                limits.connections_max,
                descriptors_max(),
                store_descriptors(),
            )
        shortest_ms = min(
            int(HALF_FRAME_S * 1000),
            limits.idle_timeout_ms,
            limits.slow_reader_timeout_ms,
            self._broker.settings.security.auth_timeout_ms,
        )
        # A quarter of the shortest timeout, so that none is exceeded by more than that.
        self._sweep_s = min(max(shortest_ms / 4000, SWEEP_S[0]), SWEEP_S[1])
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = self._broker.loop.call_later(self._sweep_s, self._sweep)

    def start(self) -> None:
        """Open the port. Raises ``ConfigurationError`` if another process has started to listen there."""
        for sock, listener in self._listeners.items():
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)  # connections inherit it
                sock.listen(BACKLOG)
            except OSError as error:
                address = format_address(*sock.getsockname()[:2])
                raise _cannot_listen(listener.setting, address, error) from None
        self._accept_on()
        self._sweep_timer = self._broker.loop.call_later(self._sweep_s, self._sweep)

    async def stop(self, timeout_s: float) -> None:
        """Stop accepting, answer held pulls, let connections finish their requests; cut them after the timeout.

        ``cut`` ends the wait.
        """
        self._stopping = True
        self._accept_off()
        for sock in self._listeners:
            sock.close()
        # Before ``finish``, which cancels held pulls without an answer.
        self._broker.holds.answer_all()
        self._broker.pops.answer_all()
        for connection in list(self._connections):
            connection.finish()
        # A client that does not complete its handshake would hold the stop up; without TLS, none takes longer than a
        # turn.
        if self._broker.tls is not None:
            for task in self._starting:
                task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._wait_until_gone()
        if self._connections:
            log.warning("closing %d connections that did not finish in %.1f s", len(self._connections), timeout_s)
            self.cut()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._wait_until_gone()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()

    def turn_away(self, error: BrokerError) -> None:
        """Send every client an error, and close its connection after its accepted requests are answered."""
        for connection in list(self._connections):
            connection.turn_away(error, 0)

    def cut(self) -> None:
        for connection in list(self._connections):
            connection.abort()

    async def _wait_until_gone(self) -> None:
        while self._starting:
            await asyncio.wait(self._starting)
        while self._connections:
            self._all_gone.clear()
            await self._all_gone.wait()

    # ---- accepting ----

    def _accept_on(self) -> None:
        if not self._stopping and not self._accepting:
            self._accepting = True
            for sock in self._listeners:
                self._broker.loop.add_reader(sock.fileno(), self._accept, sock)

    def _accept_off(self) -> None:
        if self._accepting:
            self._accepting = False
            for sock in self._listeners:
                self._broker.loop.remove_reader(sock.fileno())

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTS_A_TURN):
            try:
                sock, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                # Nothing to accept, or the client is gone again; if there are more, the loop calls again.
                return
            except OSError as error:
                if error.errno in _BROKEN_LISTENER:
                    self._broker.fatal("accepting connections", error)
                log.error(
                    "cannot accept connections: %s (%d are open); trying again in %.1f s",
                    error.strerror,
                    len(self._connections),
                    ACCEPT_PAUSE_S,
                )
                self._accept_off()
                self._broker.loop.call_later(ACCEPT_PAUSE_S, self._accept_on)
                return
            self._admit(sock, address, self._listeners[listener])

    def _admit(self, sock: socket.socket, address: tuple[str, int], listener: Listener) -> None:
        limits, counters = self._broker.limits, self._broker.counters
        counters.connections_accepted += 1
        host = unmapped(address[0])
        refusal = ""
        if self._broker.connections >= self._connections_max:
            is_setting = self._connections_max == limits.connections_max
            limit = "limits.connections_max" if is_setting else "the maximum that its open-file limit allows"
            refusal = f"{self._connections_max} connections are open, which is {limit}"
        elif sock.fileno() >= self._descriptors_max and not self._free_descriptors():
            # A new socket gets the lowest free number.
            refusal = (
                f"{self._descriptors_max} files and connections are open, and the other descriptors are reserved for "
                "the store; raise the broker's open-file limit"
            )
        elif self._by_address.get(host, 0) >= limits.connections_per_address_max:
            refusal = (
                f"{limits.connections_per_address_max} connections from {host} are open, which is "
                "limits.connections_per_address_max"
            )
        if refusal:
            counters.connections_refused += 1
            if self._broker.loop.time() >= self._refusal_logged_at + REFUSAL_LOGGED_S:
                self._refusal_logged_at = self._broker.loop.time()
                log.warning("connection from %s refused: %s (%d so far)", host, refusal, counters.connections_refused)
            busy = SystemBusy(f"{refusal}; try again later", retry_after_ms=1000)
            # A new socket has room for the refusal, so this waits for nothing.
            with sock, contextlib.suppress(OSError):
                sock.setblocking(False)
                sock.send(listener.encode_refusal(busy, 0))
            return
        self._broker.connections += 1
        # Loopback does not count: all clients of this machine share it.
        if not ipaddress.ip_address(host).is_loopback:
            self._by_address[host] = self._by_address.get(host, 0) + 1
        task = self._broker.loop.create_task(self._connect(sock, host, address[1], listener))
        # The event loop keeps only a weak reference to a task.
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    def _free_descriptors(self) -> bool:
        """Free the second descriptors that connections have, if there are any; return whether there were."""
        ways = (self._broker.short_sends, self._broker.short_pops)
        left = [way.leave_all() for way in ways if way is not None]
        return any(left)

    async def _connect(self, sock: socket.socket, host: str, port: int, listener: Listener) -> None:
        connection = listener.connect(self._broker, (host, port), self._lost)
        try:
            await self._take(connection, sock)
        except OSError as error:
            log.debug("connection from %s:%d was lost while it was accepted: %s", host, port, error)
            sock.close()
            self._release(host)
            return
        except asyncio.CancelledError:  # the broker stops during a client's TLS handshake
            sock.close()
            self._release(host)
            raise
        # It was lost before this task continued, and ``_lost`` has released it already.
        if connection.peer.lost:
            return
        self._connections.add(connection)
        if self._stopping:
            connection.finish()

    async def _take(self, connection: ClientConnection, sock: socket.socket) -> None:
        """Connect the socket, with TLS if it is on. Raises ``OSError`` if the client or its handshake fails."""
        loop, tls = self._broker.loop, self._broker.tls
        if tls is None:
            await loop.connect_accepted_socket(lambda: connection, sock)
            return
        timeout_s = self._broker.settings.security.auth_timeout_ms / 1000
        transport = TlsTransport(loop, tls.context, connection)
        try:
            await loop.connect_accepted_socket(lambda: transport, sock)
            await transport.handshake(timeout_s)
        except OSError as error:
            self._broker.counters.tls_failures += 1
            now = loop.time()
            if now >= self._refusal_logged_at + REFUSAL_LOGGED_S:
                self._refusal_logged_at = now
                log.warning(
                    "connection from %s:%d: TLS handshake failed: %s (%d so far)",
                    *connection.peer.address,
                    handshake_failure(error),
                    self._broker.counters.tls_failures,
                )
            raise

    def _lost(self, connection: ClientConnection) -> None:
        self._connections.discard(connection)
        self._release(connection.peer.address[0])
        if not self._connections:
            self._all_gone.set()

    def _release(self, host: str) -> None:
        self._broker.connections -= 1
        count = self._by_address.get(host, 0)
        if count > 1:
            self._by_address[host] = count - 1
        else:
            self._by_address.pop(host, None)

    def _list(self, after: int, count: int) -> list[ConnectionInfo]:
        later = (connection for connection in self._connections if connection.number > after)
        return [_row(each) for each in heapq.nsmallest(count, later, key=lambda each: each.number)]

    def _close(self, number: int, opened_ms: int) -> ConnectionInfo | None:
        found = next((each for each in self._connections if each.number == number), None)
        if found is None or found.ending or opened_ms not in (-1, found.opened_ms):
            return None
        # Soon, because it may be the connection that asks for it, which gets its response first.
        self._broker.loop.call_soon(found.turn_away, ServiceNotAvailable(CLOSED_BY_HAND), 0)
        return _row(found)

    # ---- timeouts and reloading ----

    def _sweep(self) -> None:
        loop = self._broker.loop
        # First, so that the checks continue, whatever one of them does.
        self._sweep_timer = loop.call_later(self._sweep_s, self._sweep)
        self._broker.sequences.expire(time.monotonic())
        self._broker.store.clock.now_ms()  # detects a change of the system clock soon, also on an idle broker
        self.look_at_files()
        if not self._unswept:
            self._unswept = list(self._connections)
            self._sweep_some()

    def _sweep_some(self) -> None:
        """Check some connections, and the others in later turns of the loop: thousands at once would stall it."""
        now = self._broker.loop.time()
        some, self._unswept = self._unswept[:SWEPT_A_TURN], self._unswept[SWEPT_A_TURN:]
        if self._unswept:
            self._broker.loop.call_soon(self._sweep_some)
        for connection in some:
            if connection in self._connections:
                sweep(connection, now)

    def _audit_users(self, users: list[User], by: ConnectedClient | None) -> None:
        """Write to the audit log what changed in the users' file, and who changed it if that is known."""
        who = author(by) if by is not None else None
        for change in user_changes(self._users, users):
            target = f"user {change.name}"
            self._broker.audit.write(change.action, target, author=who, before=change.before, after=change.after)
        self._users = users

    def look_at_files(self, *, force: bool = False) -> None:
        """Load users and certificates if their files changed; ``force``: certificates in any case."""
        if self._broker.tls is not None:
            self._broker.tls.refresh(force=force)
        self._look_at_users()

    def _look_at_users(self, by: ConnectedClient | None = None) -> None:
        """Load the users if their file changed; ``by``: the client that has just changed them."""
        authenticator = self._broker.authenticator
        if authenticator is None:
            return
        authenticator.users.refresh()
        if authenticator.users.generation != self._users_generation:
            self._users_generation = authenticator.users.generation
            self._audit_users(list(authenticator.users), by)
            self._broker.access.update({user.name: user.permissions for user in authenticator.users})
            for connection in list(self._connections):
                connection.users_changed()


def _row(connection: ClientConnection) -> ConnectionInfo:
    broker, peer = connection.broker, connection.peer
    connection.settle(-math.inf)
    is_idle = connection.reads == connection.reads_seen
    return ConnectionInfo(
        connection.number,
        *peer.address,
        "" if peer.user is None else peer.user.name,
        peer.client,
        connection.opened_ms,
        int((broker.loop.time() - connection.idle_since) * 1000) if is_idle else 0,
        connection.frames_in,
        connection.bytes_in,
        connection.responses.bytes_out,
        len(connection.deferred.held_pulls),
        broker.tls is not None,
    )
