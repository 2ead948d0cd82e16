"""The group consumer for asyncio: the application receives messages, and settles each of them."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from itertools import islice
from types import TracebackType
from typing import Self

from ...core import hooks
from ...core.rpc.timeouts import wait_seconds
from ...errors import ClientClosed, ListenerTimeout
from ...sync.pool import Dialer
from .delivery import Delivery
from .member_engine import MemberEngine
from .receiver_shell import ReceiverShell
from .task_member import TaskMember


class GroupConsumer(ReceiverShell, TaskMember):
    """A member of a consumer group whose application receives messages, and settles each of them when and where it
    likes.

    It works like ``flintmq.client.GroupConsumer``; ``receive`` and ``close`` are coroutines. The methods of a
    ``Delivery`` are plain functions, which do not block and may be called in the loop and in other threads. A thread
    talks to the broker, so a loop that is blocked for a while neither leaves the group nor loses a delivery.
    """

    def _engine_for(self, dialer: Dialer) -> MemberEngine:
        self._waiters: dict[asyncio.Future[None], None] = {}
        """Receivers that wait, in their order."""
        return self._engine_of(dialer, self._life.guard, self._post_changed, self._post_end)

    def _begin_handling(self) -> None:
        return

    def _end_handling(self) -> None:
        self._deliveries.end(abandon=True)

    def _post_changed(self) -> None:
        self._post(self._wake)

    def _wake(self) -> None:
        """Wake as many receivers as there are deliveries; at the end all that wait."""
        with self._deliveries.condition:
            count = len(self._waiters) if self._deliveries.ended else self._deliveries.ready
        for waiter in list(islice(self._waiters, count)):
            del self._waiters[waiter]
            if not waiter.done():
                waiter.set_result(None)

    # ---- deliveries

    async def receive(self, max_count: int = 1, timeout: float | None = None) -> list[Delivery]:
        """Wait for a message, and return it with others that are there already: at most ``max_count`` deliveries.

        Returns an empty list after ``timeout`` seconds; 0: does not wait. Raises ``ClientClosed`` if the consumer is
        closed, also while this waits, and ``ClientFailed`` if it cannot continue. If it is cancelled, no message is
        lost.
        """
        deadline = self._life.enter().time() + self._check_receive(max_count, timeout)
        if (active := hooks.installed) is None:
            return self._deliveries.take(max_count) or await self._receive_later(max_count, deadline)
        with hooks.Receiving(active, self._side) as receiving:
            found = self._deliveries.take(max_count) or await self._receive_later(max_count, deadline)
            receiving.messages = [delivery.message for delivery in found]
        return self._begun(active, found)

    async def _receive_later(self, max_count: int, deadline: float) -> list[Delivery]:
        loop, deliveries = self._life.loop, self._deliveries
        deliveries.expect(max_count)
        try:
            while True:
                if deliveries.ended:
                    self._check()
                    raise ClientClosed("this GroupConsumer was closed; create a new one")
                found = deliveries.take(max_count)
                left = deadline - loop.time()
                if found or left <= 0:
                    return found
                await self._wait_for_change(left)
        finally:
            deliveries.expect(-max_count)

    async def _wait_for_change(self, seconds: float) -> None:
        """Wait for the next change, at most this many seconds."""
        waiter: asyncio.Future[None] = self._life.loop.create_future()
        self._waiters[waiter] = None
        try:
            if seconds == math.inf:
                await waiter
            else:
                await asyncio.wait([waiter], timeout=seconds)
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():  # another one gets what this one was woken for
                self._wake()
            raise
        finally:
            self._waiters.pop(waiter, None)

    async def __aiter__(self) -> AsyncIterator[Delivery]:
        while not self._life.closed:
            try:
                found = await self.receive()
            except ClientClosed:
                return
            for delivery in found:
                yield delivery

    # ---- its end

    async def close(self, timeout: float = 30.0) -> None:
        """Hand out no more messages, let the open deliveries be settled, commit, and leave the group. Idempotent.

        Other tasks may settle meanwhile. Raises ``ListenerTimeout`` if some deliveries are still open after ``timeout``
        seconds (0: does not wait for them); the consumer leaves nevertheless, and their messages are redelivered to
        other members. Raises ``ClientFailed`` if the consumer failed before. In a forked child it does nothing.
        """
        seconds = wait_seconds(timeout)
        if self._life.forked or self._life.closed or not self._started:
            self._life.closing()
            return
        self._life.check_loop()
        self._life.closing()
        assert self._end is not None
        deliveries, loop = self._deliveries, self._life.loop
        self._engine.leave()
        deliveries.end(abandon=False)
        deadline = loop.time() + seconds
        try:
            while deliveries.open_count and (left := deadline - loop.time()) > 0:
                await self._wait_for_change(left)
        finally:
            open_count = deliveries.open_count
            if open_count:
                deliveries.end(abandon=True)
                self._engine.abandon()
        done, _ = await asyncio.wait([self._end], timeout=self._timeout)
        self._engine.abandon()
        self._engine.check()
        if open_count:
            raise self._not_settled(open_count, seconds)
        if not done:
            raise self._not_confirmed()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if raised is None:
            await self.close()
        else:  # the block's exception counts, and does not wait for deliveries that it may have left open
            with contextlib.suppress(ListenerTimeout):
                await self.close(0)
