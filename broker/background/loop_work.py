"""Background work: threads that are woken, and work of the event loop in small steps, so that no connection waits long
for another's request."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from ...protocol.errors import NotEnoughReplicas, NotPrimary, ServiceNotAvailable
from ..store import StoreError

log = logging.getLogger(__name__)


# ---- The base: a thread that sleeps until it is woken, does one piece of work, and can be stopped.
#
# If a service dies, the broker ends: the exception goes to ``on_fatal`` on the event loop, so that the broker never
# runs with a part of it missing.

Post = Callable[..., Any]
"""``loop.call_soon_threadsafe``."""
OnFatal = Callable[[str, BaseException], None]
"""Called on the loop with the service's name and the exception that ended it."""


class Service:
    """A named thread. A subclass does one piece of work in ``do_once``; ``backlog`` says how much is left."""

    name = "service"
    interval_seconds: float | None = None
    """Maximum sleep of the thread; None: until woken."""

    def __init__(self, post: Post, on_fatal: OnFatal) -> None:
        self._post = post
        self._on_fatal = on_fatal
        self._woken = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=f"flintmq-{self.name}", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Wake the thread: there is work. Any thread."""
        self._woken.set()

    @property
    def alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def do_once(self) -> bool:
        """Do a piece of work; return whether there may be more to do now. On the service's thread."""
        raise AssertionError("a subclass must implement do_once")

    def backlog(self) -> int:
        """Return the size of the backlog, in the service's own unit (mostly bytes)."""
        return 0

    def last_work(self) -> None:
        """Do the remaining work of a stopping service. On its thread."""

    def stop(self) -> None:
        """End the thread after its last work, and wait for it. May be called more than once."""
        self._stopping = True
        self._woken.set()
        thread = self._thread
        # A service that is stopped by its own thread cannot wait for itself.
        if thread is not None and thread is not threading.current_thread():
            thread.join()
            self._thread = None

    def _run(self) -> None:
        try:
            while not self._stopping:
                if not self.do_once():
                    self._woken.wait(self.interval_seconds)
                # Before the next piece of work, so that a wake during it is not lost.
                self._woken.clear()
            self.last_work()
        except BaseException as error:
            log.critical("the service %s failed", self.name, exc_info=True)
            self._died(error)

    def _call_on_loop(self, call: Callable[..., object], *arguments: object) -> None:
        """Run ``call`` on the loop. If it raises, the service has failed, as if it had raised on its own thread."""
        self._post(self._guarded, call, arguments)

    def _guarded(self, call: Callable[..., object], arguments: tuple[object, ...]) -> None:
        try:
            call(*arguments)
        except Exception as error:
            log.critical("the service %s failed", self.name, exc_info=True)
            self._on_fatal(self.name, error)

    def _died(self, error: BaseException) -> None:
        try:
            self._post(self._on_fatal, self.name, error)
        except RuntimeError:  # the loop is closed: the process is already ending
            log.critical("the service %s failed while the broker was stopping", self.name)


# ---- Work on the event loop in steps, so that no connection waits long for another, and the type of the
# loop's timers.
#
# In each iteration of the loop all steps together have one time slice. The remaining steps run in the next
# iteration, after the I/O that arrived meanwhile; steps run in FIFO order.

SLICE_S = 0.0005
"""Time slice of the steps in one iteration. Everything else on the loop waits at most this long, plus the rest of the
running step."""


class LoopTimer(Protocol):
    """A call that the loop makes later: an ``asyncio.TimerHandle``, or that of a test's clock."""

    def cancel(self) -> None:
        """Cancel the call."""


CallAt: TypeAlias = Callable[[float, Callable[[], None]], LoopTimer]
"""``loop.call_at`` or ``loop.call_later``: calls a function at a time of the loop's clock, or after some seconds."""


async def called_back(register: Callable[[Callable[..., Any]], object]) -> None:
    """Wait until the callback that ``register`` gets is called; raise the error that it is called with, if any.

    The callback returns False if nobody waits for it any more.
    """
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: Exception | None = None) -> bool:
        if future.done():  # the task that waits was cancelled
            return False
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
        return True

    register(done)
    await future


class StepScheduler:
    """Scheduler of steps. ``clock``: monotonic, in seconds; ``call_soon``: calls a function in the loop's next
    iteration."""

    def __init__(self, clock: Callable[[], float], call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._clock = clock
        self._call_soon = call_soon
        self._steps: deque[Callable[[], None]] = deque()
        self._due = False

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, step: Callable[[], None]) -> None:
        """Schedule ``step`` after those already waiting. It must not raise, and may add its next step."""
        self._steps.append(step)
        if not self._due:
            self._due = True
            self._call_soon(self._run)

    def _run(self) -> None:
        end = self._clock() + SLICE_S
        while self._steps:
            self._steps.popleft()()
            if self._clock() >= end:
                break
        self._due = bool(self._steps)
        if self._due:
            self._call_soon(self._run)


# ---- Background work of the event loop: a task that runs a job in small steps, sleeps until it is due, and
# can be stopped.
#
# If a read or write fails for a while (a full disk, a replica set without enough members), the task pauses
# and tries again. If the job fails in any other way, the broker ends, as it does when a service dies.

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


# ---- Scheduling of reads that may wait for the disk: at most one per reader thread at a time.
#
# Each may return a large response. A read starts only after the loop has taken over and counted the result of
# an earlier one (``requests/request.py``); otherwise the threads would read faster than responses are sent,
# and results would pile up.


class ColdReads:
    """The queue of cold reads. Belongs to the event loop. ``threads``: maximum number of concurrent reads."""

    def __init__(self, threads: int) -> None:
        self._free = threads
        self._waiting: deque[Callable[[], bool]] = deque()

    def __len__(self) -> int:
        """Return the number of waiting reads."""
        return len(self._waiting)

    def when_free(self, start: Callable[[], bool]) -> None:
        """Call ``start`` when a thread is free.

        ``start`` returns whether it uses the thread; if it does, ``release`` must be called afterwards.
        """
        self._waiting.append(start)
        self._start()

    def release(self) -> None:
        """Free the thread of a read that is done and whose response has been counted."""
        self._free += 1
        self._start()

    def _start(self) -> None:
        while self._free and self._waiting:
            start = self._waiting.popleft()
            self._free -= 1  # before the call, because ``start`` may call ``when_free`` again
            if not start():
                self._free += 1
