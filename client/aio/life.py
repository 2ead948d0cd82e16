"""What an asyncio client lives by: its loop, its background tasks, and whether it may still be used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from ...protocol.errors import FlintError
from ..core.guard import Guard
from ..errors import ClientFailed, WrongLoop


class Part(Protocol):
    """Something of a client that others wait for."""

    def fail(self, error: FlintError) -> None:
        """Nothing more will come: everything that waits gets ``error``."""


class Life:
    """One client's. ``name``: of its class.

    The loop is the one in which the client is first used. All background tasks of the client are started here; one
    that dies with an error takes the client with it: everything that waits, and every later call, raises
    ``ClientFailed`` with that error as its cause.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._guard = Guard(name)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._usable_in: asyncio.AbstractEventLoop | None = None
        """The loop, while the client can be used: one comparison tells that a call is right."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._parts: list[Part] = []
        self._died: tuple[str, BaseException] | None = None
        self._ended = False

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The client's loop; there is one since ``enter``."""
        assert self._loop is not None
        return self._loop

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called. What was handed over before may still go on."""
        return self._guard.closed

    @property
    def ended(self) -> bool:
        """Whether nothing may go on."""
        return self._ended

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process that made the client."""
        return self._guard.forked

    @property
    def used(self) -> bool:
        """Whether the client has a loop yet."""
        return self._loop is not None

    def add(self, part: Part) -> None:
        """``part.fail`` is to be called when the client dies."""
        self._parts.append(part)

    def remove(self, part: Part) -> None:
        """It has come to its end by itself."""
        self._parts.remove(part)

    # ---- use

    def enter(self) -> asyncio.AbstractEventLoop:
        """A call begins: the loop. Raises where the client was closed, has died, or belongs to another loop or to the
        parent process."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._guard.check()
            raise WrongLoop(
                f"this {self._name} is used where no event loop runs; call it from a coroutine, or take the "
                f"{self._name} of flintmq.client"
            ) from None
        if loop is not self._usable_in:
            self._check(loop)
        return loop

    def check(self) -> None:
        """Raise where what is under way cannot go on: the client has ended or died meanwhile."""
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
        """Raise where the running loop is not the client's; a client that died may still be closed."""
        assert self._loop is not None
        if asyncio.get_running_loop() is self._loop:
            return
        ended = ", which is closed by now" if self._loop.is_closed() else ""
        raise WrongLoop(
            f"this {self._name} belongs to the event loop in which it was first used{ended}, and is used in another "
            f"one; make a {self._name} for each loop"
        )

    def closing(self) -> None:
        """From now on every call raises ``ClientClosed``."""
        self._guard.closed = True
        self._usable_in = None

    def end(self) -> None:
        """From now on nothing goes on."""
        self.closing()
        self._ended = True

    # ---- background tasks

    def start(self, what: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` in the background. ``what``: its name, for the error if it dies."""
        task = self.loop.create_task(work, name=f"flintmq {self._name} {what}")
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.die(task.get_name(), error)

    def guarded(self, what: str, call: Callable[[], None]) -> None:
        """Do ``call``, which the loop asked for: an error in it must not get lost in the loop."""
        try:
            call()
        except Exception as error:  # noqa: BLE001 - whatever it is, who waits must learn it
            self.die(what, error)

    def die(self, what: str, error: BaseException) -> None:
        """A task or a callback failed in a way that nobody foresaw."""
        if self._died is not None:
            return
        self._died = (what, error)
        self._usable_in = None
        for part in list(self._parts):
            part.fail(self.failure())
        for task in self._tasks:
            task.cancel()

    def failure(self) -> ClientFailed:
        """What everybody gets after ``die``."""
        assert self._died is not None
        what, error = self._died
        return ClientFailed(
            f"this {self._name} failed: {what} ended with {type(error).__name__}: {error}; make a new {self._name}",
            error,
        )

    async def end_tasks(self) -> None:
        """Cancel the background tasks and wait for their ends."""
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
