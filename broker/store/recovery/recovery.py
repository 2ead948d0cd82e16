"""Recovery: find the true end of the log, cut what is torn, and make queues and index agree with it.

The rules, in the order they are applied:

1. Everything below the checkpoint's flushed offset was on disk: an invalid record there begins a hole, which extends to
   the next sound record. Above it, the first invalid record is the end of the log, because under sync flush nothing
   after it was ever acknowledged. A store without FlintMQ's mark (RocketMQ wrote last) has no flushed offset: there,
   ConsumeQueue units that point at sound records after an invalid one prove that it is a hole.
2. Recovery copies the bytes of each hole to ``flintmq/quarantine/`` and replaces them with tombstones
   (``HoleFiller``).
3. Bytes after the end are zeroed on disk before the first write, so that no old record can reappear.
4. Queues and index are trusted below the dispatched offset if they are consistent, complete as far as the store has
   recorded, and agree with the part of the log that was checked; the rest of the log is dispatched again. A queue that
   is missing or damaged is moved aside, and the log is dispatched from its beginning, which adds only missing units.

Recovery changes nothing until it is certain that the start will not be refused. It updates the checkpoint before it
removes derived data: if it is killed at any point, the next start runs it again with the same result.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ....protocol.names import is_system_topic
from ....protocol.storage.layout import UNIT_BYTES
from ...kernels.dispatch import KEY_ROW
from ..errors import ContainmentStuck, CorruptLog, DamagedRecord
from ..queues import count_units, find_start, first_unit, last_record_unit, order_problem, units_behind
from ..tables.store_state import DeletedTopic
from ..tables.topic_table import TopicConfig
from .derived_check import Examination, sound_queues
from .holes import HoleFiller, UnitEvidence
from .log_recovery import LogRecovery, LostMessages

if TYPE_CHECKING:
    from ..damage import LostRange, Quarantine, QuarantinedRange
    from ..queues import ConsumeQueue
    from .holes import Hole
    from .loaded_store import LoadedStore, Progress


# ---- The report of a recovery: what it found in the store and what it changed.


@dataclass(slots=True)
class RecoveryReport:
    """The result of one recovery.

    ``clean``: the previous stop was orderly; ``seconds``: duration; then the records checked and dispatched, and the
    bytes cut. ``rebuilt``: the reasons why queues or index files were rebuilt.
    """

    clean: bool
    seconds: float = 0.0
    messages_checked: int = 0
    messages_recovered: int = 0
    truncated_bytes: int = 0
    quarantined: list[QuarantinedRange] = field(default_factory=list)
    """Holes of the log that this start contained."""
    damage: str = ""
    """One line about all known holes, shown when a broker starts; empty if there are none."""
    rebuilt: list[str] = field(default_factory=list)


def damage_line(kept: Quarantine, new: int) -> str:
    """Return one line about the damage of the log, or an empty string. ``new``: holes that this start found."""
    if not kept:
        return ""
    holes = len(kept.ranges)
    return (
        f"{holes:,} hole{'s' * (holes != 1)} of the log{f', {new:,} found now' if new else ''}: {kept.bytes:,} "
        f"bytes, {kept.lost_messages:,} messages known to be lost. {kept.path} lists them, beside copies of the bytes"
    )


DISPATCH_CHUNK_BYTES = 4 * 1024 * 1024
"""CommitLog bytes that one dispatch step of a start covers."""

log = logging.getLogger(__name__)


class IncompleteQueue(Exception):
    """A queue lacks units that precede a record of the log."""

    def __init__(self, queue: ConsumeQueue) -> None:
        super().__init__(f"{queue.topic}/{queue.queue_id}")
        self.queue = queue


class Recovery:
    """One recovery of a store.

    ``before_changes`` is called once the start can no longer be refused, before the first byte is changed. ``rebuild``:
    discard all queues and index files, even sound ones; ``verify_all``: check the whole log.
    """

    def __init__(
        self,
        store: LoadedStore,
        progress: Progress,
        before_changes: Callable[[], None],
        *,
        rebuild: bool = False,
        verify_all: bool = False,
    ) -> None:
        self._store = store
        self._commitlog = store.commitlog
        self._queues = store.queues
        self._index = store.index
        self._checkpoint = store.checkpoint
        self._state = store.state
        self._topics = store.topics
        self._dispatcher = store.dispatcher
        self._quarantine = store.quarantine
        self._queue_problems = store.queue_problems
        self._progress = progress
        self._before_changes = before_changes
        self._container = HoleFiller(store.commitlog, store.quarantine, store.state.checksummed)
        self._container.look()
        self._evidence = UnitEvidence(lambda: sound_queues(store.queues, store.queue_problems))
        self._log = LogRecovery(
            store,
            self._evidence,
            progress,
            proves_hole=self._units_prove_records_behind,
            passed_over=[(each.physical_offset, each.end_offset) for each in self._container.pending],
            verify_all=verify_all,
        )
        self._examination = Examination(
            store, self._log, progress, is_unknown=self._is_unknown, note=self._note, rebuild=rebuild
        )
        self._changed(each.physical_offset for each in self._container.restored)
        self._refilled: set[int] = set()
        """Rows of the queues that were refilled from the beginning of the log."""
        self.report = RecoveryReport(store.clean)

    def run(self) -> RecoveryReport:
        """Recover the store. Raises ``CorruptLog``, before any change, if a log file is missing or foreign."""
        self._check_log_is_there()
        end = self._log.find_end()
        # The checks that may refuse the start are done: from here on files change.
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
        # Only now, when queues and index agree with the tombstones too: see ``HoleFiller``.
        self._quarantine.set_filled()
        self.report.damage = damage_line(self._quarantine, len(self.report.quarantined))
        self._queues.deleted_below = self._state.deleted_below
        self._adopt_topics()
        return self.report

    def _adopt_topics(self) -> None:
        """Add topics that are in the log but not in the table, as in a store of which only the log was kept."""
        found: dict[str, int] = {}
        for queue in self._queues:
            if self._topics.get(queue.topic) is None and queue.max_offset > queue.start_offset:
                physical_offset, _, _ = queue.unit(queue.max_offset - 1, hot=False)
                if physical_offset >= self._state.deleted_below(queue.topic):
                    found[queue.topic] = max(found.get(queue.topic, 0), queue.queue_id + 1)
        for name, queues in found.items():
            self._topics.put(TopicConfig(name, read_queues=queues, write_queues=queues))
        if found or self._topics.dirty:
            self._topics.persist()

    def _find_damaged(self, end: int) -> list[DamagedRecord]:
        """Run ``_derive`` once; returns the damaged records that it found, none if queues and index agree now."""
        try:
            return self._derive(end)
        except DamagedRecord as damaged:
            return [damaged]

    def _derive(self, end: int) -> list[DamagedRecord]:
        """Make queues and index agree with the log.

        Returns log records that cannot be right; if there are any, queues and index do not agree with the log yet.
        Raises ``DamagedRecord`` for such a record that dispatch finds.
        """
        begin = self._commitlog.start_offset
        dispatched = min(max(self._first_undispatched(end), begin), end)
        examination = self._examination
        counts, index_keep = examination.examine(dispatched, end)
        if examination.liars:
            return list(examination.liars.values())
        needed = examination.index_from(index_keep, dispatched) if examination.index_problem else dispatched
        needed = begin if self._queue_problems else max(needed, begin)
        # Before anything is removed: if the start is killed, the next one dispatches from here again.
        self._mark(end, needed)
        self._repair(counts, index_keep)
        self._dispatch(needed, end)
        self._queues.write_out()
        self._queues.sync()
        self._index.sync()
        return []

    def _check_progress(self, damaged: Iterable[DamagedRecord]) -> None:
        """Raise ``ContainmentStuck`` if a damaged record is in a range that this start has already contained.

        The loop of ``run`` ends because each pass contains a new part of the log: tombstones are sound, and the log is
        finite.
        """
        for each in damaged:
            at = each.physical_offset
            if any(hole.physical_offset <= at < hole.end_offset for hole in self.report.quarantined):
                raise ContainmentStuck(
                    f"this start contained the record at physical offset {at:,} of {self._commitlog.queue.folder} and "
                    f"finds it damaged again: {each}. The next start would do the same. Run `flintmq-broker rebuild "
                    "STORE`, which rebuilds queues and index from the log alone, or restore a backup. The damaged "
                    f"bytes are in {self._quarantine.folder}"
                )

    def _contain(self, holes: list[Hole], end: int) -> None:
        """Fill holes of the log, and point the units of lost messages at their tombstones."""
        lost: list[list[LostRange]] = []
        if holes:
            dispatched = self._first_trusted()
            lost = LostMessages(self._store, self._evidence, self._log.has_record_of, holes, dispatched, end).find()
        contained = self._container.contain(holes, lost, self._store_times_behind(holes))
        self._container.patch_units(self._queues, contained)
        self.report.quarantined += contained
        self._changed(each.physical_offset for each in contained)

    def _store_times_behind(self, holes: list[Hole]) -> list[int]:
        """Return, for each hole, the store time of the first record after it; holes in between are skipped."""
        times: list[int] = []
        store_ms = self._log.last_store_ms
        for hole in reversed(holes):
            store_ms = self._log.store_ms_behind(hole.end) or store_ms
            times.append(store_ms)
        return times[::-1]

    def _changed(self, physical_offsets: Iterable[int]) -> None:
        """Note that queues and index were derived from content that the log no longer has there."""
        self._examination.changed_from = min([self._examination.changed_from, *physical_offsets])

    def _first_trusted(self) -> int:
        """Return the physical offset below which every record has its unit; 0 if units are missing or wrong."""
        mark = self._log.mark
        if mark is None or self._queue_problems or self._examination.is_a_queue_short(mark.dispatched_offset):
            return 0
        return mark.dispatched_offset

    def _mark(self, end: int, dispatched: int) -> None:
        """Record in the checkpoint that queues and index are complete on disk below ``dispatched``."""
        last_ms = self._log.last_store_ms
        mark = self._checkpoint.mark
        whole = dispatched == end
        self._checkpoint.reset(
            flushed_offset=end,
            dispatched_offset=dispatched,
            physic_ms=last_ms,
            # RocketMQ uses times to find where to dispatch from. If only an offset is known, the time is 0, so that it
            # begins with the first file.
            logics_ms=last_ms
            if whole
            else min(self._checkpoint.logics_msg_timestamp, last_ms)
            if mark is not None and dispatched >= mark.dispatched_offset
            else 0,
            index_ms=self._index.full_end_ms if whole else 0,
        )

    def _note(self, reason: str) -> None:
        self.report.rebuilt.append(reason)
        log.warning("will be rebuilt from the log: %s", reason)

    # A store without FlintMQ's mark: evidence from the queues.

    def _check_log_is_there(self) -> None:
        """Refuse a log if the queues prove that its last file is missing."""
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
        """Return whether a ConsumeQueue unit points at a sound record after ``physical_offset``."""
        return any(
            self._log.has_record_of(queue, unit)
            for queue in sound_queues(self._queues, self._queue_problems)
            for unit in units_behind(queue, physical_offset)
        )

    def _is_unknown(self, topic: str) -> bool:
        """Return whether RocketMQ deleted the topic: it removes the topic's row and queues and leaves no trace."""
        known = self._log.mark is not None or len(self._topics) == 0 or self._topics.get(topic) is not None
        return not known and not is_system_topic(topic)

    def _leave_deleted_topics(self, end: int) -> None:
        """Keep dispatch from creating queues for the records of topics that RocketMQ deleted."""
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
        # RocketMQ dispatches in log order: after an orderly stop every record up to the newest unit was dispatched.
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
            # No unit remains. The queue's first message in the log will give its first offset; if there is none, only
            # the removed files knew it, so the state keeps it.
            self._state.keep_offset(queue.topic, queue.queue_id, begin)
            queue.remove_files()
            return
        queue.truncate(count)
        queue.start_offset = queue.min_hint = find_start(queue, count)

    def _complete_last_keys(self) -> None:
        """Add missing keys of the last indexed record: a stop between two index files may have separated them."""
        if not self._index.indexed_below:
            return
        keys = self._examination.keys_of(self._index.end_physical_offset)
        if keys is not None:
            held = self._index.entries_of_last_record()
            count = len(keys) // KEY_ROW
            for _ in self._index.put(keys, count, min(held, count)):
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
                # As in ``_derive``: the mark goes back before the queue's files go.
                self._mark(end, begin)
                self._queues.move_aside(queue)
            self._progress("dispatching", dispatcher.reput_offset - begin, end - begin)
            self.report.messages_recovered += dispatcher.dispatched_records
        dispatcher.reput_offset = end

    def _check_gap(self, queue: ConsumeQueue, queue_offset: int) -> None:
        """Check a record before which dispatch would leave a gap in the queue.

        Raises ``DamagedRecord`` if the records after it prove its queue offset wrong, and ``IncompleteQueue`` if the
        missing units may merely have been lost.
        """
        physical_offset = self._dispatcher.reput_offset
        following = self._log.following_queue_offsets(physical_offset, self._commitlog.write_offset)
        below = [each for each in following if each <= queue_offset]
        if 2 * len(below) > len(following):  # a majority, because any single one of them may be the wrong one
            file = self._commitlog.queue.find(physical_offset)
            raise DamagedRecord(
                f"{file.path if file else self._commitlog.queue.folder}: the record at physical offset "
                f"{physical_offset:,} says it is message {queue_offset:,} of queue {queue.queue_id} of {queue.topic}, "
                f"but message {below[0]:,} follows it",
                physical_offset,
                "a record that says it is another message",
            )
        # The queue's units before the record may have been lost: refill the queue from the log, once. A gap that
        # remains after that is in the log itself.
        if queue.max_offset > queue.start_offset and queue.row not in self._refilled:
            raise IncompleteQueue(queue)
