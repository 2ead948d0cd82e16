"""A client's connections, each used by one thread at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from ...protocol.errors import ConnectionFailed, RequestTimeout
from ..core.client_guard import Guard
from ..core.rpc.address import AddressBook
from ..core.rpc.operation import Operation
from ..core.rpc.session import Answer
from .connection import Connection

IDLE_CONNECTIONS_MAX = 64
"""Maximum number of idle connections that a client keeps."""


class ConnectionPool:
    """Connections for requests that each need one to themselves. Thread-safe. ``dial``: makes one within so many
    seconds."""

    def __init__(self, dial: Callable[[float], Connection], addresses: AddressBook, guard: Guard) -> None:
        self._dial = dial
        self._addresses = addresses
        self._guard = guard
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()

    def exchange(self, operation: Operation[Any], deadline: float) -> Answer:
        """Return the response to a request that is sent once."""
        connection = self.acquire(max(0.001, deadline - time.monotonic()))
        try:
            with connection.in_use:
                answer = connection.exchange(operation, max(0.001, deadline - time.monotonic()))
        except BaseException as error:
            self.discard(connection, error)  # a late response would be taken for that of the next request
            raise
        self.release(connection)
        return answer

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
        connection = self._dial(timeout)
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
                self._addresses.mark_failed(connection.address, error)
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
