"""Delayed delivery: the tasks that run it, its queries, and the persistence of its progress."""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from ....protocol.errors import ServiceNotAvailable
from ....protocol.storage.delivery import SCHEDULE_TOPIC, TIMER_TOPIC
from ...store import MessageStore, StoreError
from ...store.timers.timer_files import TimerFiles
from ..writer import RecordWriter
from .delay_levels import DelayLevels
from .redelivery import Redeliverer
from .timers import Timers

log = logging.getLogger(__name__)

SLEEP_S_MAX = 1.0
"""Interval of clock checks while messages wait: someone may set the clock."""
SLEEP_S_MIN = 0.001
TROUBLE_PAUSE_S = 1.0
"""Pause of a delivery task after a failed read or write."""


def wall_ms() -> int:
    """Return the current time, ms since 1970 UTC."""
    return time.time_ns() // 1_000_000


class Job(Protocol):
    """A job that a ``LoopWorker`` runs in steps of about a millisecond."""

    async def step(self, now_ms: int) -> bool:
        """Do one step; return whether there may be more to do now."""

    def next_due_ms(self) -> int | None:
        """Return the time of the next known work; None if none is known."""


class LoopWorker:
    """A task that calls ``step`` whenever there is work. It passes unexpected exceptions to ``fatal``."""

    def __init__(
        self,
        name: str,
        work: Job,
        loop: asyncio.AbstractEventLoop,
        now_ms: Callable[[], int],
        fatal: Callable[[str, BaseException], None],
    ) -> None:
        self._name = name
        self._work = work
        self._loop = loop
        self._now_ms = now_ms
        self._fatal = fatal
        self._woken = asyncio.Event()
        self._stopping = False
        self._task = loop.create_task(self._run())

    def wake(self) -> None:
        """Announce new work."""
        self._woken.set()

    async def stop(self) -> None:
        """Wait for the running step; no further step begins."""
        self._stopping = True
        self._woken.set()
        await self._task

    async def _run(self) -> None:
        trouble = ""
        try:
            while not self._stopping:
                self._woken.clear()
                try:
                    if await self._work.step(self._now_ms()):
                        await asyncio.sleep(0)
                        continue
                    trouble = ""
                except (ServiceNotAvailable, StoreError) as error:
                    if str(error) != trouble:
                        trouble = str(error)
                        log.error("%s is paused and will be retried: %s", self._name, error)
                    await self._sleep(TROUBLE_PAUSE_S)
                    continue
                due_ms = self._work.next_due_ms()
                await self._sleep(None if due_ms is None else min((due_ms - self._now_ms()) / 1000, SLEEP_S_MAX))
        except Exception as error:  # noqa: BLE001 - without this task, messages would wait forever
            self._fatal(self._name, error)

    async def _sleep(self, seconds: float | None) -> None:
        timer = None if seconds is None else self._loop.call_later(max(seconds, SLEEP_S_MIN), self._woken.set)
        await self._woken.wait()
        if timer is not None:
            timer.cancel()


class Delays:
    """Delayed messages of a broker. Runs on the event loop, except ``persist``.

    ``appended``: called after each append; ``now_ms``: the wall clock; ``fatal``: the broker's handler of fatal errors.
    """

    def __init__(
        self,
        store: MessageStore,
        writer: RecordWriter,
        loop: asyncio.AbstractEventLoop,
        readers: ThreadPoolExecutor,
        appended: Callable[[], None],
        fatal: Callable[[str, BaseException], None],
        *,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self.now_ms = now_ms
        self.mover = Redeliverer(store, writer, loop, readers, appended)
        self.levels = DelayLevels(self.mover)
        self.timers = Timers(self.mover, TimerFiles(store.files, store.own_folder / "timers", store.path))
        self._store = store
        self._loop = loop
        self._fatal = fatal
        self._pumps: dict[str, LoopWorker] = {}

    def start(self) -> None:
        """Start delivering."""
        self._pumps[SCHEDULE_TOPIC] = LoopWorker("delivery by level", self.levels, self._loop, self.now_ms, self._fatal)
        self._pumps[TIMER_TOPIC] = LoopWorker("delivery by time", self.timers, self._loop, self.now_ms, self._fatal)

    def dispatched(self, topic: str) -> None:
        """Wake the delivery that reads this topic, if one does: a queue of it got messages."""
        pump = self._pumps.get(topic)
        if pump is not None:
            pump.wake()

    async def stop(self) -> None:
        """Stop delivering; wait for the running steps."""
        await asyncio.gather(*[pump.stop() for pump in self._pumps.values()])

    def pending_of(self, topic: str) -> int:
        """Return the number of messages that wait for delivery to this topic."""
        return self.levels.topics.get(topic, 0) + self.timers.state.topics.get(topic, 0)

    def oldest_timed(self) -> int | None:
        """Return the physical offset of the oldest waiting timed message; None if none waits.

        A message counts as waiting until its delivery or rolling is on disk. Any thread; reads from disk.
        """
        queue = self._store.queues.get(TIMER_TOPIC, 0)
        if queue is None:
            return None
        if self.timers.files.state is None:
            return self._store.min_physical_offset  # the timer files are not open yet: assume the whole log
        return self.timers.files.oldest_offset(queue)

    def roll_below(self, physical_offset: int) -> None:
        """Append again the timed messages that wait below this offset: retention is about to delete their log file."""
        self.timers.roll_below(physical_offset)
        self.dispatched(TIMER_TOPIC)

    def persist(self, *, last: bool = False) -> None:
        """Persist the progress of delivery, up to the last delivered copy that is on disk.

        For one thread at a time; blocks. ``last``: the broker is stopping and all of the log is on disk.
        """
        store = self._store
        if store.failed is not None:
            return
        self.levels.settle(store.flushed_offset)
        try:
            if store.delay_offsets.dirty:
                store.delay_offsets.persist()
            self.timers.files.sync(store.flushed_offset, last=last)
            if last:
                self.timers.files.tell_rocketmq(store.queues.get(TIMER_TOPIC, 0))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            log.error(
                "cannot save the delivery progress of delayed messages of %s, the disk is full: %s; retrying",
                store.path,
                error,
            )
