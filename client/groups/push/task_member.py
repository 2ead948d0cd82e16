"""A member of a group that tasks of an event loop use."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Self

from ....protocol.errors import FlintError
from ...aio.runtime import ClientRuntime
from ...core.rpc.timeouts import check_timeout, wait_seconds
from ...errors import InvalidArgument
from ...sync.pool import Dialer
from .member_engine import MemberEngine
from .shell import MemberShell


class TaskMember(MemberShell):
    """The start, the waits and the commits of a member; subclasses hand its messages to the application."""

    def _new_engine(self, dialer: Dialer) -> MemberEngine:
        self._life = ClientRuntime(type(self).__name__)
        self._end: asyncio.Future[None] | None = None
        return self._engine_for(dialer)

    @abstractmethod
    def _engine_for(self, dialer: Dialer) -> MemberEngine:
        """Create the engine, whose ``ended`` is ``_post_end``."""

    @abstractmethod
    def _begin_handling(self) -> None:
        """Get ready for messages, before the engine starts."""

    @abstractmethod
    def _end_handling(self) -> None:
        """Expect no more messages; called on the engine's thread."""

    async def start(self) -> Self:
        """Join the group; returns when the broker has accepted the member. Raises its refusal, or that it is
        unreachable."""
        loop = self._life.enter()
        if self._started:
            raise InvalidArgument("this consumer was already started; create a new one to start again")
        self._started = True
        self._end = loop.create_future()
        self._begin_handling()
        self._engine.start()
        joined = await loop.run_in_executor(None, self._engine.joined.wait, self._timeout)
        if not joined:
            reason = self._not_joined()
            self._life.closing()
            self._engine.abandon()
            raise reason
        if self._engine.failure is not None:
            self._life.closing()
            raise self._engine.failure
        return self

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait at most ``timeout`` seconds until the consumer is closed; returns whether it is.

        Raises ``ClientFailed``, with the reason as its cause, if the consumer cannot continue. Cancelling the wait does
        not affect the consumer.
        """
        assert self._end is not None, "start() comes first"
        await asyncio.wait([self._end], timeout=None if timeout is None else wait_seconds(timeout))
        self._engine.check()
        return self._end.done()

    async def commit(self, timeout: float | None = None) -> None:
        """Commit the progress so far and wait for the broker's confirmation. Raises the error if that fails."""
        self._check()
        loop = self._life.loop
        told: asyncio.Future[FlintError | None] = loop.create_future()

        def settle(error: FlintError | None) -> None:
            if not told.done():
                told.set_result(error)

        self._engine.commit(lambda error: self._post(settle, error))
        seconds = self._timeout if timeout is None else check_timeout("timeout", timeout)
        try:
            async with asyncio.timeout(seconds):
                error = await told
        except TimeoutError:
            raise self._not_confirmed() from None
        if error is not None:
            raise error

    def _check(self) -> None:
        self._life.enter()
        self._engine.check()

    # ---- from the engine's thread to the loop

    def _post(self, call: Callable[..., object], *arguments: Any) -> None:
        try:
            self._life.loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:  # the loop was closed, so nothing can be handled
            self._engine.abandon()

    def _post_end(self, error: FlintError | None) -> None:
        self._end_handling()
        self._post(self._ended)

    def _ended(self) -> None:
        assert self._end is not None
        if not self._end.done():
            self._end.set_result(None)
