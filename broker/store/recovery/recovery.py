"""Recovery: find the true end of the log, cut what is torn, and make queues and index agree with it.

The rules, in the order they are applied:

1. Below the checkpoint's flushed offset everything was on disk: a record there that does not check is a hole, up to the
   next sound one. Above it the first bad record is the end, because nothing behind it was ever acknowledged under
   sync flush. A store without FlintMQ's mark (RocketMQ wrote last) has no such line: there, ConsumeQueue units that
   point at sound records behind a bad one prove that it is a hole.
2. What is in a hole is kept in ``flintmq/quarantine/``, and tombstones take its place (``containing``).
3. What lies behind the end becomes zeros, on disk, before the first write: no ghost of an old record can come back.
4. Queues and index are trusted below the dispatched offset as far as they agree with themselves, with what is known to
   have been there, and with that part of the log that was checked; the rest of the log is dispatched again. One that is
   missing or damaged is moved aside, and the log is dispatched from its beginning, which fills only what is missing.

Until a start is sure not to be refused, nothing is changed. Before something derived is taken away the checkpoint says
so: killed at any point, recovery starts over and comes to the same result.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from ....protocol.names import is_system_topic
from ....protocol.storage.layout import UNIT_BYTES
from ..damage.quarantine import Quarantine
from ..dispatch.dispatcher import Dispatcher
from ..errors import ContainmentStuck, CorruptLog, DamagedRecord
from ..index.index_file import IndexService
from ..log.commitlog import CommitLog
from ..queue.consume_queue import ConsumeQueue
from ..queue.queue_check import (
    count_units,
    find_start,
    first_unit,
    last_record_unit,
    order_problem,
    units_behind,
)
from ..queue.queue_table import ConsumeQueueTable
from ..tables.checkpoint import StoreCheckpoint
from ..tables.config_files import TopicTable
from ..tables.store_state import DeletedTopic, StoreState
from .derived_check import DerivedCheck
from .examination import Examination, sound_queues
from .hole_filler import HoleFiller
from .hole_finder import Hole, UnitEvidence
from .log_recovery import LogRecovery, Progress
from .lost_messages import LostMessages
from .recovery_report import RecoveryReport, damage_line

DISPATCH_CHUNK_BYTES = 4 * 1024 * 1024

log = logging.getLogger(__name__)


class IncompleteQueue(Exception):
    """A queue lacks units in front of a record of the log."""

    def __init__(self, queue: ConsumeQueue) -> None:
        super().__init__(f"{queue.topic}/{queue.queue_id}")
        self.queue = queue


class Recovery:
    """One recovery of a locked store whose log, queues and index are loaded.

    ``queue_problems``: why queues cannot be used, by row; ``index_problem``: the same of the newest index files;
    ``rebuild``: use none of them, whether they are right or not; ``verify_all``: check all of the log.
    ``before_changes`` is called when the start is not refused any more, before the first byte is changed.
    """

    def __init__(
        self, commitlog: CommitLog, queues: ConsumeQueueTable, index: IndexService, checkpoint: StoreCheckpoint,
        state: StoreState, topics: TopicTable, dispatcher: Dispatcher, quarantine: Quarantine, progress: Progress,
        before_changes: Callable[[], None], *, clean: bool, queue_problems: dict[int, str], index_problem: str,
        rebuild: bool = False, verify_all: bool = False,
    ) -> None:  # fmt: skip
        self._commitlog = commitlog
        self._queues = queues
        self._index = index
        self._checkpoint = checkpoint
        self._state = state
        self._topics = topics
        self._dispatcher = dispatcher
        self._progress = progress
        self._before_changes = before_changes
        self._queue_problems = queue_problems
        self._check = DerivedCheck(commitlog, queues, index, dispatcher)
        self._quarantine = quarantine
        self._container = HoleFiller(commitlog, quarantine, state.checksummed)
        self._container.look()
        self._evidence = UnitEvidence(lambda: sound_queues(queues, queue_problems))
        self._log = LogRecovery(
            commitlog, checkpoint, progress,
            clean=clean, log_start=state.snapshot.log_start, proves_hole=self._units_prove_records_behind,
            checksummed=state.checksummed,
            evidence=self._evidence, verify_all=verify_all,
            passed_over=[(each.physical_offset, each.end_offset) for each in self._container.pending],
        )  # fmt: skip
        self._examination = Examination(
            commitlog, queues, index, state, self._log, self._check, progress, self._is_unknown, self._note,
            quarantine.covers, queue_problems=queue_problems, index_problem=index_problem, rebuild=rebuild,
        )  # fmt: skip
        self._changed(each.physical_offset for each in self._container.restored)
        self._refilled: set[int] = set()
        """Rows of the queues that were filled again from the log's beginning."""
        self.report = RecoveryReport(clean)

    def run(self) -> RecoveryReport:
        """Recover. Raises ``CorruptLog``, with nothing changed, where a file of the log is missing or foreign."""
        self._check_log_is_there()
        end = self._log.find_end()
        self._before_changes()
        self._log.cut(end)
        self._contain(self._log.holes, end)
        for topic in self._state.log_ends_at(end):
            self._queues.topic_deleted(topic)
        self._leave_deleted_topics(end)
        self.report.messages_checked = self._log.messages_checked
        self.report.truncated_bytes = self._log.cut_bytes
        while damaged := self._find_damaged(end):
            self._check_progress(damaged)
            self._contain(self._log.holes_of(damaged), end)
        self._mark(end, end)
        self._quarantine.set_filled()
        self.report.damage = damage_line(self._quarantine, len(self.report.quarantined))
        self._queues.deleted_below = self._state.deleted_below
        return self.report

    def _find_damaged(self, end: int) -> list[DamagedRecord]:
        """One pass of ``_derive``."""
        try:
            return self._derive(end)
        except DamagedRecord as damaged:
            return [damaged]

    def _derive(self, end: int) -> list[DamagedRecord]:
        """Make queues and index agree with the log. Returns records of it that cannot be right; while there are any,
        queues and index do not agree with it yet. Raises ``DamagedRecord`` for one that is met at dispatch."""
        begin = self._commitlog.start_offset
        dispatched = min(max(self._first_undispatched(end), begin), end)
        examination = self._examination
        counts, index_keep = examination.examine(dispatched, end)
        if examination.liars:
            return list(examination.liars.values())
        needed = examination.index_from(index_keep, dispatched) if examination.index_problem else dispatched
        needed = begin if self._queue_problems else max(needed, begin)
        self._mark(end, needed)
        self._repair(counts, index_keep)
        self._dispatch(needed, end)
        self._queues.sync()
        self._index.sync()
        return []

    def _check_progress(self, damaged: Iterable[DamagedRecord]) -> None:
        """Containment ends because each pass contains a place that none of this start's passes contained: what was
        written there is sound, and there is only so much log. Raises ``ContainmentStuck`` where that does not hold."""
        for each in damaged:
            at = each.physical_offset
            if any(hole.physical_offset <= at < hole.end_offset for hole in self.report.quarantined):
                raise ContainmentStuck(
                    f"this start contained the record at physical offset {at:,} of {self._commitlog.queue.folder} and "
                    f"finds it damaged again: {each}. The next start would do the same. Run `flintmq-broker rebuild "
                    "STORE`, which makes queues and index anew from the log alone, or restore a backup. The bytes that "
                    f"were damaged are in {self._quarantine.folder}"
                )

    def _contain(self, holes: list[Hole], end: int) -> None:
        """Fill holes of the log, and let the units of what was in them point at what is there now."""
        lost = LostMessages(
            self._commitlog, self._queues, self._dispatcher, self._evidence, self._log.record_is_sound,
            self._first_queue_offset, holes, self._first_trusted(), end,
        ).find()  # fmt: skip
        contained = self._container.contain(holes, lost, self._store_times_behind(holes))
        self._container.patch_units(self._queues, contained)
        self.report.quarantined += contained
        self._changed(each.physical_offset for each in contained)

    def _store_times_behind(self, holes: list[Hole]) -> list[int]:
        """The store time of what follows each hole; where that is another hole, of what follows that one."""
        times: list[int] = []
        store_ms = self._log.last_store_ms
        for hole in reversed(holes):
            store_ms = self._log.store_ms_behind(hole.end) or store_ms
            times.append(store_ms)
        return times[::-1]

    def _changed(self, physical_offsets: Iterable[int]) -> None:
        """The log is another there than queues and index know."""
        self._examination.changed_from = min([self._examination.changed_from, *physical_offsets])

    def _first_trusted(self) -> int:
        """Below which physical offset every record has its unit; 0 where units are missing or wrong."""
        mark = self._log.mark
        if mark is None or self._queue_problems or self._examination.is_a_queue_short(mark.dispatched_offset):
            return 0
        return mark.dispatched_offset

    def _first_queue_offset(self, topic: str, queue_id: int) -> int:
        """Where a queue's offsets begin: behind those that it had before its topic was deleted."""
        deleted = self._state.deleted.get(topic)
        return deleted.next_offsets.get(queue_id, 0) if deleted is not None else 0

    def _mark(self, end: int, dispatched: int) -> None:
        """Have the checkpoint say that queues and index are whole below ``dispatched``, on disk."""
        last_ms = self._log.last_store_ms
        mark = self._checkpoint.mark
        whole = dispatched == end
        self._checkpoint.reset(
            flushed_offset=end,
            dispatched_offset=dispatched,
            physic_ms=last_ms,
            # RocketMQ goes by times. Where only an offset is known, it has to begin with its first file.
            logics_ms=last_ms
            if whole
            else min(self._checkpoint.logics_msg_timestamp, last_ms)
            if mark is not None and dispatched >= mark.dispatched_offset
            else 0,
            index_ms=self._index.full_end_ms if whole else 0,
        )

    def _note(self, reason: str) -> None:
        self.report.rebuilt.append(reason)
        log.warning("to be filled again from the log: %s", reason)

    # A store without FlintMQ's mark: what the queues prove.

    def _check_log_is_there(self) -> None:
        """Refuse a log whose last file is missing, where the queues say so."""
        if self._log.mark is not None:
            return
        files = self._commitlog.queue
        for queue in sound_queues(self._queues, self._queue_problems):
            begin, end = first_unit(queue), count_units(queue, 1 << 62)
            last = last_record_unit(queue, end)
            if last is None or last[1] < files.end_offset:
                continue
            if not order_problem(queue, max(begin, end - queue.file_bytes // UNIT_BYTES), end):
                raise CorruptLog(
                    f"{files.folder} ends at physical offset {files.end_offset:,}, but {queue.folder} has a message at "
                    f"{last[1]:,}: at least one file is missing. Restore it from a backup, or, if it was removed on "
                    f"purpose, move {self._queues.folder} away too. Nothing was changed"
                )

    def _units_prove_records_behind(self, physical_offset: int) -> bool:
        """Whether a ConsumeQueue unit points at a sound record behind ``physical_offset``."""
        return any(
            self._log.has_record_of(queue, unit)
            for queue in sound_queues(self._queues, self._queue_problems)
            for unit in units_behind(queue, physical_offset)
        )

    def _is_unknown(self, topic: str) -> bool:
        """Whether RocketMQ deleted the topic: it takes it out of the table and removes its queues, and tells nobody."""
        known = self._log.mark is not None or len(self._topics) == 0 or self._topics.get(topic) is not None
        return not known and not is_system_topic(topic)

    def _leave_deleted_topics(self, end: int) -> None:
        """Have no queues made for the records of topics that RocketMQ deleted."""
        state, deleted_below = self._state, self._queues.deleted_below

        def below(topic: str) -> int:
            if self._is_unknown(topic):
                state.deleted[topic] = DeletedTopic(end, {})
            return deleted_below(topic)

        if self._log.mark is None:
            self._queues.deleted_below = below

    def _first_undispatched(self, end: int) -> int:
        if self._log.mark is not None:
            return self._log.mark.dispatched_offset
        if not self.report.clean:
            return self._log.file_before(self._checkpoint.logics_msg_timestamp)
        # RocketMQ dispatches in order: after an orderly stop all is there up to the newest unit.
        newest = self._commitlog.start_offset
        for queue in sound_queues(self._queues, self._queue_problems):
            last = last_record_unit(queue, count_units(queue, end))
            if last is not None and self._log.has_record_of(queue, last):
                newest = max(newest, last[1] + last[2])
        return newest

    # Repair.

    def _repair(self, counts: dict[int, int], index_keep: int) -> None:
        for queue in self._queues:
            if queue.row in self._queue_problems:
                self._queues.move_aside(queue)
            elif queue.row in counts:
                self._cut(queue, counts[queue.row])
            self._queues.sync_row(queue)
        self._index.drop_from(index_keep)
        self._complete_last_keys()

    def _cut(self, queue: ConsumeQueue, count: int) -> None:
        begin = first_unit(queue)
        if begin and count == begin:
            # Nothing stays of it. Its first message in the log says where it begins; if there is none, its files did.
            self._state.keep_offset(queue.topic, queue.queue_id, begin)
            queue.remove_files()
            return
        queue.truncate(count)
        queue.start_offset = queue.min_hint = find_start(queue, count)

    def _complete_last_keys(self) -> None:
        """A stop between two index files may have kept out keys of the last record that is in the index."""
        if not self._index.indexed_below:
            return
        keys = self._check.keys_of(self._index.end_physical_offset)
        if keys is not None:
            held = self._index.entries_of_last_record()
            for _ in self._index.put(keys.reshape(-1), len(keys), min(held, len(keys))):
                pass

    def _dispatch(self, begin: int, end: int) -> None:
        dispatcher = self._dispatcher
        dispatcher.reput_offset = begin
        while dispatcher.reput_offset < end:
            try:
                dispatcher.step(end, DISPATCH_CHUNK_BYTES, on_gap=self._check_gap)
            except IncompleteQueue as gap:
                queue = gap.queue
                self._refilled.add(queue.row)
                self._note(f"consumequeue {queue.topic}/{queue.queue_id}: it ends at {queue.max_offset:,}")
                dispatcher.reput_offset = begin = self._commitlog.start_offset
                self._mark(end, begin)
                self._queues.move_aside(queue)
            self._progress("dispatching", dispatcher.reput_offset - begin, end - begin)
            self.report.messages_recovered += dispatcher.dispatched_records
        dispatcher.reput_offset = end

    def _check_gap(self, queue: ConsumeQueue, queue_offset: int) -> None:
        """Before units are left out in front of a record: does it tell the truth, and were they not just lost?"""
        physical_offset = self._dispatcher.reput_offset
        following = self._log.following_queue_offsets(physical_offset, self._commitlog.write_offset)
        below = [each for each in following if each <= queue_offset]
        if 2 * len(below) > len(following):  # a single one of them may lie itself
            file = self._commitlog.queue.find(physical_offset)
            raise DamagedRecord(
                f"{file.path if file else self._commitlog.queue.folder}: the record at physical offset "
                f"{physical_offset:,} says it is message {queue_offset:,} of queue {queue.queue_id} of {queue.topic}, "
                f"but message {below[0]:,} comes behind it",
                physical_offset, "a record that says it is another message",
            )  # fmt: skip
        # Its units in front of the gap were lost: fill it from the log, once. A gap that is still there then is in the
        # log itself.
        if queue.max_offset > queue.start_offset and queue.row not in self._refilled:
            raise IncompleteQueue(queue)
