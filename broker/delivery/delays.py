"""Delayed delivery as a whole: what runs it, what is asked of it, and when its progress goes on disk."""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from ...protocol.delivery import SCHEDULE_TOPIC, TIMER_TOPIC
from ...protocol.errors import ServiceNotAvailable
from ..store import MessageStore, StoreError
from ..store.timer_files import TimerFiles
from .moving import Mover
from .schedule import DelayLevels
from .timers import Timers
from .writer import RecordWriter

log = logging.getLogger(__name__)

SLEEP_S_MAX = 1.0
"""While something waits, the clock is looked at this often: it may be set."""
SLEEP_S_MIN = 0.001
TROUBLE_PAUSE_S = 1.0
"""How long delivery waits after it could not write or read."""


def wall_ms() -> int:
    """The time, ms since 1970 UTC."""
    return time.time_ns() // 1_000_000


class Work(Protocol):
    """Something that is done in steps of about a millisecond."""

    async def step(self, now_ms: int) -> bool:
        """One step; whether there may be more to do at once."""

    def next_due_ms(self) -> int | None:
        """When there will be something to do, as far as is known."""


class Pump:
    """Calls ``step`` whenever there is something to do. What it cannot live through goes to ``fatal``."""

    def __init__(
        self,
        name: str,
        work: Work,
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
        """There is something to do."""
        self._woken.set()

    async def stop(self) -> None:
        """Return when the step that runs is done; none follows."""
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
                        log.error("%s waits, and goes on when it can: %s", self._name, error)
                    await self._sleep(TROUBLE_PAUSE_S)
                    continue
                due_ms = self._work.next_due_ms()
                await self._sleep(None if due_ms is None else min((due_ms - self._now_ms()) / 1000, SLEEP_S_MAX))
        except Exception as error:  # noqa: BLE001 - whatever it is: messages would wait for ever
            self._fatal(self._name, error)

    async def _sleep(self, seconds: float | None) -> None:
        timer = None if seconds is None else self._loop.call_later(max(seconds, SLEEP_S_MIN), self._woken.set)
        await self._woken.wait()
        if timer is not None:
            timer.cancel()


class Delays:
    """Delayed messages of a broker. Belongs to the event loop but for ``persist``.

    ``appended``: called after each append; ``now_ms``: the wall clock; ``fatal``: as of the broker.
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
        self.mover = Mover(store, writer, loop, readers, appended)
        self.levels = DelayLevels(self.mover)
        self.timers = Timers(self.mover, TimerFiles(store.files, store.own_folder / "timers", store.path))
        self._store = store
        self._loop = loop
        self._fatal = fatal
        self._pumps: dict[str, Pump] = {}

    def start(self) -> None:
        """Deliver from now on."""
        self._pumps[SCHEDULE_TOPIC] = Pump("delivery by level", self.levels, self._loop, self.now_ms, self._fatal)
        self._pumps[TIMER_TOPIC] = Pump("delivery by time", self.timers, self._loop, self.now_ms, self._fatal)

    def dispatched(self, topic: str) -> None:
        """A queue of this topic got messages."""
        pump = self._pumps.get(topic)
        if pump is not None:
            pump.wake()

    async def stop(self) -> None:
        """Deliver nothing more."""
        await asyncio.gather(*[pump.stop() for pump in self._pumps.values()])

    def pending_of(self, topic: str) -> int:
        """How many messages wait to be delivered to this topic."""
        return self.levels.topics.get(topic, 0) + self.timers.state.topics.get(topic, 0)

    def oldest_timed(self) -> int | None:
        """Where the oldest timed message lies that waits, as far as its delivery or its rolling is on disk; None where
        none waits. Any thread; reads from disk."""
        queue = self._store.queues.get(TIMER_TOPIC, 0)
        if queue is None:
            return None
        if self.timers.files.state is None:
            return self._store.min_physical_offset  # nothing is known yet
        return self.timers.files.oldest_offset(queue)

    def roll_below(self, physical_offset: int) -> None:
        """Append again the timed messages that wait and lie before: retention is to take the file."""
        self.timers.roll_below(physical_offset)
        self.dispatched(TIMER_TOPIC)

    def persist(self, *, last: bool = False) -> None:
        """Put on disk how far delivery is, by copies that are there. For one thread at a time; blocks. ``last``: of a
        broker that stops, when all of the log is on disk."""
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
            log.error("no room for how far delayed messages of %s are delivered: %s; trying again", store.path, error)
