"""Futures that are waited for with a deadline of the client's clock."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from math import inf
from typing import TypeVar

from ...protocol.errors import FlintError
from .life import Life
from .watch import Watch

T = TypeVar("T")
Late = Callable[[], FlintError | None]
"""Makes the error of a wait whose time is over; None: it just ends, without a result."""


class Waits:
    """All waits of a client's calls, so that a call cannot outlive its client."""

    def __init__(self, life: Life, watch: Watch) -> None:
        self._life = life
        self._watch = watch
        self._waiting: dict[asyncio.Future[object], tuple[float, Late]] = {}
        self._limits: dict[asyncio.Timeout, float] = {}
        life.add(self)
        watch.add(self)

    async def wait(self, future: asyncio.Future[T], deadline: float, late: Late) -> T:
        """The future's result; raises what ``late`` makes when the time is over. Cancelled, it cancels the future."""
        self._life.check()
        waiting: asyncio.Future[object] = future  # type: ignore[assignment]
        self._waiting[waiting] = (deadline, late)
        if deadline != inf:
            self._watch.wake(deadline)
        try:
            return await future
        finally:
            del self._waiting[waiting]
            del future, waiting  # or what they raise would be in a frame of its own traceback

    @asynccontextmanager
    async def limit(self, seconds: float) -> AsyncGenerator[None, None]:
        """As ``asyncio.timeout``, by the client's clock."""
        async with asyncio.timeout(None) as limit:
            deadline = self._limits[limit] = self._watch.now() + seconds
            self._watch.wake(deadline)
            try:
                yield
            finally:
                del self._limits[limit]

    async def pause(self, seconds: float) -> None:
        """Return after so many seconds."""
        future: asyncio.Future[None] = self._life.loop.create_future()
        await self.wait(future, self._watch.now() + seconds, lambda: None)

    def next_due(self, now: float) -> float:
        """See ``Watched``."""
        due = min((deadline for deadline, _ in self._waiting.values()), default=inf)
        return min(due, *self._limits.values()) if self._limits else due

    def judge(self, now: float) -> None:
        """See ``Watched``."""
        for future, (deadline, late) in list(self._waiting.items()):
            if deadline <= now and not future.done():
                error = late()
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)
        for limit, deadline in self._limits.items():
            if deadline <= now and not limit.expired():
                limit.reschedule(self._life.loop.time())

    def fail(self, error: FlintError) -> None:
        """See ``Part``."""
        for future in self._waiting:
            if not future.done():
                future.set_exception(copy.copy(error))
