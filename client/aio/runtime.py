"""The lifetime of an asyncio client: its loop, its background tasks, and whether it may still be used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from ...protocol.errors import FlintError
from ..core.client_guard import Guard
from ..errors import ClientFailed, WrongLoop


class Failable(Protocol):
    """A part of a client on which callers wait."""

    def fail(self, error: FlintError) -> None:
        """Fail everything that waits with ``error``; nothing more will arrive."""


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
        """True if the client has a loop."""
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

    async def end_tasks(self) -> None:
        """Cancel the background tasks and wait until they have ended."""
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
