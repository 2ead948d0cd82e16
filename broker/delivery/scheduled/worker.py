"""Delayed delivery: the tasks that run it, its queries, and the persistence of its progress."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ....protocol.storage.delivery import DELAY_LEVEL_MAX, PARKED_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from ...background.loop_work import LoopWorker, wall_ms
from ...store.queues import UNIT_DTYPE
from ...store.timers import HOUR_SECONDS, TimerFiles
from ..routing import SECOND_MS
from .delay_levels import DelayLevels
from .delivery import Deliverer
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
        self.deliverer = Deliverer(store, writer, loop, readers, appended)
        self.levels = DelayLevels(self.deliverer)
        self.timers = Timers(self.deliverer, TimerFiles(store.files, store.own_folder / "timers", store.path))
        self._store = store
        self._workers = {
            SCHEDULE_TOPIC: LoopWorker("delivery by level", self.levels, loop, now_ms, fatal),
            TIMER_TOPIC: LoopWorker("delivery by time", self.timers, loop, now_ms, fatal),
        }

    def start(self) -> None:
        for worker in self._workers.values():
            worker.start()

    def dispatched(self, topic: str) -> None:
        """Wake the delivery that reads this topic, if one does: a queue of it got messages."""
        worker = self._workers.get(topic)
        if worker is not None:
            worker.wake()

    async def stop(self) -> None:
        await asyncio.gather(*[worker.stop() for worker in self._workers.values()])

    def pending_of(self, topic: str) -> int:
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


# ---- Statistics of delayed messages, for the commands and metrics that show them.

Row = tuple[int, int, int]
"""A level or the beginning of an hour (ms), the number of waiting messages, and when the next is due (ms; 0: none)."""


@dataclass(frozen=True, slots=True)
class DelayedCounts:
    """Delayed messages at one moment.

    ``levels``: a row for each level that has ever had a message; ``by_hour``: a row for each hour in which timed
    messages are due; ``timed``: their number; ``unindexed``: number of timed messages that are not indexed yet;
    ``parked``: number of messages in the parked topic.
    """

    levels: list[Row]
    by_hour: list[Row]
    timed: int
    unindexed: int
    parked: int

    def hours(self, max_rows: int) -> list[Row]:
        """Return ``by_hour`` in at most ``max_rows`` rows; the last one may cover several hours."""
        if len(self.by_hour) <= max_rows:
            return self.by_hour
        rest = self.by_hour[max_rows - 1 :]
        return [*self.by_hour[: max_rows - 1], (rest[0][0], sum(row[1] for row in rest), rest[0][2])]


def delayed_counts(delays: Delays, *, hot: bool) -> DelayedCounts:
    """Return the statistics. Any thread; with ``hot`` raises ``WouldBlock`` if it would have to read from disk."""
    store, timers = delays.deliverer.store, delays.timers
    ahead_ms = timers.state.shift * SECOND_MS
    by_hour = [
        # A copy, because the loop may change the dict while another thread is here.
        (number * HOUR_SECONDS * SECOND_MS - ahead_ms, hour.messages, hour.first_due_second * SECOND_MS - ahead_ms)
        for number, hour in sorted(timers.state.hours.copy().items())
        if hour.messages > 0
    ]
    # The hour in delivery: its first message may be delivered already, so the next one is looked up.
    if by_hour and by_hour[0][0] == timers.state.hour * HOUR_SECONDS * SECOND_MS - ahead_ms:
        due_ms = timers.first_due_ms()
        by_hour[0] = (by_hour[0][0], by_hour[0][1], due_ms if due_ms is not None else by_hour[0][2])
    timed = sum(row[1] for row in by_hour)
    levels = _levels(delays, store, hot=hot)
    return DelayedCounts(levels, by_hour, timed, timers.backlog(), _parked(store, hot=hot))


def _levels(delays: Delays, store: MessageStore, *, hot: bool) -> list[Row]:
    rows = []
    for number in range(1, DELAY_LEVEL_MAX + 1):
        queue = store.queues.get(SCHEDULE_TOPIC, number - 1)
        if queue is None or queue.max_offset == queue.start_offset:
            continue
        level = delays.levels.levels.get(number)
        next_offset = level.next_offset if level is not None else store.delay_offsets.delivered(number)
        messages = max(queue.max_offset - next_offset, 0)
        unit = queue.unit(next_offset, hot=hot) if messages else (0, 0, 0)
        due_ms = unit[2]
        if messages and level is not None:
            due_ms = int(delays.levels.due_ms(level, np.array([unit], UNIT_DTYPE), next_offset)[0])
        rows.append((number, messages, due_ms))
    return rows


def _parked(store: MessageStore, *, hot: bool) -> int:
    queue = store.queues.get(PARKED_TOPIC, 0)
    if queue is None:
        return 0
    return max(queue.max_offset - store.queue_reads.first_offset(queue, hot=hot), 0)
