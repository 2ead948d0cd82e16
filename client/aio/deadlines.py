"""A client's clock and its only timer: deadlines and silence are judged here, after everything that arrived was read.

The clock stops while the loop is blocked. A program that computes for 40 s without awaiting anything has not waited for
its broker for 40 s: the responses may be in the socket, and a message may not even have been sent. So that time counts
towards no deadline, and the client reads the sockets to their end before it judges anything late. Both are needed,
because some loops run timers before they look at the sockets.
"""

from __future__ import annotations

import asyncio
import time
from math import inf
from typing import TYPE_CHECKING, Protocol

from .runtime import ClientRuntime

if TYPE_CHECKING:
    from .connection import Connection

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
