"""A client's clock and its one timer: deadlines and silence are judged here, and only after what has arrived was read.

The clock stands still while the loop is blocked. A program that computes for 40 s without awaiting anything has not
waited for its broker for 40 s: the answers may lie in the socket, and a message may not have been sent at all. So such
a time counts for no deadline, and before anything is judged late the sockets are read to their end. Both are needed:
some loops run their timers before they look at the sockets.
"""

from __future__ import annotations

import asyncio
import time
from math import inf
from typing import TYPE_CHECKING, Protocol

from .life import Life

if TYPE_CHECKING:
    from .connection import Connection

TICK_SECONDS = 0.25
"""How often it is looked at the clock while there is something to wait for."""
STALL_SECONDS = 0.1
"""A tick that comes later than this was kept from coming."""
READS_MAX = 256
"""Reads after which lateness is judged although more has arrived: more than any socket buffer holds."""


class Watched(Protocol):
    """Something that has deadlines."""

    def next_due(self, now: float) -> float:
        """When there is something to judge (seconds of the client's clock); infinite where there is nothing."""

    def judge(self, now: float) -> None:
        """It is due."""


class Watch:
    """The clock and timer of one client. ``connections`` are all that stand."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._watched: list[Watched] = []
        self.connections: set[Connection] = set()
        self._stalled = 0.0
        """Seconds for which the loop was blocked so far while something waited."""
        self.timer: asyncio.Handle | None = None
        """Set while there is something to wait for."""
        self._expected = inf
        """When the timer should run, monotonic seconds."""
        self._reads_before: int | None = None

    def add(self, watched: Watched) -> None:
        """Judge this too."""
        self._watched.append(watched)

    def remove(self, watched: Watched) -> None:
        """Judge it no more."""
        self._watched.remove(watched)

    def now(self) -> float:
        """The client's clock: monotonic seconds without those for which the loop was blocked."""
        real = time.monotonic()
        if real - self._expected > STALL_SECONDS:
            self._stalled += real - self._expected
            self._expected = real
        return real - self._stalled

    def wake(self, due: float) -> None:
        """Something new is due then: see that it is judged in time."""
        if self.timer is not None:
            if due - self.now() > self._expected - time.monotonic():
                return
            self.timer.cancel()
        self._schedule(due, self.now())

    def stop(self) -> None:
        """Judge nothing any more."""
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
        """Whether something has arrived that was not read yet."""
        reads = sum(connection.reads for connection in self.connections)
        if self._reads_before is None:
            self._reads_before = reads
        if reads - self._reads_before > READS_MAX:
            return False
        return any(connection.has_unread() for connection in self.connections)
