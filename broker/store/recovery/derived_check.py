"""Queues and index against the log: derive a stretch of it again, and compare with what the files hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ....protocol.storage.layout import UNIT_BYTES
from ...kernels import dispatch as kernel
from ..dispatch.dispatcher import Dispatcher
from ..errors import DamagedRecord
from ..index.index_file import IndexService
from ..log.commitlog import CommitLog
from ..queue.queue_check import count_units
from ..queue.queue_table import ConsumeQueueTable
from .log_recovery import Progress

CHUNK_BYTES = 4 * 1024 * 1024
UNKNOWN = -1


class Derived:
    """What one call of the dispatch kernel found in the log, without touching a file.

    ``units``: (row, first queue offset, the units' bytes); ``keys``: a row of (hash, physical offset, store ms) each.
    """

    def __init__(self, end: int, units: list[tuple[int, int, memoryview]], keys: np.ndarray) -> None:
        self.end = end
        self.units = units
        self.keys = keys


def derive(
    commitlog: CommitLog, queues: ConsumeQueueTable, dispatcher: Dispatcher, begin: int, end: int, missing: set[int],
    impossible: list[DamagedRecord],
) -> Iterator[Derived]:  # fmt: skip
    """Derive units and keys of ``[begin, end)``, both a record's boundary, as dispatch would; stops at the first record
    that is not sound.

    What is yielded lasts until the next step. Rows of queues that were not there go to ``missing``, and records whose
    parts are sound, but which no queue can have, to ``impossible``; these are left out.
    """
    rows = queues.kernel_rows.copy()
    rows[:, kernel.Q_NEXT] = UNKNOWN
    at = begin
    while at < end and (file := commitlog.queue.find(at)) is not None:
        array, position = file.array(), at - file.start_offset
        stop = min(position + CHUNK_BYTES, end - file.start_offset, file.size)
        status, position = dispatcher.derive(array, position, stop, file.start_offset, rows, index_from=0)
        at = file.end_offset if status == kernel.BLANK else file.start_offset + position
        units = [
            (row, int(rows[row, kernel.Q_NEXT]) - count, dispatcher.units(first, count))
            for row, first, count in dispatcher.touched()
        ]
        yield Derived(at, units, dispatcher.keys())
        if status == kernel.GAP:
            rows[dispatcher.gap_row(), kernel.Q_NEXT] = dispatcher.record_queue(array, position)[2]
        elif status == kernel.BAD_QUEUE_OFFSET:
            impossible.append(dispatcher.damaged_record(file, position, status))
            at += dispatcher.record_bytes
        elif status == kernel.NEW_QUEUE:
            try:
                row = dispatcher.add_queue(array, position).row
            except DamagedRecord as damaged:
                impossible.append(damaged)
                at += dispatcher.record_bytes
                continue
            if at >= queues.kernel_rows[row, kernel.Q_DELETED_BELOW]:
                missing.add(row)
            known = rows
            rows = queues.kernel_rows.copy()
            rows[:, kernel.Q_NEXT] = UNKNOWN
            rows[: len(known)][known[:, kernel.Q_NEXT] != UNKNOWN] = known[known[:, kernel.Q_NEXT] != UNKNOWN]
        elif status == kernel.BLANK:
            file.release()
        elif status not in (kernel.DONE, kernel.FULL):
            return


class DerivedCheck:
    """Compares what queues and index hold with what the log says. Changes nothing."""

    def __init__(
        self, commitlog: CommitLog, queues: ConsumeQueueTable, index: IndexService, dispatcher: Dispatcher
    ) -> None:
        self._commitlog = commitlog
        self._queues = queues
        self._index = index
        self._dispatcher = dispatcher
        self.impossible: list[DamagedRecord] = []
        """Records that no queue can have, which the last ``compare`` met."""

    def compare(
        self, begin: int, end: int, problems: dict[int, str], counts: dict[int, int], index_files: int,
        progress: Progress,
        on_gap: Callable[[int, int, int], str],
    ) -> tuple[str, int]:  # fmt: skip
        """Compare ``[begin, end)`` with every queue that has no entry in ``problems`` yet, which gets one for each that
        differs, and with the first ``index_files`` index files: returns (what is wrong there, how many are right).
        ``counts``: how many units of each of these queues point below ``end``, by row.

        The index may reach further than ``end``, and is compared as far: what it holds is not put into it again.
        ``on_gap(row, first, behind)``: told of queue offsets that units have, or records behind them prove, but no
        record has; returns what is wrong with the queue, if that is.
        """
        self.impossible = []
        following: dict[int, int] = {}
        missing: set[int] = set()
        unsound = set(problems)

        def look_between(row: int, first: int, behind: int) -> None:
            if first < behind and row not in unsound and (problem := on_gap(row, first, behind)):
                problems.setdefault(row, problem)

        cursor = IndexCursor(self._index, index_files, begin)
        index_problem = ""
        reach = min(max(end, cursor.reach), self._commitlog.write_offset)
        for derived in self._derive(begin, end, missing):
            for row, first, units in derived.units:
                look_between(row, following[row] if row in following else self._count_below(row, begin, first), first)
                following[row] = first + len(units) // UNIT_BYTES
                if row not in problems and row not in missing:
                    self._compare_units(row, first, units, problems)
            if not index_problem:
                index_files, index_problem = cursor.compare(derived)
            progress("checking queues and index", derived.end - begin, reach - begin)
        for row, count in counts.items():
            look_between(row, following[row] if row in following else self._count_below(row, begin, count), count)
        for row in missing & following.keys():  # a queue of rolled back messages alone has none, and is right
            problems.setdefault(row, "it has no files")
        for derived in self._derive(max(begin, end), reach, set()):
            if not index_problem:
                index_files, index_problem = cursor.compare(derived)
        return index_problem, index_files

    def _count_below(self, row: int, physical_offset: int, without_files: int) -> int:
        """How many units of a queue point below a physical offset; ``without_files`` where it has no files."""
        queue = self._queues.rows[row]
        return count_units(queue, physical_offset) if queue.end_byte else without_files

    def _derive(self, begin: int, end: int, missing: set[int]) -> Iterator[Derived]:
        return derive(self._commitlog, self._queues, self._dispatcher, begin, end, missing, self.impossible)

    def _compare_units(self, row: int, first: int, units: memoryview, problems: dict[int, str]) -> None:
        count = len(units) // UNIT_BYTES
        if self._queues.rows[row].read_units(first, count, hot=False) != units:
            problems[row] = f"units between {first:,} and {first + count:,} are not those of the log"

    def keys_of(self, physical_offset: int) -> np.ndarray | None:
        """The keys of the record there, a row of (hash, physical offset, store ms) each; None where there is none."""
        found = []
        for derived in self._derive(physical_offset, physical_offset + 1, set()):
            if derived.end > physical_offset:
                found.append(derived.keys.copy())
        return np.concatenate(found) if found else None

    def first_key_offset(self) -> int | None:
        """Physical offset of the first record with a key, looked for in the first chunk of the log."""
        begin = self._commitlog.start_offset
        end = min(begin + CHUNK_BYTES, self._commitlog.write_offset)
        for derived in self._derive(begin, end, set()):
            if len(derived.keys):
                return int(derived.keys[0, kernel.K_PHYSICAL_OFFSET])
        return None


class IndexCursor:
    """Goes through the entries of the first ``file_count`` index files in order, beside the log."""

    def __init__(self, index: IndexService, file_count: int, begin: int) -> None:
        self._files = index.files[:file_count]
        ends = [file.end_physical_offset for file in self._files if file.index_count > 1]
        self.reach = ends[-1] + 1 if ends else 0
        """Behind where the last record begins that has an entry."""
        self._file = 0
        self._number = 1
        while self._file + 1 < file_count and self._files[self._file].end_physical_offset < begin:
            self._file += 1
        if self._files:
            self._number = self._files[self._file].first_entry_at(begin)

    def compare(self, derived: Derived) -> tuple[int, str]:
        """Compare the entries of the records in front of ``derived.end``; (files that are right, what is wrong)."""
        keys = derived.keys
        reached = self._file
        wanted = np.unique(keys[:, kernel.K_PHYSICAL_OFFSET])
        at = 0
        while self._file < len(self._files):
            file = self._files[self._file]
            entries, first = file.read_entries(self._number, derived.end), self._number
            self._number += len(entries)
            # Records of deleted topics have entries and are derived no more.
            is_shown = np.isin(entries["physical_offset"], wanted)
            shown = entries[is_shown]
            expected = keys[at : at + len(shown)]
            if not is_shown[:1].all():
                first += 1
            if len(expected) < len(shown) or not file.holds(shown, expected, first=first):
                return self._file, f"{file.path}: its entries are not those of the log"
            at += len(shown)
            if self._number < file.index_count:
                break
            if self._file + 1 == len(self._files):
                break
            self._file, self._number = self._file + 1, 1
        if at < len(keys):
            last = self._files[self._file].path if self._files else "there is no index file"
            return (
                reached,
                f"{last}: keys behind physical offset {keys[at, kernel.K_PHYSICAL_OFFSET]:,} are not in the index",
            )
        return len(self._files), ""
