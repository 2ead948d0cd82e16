"""Delayed delivery: the tasks that run it, its queries, and the persistence of its progress."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from ....protocol.storage.delivery import SCHEDULE_TOPIC, TIMER_TOPIC
from ...background.loop_worker import LoopWorker, wall_ms
from ...store.timers.timer_files import TimerFiles
from .delay_levels import DelayLevels
from .redelivery import Redeliverer
from .timers import Timers

if TYPE_CHECKING:
    from ...store import MessageStore
    from ..writer import RecordWriter

log = logging.getLogger(__name__)


class Delays:
    """Delayed messages of a broker. Runs on the event loop, except ``persist``.

    ``appended``: called after each append; ``now_ms``: the wall clock; ``fatal``: the broker's handler of fatal errors.
    """

    def __init__(
        self,
        store: MessageStore,
        writer: RecordWriter,
        loop: asyncio.AbstractEventLoop,
        readers: Executor,
        appended: Callable[[], None],
        fatal: Callable[[str, BaseException], None],
        *,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self.now_ms = now_ms
        self.redeliverer = Redeliverer(store, writer, loop, readers, appended)
        self.levels = DelayLevels(self.redeliverer)
        self.timers = Timers(self.redeliverer, TimerFiles(store.files, store.own_folder / "timers", store.path))
        self._store = store
        self._workers = {
            SCHEDULE_TOPIC: LoopWorker("delivery by level", self.levels, loop, now_ms, fatal),
            TIMER_TOPIC: LoopWorker("delivery by time", self.timers, loop, now_ms, fatal),
        }

    def start(self) -> None:
        """Start delivering."""
        for worker in self._workers.values():
            worker.start()

    def dispatched(self, topic: str) -> None:
        """Wake the delivery that reads this topic, if one does: a queue of it got messages."""
        worker = self._workers.get(topic)
        if worker is not None:
            worker.wake()

    async def stop(self) -> None:
        """Stop delivering; wait for the running steps."""
        await asyncio.gather(*[worker.stop() for worker in self._workers.values()])

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
        if self.timers.timer_files.state is None:
            return self._store.min_physical_offset  # the timer files are not open yet: assume the whole log
        return self.timers.timer_files.oldest_offset(queue)

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
        self.levels.record_flushed(store.acknowledged_offset)
        try:
            if store.delay_offsets.dirty:
                store.delay_offsets.persist()
            self.timers.timer_files.sync(store.acknowledged_offset, last=last)
            if last:
                self.timers.timer_files.tell_rocketmq(store.queues.get(TIMER_TOPIC, 0))
        except OSError as error:
            # A full disk stops no delivery: what is delivered until there is room may come again after a crash.
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            log.error(
                "cannot save the delivery progress of delayed messages of %s, the disk is full: %s; retrying",
                store.path,
                error,
            )
