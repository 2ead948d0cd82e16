"""The 18 delay levels: RocketMQ's ScheduleMessageService.

Messages of level n wait in queue n - 1 of SCHEDULE_TOPIC_XXXX, whose units store when each is due. All messages of a
queue wait equally long, so the first waiting one is always the next; ``config/delayOffset.json`` stores its offset.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ....protocol.errors import TopicNotExist
from ....protocol.storage.delivery import (
    DELAY_LEVEL_MAX,
    PARKED_TOPIC,
    PROPERTY_REAL_QUEUE,
    PROPERTY_REAL_TOPIC,
    SCHEDULE_TOPIC,
)
from ....protocol.storage.record import PROPERTY_UNIQ_KEY, decode_record
from ...kernels.dispatch import DELAY_LEVELS_MS
from ...kernels.gather import C_QUEUE_OFFSET, CHOSEN_ROW
from ...store import KeySearch
from ...store.timers import add_counts
from .delivery import RECORDS_A_STEP, DeliveryFigures, UnflushedEvents, choose, topics_of

if TYPE_CHECKING:
    from ....protocol.storage.record import Record
    from ...store import MessageStore
    from ...store.queues import ConsumeQueue
    from .delivery import Deliverer


# ---- Search after a crash, or after a change of the primary, for waiting messages that were already
# delivered: only their copies in the log tell.


class CopyFinder:
    """A finder of delivered copies, by the index. Each copy counts for one message only. For one thread at a time."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._taken: set[int] = set()

    def delivered(self, places: Iterable[tuple[int, int]]) -> list[bool]:
        """Return for each message, given by physical offset and size, whether it was delivered. Reads from disk."""
        return [self._is_delivered(place) for place in places]

    def _is_delivered(self, place: tuple[int, int]) -> bool:
        physical_offset, size = place
        waiting = self._store.log_reads.record_at(physical_offset, size) if size > 0 else None
        if waiting is None:
            return False
        for copy in self._candidates(waiting):
            if copy.physical_offset not in self._taken and _is_copy(copy, waiting):
                self._taken.add(copy.physical_offset)
                return True
        return False

    def _candidates(self, waiting: Record) -> Iterator[Record]:
        """Yield the messages with the same unique key, in this one's target topic or parked, the oldest of each
        first."""
        properties = waiting.property_map()
        topic, key = properties.get(PROPERTY_REAL_TOPIC, ""), properties.get(PROPERTY_UNIQ_KEY, "")
        if key:
            yield from self._with_key(topic, key)
            yield from self._with_key(PARKED_TOPIC, key)

    def _with_key(self, topic: str, key: str) -> Iterator[Record]:
        try:
            found = self._store.queries.local_page(KeySearch(topic, key, unique=True), hot=False)
        except TopicNotExist:
            return
        view = memoryview(found.body)
        # The result begins with the sizes of the records. They are the newest first.
        ends = np.cumsum(np.frombuffer(view[: 4 * found.count], ">u4").astype(np.int64)) + 4 * found.count
        begins = [4 * found.count, *ends.tolist()][: found.count]
        for begin, end in reversed(list(zip(begins, ends.tolist(), strict=True))):
            yield decode_record(bytes(view[begin:end]), check_crc=False)


def _is_copy(copy: Record, waiting: Record) -> bool:
    """Return whether ``copy`` is what delivery makes of ``waiting``.

    A producer that sends the same message twice is told apart unless all of these fields agree.
    """
    properties, wanted = copy.property_map(), waiting.property_map()
    return (
        copy.physical_offset > waiting.physical_offset
        and properties.get(PROPERTY_REAL_TOPIC) == wanted.get(PROPERTY_REAL_TOPIC)
        and (copy.topic == PARKED_TOPIC.encode() or str(copy.queue_id) == wanted.get(PROPERTY_REAL_QUEUE))
        and (copy.reconsume_times, copy.born_timestamp, copy.born_host, copy.flag, copy.body)
        == (waiting.reconsume_times, waiting.born_timestamp, waiting.born_host, waiting.flag, waiting.body)
    )


COPIES_A_STEP = 64
"""Number of messages whose copies one step looks for in the log after a crash. After so many without a copy the search
ends: a level delivers in order, so those after them were not delivered either."""


@dataclass(slots=True)
class Level:
    """One level. Messages below ``next_offset`` are delivered; those below ``counted`` are in the counts by topic."""

    number: int
    delay_ms: int
    queue: ConsumeQueue
    next_offset: int
    counted: int
    due_ms: int = 0
    """Lower bound of the next message's due time."""
    found: tuple[int, int] = (0, 0)
    """(queue offset, ms): messages below this offset were already in the queue at this time. The time excludes what the
    clock had been moved by."""
    crashed: bool = False
    """True if some of those may have been delivered although ``next_offset`` does not say so."""
    searched: int = 0
    """Queue offset below which their copies were looked for."""
    copied: set[int] = field(default_factory=set)
    """Queue offsets from ``next_offset`` on whose messages have a copy, although an earlier one has none that can be
    found: its topic was deleted, or it has no unique key."""

    @property
    def pending(self) -> int:
        return max(self.queue.max_offset - self.next_offset, 0)


class DelayLevels:
    """Delivery of the messages that wait in the levels.

    A copy is on disk before ``config/delayOffset.json`` counts its message as delivered. That file may therefore be
    behind after a crash of this broker, or of a RocketMQ, which writes it every 10 s. So delivery first looks for
    copies in the log: a message that has one is not delivered again. A message without a unique key may be.
    """

    def __init__(self, deliverer: Deliverer) -> None:
        self.figures = DeliveryFigures()
        self.topics: Counter[str] = Counter()
        """Number of messages that wait for each topic."""
        self.levels: dict[int, Level] = {}
        self._deliverer = deliverer
        self._store = deliverer.store
        self._progress: UnflushedEvents[tuple[int, int]] = UnflushedEvents()
        self._turn = 0
        self._copies = CopyFinder(deliverer.store)
        self._started = False
        self._moved_ms = self._store.clock.moved_ms

    async def step(self, now_ms: int) -> bool:
        """Do about a millisecond of work: deliver due messages, or count new ones. Return whether there was any."""
        if self._moved_ms != self._store.clock.moved_ms:
            # The clock was set: the known due times are wrong, so compute them again.
            self._moved_ms = self._store.clock.moved_ms
            for level in self.levels.values():
                level.due_ms = 0
        await self._find_levels(now_ms)
        levels = list(self.levels.values())
        for turn in range(len(levels)):
            level = levels[(self._turn + turn) % len(levels)]
            if level.crashed:
                await self._pass_over(level)
                return True
            # Only counted messages are delivered, because a delivery lowers the counts by topic.
            if level.next_offset < level.counted and level.due_ms <= now_ms:
                worked = await self._deliver(level, now_ms)
            else:
                worked = False
            if worked or await self._count(level):
                self._turn += turn + 1  # the next step begins with another level: a busy one must not delay the rest
                return True
        return False

    def next_due_ms(self) -> int | None:
        """Return when the next message is due; None if none waits."""
        return min((level.due_ms for level in self.levels.values() if level.pending), default=None)

    def backlog(self) -> int:
        return sum(level.pending for level in self.levels.values())

    async def _find_levels(self, now_ms: int) -> None:
        for queue_id, queue in list(self._store.queues.by_topic.get(SCHEDULE_TOPIC, {}).items()):
            number = queue_id + 1
            if number in self.levels or number > DELAY_LEVEL_MAX or queue.max_offset == queue.start_offset:
                continue
            first = await self._deliverer.first_offset(queue)
            # If the log lost its end, the file says more than the queue has, and new messages get those offsets.
            delivered = min(self._store.delay_offsets.delivered(number), queue.max_offset)
            at = max(first, delivered)  # retention may have deleted messages that were still waiting
            found = queue.max_offset, now_ms - self._moved_ms
            # A level that appears later has messages of this run only.
            crashed = not self._store.ended_clean and not self._started
            self.levels[number] = Level(
                number, int(DELAY_LEVELS_MS[number]), queue, at, at, found=found, crashed=crashed, searched=at
            )
        self._started = True

    async def _pass_over(self, level: Level) -> None:
        """Look for the copies of messages that may have been delivered before the crash. The counts by topic do not
        include them yet."""
        count = min(COPIES_A_STEP, level.found[0] - level.searched)
        delivered: list[bool] = []
        if count > 0:
            units = await self._deliverer.read_units(level.queue, level.searched, count)
            places = [(physical_offset, size) for physical_offset, size, _ in units.tolist()]
            delivered = await self._deliverer.in_reader(lambda: self._copies.delivered(places))
        level.copied.update(at for at, is_copied in enumerate(delivered, level.searched) if is_copied)
        level.searched += len(delivered)
        level.crashed = any(delivered)
        first = level.next_offset
        while level.next_offset in level.copied:
            level.copied.remove(level.next_offset)
            level.next_offset += 1
        if level.next_offset > first:
            level.counted = level.next_offset
            # Its copies are somewhere below the present end of the log.
            self._progress.add(self._store.write_offset, (level.number, level.next_offset))

    async def _deliver(self, level: Level, now_ms: int) -> bool:
        first = level.next_offset
        units = await self._deliverer.read_units(level.queue, first, min(RECORDS_A_STEP, level.counted - first))
        due_ms = self.due_ms(level, units, first)
        later = due_ms > now_ms
        # Up to the first that is not due, even if later ones are: a level keeps its order.
        count = int(later.argmax()) if later.any() else len(units)
        if not count:
            level.due_ms = int(due_ms[0])
            return False
        chosen, count = choose(units[:count], first)
        chosen = _without(chosen, level.copied)
        waiting, end_offset = await self._deliverer.deliver(chosen)
        level.next_offset += count
        level.copied.difference_update(range(first, level.next_offset))
        # Unknown: the next step reads the unit of the next message.
        level.due_ms = 0
        self._progress.add(end_offset, (level.number, level.next_offset))
        add_counts(self.topics, topics_of(waiting, -1))
        self.figures.count(waiting.count, now_ms - int(due_ms[0]))
        return True

    def due_ms(self, level: Level, units: np.ndarray, first: int) -> np.ndarray:
        """Return when the messages of these units, which begin at queue offset ``first``, are due by today's clock.

        Each message waits for its level's delay even if the clock was set meanwhile. A unit stores the due time by the
        clock at the time of the append. How another broker's clock was moved is unknown, so a message that this broker
        found in the queue waits at most its delay from then on.
        """
        offsets, stored = units["physical_offset"].astype(np.int64), units["tags_code"].astype(np.int64)
        # The clock's history is about times of appends, which are one delay before the stored times.
        due_ms = self._store.clock.stored_ms(offsets, stored - level.delay_ms) + level.delay_ms
        until, found_ms = level.found
        if first < until:
            latest = found_ms + self._store.clock.moved_ms + level.delay_ms
            before = np.arange(first, first + len(units)) < until
            due_ms = np.where(before, np.minimum(due_ms, latest), due_ms)
        return due_ms

    async def _count(self, level: Level) -> bool:
        first = level.counted
        if first >= level.queue.max_offset:
            return False
        units = await self._deliverer.read_units(
            level.queue, first, min(RECORDS_A_STEP, level.queue.max_offset - first)
        )
        chosen, count = choose(units, first)
        chosen = _without(chosen, level.copied)
        add_counts(self.topics, topics_of(await self._deliverer.read_records(chosen), 1))
        level.counted += count
        return True

    def record_flushed(self, flushed_offset: int) -> None:
        """Record in ``delay_offsets`` the deliveries whose copies are on disk. For one thread at a time."""
        for number, next_offset in self._progress.take_flushed(flushed_offset):
            self._store.delay_offsets.deliver(number, next_offset)


def _without(chosen: np.ndarray, queue_offsets: set[int]) -> np.ndarray:
    """Return rows for ``RecordCopier.read`` without those of some queue offsets."""
    if not queue_offsets:
        return chosen
    rows = chosen.reshape(-1, CHOSEN_ROW)
    return rows[[row not in queue_offsets for row in rows[:, C_QUEUE_OFFSET].tolist()]].reshape(-1)
