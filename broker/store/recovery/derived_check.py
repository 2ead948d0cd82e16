"""Examination of queues and index at a start: what is sound, and what must be refilled from the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from ....protocol.storage.layout import PRE_BLANK_SIZE, UNIT_BYTES
from ...kernels import dispatch as kernel
from ..check import EntryComparison, UnitComparison
from ..errors import DamagedRecord
from ..index import index_problem
from ..queues import count_units, first_unit, last_record_unit, order_problems
from .loaded_store import DERIVED_CHUNK_BYTES

if TYPE_CHECKING:
    from ..queues import ConsumeQueue, ConsumeQueueTable
    from .loaded_store import LoadedStore, Progress
    from .log_recovery import LogRecovery

GAP_UNITS_JUDGED_MAX = 1000
"""Maximum number of units of one gap that are compared with the records that they point at."""
QUEUE_CHECK_BYTES_MAX = 64 * 1024 * 1024
"""If the queues are at most this large together, all units are checked, otherwise only each queue's last file."""

_REBUILT = "it is rebuilt"


def sound_queues(queues: ConsumeQueueTable, problems: dict[int, str]) -> list[ConsumeQueue]:
    """Return the queues without an entry in ``problems``, which has the known problems by row."""
    return [queue for queue in queues if queue.row not in problems]


class Examination:
    """Checks that queues and index are consistent, complete as far as the store has recorded, and agree with the log.

    It adds to ``queue_problems`` of the store. ``is_unknown(topic)``: predicate: was the topic deleted by RocketMQ?
    ``note``: called with the text of each problem. ``rebuild``: discard all queues and index files.
    """

    def __init__(
        self,
        store: LoadedStore,
        log: LogRecovery,
        progress: Progress,
        *,
        is_unknown: Callable[[str], bool],
        note: Callable[[str], None],
        rebuild: bool,
    ) -> None:
        self._store = store
        self._commitlog = store.commitlog
        self._queues = store.queues
        self._index = store.index
        self._state = store.state
        self._log = log
        self._progress = progress
        self._is_unknown = is_unknown
        self._note = note
        self._is_tombstone = store.quarantine.covers
        self.queue_problems = store.queue_problems
        self.index_problem = store.index_problem
        """Why the newest index files cannot be used; empty if they can."""
        self._rebuild = rebuild
        self.changed_from = 1 << 62
        """Physical offset from which the log may differ from the one that queues and index were derived from."""
        self._impossible: list[DamagedRecord] = []
        """Records found by the last comparison that no queue can have."""
        self.liars: dict[int, DamagedRecord] = {}
        """Records, by physical offset, whose queue or queue offset contradicts the queues' units or is impossible."""

    def examine(self, dispatched: int, end: int) -> tuple[dict[int, int], int]:
        """Return (number of units to keep, by row; number of index files to keep), and note the problems.

        Finds all ``liars`` in one pass: each is evidence against others, so they must be contained together. If there
        are any, all other results are void.
        """
        self.liars = {}
        counts = self._examine_queues(dispatched)
        self._find_short_queues(dispatched, counts)
        if self._rebuild:
            return self._leave_all(counts)
        wrong, keep = index_problem(self._index, end, self._expected_index_files())
        self.index_problem = self.index_problem or wrong
        if self._log.mark is None and self._index_begins_late(keep):
            wrong, keep = "the index does not reach back to the first message with a key", 0
            self.index_problem = self.index_problem or wrong
        keep = self._drop_unfounded(self._drop_changed(keep))
        # From the checkpoint's mark at the latest: of the index files after it, only a newer one may be on disk.
        begin = max(min(self._log.checked_from, self.changed_from, dispatched), self._commitlog.start_offset)
        problems, wrong, keep = self._compare(begin, dispatched, counts, keep)
        self.liars.update({each.physical_offset: each for each in self._impossible})
        if self.liars:
            return counts, keep
        self.queue_problems.update(problems)
        self.index_problem = self.index_problem or wrong
        for row, problem in self.queue_problems.items():
            queue = self._queues.rows[row]
            self._note(f"consumequeue {queue.topic}/{queue.queue_id}: {problem}")
        if self.index_problem:
            self._note(self.index_problem)
        return counts, keep

    def _compare(
        self, begin: int, end: int, counts: dict[int, int], index_files: int
    ) -> tuple[dict[int, str], str, int]:
        """Compare ``[begin, end)`` with the queues and with the first ``index_files`` index files. Changes no file.

        Returns (the problem of each queue, by row; that of the index; the number of index files that are right). Only
        queues without a known problem are compared. ``counts``: number of units of each compared queue that point below
        ``end``, by row. Index entries past ``end`` are compared too, because they will not be inserted again.
        """
        self._impossible = []
        problems = dict(self.queue_problems)
        following: dict[int, int] = {}

        def look_between(row: int, first: int, behind: int) -> None:
            # No record has these queue offsets, although there are units for them or later records.
            if (
                first < behind
                and row not in self.queue_problems
                and (problem := self._look_for_liars(row, first, behind))
            ):
                problems.setdefault(row, problem)

        def follows(row: int, begins: int) -> int:
            # The queue offset after the records before; a queue whose files begin here has none.
            if row in following:
                return following[row]
            queue = self._queues.rows[row]
            return begins if begins <= first_unit(queue) else self._count_below(row, begin, begins)

        files = self._index.files[:index_files]
        unit_comparison, entries = UnitComparison(end), EntryComparison(files, begin, end)
        index_end = max((file.end_physical_offset + 1 for file in files if file.index_count > 1), default=0)
        reach = min(max(end, index_end), self._commitlog.write_offset)
        for derived in self._store.derive(begin, end, self._impossible):
            for run in derived.runs:
                queue, first, units = run
                row = queue.row
                look_between(row, follows(row, first), first)
                following[row] = first + len(units) // UNIT_BYTES
                if row not in problems and queue.end_byte:
                    flaw = next(unit_comparison.compare(run), None)
                    if flaw is not None:
                        problems[row] = f"message {flaw.first:,}: {flaw.text}"
            entries.compare(derived.keys, derived.end)
            self._progress("checking queues and index", derived.end - begin, reach - begin)
        for row, count in counts.items():
            look_between(row, follows(row, count), count)
        for row in following:  # a queue of only rolled back messages is not there, and rightly has no files
            if not self._queues.rows[row].end_byte:
                problems.setdefault(row, "it has no files")
        for derived in self._store.derive(max(begin, end), reach, self._impossible):
            entries.compare(derived.keys, derived.end)
        return problems, entries.problem, entries.files_right

    def _count_below(self, row: int, physical_offset: int, without_files: int) -> int:
        """Return the number of units of a queue below a physical offset; ``without_files`` if it has no files."""
        queue = self._queues.rows[row]
        return count_units(queue, physical_offset) if queue.end_byte else without_files

    def keys_of(self, physical_offset: int) -> np.ndarray | None:
        """Return the record's keys, rows of the kernel's in one array; None if there is no record there."""
        found = []
        for derived in self._store.derive(physical_offset, physical_offset + 1, self._impossible):
            if derived.end > physical_offset:
                found.append(derived.keys.copy())
        return np.concatenate(found) if found else None

    def _first_key_offset(self) -> int | None:
        """Return the physical offset of the first record with a key; None if the log's first chunk has none."""
        begin = self._commitlog.start_offset
        end = min(begin + DERIVED_CHUNK_BYTES, self._commitlog.write_offset)
        for derived in self._store.derive(begin, end, self._impossible):
            if len(derived.keys):
                return int(derived.keys[kernel.K_PHYSICAL_OFFSET])
        return None

    def _leave_all(self, counts: dict[int, int]) -> tuple[dict[int, int], int]:
        """Discard all queues and index files, for a rebuild."""
        for queue in self._queues:
            last = last_record_unit(queue, counts.get(queue.row, 0))
            if last is not None and last[1] < self._commitlog.start_offset:
                # Retention deleted all its messages, so only the queue itself knows its next offset.
                self._state.keep_offset(queue.topic, queue.queue_id, counts[queue.row])
            self.queue_problems[queue.row] = _REBUILT
        self._state.persist()
        self.index_problem = _REBUILT
        return counts, 0

    def _examine_queues(self, dispatched: int) -> dict[int, int]:
        thorough = sum(queue.end_byte - queue.first_byte for queue in self._queues) <= QUEUE_CHECK_BYTES_MAX
        counts, parts = {}, []
        for queue in sound_queues(self._queues, self.queue_problems):
            begin, count = first_unit(queue), count_units(queue, dispatched)
            per_file = queue.file_bytes // UNIT_BYTES
            if not thorough:
                begin = max(begin, (count - 1) // per_file * per_file)
            counts[queue.row] = count
            parts.append((queue, begin, count))
        problems = order_problems(parts)
        for queue, _, count in parts:
            problem = problems.get(queue.row) or self._last_unit_problem(queue, count)
            if problem:
                self.queue_problems[queue.row] = problem
        return counts

    def _last_unit_problem(self, queue: ConsumeQueue, count: int) -> str:
        last = last_record_unit(queue, count)
        if last is None or last[1] < self._commitlog.start_offset or self._log.has_record_of(queue, last):
            return ""
        problem = self._judge(queue, last)
        return "" if last[1] in self.liars else problem or f"unit {last[0]:,} points at no record of the queue"

    def _look_for_liars(self, row: int, first: int, behind: int) -> str:
        """Judge the units of queue offsets ``[first, behind)``, which no record of the checked log has.

        Adds records that should have them to ``liars``. Returns the problem of the queue if that is wrong instead.
        """
        queue = self._queues.rows[row]
        problem = ""
        for queue_offset in range(first, min(behind, queue.end_byte // UNIT_BYTES, first + GAP_UNITS_JUDGED_MAX)):
            physical_offset, size, _ = queue.unit(queue_offset, hot=False)
            if 0 < size != PRE_BLANK_SIZE:
                problem = self._judge(queue, (queue_offset, physical_offset, size)) or problem
        return problem

    def _judge(self, queue: ConsumeQueue, unit: tuple[int, int, int]) -> str:
        """Compare a unit with the record that it points at; returns the problem of the queue, empty if it has none.

        If the record says it is another message, it is one of ``liars``, unless it is a tombstone: then the queue is
        wrong.
        """
        queue_offset, physical_offset, _ = unit
        if not self._says_it_is_another(queue, unit):
            return ""
        if self._is_tombstone(physical_offset):
            return f"unit {queue_offset:,} points at the place of another message, which was lost"
        self.liars[physical_offset] = DamagedRecord(
            f"the record at physical offset {physical_offset:,} is message {queue_offset:,} of queue {queue.queue_id} "
            f"of {queue.topic}, but says it is another",
            physical_offset,
            "a record that says it is another message",
        )
        return ""

    def _says_it_is_another(self, queue: ConsumeQueue, unit: tuple[int, int, int]) -> bool:
        """Return whether the unit's record says it is another message, whose own unit does not point at it."""
        queue_offset, physical_offset, size = unit
        said = self._log.record_there(physical_offset, size)
        if said is None or said == (queue.topic.encode(), queue.queue_id, queue_offset):
            return False
        other = self._queues.get(said[0].decode("utf-8", "replace"), said[1])
        return other is None or said[2] < 0 or other.unit(said[2], hot=False)[:2] != unit[1:]

    def _find_short_queues(self, dispatched: int, counts: dict[int, int]) -> None:
        """Note the queues that end before their recorded end: they have lost their folder or a file."""
        for topic, queue_id, next_offset in self._noted_ends(dispatched):
            queue = self._queues.add(topic, queue_id)
            held = counts.get(queue.row, 0)
            if held < next_offset:
                self.queue_problems.setdefault(queue.row, f"it ends at {held:,}, not at {next_offset:,}")

    def is_a_queue_short(self, dispatched: int) -> bool:
        """Return whether any queue lacks units of records below ``dispatched``. Changes nothing."""
        for topic, queue_id, next_offset in self._noted_ends(dispatched):
            queue = self._queues.get(topic, queue_id)
            if queue is None or queue.row in self.queue_problems or count_units(queue, dispatched) < next_offset:
                return True
        return False

    def _noted_ends(self, dispatched: int) -> Iterator[tuple[str, int, int]]:
        """Yield (topic, queue, recorded end) of each queue that must exist, as FlintMQ last recorded it."""
        for topic, queue_id, next_offset in self._state.recorded_ends(self._commitlog.start_offset, dispatched):
            if not self._is_unknown(topic):
                yield topic, queue_id, next_offset

    def _expected_index_files(self) -> list[str]:
        """Return the recorded index files. If RocketMQ wrote last, omits the oldest, which it may have expired."""
        names = self._state.snapshot.index_files
        if self._log.mark is not None:
            return names
        oldest = self._index.files[0].path.name if self._index.files else ""
        return [name for name in names if oldest and name > oldest]

    def _index_begins_late(self, keep: int) -> bool:
        first = self._first_key_offset()
        if first is None:
            return False
        files = [file for file in self._index.files[:keep] if file.index_count > 1]
        return not files or files[0].header.begin_physical_offset > first

    def _drop_changed(self, keep: int) -> int:
        """Drop files that may have keys of lost messages or lack keys of restored ones; returns how many to keep."""
        first = self.changed_from
        stay = next((k for k in range(keep) if self._index.files[k].end_physical_offset >= first), keep)
        if stay < keep:
            self.index_problem = self.index_problem or f"{self._index.files[stay].path}: messages in it are lost"
        return stay

    def _drop_unfounded(self, keep: int) -> int:
        """Drop files whose last message is not in the log, because indexing would continue there.

        Returns how many to keep.
        """
        files, start_offset = self._index.files, self._commitlog.start_offset
        while keep and files[keep - 1].index_count > 1:
            last = files[keep - 1].end_physical_offset
            if last < start_offset or self.keys_of(last) is not None:
                break
            keep -= 1
            self.index_problem = self.index_problem or f"{files[keep].path}: its last message is not in the log"
        return keep

    def index_from(self, keep: int, dispatched: int) -> int:
        """Return the physical offset to index the log from if the first ``keep`` index files stay."""
        ends = [file.end_physical_offset for file in self._index.files[:keep] if file.index_count > 1]
        return min(ends[-1], dispatched) if ends else 0
