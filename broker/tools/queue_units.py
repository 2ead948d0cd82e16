"""Comparison of ConsumeQueue units with the records that they should point at, in both directions."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np

from ...protocol.storage.layout import PRE_BLANK_SIZE, UNIT_BYTES
from ...protocol.store_files import file_name
from ..store.queue.consume_queue import ConsumeQueue
from ..store.queue.queue_check import BLOCK_UNITS, UNIT_DTYPE, Units, first_unit, is_filling
from .findings import Findings
from .log_end import LogEnd, unit_fits
from .offline import OfflineStore


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


class UnitComparison:
    """Comparison from records to units, for one segment of the log."""

    def __init__(self, store: OfflineStore, findings: Findings, dispatched: int) -> None:
        self._store = store
        self._findings = findings
        self._dispatched = dispatched
        self.explained: dict[int, int] = defaultdict(int)
        """Number of units that have a record, by the queue's row."""
        self.reported: dict[int, set[int]] = defaultdict(set)
        """Queue offsets of the units that are already reported, by row."""
        self.pending = 0
        """Number of records whose unit the next start will write."""

    def compare(self, queue: ConsumeQueue, queue_offset: int, units: memoryview) -> None:
        """Compare a run of units derived from the log with the queue's files."""
        count = len(units) // UNIT_BYTES
        held = read_present(queue, queue_offset, count)
        # Nearly always the case, so the units are compared one by one only after it fails.
        if held == units:
            self.explained[queue.row] += count
            return
        expected, found = np.frombuffer(units, UNIT_DTYPE), np.frombuffer(held, UNIT_DTYPE)
        missing: list[int] = []
        for number in np.flatnonzero(expected != found).tolist():
            if found[number]["size"] <= 0:
                count -= 1
                missing.append(number)
            else:
                self._add_wrong(queue, queue_offset + number, expected[number], found[number])
        self.explained[queue.row] += count
        self._report_missing(queue, queue_offset, expected, missing)

    def _add_wrong(self, queue: ConsumeQueue, queue_offset: int, expected: np.void, found: np.void) -> None:
        """Report how a unit differs from the expected one."""
        physical_offset, size, code = (int(value) for value in expected.item())
        other_offset, other_size, other_code = (int(value) for value in found.item())
        if other_size == PRE_BLANK_SIZE and other_offset == 0:
            text = f"the unit only fills a gap, but the message is at physical offset {physical_offset:,}"
        elif other_offset != physical_offset:
            text = f"the unit points at physical offset {other_offset:,}, the message is at {physical_offset:,}"
        elif other_size != size:
            text = f"the unit says {other_size:,} bytes, the message has {size:,}"
        else:
            text = f"the unit has tags code {other_code}, the message's is {code}"
        path, position = unit_place(queue, queue_offset)
        self._findings.add(
            "unit-wrong",
            path,
            f"message {queue_offset:,} of {queue.topic}, queue {queue.queue_id}: {text}",
            position=position,
            physical_offset=physical_offset,
        )
        self.reported[queue.row].add(queue_offset)

    def _report_missing(self, queue: ConsumeQueue, queue_offset: int, expected: Units, missing: list[int]) -> None:
        """Report each run of missing units once, except those that a start will write."""
        offsets = expected["physical_offset"]
        needed = [number for number in missing if offsets[number] < self._dispatched]
        self.pending += len(missing) - len(needed)
        begin = 0
        for end in range(1, len(needed) + 1):
            if end < len(needed) and needed[end] == needed[end - 1] + 1:
                continue
            first, last = queue_offset + needed[begin], queue_offset + needed[end - 1]
            path, position = unit_place(queue, first)
            which = f"message {first:,}" if first == last else f"messages {first:,} to {last:,}"
            self._findings.add(
                "unit-missing",
                path,
                f"{which} of {queue.topic}, queue {queue.queue_id}",
                position=position,
                physical_offset=int(offsets[needed[begin]]),
            )
            begin = end


class UnitPass:
    """Check of one queue's units by themselves, from its first file to its end."""

    def __init__(self, store: OfflineStore, queue: ConsumeQueue, end: LogEnd) -> None:
        self._store = store
        self._queue = queue
        self._end = end
        self._low = store.first_live(queue)
        self.live = 0
        """Number of units that point into the log, at messages of a topic that is not deleted."""
        self.next_offset = 0
        """Queue offset after the last unit."""
        self._reached = -1
        self._hole = -1

    def run(self) -> UnitPass:
        """Go through the units, and report holes and disorder."""
        queue = self._queue
        begin, stop = first_unit(queue), queue.end_byte // UNIT_BYTES
        self.next_offset = begin
        for at in range(begin, stop, BLOCK_UNITS):
            units = np.frombuffer(read_present(queue, at, min(BLOCK_UNITS, stop - at)), UNIT_DTYPE)
            used = units["size"] > 0
            offsets = units["physical_offset"].astype(np.int64)
            filling = is_filling(units)
            if not self._store.clean:  # the next start writes units that are not dispatched yet
                used &= filling | (offsets < self._end.dispatched)
            if not used.any():
                if self._hole < 0:
                    self._hole = at
                continue
            self._check_holes(at, used)
            self._check_order(at, offsets, used & ~filling)
            self.next_offset = at + int(np.flatnonzero(used)[-1]) + 1
            self.live += int(self._is_live(offsets, used, filling).sum())
        return self

    def _is_live(self, offsets: np.ndarray, used: np.ndarray, filling: np.ndarray) -> np.ndarray:
        live: np.ndarray = used & ~filling & (offsets >= self._low) & (offsets < self._end.offset)
        return live

    def _check_holes(self, at: int, used: np.ndarray) -> None:
        empty = np.flatnonzero(~used)
        last = int(np.flatnonzero(used)[-1])
        # Empty units are a hole only if a used one follows; those at the end of a block wait for the next block.
        if self._hole < 0 and len(empty) and empty[0] < last:
            self._hole = at + int(empty[0])
        if self._hole >= 0:
            self._add("unit-order", self._hole, f"empty units before unit {at + last:,}, which is not empty")
        self._hole = at + int(empty[empty > last][0]) if (empty > last).any() else -1

    def _check_order(self, at: int, offsets: np.ndarray, records: np.ndarray) -> None:
        places = np.flatnonzero(records)
        if not len(places):
            return
        # The last unit of the block before comes first.
        row = np.concatenate(([self._reached], offsets[places]))
        for number in np.flatnonzero(row[1:] <= row[:-1]).tolist():
            self._add(
                "unit-order",
                at + int(places[number]),
                f"the unit points at physical offset {row[number + 1]:,}, the one before it at {row[number]:,}",
            )
        self._reached = int(row[-1])
        # After a crash they do not count as findings, because the next start cuts them.
        behind = places[offsets[places] >= self._end.offset]
        for place in behind.tolist() if self._store.clean else ():
            self._add(
                "unit-stray",
                at + place,
                f"the unit points at physical offset {offsets[place]:,}, after the end of the log",
            )

    def find_strays(self, reported: set[int]) -> None:
        """Check the record of each live unit that is not ``reported`` yet."""
        queue = self._queue
        for at in range(first_unit(queue), self.next_offset, BLOCK_UNITS):
            units = np.frombuffer(read_present(queue, at, min(BLOCK_UNITS, self.next_offset - at)), UNIT_DTYPE)
            live = self._is_live(units["physical_offset"].astype(np.int64), units["size"] > 0, is_filling(units))
            for number in np.flatnonzero(live).tolist():
                physical_offset, size, _ = units[number].item()
                if at + number not in reported and not unit_fits(
                    self._store, queue, at + number, physical_offset, size
                ):
                    self._add(
                        "unit-stray",
                        at + number,
                        f"the unit points at physical offset {physical_offset:,}, where that message is not",
                        physical_offset,
                    )

    def _add(self, kind: str, queue_offset: int, text: str, physical_offset: int = -1) -> None:
        queue = self._queue
        path, position = unit_place(queue, queue_offset)
        self._store.findings.add(
            kind,
            path,
            f"message {queue_offset:,} of {queue.topic}, queue {queue.queue_id}: {text}",
            position=position,
            physical_offset=physical_offset,
        )
