"""Background work of the event loop: a task that runs a job in small steps, sleeps until it is due, and can be stopped.

If a read or write fails for a while (a full disk, a replica set without enough members), the task pauses and tries
again. If the job fails in any other way, the broker ends, as it does when a service dies.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ...protocol.errors import NotEnoughReplicas, NotPrimary, ServiceNotAvailable
from ..store import StoreError

if TYPE_CHECKING:
    from .service import OnFatal

log = logging.getLogger(__name__)

PASSING = (ServiceNotAvailable, NotEnoughReplicas, NotPrimary, StoreError)
"""Errors after which a job is tried again. One that leads no more is stopped soon, with everything around it."""
SLEEP_S_MAX = 1.0
"""Interval of clock checks while messages wait: someone may set the clock."""
SLEEP_S_MIN = 0.001
TROUBLE_PAUSE_S = 1.0
"""Pause of a task after a failed read or write."""


def wall_ms() -> int:
    """Return the current time, ms since 1970 UTC."""
    return time.time_ns() // 1_000_000


class Job(Protocol):
    """A job that a ``LoopWorker`` runs in steps of about a millisecond."""

    async def step(self, now_ms: int) -> bool:
        """Do one step; return whether there may be more to do now."""

    def next_due_ms(self) -> int | None:
        """Return the time of the next known work; None if none is known."""

    def backlog(self) -> int:
        """Return the number of messages that wait for this job."""


class LoopWorker:
    """A task that calls a job's ``step`` whenever there is work: the counterpart of a ``Service``, on the event loop.

    ``now_ms``: the clock of the job's times; ``on_fatal`` gets unexpected exceptions.
    """

    def __init__(
        self, name: str, job: Job, loop: asyncio.AbstractEventLoop, now_ms: Callable[[], int], on_fatal: OnFatal
    ) -> None:
        self._name = name
        self._job = job
        self._loop = loop
        self._now_ms = now_ms
        self._on_fatal = on_fatal
        self._woken = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task."""
        self._task = self._loop.create_task(self._run())

    def wake(self) -> None:
        """Announce new work."""
        self._woken.set()

    async def stop(self) -> None:
        """Wait for the running step; no further step begins."""
        self._stopping = True
        self._woken.set()
        if self._task is not None:
            await self._task

    def backlog(self) -> int:
        """Return the size of the backlog, in messages."""
        return self._job.backlog()

    async def _run(self) -> None:
        trouble = ""
        try:
            while not self._stopping:
                # Before the step, not after it: a wake during the step must not be lost.
                self._woken.clear()
                try:
                    if await self._job.step(self._now_ms()):
                        # A turn of the loop for everyone else between two steps.
                        await asyncio.sleep(0)
                        continue
                    trouble = ""
                except PASSING as error:
                    # Once for each cause, however often it is tried again.
                    if str(error) != trouble:
                        trouble = str(error)
                        log.error(
                            "%s is paused and will be retried: %s (%d messages wait)", self._name, error, self.backlog()
                        )
                    await self._sleep(TROUBLE_PAUSE_S)
                    continue
                due_ms = self._job.next_due_ms()
                await self._sleep(None if due_ms is None else min((due_ms - self._now_ms()) / 1000, SLEEP_S_MAX))
        except Exception as error:  # noqa: BLE001 - without this task, messages would wait forever
            self._on_fatal(self._name, error)

    async def _sleep(self, seconds: float | None) -> None:
        timer = None if seconds is None else self._loop.call_later(max(seconds, SLEEP_S_MIN), self._woken.set)
        await self._woken.wait()
        if timer is not None:
            timer.cancel()
