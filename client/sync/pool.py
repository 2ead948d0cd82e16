"""A client's connections, each used by one thread at a time, and requests over them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, TypeVar

from ...protocol.commands import READ_FROM_ANY
from ...protocol.errors import BrokerError, ConnectionFailed, FlintError, RequestTimeout
from ..core.client_guard import Guard
from ..core.rpc.access import ClientAccess
from ..core.rpc.address import Address, AddressBook
from ..core.rpc.connection_errors import SilenceLimit, no_address_answered, share_seconds, unanswered
from ..core.rpc.operation import Operation, Plan, Retries, detached, is_retriable
from ..core.rpc.session import Answer
from ..core.rpc.timeouts import check_timeout
from ..endpoint import ConnectionLog
from .connection import Connection

IDLE_CONNECTIONS_MAX = 64
"""Maximum number of idle connections that a client keeps."""

T = TypeVar("T")


class Dialer:
    """Connects to the first of several addresses whose broker serves clients: in a replica set, to the primary, unless
    ``access`` says that any member may answer."""

    def __init__(self, addresses: tuple[Address, ...], access: ClientAccess, log: ConnectionLog) -> None:
        self.log = log
        self._given = addresses
        self.addresses = AddressBook(addresses)
        self._access = access

    def of_any_member(self) -> Dialer:
        """Return a dialer to the same addresses that accepts followers."""
        return Dialer(self._given, replace(self._access, read_from=READ_FROM_ANY), self.log)

    def mark_failed(self, address: Address, error: BaseException) -> None:
        """Mark an address whose connection failed, so that another address is tried first."""
        self.addresses.mark_failed(address, error)

    def dial(self, timeout: float) -> Connection:
        """Return a new connection, made within ``timeout`` seconds.

        Raises ``ConnectionFailed`` with every address and its error, or the broker's refusal.
        """
        deadline = time.monotonic() + timeout
        failures: dict[Address, FlintError] = {}
        while (attempt := self.addresses.next_attempt(failures, deadline - time.monotonic())) is not None:
            address, seconds = attempt
            try:
                connection = Connection.open(address, seconds, self._access)
            except (ConnectionFailed, BrokerError) as error:
                failures[address] = detached(error)
                self.addresses.mark_failed(address, error, failures)
            else:
                self.addresses.mark_answered(address)
                self.log.connected(address)
                return connection
        raise self.log.unreachable(no_address_answered(failures))


class ConnectionPool:
    """Connections for requests that each need one to themselves. Thread-safe."""

    def __init__(self, dialer: Dialer, guard: Guard) -> None:
        self._dialer = dialer
        self._guard = guard
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()

    def acquire(self, timeout: float) -> Connection:
        """Return a connection for the caller's sole use; the caller must release or discard it."""
        while True:
            self._guard.check()
            with self._lock:
                if not self._idle:
                    break
                connection = self._idle.pop()
                self._busy.add(connection)
            if connection.is_alive():
                return connection
            self.discard(connection)
        connection = self._dialer.dial(timeout)
        with self._lock:
            # The client may have been closed meanwhile, before this connection was among the busy ones.
            if not self._guard.closed:
                self._busy.add(connection)
                return connection
        connection.close()
        self._guard.check()
        raise AssertionError("the pool's guard is closed, but its check passes")

    def release(self, connection: Connection) -> None:
        """Return a connection without outstanding requests to the pool."""
        with self._lock:
            self._busy.discard(connection)
            if not self._guard.closed and len(self._idle) < IDLE_CONNECTIONS_MAX:
                self._idle.append(connection)
                return
        connection.close()

    def discard(self, connection: Connection, error: BaseException | None = None) -> None:
        """Close a connection that is no longer usable; ``error``: the failure of the broker's end, if it failed. The
        idle ones may have failed in the same way, so they are closed with it."""
        closed = [connection]
        with self._lock:
            self._busy.discard(connection)
            if error is not None:
                self._dialer.mark_failed(connection.address, error)
            if isinstance(error, ConnectionFailed | RequestTimeout):
                closed += self._idle
                self._idle = []
        for each in closed:
            each.close()

    def close(self) -> None:
        """Close idle connections and interrupt those in use. The caller has already closed the guard."""
        with self._lock:
            idle, self._idle = self._idle, []
            busy = list(self._busy)
        for connection in idle:
            connection.close()
        for connection in busy:
            if self._guard.forked:
                connection.close()  # a shutdown would also end the parent's connection
            else:
                connection.shut_down()


class Caller:
    """Sends requests to a broker and retries them while that can help and time is left. Thread-safe."""

    def __init__(self, dialer: Dialer, guard: Guard, timeout: float) -> None:
        self.timeout = timeout
        self._guard = guard
        self._dialer = dialer
        self.log = dialer.log
        self.pool = ConnectionPool(dialer, guard)

    @property
    def addresses(self) -> AddressBook:
        """The addresses that it calls."""
        return self._dialer.addresses

    def of_any_member(self) -> Caller:
        """Return a caller with connections of its own, whose requests followers may answer."""
        return Caller(self._dialer.of_any_member(), self._guard, self.timeout)

    def now(self) -> float:
        """Return the clock of deadlines."""
        return time.monotonic()

    def deadline(self, timeout: float | None) -> float:
        """Return the deadline (monotonic) of a call that begins now; ``timeout``: the caller's, None for the
        client's."""
        return time.monotonic() + (self.timeout if timeout is None else check_timeout("timeout", timeout))

    def call(self, operation: Operation[T], deadline: float) -> T:
        """Return the operation's result. Retries after a lost connection or if the broker is busy, until ``deadline``.
        An operation that the broker may hold has that time in addition."""
        deadline += operation.hold_seconds
        return self.retry(operation.command.name, lambda: self._attempt(operation, deadline), deadline)

    def check(self) -> None:
        """Raise if the client can no longer be used."""
        self._guard.check()

    def retry(self, what: str, attempt: Callable[[], T], deadline: float) -> T:
        """Return the result of ``attempt``; repeat it after retriable errors until ``deadline``, then raise. ``what``:
        its name in the log."""
        retries = Retries(deadline)
        while True:
            self._guard.check()
            try:
                return attempt()
            except FlintError as error:
                self._guard.check()  # if the client was closed meanwhile, that is why the connection broke
                pause = retries.pause(error, time.monotonic())
                if pause is None:
                    raise
                self.log.retried(what, error)
            time.sleep(pause)

    def _attempt(self, operation: Operation[T], deadline: float) -> T:
        left = max(0.001, deadline - time.monotonic())
        connection = self.pool.acquire(left)
        try:
            left = max(0.001, deadline - time.monotonic())
            with connection.in_use:
                answer = connection.exchange(operation, left)
        except BaseException as error:
            self.pool.discard(connection, error)  # a late response would be taken for that of the next request
            raise
        self.pool.release(connection)
        return operation.result(answer)

    def run(self, plan: Plan[T], deadline: float) -> T:
        """Run a plan and return its result."""
        results: list[Any] | None = None
        try:
            while True:
                try:
                    operations = plan.send(results)  # type: ignore[arg-type] # the first send of a generator takes None
                except StopIteration as stop:
                    result: T = stop.value
                    return result
                results = [self.call(operation, deadline) for operation in operations]
        finally:
            plan.close()


# ---- One request after another over one connection, each sent before the caller works on the previous
# response.


class Asker(Generic[T]):
    """Sends a broker one request after another, each before the caller works on the previous response.

    ``ask`` only sends. ``answer`` waits; if the connection is lost or the broker is busy, it asks again until
    ``timeout`` seconds are over. The caller must close it.
    """

    def __init__(self, caller: Caller, timeout: float) -> None:
        self._caller = caller
        self._timeout = timeout
        self._connection: Connection | None = None
        self._asked: Operation[T] | None = None
        self._request_id = 0

    @property
    def is_asked(self) -> bool:
        """Return whether a response is outstanding."""
        return self._asked is not None

    def ask(self, operation: Operation[T]) -> None:
        """Send a request; the previous one must have been answered."""
        assert self._asked is None
        self._asked = operation
        try:
            if self._connection is None:
                self._connection = self._caller.pool.acquire(self._timeout)
                self._connection.in_use.acquire()
            self._request_id = self._connection.request(operation.command, operation.fields, operation.body)
        except ConnectionFailed as error:
            self._give_up(error)

    def answer(self) -> T:
        """Return the response to the request. Raises the broker's error, ``ConnectionFailed`` or ``RequestTimeout``."""
        operation = self._asked
        assert operation is not None
        deadline = time.monotonic() + self._timeout
        try:
            if self._connection is not None:
                return operation.result(self._wait(self._connection, operation, deadline))
        except FlintError as error:
            if not is_retriable(error) or isinstance(error, RequestTimeout):
                raise
        finally:
            self._asked = None
        return self._caller.call(operation, deadline)

    def _wait(self, connection: Connection, operation: Operation[T], deadline: float) -> Answer:
        seconds = operation.own_seconds(self._timeout)
        silence, look_seconds = SilenceLimit(seconds, time.monotonic()), share_seconds(seconds)
        while (remaining := deadline - time.monotonic()) > 0:
            try:
                answers = connection.receive(min(remaining, look_seconds))
                if not answers:
                    look_seconds = silence.check(connection, time.monotonic())
            except ConnectionFailed as error:
                self._give_up(error)
                raise
            for answer in answers:
                if answer.request_id == self._request_id:
                    return answer
        late = unanswered(connection.address, operation.command.name, self._timeout)
        self._give_up(late)
        raise late

    def _give_up(self, error: FlintError) -> None:
        """Discard the connection, which is no longer usable."""
        if self._connection is not None:
            self._connection.in_use.release()
            self._caller.pool.discard(self._connection, error)
            self._connection = None

    def close(self) -> None:
        """Return the connection to the pool, or close it if a response is outstanding."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.in_use.release()
            if self._asked is None:
                self._caller.pool.release(connection)
            else:
                self._caller.pool.discard(connection)
