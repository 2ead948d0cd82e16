"""The 18 delay levels: RocketMQ's ScheduleMessageService.

Messages of level n wait in queue n - 1 of SCHEDULE_TOPIC_XXXX, whose units say when each is due. All of a queue wait
equally long, so the first of it is always the next; ``config/delayOffset.json`` says which that is.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from ...protocol.delivery import DELAY_LEVEL_MAX, SCHEDULE_TOPIC
from ..kernels.dispatch import DELAY_LEVELS_MS
from ..store.consume_queue import ConsumeQueue
from ..store.timer_state import add_counts
from .moving import RECORDS_A_STEP, Figures, Mover, Settling, choose, topics_of


@dataclass(slots=True)
class Level:
    """One level. Messages below ``next_offset`` are delivered, those below ``counted`` are in the counts by topic."""

    number: int
    delay_ms: int
    queue: ConsumeQueue
    next_offset: int
    counted: int
    due_ms: int = 0
    """The next one is not due before."""

    @property
    def pending(self) -> int:
        """How many messages wait."""
        return max(self.queue.max_offset - self.next_offset, 0)


class DelayLevels:
    """Delivers what waits in the levels.

    A copy is on disk before ``config/delayOffset.json`` says that its message is delivered, so after a crash some may
    be delivered again and none is left out.
    """

    def __init__(self, mover: Mover) -> None:
        self.figures = Figures()
        self.topics: Counter[str] = Counter()
        """How many messages wait for each topic."""
        self.levels: dict[int, Level] = {}
        self._mover = mover
        self._store = mover.store
        self._progress: Settling[tuple[int, int]] = Settling()
        self._turn = 0

    async def step(self, now_ms: int) -> bool:
        """Do a millisecond's work: deliver what is due, or count what came; whether there was any."""
        await self._find_levels()
        levels = list(self.levels.values())
        for turn in range(len(levels)):
            level = levels[(self._turn + turn) % len(levels)]
            # After a clock was set back, a message waits no longer than its level's delay.
            if level.next_offset < level.counted and min(level.due_ms, now_ms + level.delay_ms) <= now_ms:
                worked = await self._deliver(level, now_ms)
            else:
                worked = False
            if worked or await self._count(level):
                self._turn += turn + 1
                return True
        return False

    def next_due_ms(self) -> int | None:
        """When the next message is due; None while none waits."""
        return min((level.due_ms for level in self.levels.values() if level.pending), default=None)

    async def _find_levels(self) -> None:
        for queue_id, queue in list(self._store.queues.by_topic.get(SCHEDULE_TOPIC, {}).items()):
            number = queue_id + 1
            if number in self.levels or number > DELAY_LEVEL_MAX or queue.max_offset == queue.start_offset:
                continue
            first = await self._mover.first_offset(queue)
            delivered = min(self._store.delay_offsets.delivered(number), queue.max_offset)
            at = max(first, delivered)
            self.levels[number] = Level(number, int(DELAY_LEVELS_MS[number]), queue, at, at)

    async def _deliver(self, level: Level, now_ms: int) -> bool:
        first = level.next_offset
        units = await self._mover.units(level.queue, first, min(RECORDS_A_STEP, level.counted - first))
        due_ms = np.minimum(units["tags_code"].astype(np.int64), now_ms + level.delay_ms)
        later = due_ms > now_ms
        count = int(later.argmax()) if later.any() else len(units)
        if not count:
            level.due_ms = int(due_ms[0])
            return False
        chosen, count = choose(units[:count], first)
        waiting, end_offset = await self._mover.deliver(chosen)
        level.next_offset += count
        level.due_ms = 0
        self._progress.add(end_offset, (level.number, level.next_offset))
        add_counts(self.topics, topics_of(waiting, -1))
        self.figures.count(waiting.count, now_ms - int(due_ms[0]))
        return True

    async def _count(self, level: Level) -> bool:
        first = level.counted
        if first >= level.queue.max_offset:
            return False
        units = await self._mover.units(level.queue, first, min(RECORDS_A_STEP, level.queue.max_offset - first))
        chosen, count = choose(units, first)
        add_counts(self.topics, topics_of(await self._mover.read(chosen), 1))
        level.counted += count
        return True

    def settle(self, flushed_offset: int) -> None:
        """Note what is delivered by copies that are on disk. For one thread at a time; ``delay_offsets`` is dirty
        then."""
        for number, next_offset in self._progress.settled(flushed_offset):
            self._store.delay_offsets.deliver(number, next_offset)
