"""Expiry: which of the oldest CommitLog files may be deleted.

Everything here may run beside appends, dispatch and reads. Only the oldest files expire, without a gap; never the last
file, and never one with a message that is still to be delivered (delayed, timed, half or staged).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ....protocol.storage.delivery import OP_PREPARED_TOPIC, PREPARED_TOPIC
from ..queue.queue_check import count_units, last_record_unit
from ..queue.queue_table import SCHEDULE_TOPIC
from ..read.queue_reads import first_stored_since
from ..tables.topic_table import RETENTION_FOREVER

if TYPE_CHECKING:
    from ..files.mapped_file import MappedFile
    from ..log.commitlog import CommitLog
    from ..queue.consume_queue import ConsumeQueue
    from ..queue.queue_table import ConsumeQueueTable
    from ..read.log_reads import LogReads
    from ..read.queue_reads import QueueReads
    from ..tables.offset_tables import ConsumerOffsetTable, DelayOffsetTable
    from ..tables.staged_state import StagedState
    from ..tables.topic_table import TopicTable

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
        self.next: NextExpiry | None = None
        """The file that goes next, which retention notes every half a minute; None: only the last one is left, or the
        primary of the replica set decides."""

    def old_files(self, now_ms: int | None = None, reserved_hours: int = 0) -> Iterator[OldFile]:
        """Yield every file except the last, oldest first. Reads from disk.

        ``reserved_hours``: how long the log is kept; a topic with a longer retention keeps the files of its messages.
        """
        now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        pending = [*self.pending(now_ms), *self._kept_by_topics(now_ms, reserved_hours)]
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
