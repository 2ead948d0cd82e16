"""Retention by topic: where the messages of a topic with a retention rule of its own begin.

All topics share the CommitLog, whose files are deleted as a whole. So a rule that keeps less than the log hides
messages: the topic has a physical offset, its floor, and readers find nothing of it below the floor. The bytes are
deleted with their file. A rule that keeps more than the log keeps files; see ``Expiry``. Floors are derived from the
topic table, the queues and the clock, and are computed again at each start.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ....protocol.storage.layout import PRE_BLANK_SIZE
from ..queue.queue_check import UNIT_DTYPE
from ..read.queue_reads import first_stored_since
from .expiry import HOUR_MS

if TYPE_CHECKING:
    from ..queue.consume_queue import ConsumeQueue
    from ..queue.queue_table import ConsumeQueueTable
    from ..read.log_reads import LogReads
    from ..read.queue_reads import QueueReads
    from ..tables.store_state import StoreState
    from ..tables.topic_table import TopicConfig, TopicTable

UNITS_A_STEP = 65_536
"""Maximum number of units that are read of one queue at a time."""


@dataclass(slots=True)
class _Held:
    """Bytes of one queue's records with queue offsets in ``[first, counted)``."""

    first: int
    counted: int
    bytes: int = 0


@dataclass(slots=True)
class _Topic:
    """State of a topic with a rule. ``look_at_ms``: no message becomes too old before this time."""

    hours: int
    bytes_max: int
    look_at_ms: int = 0
    held: dict[int, _Held] = field(default_factory=dict)


class TopicRetention:
    """Keeps the floors of a loaded store (``StoreState.floors``). One thread at a time calls it, beside all others."""

    def __init__(
        self,
        queues: ConsumeQueueTable,
        queue_reads: QueueReads,
        log_reads: LogReads,
        topics: TopicTable,
        state: StoreState,
    ) -> None:
        self._queues = queues
        self._queue_reads = queue_reads
        self._log_reads = log_reads
        self._topics = topics
        self._state = state
        self._known: dict[str, _Topic] = {}
        self._lowered: set[str] = set()
        """Topics whose floor was removed in the last step. A concurrent reader may still have set a queue's
        ``min_hint`` by the old floor, so the next step resets the hints once more."""

    def step(self, now_ms: int) -> None:
        """Raise the floors as the rules now demand; remove the floors of topics or rules that no longer exist."""
        rules = {
            config.name: config for config in self._topics if config.retention_hours > 0 or config.retention_bytes > 0
        }
        lowered, self._lowered = self._lowered, set()
        for name in lowered:
            self._look_from_the_start(name)
        for name, known in list(self._known.items()):
            config = rules.get(name)
            if config is None or (known.hours, known.bytes_max) != (config.retention_hours, config.retention_bytes):
                del self._known[name]
                self._state.floors.pop(name, None)
                self._look_from_the_start(name)
                self._lowered.add(name)
        for config in rules.values():
            self._raise_floor(config, now_ms)

    def _look_from_the_start(self, name: str) -> None:
        for queue in list(self._queues.by_topic.get(name, {}).values()):
            queue.min_hint = queue.start_offset

    def _raise_floor(self, config: TopicConfig, now_ms: int) -> None:
        name = config.name
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = _Topic(config.retention_hours, config.retention_bytes)
        queues = [queue for queue in list(self._queues.by_topic.get(name, {}).values()) if queue.max_offset > 0]
        floor = self._state.floors.get(name, 0)
        if known.hours > 0 and now_ms >= known.look_at_ms:
            floor = max(floor, self._floor_by_age(queues, known, now_ms))
        if known.bytes_max > 0:
            floor = max(floor, self._floor_by_bytes(queues, known))
        if floor:
            self._state.floors[name] = floor

    def _floor_by_age(self, queues: list[ConsumeQueue], known: _Topic, now_ms: int) -> int:
        """Return the physical offset of the first message that is young enough, or the end of the last message."""
        oldest_ms = now_ms - known.hours * HOUR_MS
        floor = first_stored_since(self._queue_reads, queues, oldest_ms)
        if floor is None:
            units = [queue.unit(queue.max_offset - 1, hot=False) for queue in queues]
            return max((physical_offset + size for physical_offset, size, _ in units), default=0)
        stored_ms = self._log_reads.stored_ms(floor, 0)
        known.look_at_ms = 0 if stored_ms is None else stored_ms + known.hours * HOUR_MS
        return floor

    def _floor_by_bytes(self, queues: list[ConsumeQueue], known: _Topic) -> int:
        """Return the physical offset after which the topic's records have at most ``bytes_max`` bytes; 0 if all do."""
        for queue in queues:
            self._count(queue, known)
        excess = sum(held.bytes for held in known.held.values()) - known.bytes_max
        floor = 0
        while excess > 0:
            reached, dropped = self._drop_oldest(queues, known, excess)
            floor = max(floor, reached)
            excess -= dropped
        return floor

    def _count(self, queue: ConsumeQueue, known: _Topic) -> None:
        """Count the records since the last call; count from scratch if the log's start moved past the first one."""
        first = self._queue_reads.first_offset(queue)
        held = known.held.get(queue.queue_id)
        if held is None or held.first < first:
            held = known.held[queue.queue_id] = _Held(first, first)
        end = queue.max_offset
        while held.counted < end:
            units = self._units(queue, held.counted, end)
            if not len(units):
                break
            held.bytes += int(_sizes(units).sum())
            held.counted += len(units)

    def _drop_oldest(self, queues: list[ConsumeQueue], known: _Topic, excess: int) -> tuple[int, int]:
        """Drop the oldest records, in the order of the log, until ``excess`` bytes are dropped.

        Stops earlier if one read of units from each queue does not reach that far. Return the new floor and the dropped
        bytes.
        """
        looked = {}
        reach = np.iinfo(np.int64).max
        for queue in queues:
            held = known.held[queue.queue_id]
            units = looked[queue.queue_id] = self._units(queue, held.first, held.counted)
            if held.first + len(units) < held.counted:
                # The queue has more units, which may be older than later ones of the other queues.
                reach = min(reach, int(units["physical_offset"][-1]))
        offsets = np.concatenate([units["physical_offset"] for units in looked.values()]).astype(np.int64)
        sizes = np.concatenate([_sizes(units) for units in looked.values()])
        order = np.argsort(offsets, kind="stable")
        order = order[offsets[order] <= reach]
        last = order[min(int(np.searchsorted(np.cumsum(sizes[order]), excess)), len(order) - 1)]
        floor = int(offsets[last] + sizes[last])
        dropped = 0
        for queue_id, units in looked.items():
            stays = units["physical_offset"] >= max(floor, 1)  # units that fill a gap point to 0
            below = int(np.argmax(stays)) if stays.any() else len(units)
            size = int(_sizes(units[:below]).sum())
            held = known.held[queue_id]
            held.first += below
            held.bytes -= size
            dropped += size
        return floor, dropped

    @staticmethod
    def _units(queue: ConsumeQueue, first: int, end: int) -> np.ndarray:
        return np.frombuffer(queue.read_units(first, min(end - first, UNITS_A_STEP), hot=False), UNIT_DTYPE)


def _sizes(units: np.ndarray) -> np.ndarray:
    """Return the sizes of the records; units that only fill a gap have none."""
    sizes = units["size"].astype(np.int64)
    return np.where(sizes == PRE_BLANK_SIZE, 0, sizes)
