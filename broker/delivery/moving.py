"""What delay levels and timed messages share: messages that are due are read, written anew, and counted.

A message that cannot be delivered holds up nobody: it is parked, which is delivery to ``PARKED_TOPIC``, and said.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Generic, TypeVar

import numpy as np

from ...protocol.delivery import PARKED_TOPIC, UNREADABLE_TOPICS
from ...protocol.errors import BrokerError
from ...protocol.layout import PRE_BLANK_SIZE, UNIT_BYTES
from ..kernels.gather import C_PHYSICAL_OFFSET, C_QUEUE_OFFSET, C_SIZE, CHOSEN_ROW
from ..latency import Latencies
from ..store import CorruptLog, MessageStore, TopicConfig, WouldBlock
from ..store.consume_queue import ConsumeQueue
from ..store.rewriting import Place, Waiting
from .writer import RecordWriter

log = logging.getLogger(__name__)

T = TypeVar("T")

RECORDS_A_STEP = 1024
BYTES_A_STEP = 512 * 1024
"""A step ends before this, but for one large message: it takes the event loop about a millisecond."""
UNFLUSHED_BYTES_MAX = 8 * 1024 * 1024
"""Nothing is delivered while more of the log waits for the disk: producers' acknowledgements wait behind it."""
SAID_EVERY_S = 60.0
"""What is parked for the same reason is logged at most this often."""
_SAID_MAX = 1_000

UNITS = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
assert UNITS.itemsize == UNIT_BYTES


def choose(units: np.ndarray, first_queue_offset: int) -> tuple[np.ndarray, int]:
    """As many of the units as make a step: (what ``RecordRewriter.read`` takes, units that were looked at)."""
    sizes = units["size"].astype(np.int64)
    sizes[sizes == PRE_BLANK_SIZE] = 0
    totals = np.cumsum(np.maximum(sizes, 0))
    count = min(int(np.searchsorted(totals, BYTES_A_STEP)) + 1, len(units), RECORDS_A_STEP)
    chosen = np.empty((count, CHOSEN_ROW), np.int64)
    chosen[:, C_PHYSICAL_OFFSET] = units["physical_offset"][:count]
    chosen[:, C_SIZE] = sizes[:count]
    chosen[:, C_QUEUE_OFFSET] = np.arange(first_queue_offset, first_queue_offset + count)
    return chosen[chosen[:, C_SIZE] > 0].reshape(-1), count


class Settling(Generic[T]):
    """What happened, in its order, until it is on disk: nothing may be noted as done before."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.waiting: deque[tuple[int, T]] = deque()
        """What happened, and the log's end that must be on disk first."""

    def add(self, end_offset: int, event: T) -> None:
        """It happened; it holds once the log is on disk below ``end_offset``."""
        with self.lock:
            self.waiting.append((end_offset, event))

    def settled(self, flushed_offset: int) -> list[T]:
        """What holds now, and all before it does too; it is not returned again."""
        events = []
        with self.lock:
            while self.waiting and self.waiting[0][0] <= flushed_offset:
                events.append(self.waiting.popleft()[1])
        return events


def topics_of(waiting: Waiting, sign: int, wanted: np.ndarray | None = None) -> Counter[str]:
    """How many messages of what was read are for each topic, times ``sign``; of those that are ``wanted`` alone."""
    counts = waiting.counts if wanted is None else waiting.counts_of(wanted)
    topics: Counter[str] = Counter()
    for target, count in zip(waiting.targets, counts, strict=True):
        if target is not None and count:
            topics[target[0]] += sign * count
    return topics


class Figures:
    """Of one kind of delivery: messages delivered, and how late."""

    def __init__(self) -> None:
        self.delivered = 0
        self.lateness = Latencies()

    def count(self, messages: int, late_ms: int) -> None:
        """So many were delivered, the first of them ``late_ms`` after it was due."""
        self.delivered += messages
        self.lateness.observe(max(late_ms, 0) / 1000, messages)


class Mover:
    """Reads waiting messages and writes them anew. For the event loop; ``read`` leaves it where the disk is slow."""

    def __init__(
        self,
        store: MessageStore,
        writer: RecordWriter,
        loop: asyncio.AbstractEventLoop,
        readers: ThreadPoolExecutor,
        appended: Callable[[], None],
    ) -> None:
        self.store = store
        self.loop = loop
        self.parked = 0
        """Messages that were parked since the start."""
        self.unreadable = 0
        """Messages that waited and are not in the log any more, or damaged."""
        self._writer = writer
        self._readers = readers
        self._appended = appended
        self._said: dict[str, float] = {}

    async def call(self, read: Callable[[bool], T]) -> T:
        """``read(True)``; where that would wait for the disk, ``read(False)`` in a reader thread."""
        try:
            return read(True)
        except WouldBlock:
            return await self.loop.run_in_executor(self._readers, read, False)

    async def aside(self, call: Callable[[], T]) -> T:
        """Call in a reader thread."""
        return await self.loop.run_in_executor(self._readers, call)

    async def first_offset(self, queue: ConsumeQueue) -> int:
        """The first offset of a queue whose message is still in the log."""
        return await self.call(lambda hot: self.store.queue_reads.first_offset(queue, hot=hot))

    async def units(self, queue: ConsumeQueue, first: int, count: int) -> np.ndarray:
        """Units of a queue, at least one."""
        blob = await self.call(lambda hot: queue.read_units(first, count, hot=hot))
        if not blob:
            raise CorruptLog(f"{queue.folder} has no unit {first:,} although it should reach to {queue.max_offset:,}")
        return np.frombuffer(blob, UNITS)

    async def read(self, chosen: np.ndarray) -> Waiting:
        """The records of these units."""
        return await self.call(lambda hot: self.store.rewriter.read(chosen, hot=hot))

    async def deliver(
        self, chosen: np.ndarray, *, timed: bool = False, committed_by: Callable[[], object] | None = None
    ) -> tuple[Waiting, int]:
        """Deliver the messages of these units, or park them: (what they were, the log's end behind them). ``timed``:
        they must have a TIMER_OUT_MS; ``committed_by``: a transaction commits them, and this is called to append a note
        of it right in front of them.

        Raises ``ServiceNotAvailable`` where nothing can be written at the moment; nothing is then.
        """
        waiting = await self.read(chosen)
        return waiting, await self.deliver_read(
            waiting, len(chosen) // CHOSEN_ROW, timed=timed, committed_by=committed_by
        )

    async def deliver_read(
        self,
        waiting: Waiting,
        asked: int,
        *,
        timed: bool = False,
        committed_by: Callable[[], object] | None = None,
    ) -> int:
        """``deliver`` what was read already, of ``asked`` units; the log's end behind it."""
        if timed:
            waiting.lose_targets(waiting.due_ms < 0)
        places = [self._place(target, count) for target, count in zip(waiting.targets, waiting.counts, strict=True)]
        parked = sum(
            count
            for place, count in zip(places, waiting.counts, strict=True)
            if place is not None and place[0] == PARKED_TOPIC
        )
        if parked and self.store.topics.get(PARKED_TOPIC) is None:
            await self._make_topic(TopicConfig(PARKED_TOPIC, read_queues=1, write_queues=1))
        end_offset = await self.write(waiting, places, committed_by)
        self.parked += parked
        self.lost(asked - waiting.count + waiting.unsound)
        return end_offset

    def lost(self, count: int) -> None:
        """So many messages that wait cannot be read."""
        if count:
            self.unreadable += count
            self._say(f"{count} messages that wait cannot be delivered: the log does not hold them whole any more")

    async def write(
        self, waiting: Waiting, places: list[Place | None], committed_by: Callable[[], object] | None = None
    ) -> int:
        """Write what was read, each group to its place, once the disk has kept up; the log's end behind it."""
        store = self.store
        while store.write_offset - store.flushed_offset > UNFLUSHED_BYTES_MAX:
            await self.on_disk(store.write_offset - UNFLUSHED_BYTES_MAX // 2)
        if not any(waiting.counts):
            return store.write_offset
        if committed_by is not None:
            committed_by()
        end_offset = store.deliver(waiting, places, committed=committed_by is not None)
        self._appended()
        return end_offset

    async def on_disk(self, end_offset: int) -> None:
        """Return when the log is on disk below ``end_offset``; raises what kept it from it."""
        flushed: asyncio.Future[None] = self.loop.create_future()
        self._writer.when_on_disk(end_offset, lambda error: _finish(flushed, error))
        await flushed

    async def _make_topic(self, config: TopicConfig) -> None:
        made: asyncio.Future[None] = self.loop.create_future()
        self._writer.with_topics([config], lambda error: _finish(made, error))
        await made

    def _place(self, target: Place | None, count: int) -> Place | None:
        """Where the messages of a group go: None for none of them."""
        if not count:
            return None
        reason = self._obstacle(target)
        if not reason:
            return target
        self._say(
            f"{count} messages that are due are parked in {PARKED_TOPIC}: {reason}. flintmq delay list says how many "
            "there are"
        )
        return PARKED_TOPIC, 0

    def _obstacle(self, target: Place | None) -> str:
        """Why nothing can be delivered there; empty where it can."""
        if target is None:
            return "they do not say which topic and queue they are for, or when they are due"
        topic, queue_id = target
        config = self.store.topics.get(topic)
        if topic in UNREADABLE_TOPICS:
            return f"they are for {topic}, which is the broker's own"
        if config is None:
            return f"they are for topic {topic!r:.200}, which does not exist"
        if queue_id >= config.queues:
            return f"they are for queue {queue_id} of topic {topic}, which has {config.queues}"
        return ""

    def _say(self, what: str) -> None:
        now = self.loop.time()
        reason = what.partition(" ")[2]  # without the number
        if now < self._said.get(reason, now):
            return
        if len(self._said) >= _SAID_MAX:
            self._said.clear()
        self._said[reason] = now + SAID_EVERY_S
        log.warning("%s", what)


def _finish(future: asyncio.Future[None], error: BrokerError | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
