"""Waits for futures with a deadline on the client's clock."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from math import inf
from typing import TypeVar

from ...protocol.errors import FlintError
from .deadlines import Watch
from .runtime import ClientRuntime

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
