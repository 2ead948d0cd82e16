"""Comparison of queues and index with what the records of the log ask for: the one of a start and of ``verify``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...protocol.storage.layout import PRE_BLANK_SIZE, UNIT_BYTES
from ...protocol.store_files import file_name
from ..kernels import dispatch
from ..kernels import index as kernel
from .derivation import RecordAt
from .queues import UNIT_DTYPE

if TYPE_CHECKING:
    from .derivation import Run
    from .files.mapped_file import MappedFile
    from .index import IndexFile
    from .queues import ConsumeQueue, Units

# ---- ConsumeQueue units.


def unit_place(queue: ConsumeQueue, queue_offset: int) -> tuple[Path, int]:
    """Return (file of a unit, byte position in it)."""
    at = queue_offset * UNIT_BYTES
    start = at - at % queue.file_bytes
    return queue.folder / file_name(start), at - start


def read_present(queue: ConsumeQueue, queue_offset: int, count: int) -> bytearray:
    """Read ``count`` units, starting at ``queue_offset``; zeros if files are missing or too short."""
    held = queue.read_units(queue_offset, count, hot=False)
    while len(held) < count * UNIT_BYTES:
        at = queue_offset * UNIT_BYTES + len(held)
        left = count * UNIT_BYTES - len(held)
        # A read ends before a file that is too short: read its units one by one, and leave the rest zero.
        more = queue.read_units(at // UNIT_BYTES, 1, hot=False)
        if more:
            held += more
        else:
            held += bytes(min(queue.file_bytes - at % queue.file_bytes, left))
            left = count * UNIT_BYTES - len(held)
            held += queue.read_units(queue_offset + len(held) // UNIT_BYTES, left // UNIT_BYTES, hot=False)
    return held


FindFile = Callable[[int], "MappedFile | None"]
"""Function that returns the log file which contains a physical offset."""


def record_of_size(find: FindFile, physical_offset: int, size: int) -> RecordAt | None:
    """Return the record of this size at a physical offset; None if there is none. Its body may be damaged."""
    file = find(physical_offset)
    record = None if file is None else RecordAt(file, physical_offset)
    return record if record is not None and record.has_parts and record.size == size else None


def points_at_own_record(
    find: FindFile, queue: ConsumeQueue, unit: tuple[int, int, int], *, any_body: bool = False
) -> bool:
    """Return whether a unit of the queue (queue offset, physical offset, size) points at the record of its message.

    ``any_body``: the record's body may be damaged.
    """
    queue_offset, physical_offset, size = unit
    record = record_of_size(find, physical_offset, size)
    if record is None or not (record.is_sound or any_body):
        return False
    return record.message == (queue.topic.encode(), queue.queue_id, queue_offset)


@dataclass(frozen=True, slots=True)
class UnitFlaw:
    """Units of a queue that are not those of the log: the one of message ``first``, or missing ones up to ``last``.

    ``physical_offset``: the record of ``first``.
    """

    first: int
    last: int
    physical_offset: int
    is_missing: bool
    text: str


class UnitComparison:
    """Comparison of units that were derived from records with the queues' files.

    ``dispatched``: units of records below this must exist; the next start writes later ones.
    """

    def __init__(self, dispatched: int) -> None:
        self._dispatched = dispatched
        self.explained: dict[int, int] = defaultdict(int)
        """Number of units that have a record, by the queue's row."""
        self.pending = 0
        """Number of records whose unit the next start will write."""

    def compare(self, run: Run) -> Iterator[UnitFlaw]:
        """Compare a run; yield the wrong units, then each run of missing ones."""
        count = len(run.units) // UNIT_BYTES
        held = read_present(run.queue, run.queue_offset, count)
        # Nearly always the case, so the units are compared one by one only after it fails.
        if held == run.units:
            self.explained[run.queue.row] += count
            return
        expected, found = np.frombuffer(run.units, UNIT_DTYPE), np.frombuffer(held, UNIT_DTYPE)
        missing: list[int] = []
        for number in np.flatnonzero(expected != found).tolist():
            if found[number]["size"] <= 0:
                missing.append(number)
            else:
                text = _difference(expected[number], found[number])
                queue_offset = run.queue_offset + number
                physical_offset = int(expected[number]["physical_offset"])
                yield UnitFlaw(queue_offset, queue_offset, physical_offset, is_missing=False, text=text)
        self.explained[run.queue.row] += count - len(missing)
        yield from self._missing(run.queue_offset, expected, missing)

    def _missing(self, queue_offset: int, expected: Units, missing: list[int]) -> Iterator[UnitFlaw]:
        offsets = expected["physical_offset"]
        needed = [number for number in missing if offsets[number] < self._dispatched]
        self.pending += len(missing) - len(needed)
        begin = 0
        for end in range(1, len(needed) + 1):
            if end < len(needed) and needed[end] == needed[end - 1] + 1:
                continue
            first, last = queue_offset + needed[begin], queue_offset + needed[end - 1]
            yield UnitFlaw(first, last, int(offsets[needed[begin]]), is_missing=True, text="the unit is missing")
            begin = end


def _difference(expected: np.void, found: np.void) -> str:
    """Return how a unit differs from the expected one."""
    physical_offset, size, code = (int(value) for value in expected.item())
    other_offset, other_size, other_code = (int(value) for value in found.item())
    if other_size == PRE_BLANK_SIZE and other_offset == 0:
        return f"the unit only fills a gap, but the message is at physical offset {physical_offset:,}"
    if other_offset != physical_offset:
        return f"the unit points at physical offset {other_offset:,}, the message is at {physical_offset:,}"
    if other_size != size:
        return f"the unit says {other_size:,} bytes, the message has {size:,}"
    return f"the unit has tags code {other_code}, the message's is {code}"


# ---- Index entries.

_NO_KEYS = np.zeros(0, np.int64)


class IndexCursor:
    """Position in the entries of ``files``, oldest first, that moves in step with the log.

    It begins at the entries of the first record at or after the physical offset ``begin``.
    """

    def __init__(self, files: Sequence[IndexFile], begin: int) -> None:
        self.files = [file for file in files if file.index_count > 1]
        self.file_number = 0
        """Number of the file with the next entry, in ``files``; their count if all entries were compared."""
        self._number = 1
        while self.file_number < len(self.files):
            file = self.files[self.file_number]
            if file.end_physical_offset >= begin:
                self._number = file.first_entry_at(begin)
                break
            self.file_number += 1

    @property
    def at_end(self) -> bool:
        """Return whether all entries were compared."""
        return self.file_number == len(self.files)

    def compare(self, keys: np.ndarray, reached: int, optional_keys: np.ndarray | None = None) -> int:
        """Compare the entries of the records below ``reached`` with ``keys``, rows of dispatch's keys in one array.

        Returns how many of the keys have their entries, or -1 if an entry is wrong or surplus. Only keys after the last
        entry of a record below ``reached`` can lack theirs. ``optional_keys``: keys of deleted topics, which may have
        entries; None: any record without a key may have entries, because it may be of a deleted topic.
        """
        done = 0
        while not self.at_end:
            file = self.files[self.file_number]
            self._number, done, is_same = kernel.match(
                file.array(),
                file.entries_at,
                self._number,
                file.index_count,
                reached,
                file.header.begin_timestamp,
                keys,
                done,
                _NO_KEYS if optional_keys is None else optional_keys,
                optional_keys is None,
            )
            if not is_same:
                return -1
            if self._number < file.index_count:
                break
            self.file_number, self._number = self.file_number + 1, 1
        return done


class EntryComparison:
    """Comparison of the entries of ``files``, oldest first, with the keys of the log from ``begin`` on, up to the first
    difference.

    ``dispatched``: keys of records below this must exist; the next start puts later ones.
    """

    def __init__(self, files: Sequence[IndexFile], begin: int, dispatched: int) -> None:
        self._cursor = IndexCursor(files, begin)
        self._dispatched = dispatched
        self.problem = ""
        """The first difference."""
        self.files_right = len(files)
        """Number of files that agree with the log, up to that difference."""
        self.pending = 0
        """Number of keys that the next start will put."""

    def compare(self, keys: np.ndarray, reached: int, optional_keys: np.ndarray | None = None) -> bool:
        """Compare as ``IndexCursor`` does; return False if there is a difference."""
        if self.problem:
            return False
        cursor = self._cursor
        done = cursor.compare(keys, reached, optional_keys)
        if done < 0:
            self.problem = f"{cursor.files[cursor.file_number].path}: its entries are not those of the log"
            self.files_right = cursor.file_number
            return False
        missing = keys[done * dispatch.KEY_ROW :]
        if not len(missing):
            return True
        self.pending += len(missing) // dispatch.KEY_ROW
        physical_offset = int(missing[dispatch.K_PHYSICAL_OFFSET])
        # Keys may be missing only at the end of the index, and only above what is dispatched.
        if cursor.at_end and physical_offset >= self._dispatched:
            return True
        last = len(cursor.files) - 1
        path = cursor.files[min(cursor.file_number, last)].path if cursor.files else "there is no index file"
        self.problem = f"{path}: keys from physical offset {physical_offset:,} are not in the index"
        self.files_right = cursor.file_number
        return False
