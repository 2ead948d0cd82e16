"""Messages that threads have received for a connection, until the connection's own thread takes them."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

Arrival = Callable[[], bool]
"""Hands a message to its consumer, or raises the error of a reader. Returns False if no consumer wants the message."""


class Arrivals:
    """A queue of arrivals that a thread can wait for, and an event loop can watch. Thread-safe.

    Its users bound its length: a reader waits while too much of what it has received is not handed over.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Arrival] = deque()
        self._bell: tuple[socket.socket, socket.socket] | None = None
        self._rung = False

    def add(self, arrival: Arrival) -> None:
        """Add an arrival, and wake a thread that waits for one."""
        with self._changed:
            self._waiting.append(arrival)
            self._changed.notify()
            self._ring()

    def take(self, deadline: float | None) -> Arrival | None:
        """Wait for an arrival and remove it; returns None at the ``deadline`` (None: never)."""
        with self._changed:
            while not self._waiting:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self._changed.wait(left)
            return self._waiting.popleft()

    # ---- for an event loop

    def watch(self) -> int:
        """Return a file descriptor that is readable while there is an arrival that ``turn`` was not called for."""
        with self._changed:
            if self._bell is None:
                self._bell = socket.socketpair()
                for end in self._bell:
                    end.setblocking(False)
                if self._waiting:
                    self._ring()
            return self._bell[0].fileno()

    def turn(self) -> int:
        """Return the number of arrivals that there are now, and silence the file descriptor until the next one."""
        with self._changed:
            if self._bell is not None and self._rung:
                self._bell[0].recv(16)
                self._rung = False
            return len(self._waiting)

    def close(self) -> None:
        """Close the file descriptor."""
        with self._changed:
            bell, self._bell, self._rung = self._bell, None, False
        for end in bell or ():
            end.close()

    def _ring(self) -> None:
        if self._bell is not None and not self._rung:
            with contextlib.suppress(BlockingIOError):  # full: it is readable anyway
                self._bell[1].send(b"!")
            self._rung = True
