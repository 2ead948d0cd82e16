"""A wait for a socket and for other threads at the same time."""

from __future__ import annotations

import contextlib
import select
import socket

from .connection import Connection


class Waiter:
    """One thread waits, after ``open``; any other may ``wake`` it. A wake before the wait counts."""

    def __init__(self) -> None:
        # Until ``open``, ``wake`` must not write to a socket that does not exist.
        self._woken = True
        self._watched: int | None = None

    def open(self) -> None:
        """Create the socket pair through which other threads wake the wait."""
        # Not a pipe: on Windows select() accepts only sockets.
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._poll = select.poll() if hasattr(select, "poll") else None
        if self._poll is not None:
            self._poll.register(self._reader, select.POLLIN)
        self._woken = False

    def watch(self, descriptor: int | None) -> None:
        """Wait for this socket too from now on; None: for no socket."""
        if self._poll is not None:
            if self._watched is not None:
                self._poll.unregister(self._watched)
            if descriptor is not None:
                self._poll.register(descriptor, select.POLLIN)
        self._watched = descriptor

    def wake(self) -> None:
        """End the current wait, or the next one. Callable from any thread; cheap if already called."""
        if not self._woken:
            self._woken = True
            with contextlib.suppress(OSError):  # full: a wake is already under way; closed: no thread waits
                self._writer.send(b"x")

    def wait(self, connection: Connection | None, seconds: float) -> None:
        """Wait until the connection's socket is readable, another thread wakes this one, or the time is over."""
        if self._poll is not None:
            # The caller waits again if the time is not over; a day is far below what poll() takes.
            self._poll.poll(0 if seconds <= 0 else min(int(seconds * 1000) + 1, 86_400_000))
        else:  # Windows
            watched = [] if self._watched is None else [self._watched]
            select.select([self._reader.fileno(), *watched], [], [], max(seconds, 0.0))
        if self._woken:
            with contextlib.suppress(BlockingIOError):
                self._reader.recv(64)
            # Reset only after the socket is drained: a wake from here on must write a byte again.
            self._woken = False

    def close(self) -> None:
        """Close the sockets."""
        self._woken = True
        self._reader.close()
        self._writer.close()
