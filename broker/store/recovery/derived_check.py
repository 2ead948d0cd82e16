"""Check of queues and index against the log: derive a range of the log again, and compare it with the files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from ....protocol.storage.layout import UNIT_BYTES
from ...kernels import dispatch as kernel
from ..errors import DamagedRecord
from ..index.index_cursor import IndexCursor
from ..queue.queue_check import count_units

if TYPE_CHECKING:
    from .loaded_store import LoadedStore
    from .log_recovery import Progress

CHUNK_BYTES = 4 * 1024 * 1024
"""CommitLog bytes that one kernel call derives."""
UNKNOWN = -1
"""Next offset of a queue that no record was derived for yet."""


class Derived:
    """The units and keys that one call of the dispatch kernel derived from the log, without changing a file.

    ``units``: (row, first queue offset, the units' bytes); ``keys``: a row of (hash, physical offset, store ms) each.
    """

    def __init__(self, end: int, units: list[tuple[int, int, memoryview]], keys: np.ndarray) -> None:
        self.end = end
        self.units = units
        self.keys = keys


def derive(
    store: LoadedStore, begin: int, end: int, missing: set[int], impossible: list[DamagedRecord]
) -> Iterator[Derived]:
    """Derive the units and keys of ``[begin, end)`` as dispatch would, up to the first record that is not sound.

    Both bounds must be record boundaries. A yielded object is valid until the next step. Adds the rows of queues that
    do not exist to ``missing``. Adds records whose parts are sound but which no queue can have to ``impossible``, and
    skips them.
    """
    commitlog, queues, dispatcher = store.commitlog, store.queues, store.dispatcher
    # A copy, because dispatch still needs the queues' real next offsets.
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
    """Compares queues and index with the log. Changes nothing."""

    def __init__(self, store: LoadedStore) -> None:
        self._store = store
        self._commitlog = store.commitlog
        self._queues = store.queues
        self._index = store.index
        self.impossible: list[DamagedRecord] = []
        """Records found by the last ``compare`` that no queue can have."""

    def compare(
        self,
        begin: int,
        end: int,
        problems: dict[int, str],
        counts: dict[int, int],
        index_files: int,
        progress: Progress,
        on_gap: Callable[[int, int, int], str],
    ) -> tuple[str, int]:
        """Compare ``[begin, end)`` with the queues and with the first ``index_files`` index files.

        Returns (problem of the index, number of index files that are right). Skips queues that have an entry in
        ``problems`` already, and adds one for each queue that differs. ``counts``: number of units of each compared
        queue that point below ``end``, by row.

        Index entries past ``end`` are compared too, because they will not be inserted again.
        ``on_gap(row, first, end)`` is called for queue offsets ``[first, end)`` that no record has, although
        there are units for them or later records; it returns the problem of the queue, empty if it has none.
        """
        self.impossible = []
        following: dict[int, int] = {}
        missing: set[int] = set()
        unsound = set(problems)

        def look_between(row: int, first: int, behind: int) -> None:
            if first < behind and row not in unsound and (problem := on_gap(row, first, behind)):
                problems.setdefault(row, problem)

        cursor = IndexCursor(self._index.files[:index_files], begin)
        index_problem = ""
        index_end = cursor.files[-1].end_physical_offset + 1 if cursor.files else 0
        reach = min(max(end, index_end), self._commitlog.write_offset)
        for derived in self._derive(begin, end, missing):
            for row, first, units in derived.units:
                look_between(row, following[row] if row in following else self._count_below(row, begin, first), first)
                following[row] = first + len(units) // UNIT_BYTES
                if row not in problems and row not in missing:
                    self._compare_units(row, first, units, problems)
            if not index_problem:
                index_files, index_problem = _compare_entries(cursor, derived, index_files)
            progress("checking queues and index", derived.end - begin, reach - begin)
        for row, count in counts.items():
            look_between(row, following[row] if row in following else self._count_below(row, begin, count), count)
        for row in missing & following.keys():  # a queue of only rolled back messages rightly has no files
            problems.setdefault(row, "it has no files")
        for derived in self._derive(max(begin, end), reach, set()):
            if not index_problem:
                index_files, index_problem = _compare_entries(cursor, derived, index_files)
        return index_problem, index_files

    def _count_below(self, row: int, physical_offset: int, without_files: int) -> int:
        """Return the number of units of a queue below a physical offset; ``without_files`` if it has no files."""
        queue = self._queues.rows[row]
        return count_units(queue, physical_offset) if queue.end_byte else without_files

    def _derive(self, begin: int, end: int, missing: set[int]) -> Iterator[Derived]:
        return derive(self._store, begin, end, missing, self.impossible)

    def _compare_units(self, row: int, first: int, units: memoryview, problems: dict[int, str]) -> None:
        count = len(units) // UNIT_BYTES
        if self._queues.rows[row].read_units(first, count, hot=False) != units:
            problems[row] = f"units between {first:,} and {first + count:,} are not those of the log"

    def keys_of(self, physical_offset: int) -> np.ndarray | None:
        """Return the record's keys, as rows (hash, physical offset, store ms); None if there is no record there."""
        found = []
        for derived in self._derive(physical_offset, physical_offset + 1, set()):
            if derived.end > physical_offset:
                found.append(derived.keys.copy())
        return np.concatenate(found) if found else None

    def first_key_offset(self) -> int | None:
        """Return the physical offset of the first record with a key; None if the log's first chunk has none."""
        begin = self._commitlog.start_offset
        end = min(begin + CHUNK_BYTES, self._commitlog.write_offset)
        for derived in self._derive(begin, end, set()):
            if len(derived.keys):
                return int(derived.keys[0, kernel.K_PHYSICAL_OFFSET])
        return None


def _compare_entries(cursor: IndexCursor, derived: Derived, index_files: int) -> tuple[int, str]:
    """Compare the entries of the records before ``derived.end``; return (number of right files, problem)."""
    files, keys = cursor.files, derived.keys
    last = len(files) - 1
    reached = max(min(cursor.file_number, last), 0)
    done = cursor.compare(keys.reshape(-1), derived.end)
    if done < 0:
        return cursor.file_number, f"{files[cursor.file_number].path}: its entries are not those of the log"
    if done < len(keys):
        path = files[min(cursor.file_number, last)].path if files else "there is no index file"
        missing = keys[done, kernel.K_PHYSICAL_OFFSET]
        return reached, f"{path}: keys from physical offset {missing:,} are not in the index"
    return index_files, ""
