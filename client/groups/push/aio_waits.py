"""How tasks wait for what happens to a member of a group on the I/O thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from itertools import islice
from math import inf
from typing import TypeVar

from ...aio.runtime import ClientRuntime
from .delivery import DeliverySource

T = TypeVar("T")

Life = ClientRuntime
Awaited = asyncio.Future


def awaited(future: Future[T]) -> Awaited[T]:
    """Return what tasks of the running loop wait for instead of ``future``, which they cannot cancel."""
    loop = asyncio.get_running_loop()
    here: Awaited[T] = loop.create_future()

    def settle() -> None:
        if not here.done():
            here.set_result(future.result())

    def settle_there(_: Future[T]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle)

    future.add_done_callback(settle_there)
    return here


async def completed(future: Awaited[T], seconds: float | None) -> bool:
    """Wait at most this many seconds; returns whether the future is done. Cancelling the wait does not affect it."""
    await asyncio.wait([future], timeout=seconds)
    return future.done()


class Receivers:
    """Tasks that wait for deliveries, in their order."""

    def __init__(self, life: Life) -> None:
        self.deliveries: DeliverySource
        """Set by the creator of both."""
        self._life = life
        self._waiters: dict[asyncio.Future[None], None] = {}

    def changed(self) -> None:
        """Wake those for which there is something now. Callable from any thread."""
        if self._life.used:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._life.loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        """Wake as many receivers as there are deliveries; at the end all that wait."""
        with self.deliveries.condition:
            count = len(self._waiters) if self.deliveries.ended else self.deliveries.ready
        for waiter in list(islice(self._waiters, count)):
            del self._waiters[waiter]
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, holds: Callable[[], bool], seconds: float) -> None:
        """Wait for the next change, at most this many seconds, unless a condition holds already."""
        if holds():
            return
        waiter: asyncio.Future[None] = self._life.loop.create_future()
        self._waiters[waiter] = None
        try:
            await asyncio.wait([waiter], timeout=None if seconds == inf else seconds)
        except asyncio.CancelledError:
            if waiter.done():  # another one gets what this one was woken for
                self._wake()
            raise
        finally:
            self._waiters.pop(waiter, None)
