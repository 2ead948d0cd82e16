"""The lifetime of an asyncio client: its loop, its background tasks, and whether it may still be used."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Callable, Coroutine
from math import inf
from typing import Any, Protocol, TypeVar

from ...protocol.errors import FlintError
from ..core.client_guard import Guard
from ..errors import ClientFailed, WrongLoop


class Failable(Protocol):
    """A part of a client on which callers wait."""

    def fail(self, error: FlintError) -> None:
        """Fail everything that waits with ``error``; nothing more will arrive."""


class Readable(Protocol):
    """A connection, as the timers see it."""

    closed: asyncio.Future[None]
    """Done when it is completely closed."""

    def has_unread(self) -> bool:
        """Return whether bytes have arrived that the loop has not read yet."""

    def abort(self) -> None: ...


_READS_MAX = 256
"""Turns of the loop after which a timer is due even if more has arrived: more reads than fill any socket's buffer."""

T = TypeVar("T")
Late = Callable[[], FlintError | float | None]
"""Creates the error of a wait whose time is over, or returns a new end of it; None: the wait just ends, without a
result."""


class ClientRuntime:
    """The lifetime of one client. ``name``: its class's.

    The loop is the one in which the client is first used. All background tasks of the client are started here. If one
    ends with an error, the client fails: everything that waits, and every later call, raises ``ClientFailed`` with that
    error as its cause.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._guard = Guard(name)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._usable_in: asyncio.AbstractEventLoop | None = None
        """The loop while the client is usable, else None: one comparison validates a call."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._parts: list[Failable] = []
        self.connections: set[Readable] = set()
        """All open ones."""
        self._waiting: set[asyncio.Future[Any]] = set()
        self._died: tuple[str, BaseException] | None = None
        self._ended = False

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The client's loop; set by ``enter``."""
        assert self._loop is not None
        return self._loop

    @property
    def guard(self) -> Guard:
        """The check whether the client may still be used, for its parts that other threads call."""
        return self._guard

    @property
    def closed(self) -> bool:
        """True after ``close`` was called. Messages handed over before may still be in progress."""
        return self._guard.closed

    @property
    def ended(self) -> bool:
        """True when all work must stop."""
        return self._ended

    @property
    def forked(self) -> bool:
        """True in a child process of the one that created the client."""
        return self._guard.forked

    @property
    def used(self) -> bool:
        return self._loop is not None

    def add(self, part: Failable) -> None:
        """Register ``part``, whose ``fail`` is called if the client fails."""
        self._parts.append(part)

    def remove(self, part: Failable) -> None:
        """Unregister ``part``, which has ended by itself."""
        self._parts.remove(part)

    # ---- use

    def enter(self) -> asyncio.AbstractEventLoop:
        """Begin a call and return the loop. Raises if the client is closed, has failed, or belongs to another loop or
        to the parent process."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._guard.check()
            raise WrongLoop(
                f"this {self._name} is used without a running event loop; call it from a coroutine, or use the "
                f"{self._name} of flintmq.client"
            ) from None
        if loop is not self._usable_in:
            self._check(loop)
        return loop

    def check(self) -> None:
        """Raise if work in progress cannot continue because the client has ended or failed meanwhile."""
        if self._ended:
            self._guard.check()
        if self._died is not None:
            raise self.failure()

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        self._guard.check()
        self.check()
        if self._loop is None:
            self._loop = self._usable_in = loop
        self.check_loop()

    def check_loop(self) -> None:
        """Raise if the running loop is not the client's. Separate from ``check``, because a failed client can still be
        closed."""
        assert self._loop is not None
        if asyncio.get_running_loop() is self._loop:
            return
        ended = ", which is now closed" if self._loop.is_closed() else ""
        raise WrongLoop(
            f"this {self._name} belongs to the event loop in which it was first used{ended}, but is used in another "
            f"one; create a {self._name} for each loop"
        )

    def closing(self) -> None:
        """Make every further call raise ``ClientClosed``."""
        self._guard.closed = True
        self._usable_in = None

    def end(self) -> None:
        """Stop all work."""
        self.closing()
        self._ended = True

    # ---- background tasks

    def start(self, what: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` in the background. ``what``: its name, for the error if it fails."""
        task = self.loop.create_task(work, name=f"flintmq {self._name} {what}")
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.die(task.get_name(), error)

    def guarded(self, what: str, call: Callable[[], None]) -> None:
        """Run ``call`` for the loop, which would only log an error: an error in it fails the client."""
        try:
            call()
        except Exception as error:  # noqa: BLE001 - any error must reach the waiting callers
            self.die(what, error)

    def die(self, what: str, error: BaseException) -> None:
        """Fail the client after an unexpected error in a task or a callback."""
        if self._died is not None:
            return
        self._died = (what, error)
        self._usable_in = None
        for part in list(self._parts):
            part.fail(self.failure())
        self.fail_waits(self.failure())
        for task in self._tasks:
            task.cancel()

    def failure(self) -> ClientFailed:
        """Return the error that every call gets after ``die``."""
        assert self._died is not None
        what, error = self._died
        return ClientFailed(
            f"this {self._name} failed: {what} ended with {type(error).__name__}: {error}; create a new {self._name}",
            error,
        )

    # ---- waits

    async def wait(self, future: asyncio.Future[T], deadline: float, late: Late) -> T:
        """Return the future's result; when the time is over (monotonic), raise the error from ``late``. If the wait is
        cancelled, so is the future."""
        self.check()
        timer = _Wait(self, future, late)
        timer.wake(deadline)
        self._waiting.add(future)
        try:
            return await future
        finally:
            timer.stop()
            self._waiting.discard(future)
            del future, timer  # else the raised error would be a local of a frame in its own traceback

    async def pause(self, seconds: float) -> None:
        """Return after this many seconds."""
        future: asyncio.Future[None] = self.loop.create_future()
        await self.wait(future, time.monotonic() + seconds, lambda: None)

    def fail_waits(self, error: FlintError) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_exception(copy.copy(error))

    # ---- the end

    async def end_tasks(self) -> None:
        """Cancel the background tasks and wait until they have ended."""
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)


def _nothing() -> None:
    return


class Timer:
    """Calls ``call`` when its time has come, after the loop has read everything that arrived: a response that is in a
    socket is not late. Some loops run timers before they look at the sockets, and much may arrive while a computation
    blocks the loop."""

    __slots__ = ("_call", "_handle", "_life", "_turns", "due")

    def __init__(self, life: ClientRuntime, call: Callable[[], None]) -> None:
        self.due = inf
        """When ``call`` is due: monotonic seconds."""
        self._life = life
        self._call = call
        self._turns = 0
        self._handle: asyncio.Handle | None = None

    def wake(self, due: float) -> None:
        """Call at ``due`` at the latest."""
        if due >= self.due:
            return
        if self._handle is not None:
            self._handle.cancel()
        self.due = due
        self._turns = 0
        self._handle = self._life.loop.call_later(max(0.0, due - time.monotonic()), self._look)

    def stop(self) -> None:
        self.due = inf
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _look(self) -> None:
        if self._life.ended:
            return
        self._turns += 1
        unread = self._turns < _READS_MAX and any(connection.has_unread() for connection in self._life.connections)
        if unread or self._turns <= 2:
            self._handle = self._life.loop.call_soon(self._look)
            return
        self.due, self._handle = inf, None
        self._life.guarded("the timer", self._ring)

    def _ring(self) -> None:
        self._call()


class _Wait(Timer):
    """The time of a wait for ``future``."""

    __slots__ = ("_future", "_late")

    def __init__(self, life: ClientRuntime, future: asyncio.Future[Any], late: Late) -> None:
        super().__init__(life, _nothing)
        self._future = future
        self._late = late

    def _ring(self) -> None:
        if self._future.done():
            return
        outcome = self._late()
        if outcome is None:
            self._future.set_result(None)
        elif isinstance(outcome, float):
            self.wake(outcome)
        else:
            self._future.set_exception(outcome)
