"""Futures that are waited for with a deadline of the client's clock."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
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

    async def pause(self, seconds: float) -> None:
        """Return after so many seconds."""
        future: asyncio.Future[None] = self._life.loop.create_future()
        await self.wait(future, self._watch.now() + seconds, lambda: None)

    def next_due(self, now: float) -> float:
        """See ``Watched``."""
        return min((deadline for deadline, _ in self._waiting.values()), default=inf)

    def judge(self, now: float) -> None:
        """See ``Watched``."""
        for future, (deadline, late) in list(self._waiting.items()):
            if deadline <= now and not future.done():
                error = late()
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)

    def fail(self, error: FlintError) -> None:
        """See ``Part``."""
        for future in self._waiting:
            if not future.done():
                future.set_exception(copy.copy(error))
