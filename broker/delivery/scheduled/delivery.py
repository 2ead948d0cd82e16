"""Delivery of waiting messages to their topics, for delay levels, timed messages and committed transactions: read,
append, count.

A message that cannot be delivered must not delay the others: it is parked, that is, delivered to ``PARKED_TOPIC``, and
the log says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from threading import Lock
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from ....protocol.storage.delivery import PARKED_TOPIC, UNREADABLE_TOPICS
from ....protocol.storage.layout import PRE_BLANK_SIZE
from ...kernels.gather import C_PHYSICAL_OFFSET, C_QUEUE_OFFSET, C_SIZE, CHOSEN_ROW
from ...latency import Latencies
from ...store import CorruptLog, TopicConfig, WouldBlock
from ...store.queues import UNIT_DTYPE

if TYPE_CHECKING:
    from ...store import MessageStore
    from ...store.queues import ConsumeQueue
    from ...store.read.record_copies import Place, WaitingRecords
    from ..writer import RecordWriter

log = logging.getLogger(__name__)

T = TypeVar("T")

RECORDS_A_STEP = 1024
"""Maximum number of messages of a step."""
BYTES_A_STEP = 512 * 1024
"""Maximum size of a step, except for a single larger message: about a millisecond of the event loop."""
UNFLUSHED_BYTES_MAX = 8 * 1024 * 1024
"""Maximum size of the unflushed log while delivering: producers' acknowledgements wait for the same flush."""
SAID_EVERY_S = 60.0
"""Minimum interval of log lines about messages parked for the same reason."""
_SAID_MAX = 1_000
"""Maximum number of reasons whose last log line is remembered."""


def choose(units: np.ndarray, first_queue_offset: int) -> tuple[np.ndarray, int]:
    """Return the longest prefix of ``units`` that fits a step: (rows for ``RecordCopier.read``, number of units)."""
    sizes = units["size"].astype(np.int64)
    # This is the size in filler units, which have no record: they precede a queue's first message.
    sizes[sizes == PRE_BLANK_SIZE] = 0
    totals = np.cumsum(np.maximum(sizes, 0))
    # With the message that crosses the bound: otherwise one that is larger than a step would never be delivered.
    count = min(int(np.searchsorted(totals, BYTES_A_STEP)) + 1, len(units), RECORDS_A_STEP)
    chosen = np.empty((count, CHOSEN_ROW), np.int64)
    chosen[:, C_PHYSICAL_OFFSET] = units["physical_offset"][:count]
    chosen[:, C_SIZE] = sizes[:count]
    chosen[:, C_QUEUE_OFFSET] = np.arange(first_queue_offset, first_queue_offset + count)
    return chosen[chosen[:, C_SIZE] > 0].reshape(-1), count


PLACES = np.dtype([("physical_offset", "i8"), ("size", "i4")])
"""Type of the places of waiting records; the size of a recall of a timed message is negative."""


def chosen_places(places: np.ndarray) -> np.ndarray:
    """Return ``PLACES`` as rows for ``RecordCopier.read``."""
    chosen = np.zeros((len(places), CHOSEN_ROW), np.int64)
    chosen[:, C_PHYSICAL_OFFSET] = places["physical_offset"]
    chosen[:, C_SIZE] = np.abs(places["size"])
    return chosen.reshape(-1)


class UnflushedEvents(Generic[T]):
    """Events in their order, each held back until the log is on disk up to it: none may be recorded as done before."""

    def __init__(self) -> None:
        self.lock = Lock()  # the event loop adds events, the thread that persists progress takes them
        self.waiting: deque[tuple[int, T]] = deque()
        """Pairs of (end of the log that must be on disk first, event)."""

    def add(self, end_offset: int, event: T) -> None:
        """Add an event that holds when the log is on disk below ``end_offset``."""
        with self.lock:
            self.waiting.append((end_offset, event))

    def take_flushed(self, flushed_offset: int) -> list[T]:
        """Remove and return the events that hold now. An event never overtakes an earlier one."""
        events = []
        with self.lock:
            while self.waiting and self.waiting[0][0] <= flushed_offset:
                events.append(self.waiting.popleft()[1])
        return events


def topics_of(waiting: WaitingRecords, sign: int, wanted: np.ndarray | None = None) -> Counter[str]:
    """Return the number of read messages for each topic, times ``sign``; ``wanted`` selects the messages to count."""
    counts = waiting.counts if wanted is None else waiting.counts_of(wanted)
    topics: Counter[str] = Counter()
    for target, count in zip(waiting.targets, counts, strict=True):
        if target is not None and count:
            topics[target[0]] += sign * count
    return topics


class DeliveryFigures:
    """Statistics of one kind of delivery: the number of delivered messages and their lateness."""

    def __init__(self) -> None:
        self.delivered = 0
        self.lateness = Latencies()

    def count(self, messages: int, late_ms: int) -> None:
        """Count delivered messages, the first of which was ``late_ms`` late."""
        self.delivered += messages
        self.lateness.observe(max(late_ms, 0) / 1000, messages)


class Deliverer:
    """Reader and writer of waiting messages. For the event loop; cold reads run in a reader thread."""

    def __init__(
        self,
        store: MessageStore,
        writer: RecordWriter,
        loop: asyncio.AbstractEventLoop,
        readers: Executor,
        appended: Callable[[], None],
    ) -> None:
        self.store = store
        self.loop = loop
        self.parked = 0
        """Number of messages parked since the start."""
        self.unreadable = 0
        """Number of waiting messages that were no longer in the log, or damaged."""
        self._writer = writer
        self._readers = readers
        self._appended = appended
        self._said: dict[str, float] = {}

    async def read_hot_or_cold(self, read: Callable[[bool], T]) -> T:
        """Call ``read(True)``; if that would wait for the disk, call ``read(False)`` in a reader thread."""
        try:
            return read(True)
        except WouldBlock:
            return await self.loop.run_in_executor(self._readers, read, False)

    async def in_reader(self, call: Callable[[], T]) -> T:
        return await self.loop.run_in_executor(self._readers, call)

    async def first_offset(self, queue: ConsumeQueue) -> int:
        """Return the first offset of a queue whose message is still in the log."""
        return await self.read_hot_or_cold(lambda hot: self.store.queue_reads.first_offset(queue, hot=hot))

    async def read_units(self, queue: ConsumeQueue, first: int, count: int) -> np.ndarray:
        """Return at most ``count`` units of a queue, at least one."""
        blob = await self.read_hot_or_cold(lambda hot: queue.read_units(first, count, hot=hot))
        if not blob:
            raise CorruptLog(f"{queue.folder} has no unit {first:,} although it should extend to {queue.max_offset:,}")
        return np.frombuffer(blob, UNIT_DTYPE)

    async def read_records(self, chosen: np.ndarray) -> WaitingRecords:
        return await self.read_hot_or_cold(lambda hot: self.store.rewriter.read(chosen, hot=hot))

    async def deliver(
        self, chosen: np.ndarray, *, timed: bool = False, committed_by: Callable[[], object] | None = None
    ) -> tuple[WaitingRecords, int]:
        """Deliver the messages of these units, or park them. Return (what was read, end of the log after the copies).

        ``timed``: the messages must have a TIMER_OUT_MS. ``committed_by``: a transaction commits them, and this
        function appends its commit note directly before them.

        Raises ``ServiceNotAvailable`` if the store cannot be written at the moment; then nothing is written.
        """
        waiting = await self.read_records(chosen)
        return waiting, await self.deliver_records(
            waiting, len(chosen) // CHOSEN_ROW, timed=timed, committed_by=committed_by
        )

    async def deliver_records(
        self,
        waiting: WaitingRecords,
        asked: int,
        *,
        timed: bool = False,
        committed_by: Callable[[], object] | None = None,
    ) -> int:
        """Do what ``deliver`` does with messages that were already read from ``asked`` units. Return the log's end."""
        if timed:
            # A message without a target is parked.
            waiting.lose_targets(waiting.due_ms < 0)
        await self._caught_up()
        while True:
            # After each wait, during which a topic may be deleted.
            places = [self._place(target, count) for target, count in zip(waiting.targets, waiting.counts, strict=True)]
            parked = sum(
                count
                for place, count in zip(places, waiting.counts, strict=True)
                if place is not None and place[0] == PARKED_TOPIC
            )
            if not parked or self.store.topics.get(PARKED_TOPIC) is not None:
                break
            await self._writer.topics_exist([TopicConfig(PARKED_TOPIC, read_queues=1, write_queues=1)])
        end_offset = self._append(waiting, places, committed_by)
        self.parked += parked
        self.count_unreadable(asked - waiting.count + waiting.unsound)
        return end_offset

    def count_unreadable(self, count: int) -> None:
        if count:
            self.unreadable += count
            self._say(f"{count} delayed messages cannot be delivered: they are damaged or no longer in the log")

    async def append_copies(self, waiting: WaitingRecords, place: Place) -> int:
        """Append what was read to a topic that is never deleted, after the disk has caught up. Return the log's end."""
        await self._caught_up()
        return self._append(waiting, [place] * len(waiting.counts))

    async def _caught_up(self) -> None:
        store = self.store
        # Down to half of the bound, or every single step would wait at it.
        while store.write_offset - store.flushed_offset > UNFLUSHED_BYTES_MAX:
            await self._writer.on_disk(store.write_offset - UNFLUSHED_BYTES_MAX // 2)

    def _append(
        self, waiting: WaitingRecords, places: Sequence[Place | None], committed_by: Callable[[], object] | None = None
    ) -> int:
        store = self.store
        if not any(waiting.counts):
            return store.write_offset
        if committed_by is not None:
            committed_by()  # nothing is awaited before the append: the copies must directly follow the note
        end_offset = store.deliver(waiting, places, committed=committed_by is not None)
        self._appended()
        return end_offset

    def _place(self, target: Place | None, count: int) -> Place | None:
        """Return where the messages of a group go; None if there are none."""
        if not count:
            return None
        reason = self._obstacle(target)
        if not reason:
            return target
        self._say(
            f"{count} due messages were parked in {PARKED_TOPIC}: {reason}. To see how many are parked, run "
            "flintmq delay list"
        )
        return PARKED_TOPIC, 0

    def _obstacle(self, target: Place | None) -> str:
        """Return why nothing can be delivered there; empty if it can."""
        if target is None:
            return "they lack the properties for their topic, their queue or their delivery time"
        topic, queue_id = target
        config = self.store.topics.get(topic)
        if topic in UNREADABLE_TOPICS:
            return f"they are for {topic}, which is a system topic"
        if config is None:
            return f"they are for topic {topic!r:.200}, which does not exist"
        if not config.has_queue(queue_id):
            return f"they are for queue {queue_id} of topic {topic}, which has only {config.queues} queues"
        return ""

    def _say(self, text: str) -> None:
        now = self.loop.time()
        reason = text.partition(" ")[2]  # without the number
        if now < self._said.get(reason, now):
            return
        # Some reasons have names in them that clients chose, so their number must be bounded.
        if len(self._said) >= _SAID_MAX:
            self._said.clear()
        self._said[reason] = now + SAID_EVERY_S
        log.warning("%s", text)
