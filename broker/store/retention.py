"""Retention: which files of the log can go, and which messages a topic no longer shows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...protocol.storage.delivery import OP_PREPARED_TOPIC, PREPARED_TOPIC
from ...protocol.storage.layout import PRE_BLANK_SIZE
from .queues import SCHEDULE_TOPIC, UNIT_DTYPE, count_units, last_record_unit
from .read.queue_reads import first_stored_since
from .tables.topic_table import RETENTION_FOREVER

if TYPE_CHECKING:
    from .files.mapped_file import MappedFile
    from .log.commitlog import CommitLog
    from .queues import ConsumeQueue, ConsumeQueueTable
    from .read.queue_reads import LogReads, QueueReads
    from .tables.offset_tables import ConsumerOffsetTable, DelayOffsetTable
    from .tables.store_state import StagedState, StoreState
    from .tables.topic_table import TopicConfig, TopicTable


# ---- Expiry: which of the oldest CommitLog files may be deleted.
#
# Everything here may run beside appends, dispatch and reads. Only the oldest files expire, without a gap;
# never the last file, and never one with a message that is still to be delivered (delayed, timed, half or
# staged).

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
HALF_GROUP = "CID_RMQ_SYS_TRANS"
TIMER_TOPIC = "rmq_sys_wheel_timer"
TIMER_OUT_PROPERTY = "TIMER_OUT_MS"
HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Pending:
    """The oldest message of a kind that is still needed: its physical offset, and the reason. ``rolls``: it can be
    appended again, which frees its old place."""

    physical_offset: int
    why: str
    rolls: bool = False


@dataclass(frozen=True, slots=True)
class OldFile:
    """A CommitLog file and the store time of its newest message (None: unknown).

    ``kept_for``: the reason why the file must stay however old it is, or empty; ``rolls``: it must stay only until the
    needed messages are appended again.
    """

    path: Path
    end_offset: int
    bytes: int
    newest_ms: int | None
    kept_for: str
    rolls: bool = False


@dataclass(frozen=True, slots=True)
class NextExpiry:
    """The CommitLog file that retention deletes next. ``at_ms``: when, as things are, ms since 1970; -1: unknown,
    because its messages keep it; ``reason``: for a person."""

    file: str
    at_ms: int
    reason: str


class Expiry:
    """The age of a loaded log's files, and the messages that keep them."""

    def __init__(
        self,
        commitlog: CommitLog,
        queues: ConsumeQueueTable,
        queue_reads: QueueReads,
        log_reads: LogReads,
        topics: TopicTable,
        consumer_offsets: ConsumerOffsetTable,
        delay_offsets: DelayOffsetTable,
        staged_state: StagedState,
    ) -> None:
        self._commitlog = commitlog
        self._queues = queues
        self._queue_reads = queue_reads
        self._log_reads = log_reads
        self._topics = topics
        self._consumer_offsets = consumer_offsets
        self._delay_offsets = delay_offsets
        self._staged_state = staged_state
        self._newest: dict[int, int] = {}
        self._timers_done = 0
        """Queue offset below which all timed messages are due."""
        self.oldest_timed: Callable[[], int | None] | None = None
        """Function of the timer service: physical offset of the oldest waiting timed message, None if none waits.
        Without the service, every timed message that is not yet due counts as waiting."""
        self.archived_to: Callable[[], int] | None = None
        """Function of the archive: physical offset below which the log may go; None: it need not be archived."""
        self.may_leave_gap = False
        """True if a full disk may delete what is not archived."""
        self.next: NextExpiry | None = None
        """The file that goes next, which retention notes every half a minute; None: only the last one is left, or the
        primary of the replica set decides."""

    def old_files(
        self, now_ms: int | None = None, reserved_hours: int = 0, *, forced: bool = False
    ) -> Iterator[OldFile]:
        """Yield every file except the last, oldest first. Reads from disk.

        ``reserved_hours``: how long the log is kept; a topic with a longer retention keeps the files of its messages.
        ``forced``: the disk is full.
        """
        now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        pending = [*self.pending(now_ms), *self._kept_by_topics(now_ms, reserved_hours)]
        if self.archived_to is not None and not (forced and self.may_leave_gap):
            pending.append(Pending(self.archived_to(), "messages that are not archived yet"))
        for file in self._commitlog.queue.files[:-1]:
            newest_ms = self.newest_ms(file)
            held = [each for each in pending if each.physical_offset < file.end_offset]
            # A message that cannot be appended again decides: while it is needed, rolling the others would free
            # nothing.
            first = min(held, key=lambda each: (each.rolls, each.physical_offset), default=None)
            kept_for = first.why if first is not None else ""
            if newest_ms is None:
                kept_for = kept_for or "its newest message, which cannot be read"
            rolls = first is not None and first.rolls and newest_ms is not None
            yield OldFile(file.path, file.end_offset, file.size, newest_ms, kept_for, rolls)

    def waits_for_archive(self) -> bool:
        """Return whether the oldest file has to stay until it is archived."""
        files = self._commitlog.queue.files
        return self.archived_to is not None and len(files) > 1 and files[0].end_offset > self.archived_to()

    def newest_ms(self, file: MappedFile) -> int | None:
        """Return the newest store time in a file that is no longer written to, or None if it cannot be read.

        It is the store time of the last message that a queue points at. If no queue points into the file (its topics
        were deleted), it is that of the next file's first message, which is not earlier.
        """
        newest = self._newest.get(file.start_offset)
        if newest is None:
            units = [last_record_unit(queue, count_units(queue, file.end_offset)) for queue in self._queues]
            _, at, size = max(
                (unit for unit in units if unit is not None), key=lambda unit: unit[1], default=(0, -1, 0)
            )
            begins_here = at >= file.start_offset
            newest = (
                self._log_reads.stored_ms(at, size) if begins_here else self._log_reads.stored_ms(file.end_offset, 0)
            )
            if newest is None:
                return None
            self._newest[file.start_offset] = newest
        return newest

    def forget_below(self, log_start: int) -> None:
        """Forget the files before ``log_start``, which are deleted."""
        for start in [start for start in self._newest if start < log_start]:
            del self._newest[start]

    def _kept_by_topics(self, now_ms: int, reserved_hours: int) -> Iterator[Pending]:
        """Yield the oldest message of each topic that keeps its messages longer than the log is kept."""
        for config in self._topics:
            hours = config.retention_hours
            if hours != RETENTION_FOREVER and hours <= reserved_hours:
                continue
            since_ms = 0 if hours == RETENTION_FOREVER else now_ms - hours * HOUR_MS
            first = self._first_stored_since(config.name, since_ms)
            if first is not None:
                keeps = "for ever" if hours == RETENTION_FOREVER else f"for {hours} h"
                yield Pending(first, f"messages of topic {config.name}, which keeps them {keeps}")

    def _first_stored_since(self, topic: str, since_ms: int) -> int | None:
        return first_stored_since(self._queue_reads, self._queues.by_topic.get(topic, {}).values(), since_ms)

    # Messages that are still to be delivered.

    def pending(self, now_ms: int) -> list[Pending]:
        """Return the oldest message of each kind that is still to be delivered."""
        return [*self._delayed(), *self._half(), *self._staged(), *self._timed(now_ms)]

    def _delayed(self) -> Iterator[Pending]:
        for queue_id, queue in self._queues.by_topic.get(SCHEDULE_TOPIC, {}).items():
            level = queue_id + 1
            yield from self._first_from(queue, self._delay_offsets.delivered(level), f"delayed (level {level})")

    def _half(self) -> Iterator[Pending]:
        done = self._consumer_offsets.committed(HALF_GROUP, HALF_TOPIC)
        for queue_id, queue in self._queues.by_topic.get(HALF_TOPIC, {}).items():
            yield from self._first_from(queue, done.get(queue_id, 0), "of an open transaction")

    def _staged(self) -> Iterator[Pending]:
        saved = self._staged_state.saved
        for topic, needed_from in ((PREPARED_TOPIC, saved.next_message), (OP_PREPARED_TOPIC, saved.next_note)):
            queue = self._queues.get(topic, 0)
            if queue is not None:
                yield from self._first_from(queue, needed_from, "staged for an open transaction")

    def _timed(self, now_ms: int) -> Iterator[Pending]:
        what = "a message that is due at a later time"
        if self.oldest_timed is not None:
            oldest = self.oldest_timed()
            if oldest is not None:
                yield Pending(oldest, what, rolls=True)
            return
        queue = self._queues.get(TIMER_TOPIC, 0)
        if queue is None:
            return
        offset = max(self._timers_done, self._queue_reads.first_offset(queue))
        while offset < queue.max_offset:
            physical_offset, size, _ = queue.unit(offset, hot=False)
            if self._due_ms(physical_offset, size) > now_ms:
                yield Pending(physical_offset, what)
                break
            offset += 1
        self._timers_done = offset

    def _due_ms(self, physical_offset: int, size: int) -> int:
        record = self._log_reads.record_at(physical_offset, size)
        try:
            return int(record.property_map().get(TIMER_OUT_PROPERTY, "0")) if record is not None else 0
        except ValueError:
            return 0

    def _first_from(self, queue: ConsumeQueue, queue_offset: int, what: str) -> Iterator[Pending]:
        offset = max(queue_offset, self._queue_reads.first_offset(queue))
        if offset < queue.max_offset:
            yield Pending(queue.unit(offset, hot=False)[0], f"a message that is {what}")


# ---- Retention by topic: where the messages of a topic with a retention rule of its own begin.
#
# All topics share the CommitLog, whose files are deleted as a whole. So a rule that keeps less than the log
# hides messages: the topic has a physical offset, its floor, and readers find nothing of it below the floor.
# The bytes are deleted with their file. A rule that keeps more than the log keeps files; see ``Expiry``.
# Floors are derived from the topic table, the queues and the clock, and are computed again at each start.

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
