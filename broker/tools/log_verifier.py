"""The check of the log by several threads: every record, and every unit and index entry beside it."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...protocol.storage.layout import (
    INDEX_ENTRY_BYTES,
    INDEX_HEADER,
    INDEX_HEADER_BYTES,
    INDEX_SLOT_BYTES,
    RECORD,
    UNIT_BYTES,
)
from ..kernels import dispatch as kernel
from ..kernels import index as index_kernel
from ..kernels import search
from ..store.check import EntryComparison, UnitComparison, UnitFlaw, read_present, unit_place
from ..store.derivation import CheckDerivation, RecordAt, ends_file
from ..store.files.mapped_file import MappedFile
from ..store.files.system_calls import usable_processors, will_read
from ..store.index import IndexFile
from ..store.queues import BLOCK_UNITS, UNIT_DTYPE, ConsumeQueue, first_unit, is_filling
from .findings import Findings
from .offline import LogEnd, OfflineStore

_QUEUE_OFFSET_AT = RECORD.at["queue_offset"]
CHUNK_BYTES = 4 * 1024 * 1024
CLOCK_MARGIN_MS = 3_000
"""RocketMQ's own tolerance for times."""


@dataclass(slots=True)
class QueueSpan:
    """One queue's part of a segment: queue offset and position of its first record, the offset after its last one, an
    alternative to that (-1: none), the number of records, and where its offsets last restart at 0 (0: nowhere)."""

    first: int
    first_at: int
    next: int
    other: int
    records: int
    begun_again: int = 0


@dataclass(slots=True)
class Segment:
    """A range of one CommitLog file, and the results of its check. ``reached``: end of its last record."""

    file: MappedFile
    begin: int
    end: int
    reached: int = 0
    records: int = 0
    spans: dict[int, QueueSpan] = field(default_factory=dict)
    """By the queue's row."""
    units: UnitComparison | None = None
    reported: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    """Queue offsets of wrong units, by the queue's row."""
    findings: Findings = field(default_factory=Findings)
    index_differs: bool = False
    pending_keys: int = 0


class PassStopped(Exception):
    """The pass was told to end."""


class Examiner:
    """Checks one segment at a time; one examiner per thread. ``adding``: lock for adding a queue."""

    def __init__(self, store: OfflineStore, end: LogEnd, adding: threading.Lock, stop: threading.Event) -> None:
        self._store = store
        self._end = end
        self._adding = adding
        self._stop = stop
        self.bytes_done = 0
        self._derivation = CheckDerivation(store.queues, kernel.EXAMINE, adding)
        self._derivation.counts[kernel.S_CLOCK_MARGIN_MS] = CLOCK_MARGIN_MS
        self._parts = np.zeros(kernel.PARTS, np.int64)

    def run(self, segment: Segment, entries: EntryComparison | EntryAlignment | None) -> Segment:
        """Check the segment. ``entries``: the comparison of its keys with the index; None: ignore the index. Raises
        ``PassStopped``."""
        segment.units = UnitComparison(self._end.dispatched)
        file, array = segment.file, segment.file.array()
        # Page faults alone read ahead too little from a disk.
        will_read(file.fd, segment.begin, segment.end - segment.begin)
        derivation = self._derivation
        derivation.begin()
        self._begun_again: dict[int, int] = {}
        at = segment.begin
        while at < segment.end:
            if self._stop.is_set():
                raise PassStopped
            before = at
            # Which checksum a record must have changes only at a border.
            derivation.counts[kernel.S_CHECKSUMMED], border = self._store.state.checksummed.at(file.start_offset + at)
            chunk_end = min(at + CHUNK_BYTES, segment.end, border - file.start_offset)
            status, at = derivation.step(array, at, chunk_end, file.start_offset)
            self._take(segment)
            # Buffers that are full need nothing: the next turn continues where this one stopped.
            if status == kernel.BLANK and ends_file(array, at):
                at = file.size
            elif status == kernel.NEW_QUEUE:
                at = self._skip_queue(segment, array, at)
            elif status not in (kernel.DONE, kernel.FULL):
                at = self._pass_over(segment, array, at, status)
            if entries is not None:
                self._compare_keys(segment, entries, min(file.start_offset + at, self._end.offset))
            self.bytes_done += at - before
        segment.reached = at
        self._note_spans(segment)
        return segment

    def _take(self, segment: Segment) -> None:
        """Take over the results of the last call, except keys."""
        derivation = self._derivation
        segment.records += derivation.counts[kernel.S_RECORDS]
        for kind, place, detail in derivation.flaws():
            if kind == kernel.FLAW_QUEUE_OFFSET and self._begins_again(segment, place):
                physical_offset = segment.file.start_offset + place
                topic, queue_id, _ = RecordAt(segment.file, physical_offset).message
                queue = self._store.queues.get(topic.decode("utf-8", "replace"), queue_id)
                assert queue is not None
                self._begun_again[queue.row] = physical_offset
            else:
                add_flaw(segment, kind, place, detail)
        assert segment.units is not None
        for run in derivation.unit_runs():
            for flaw in segment.units.compare(run):
                add_unit_flaw(segment, run.queue, flaw)

    def _begins_again(self, segment: Segment, at: int) -> bool:
        """Return whether the record may be the first of a topic that RocketMQ deleted and recreated: it counts from
        0."""
        return (
            self._store.is_rocketmq
            and not segment.file.array()[at + _QUEUE_OFFSET_AT : at + _QUEUE_OFFSET_AT + 8].any()
        )

    def _compare_keys(self, segment: Segment, entries: EntryComparison | EntryAlignment, reached: int) -> None:
        derivation = self._derivation
        if not entries.compare(derivation.required_keys(), reached, derivation.optional_keys()):
            segment.index_differs = True

    def _skip_queue(self, segment: Segment, array: np.ndarray, at: int) -> int:
        """Report the record at ``at``, whose queue cannot exist; return where to continue."""
        topic, queue_id, _ = self._derivation.record_queue(array, at)
        segment.findings.add(
            "topic",
            segment.file.path,
            f"topic {topic.decode('utf-8', 'replace')!r}, queue {queue_id}",
            position=at,
            physical_offset=segment.file.start_offset + at,
        )
        segment.records += 1
        return at + self._derivation.record_bytes

    def _pass_over(self, segment: Segment, array: np.ndarray, at: int, status: int) -> int:
        """Report a range without a record that begins at ``at``; return its end."""
        found = search.next_record(array, at + 1, segment.end, segment.file.start_offset, self._parts)
        lost = found - at
        segment.findings.add(
            "record",
            segment.file.path,
            f"{_BAD_NAMES[status]}; {lost:,} bytes up to the next readable record",
            position=at,
            physical_offset=segment.file.start_offset + at,
        )
        return int(found)

    def _note_spans(self, segment: Segment) -> None:
        for row, values in self._derivation.seen():
            segment.spans[row] = QueueSpan(
                int(values[kernel.Q_FIRST]),
                int(values[kernel.Q_FIRST_AT]),
                int(values[kernel.Q_NEXT]),
                int(values[kernel.Q_OTHER]),
                int(values[kernel.Q_RECORDS]),
                self._begun_again.get(row, 0),
            )


_BAD_NAMES = {**kernel.BAD_NAMES, kernel.BLANK: "a blank record that does not end its file"}
_FLAWS = {
    kernel.FLAW_CRC: ("body-crc", "its body is not the one that was stored"),
    kernel.FLAW_RECORD_CRC: (
        "record-crc",
        "its checksum over the whole record (__CRC32#) is missing or wrong, although its body is right",
    ),
    kernel.FLAW_PROPERTIES: ("properties", "its properties are not pairs of a name and a value in UTF-8"),
    kernel.FLAW_TIME: ("store-time", "its store time is before that of the previous record, {:,} ms"),
    kernel.FLAW_QUEUE_OFFSET: ("queue-offset", "message {:,} of that queue comes next"),
    kernel.FLAW_NO_QUEUE_OFFSET: ("queue-offset", "no queue can have a message of that number"),
}


def add_unit_flaw(segment: Segment, queue: ConsumeQueue, flaw: UnitFlaw) -> None:
    """Report units that are not those of the log."""
    path, position = unit_place(queue, flaw.first)
    which = f"message {flaw.first:,}" if flaw.first == flaw.last else f"messages {flaw.first:,} to {flaw.last:,}"
    segment.findings.add(
        "unit-missing" if flaw.is_missing else "unit-wrong",
        path,
        f"{which} of {queue.topic}, queue {queue.queue_id}{'' if flaw.is_missing else f': {flaw.text}'}",
        position=position,
        physical_offset=flaw.physical_offset,
    )
    if not flaw.is_missing:
        segment.reported[queue.row].add(flaw.first)


def add_flaw(segment: Segment, kind: int, at: int, detail: int) -> None:
    """Report a flaw that ``examine`` found in the record at ``at`` of the file."""
    name, text = _FLAWS[kind]
    file = segment.file
    topic, queue_id, queue_offset = RecordAt(file, file.start_offset + at).message
    segment.findings.add(
        name,
        file.path,
        f"message {queue_offset:,} of {topic.decode('utf-8', 'replace')}, queue {queue_id}: {text.format(detail)}",
        position=at,
        physical_offset=file.start_offset + at,
    )


# ---- The pass over the whole log, by several threads.
#
# The log is cut into segments that threads check in parallel; the kernels run without the GIL. Each cut is at
# the start of a record, found by its magic and physical offset. If a cut turns out to be inside a record, the
# segment after it is checked again from the end of the previous one.

SEGMENT_BYTES = 32 * 1024 * 1024
THREADS_MAX = 8
POLL_S = 0.1

Progress = Callable[[int, int], None]
"""Callback with the number of finished bytes of the log, and their total."""


class LogPass:
    """The check of every record. ``segment_bytes``: size of the range that one thread takes at a time."""

    def __init__(
        self, store: OfflineStore, end: LogEnd, progress: Progress, *, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        self._store = store
        self._end = end
        self._progress = progress
        self._segment_bytes = segment_bytes
        self._adding = threading.Lock()
        self._stop = threading.Event()
        self._local = threading.local()
        self._examiners: list[Examiner] = []
        self.threads = max(1, min(usable_processors(), THREADS_MAX))
        self.findings = Findings()
        self.records = 0
        self.bytes = 0
        self.pending_units = 0
        self.pending_keys = 0
        self.records_by_row: dict[int, int] = defaultdict(int)
        self.explained: dict[int, int] = defaultdict(int)
        """Number of units that have a record, by the queue's row."""
        self.reported: dict[int, set[int]] = defaultdict(set)
        """Queue offsets of units that are already reported, by row."""
        self.begun_again: dict[int, int] = {}
        """In a store of RocketMQ's: where a queue, by its row, restarts at 0 because its topic was deleted and
        recreated. Everything before that counts as deleted."""
        self._spans: dict[int, QueueSpan] = {}

    def run(self) -> None:
        """Check records, units and entries; errors go into ``findings``."""
        segments = self._segments()
        self.bytes = sum(segment.end - segment.begin for segment in segments)
        index_findings = Findings()
        with ThreadPoolExecutor(self.threads, "verify") as pool:
            try:
                work: list[Future[Any]] = [
                    pool.submit(check_file, file, index_findings, clean=self._store.clean)
                    for file in self._store.index_files
                ]
                work += [pool.submit(self._examine, segment) for segment in segments]
                while wait(work, POLL_S).not_done:
                    self._progress(self._bytes_done(), self.bytes)
                for future in work:
                    future.result()
            # Also Ctrl-C: the threads end after their present chunk.
            except BaseException:
                self._stop.set()
                pool.shutdown(cancel_futures=True)
                raise
        self._progress(self.bytes, self.bytes)
        segments = self._join(segments)
        self.findings.extend(index_findings)
        differs = any(segment.index_differs for segment in segments)
        if index_findings.total or differs or not all(map(self._times_fit, self._store.index_files)):
            self._compare_index_in_detail(segments)

    def _bytes_done(self) -> int:
        # A copy, because the threads add to the list.
        return sum(examiner.bytes_done for examiner in list(self._examiners))

    # Segments.

    def _segments(self) -> list[Segment]:
        return [segment for file in self._store.log_files for segment in self._cut(file)]

    def _cut(self, file: MappedFile) -> Iterator[Segment]:
        stop = min(file.size, self._end.offset - file.start_offset)
        begin = 0
        while begin < stop:
            end = stop
            # A rest of less than half a segment goes with the one before it.
            if stop - begin > self._segment_bytes * 3 // 2:
                wanted = begin + self._segment_bytes
                found = self._next_record(file, wanted, min(wanted + self._segment_bytes, stop))
                end = min(found, stop)
            yield Segment(file, begin, end)
            begin = end

    @staticmethod
    def _next_record(file: MappedFile, begin: int, end: int) -> int:
        parts = np.zeros(kernel.PARTS, np.int64)
        return int(search.next_record(file.array(), begin, end, file.start_offset, parts))

    def _examine(self, segment: Segment) -> Segment:
        examiner = getattr(self._local, "examiner", None)
        if examiner is None:
            examiner = self._local.examiner = self._new_examiner()
        begin = segment.file.start_offset + segment.begin
        entries = EntryComparison(self._store.index_files, begin, self._end.dispatched)
        result: Segment = examiner.run(segment, entries)
        result.pending_keys = entries.pending
        return result

    def _new_examiner(self) -> Examiner:
        examiner = Examiner(self._store, self._end, self._adding, self._stop)
        self._examiners.append(examiner)
        return examiner

    def _times_fit(self, file: IndexFile) -> bool:
        """Return whether the times of an index file's header are those of its first and its last record."""
        header = file.header
        if file.index_count <= 1:
            return True
        begin = self._store.store_time(header.begin_physical_offset)
        end = self._store.store_time(header.end_physical_offset)
        # Retention may have deleted the records; the header of an interrupted update may name one after the log's end.
        return begin in (None, header.begin_timestamp) and end in (None, header.end_timestamp)

    # Joining the segments.

    def _join(self, segments: list[Segment]) -> list[Segment]:
        """Merge the results of the segments in log order, with errors that only show between them; return the segments
        with corrected cuts."""
        joined: list[Segment] = []
        reached = 0
        for number, segment in enumerate(segments):
            if number and segments[number - 1].file is not segment.file:
                segments[number - 1].file.release()
                reached = 0
            if reached > segment.begin:  # it was cut inside of a record
                again = Segment(segment.file, min(reached, segment.end), segment.end)
                segment = self._new_examiner().run(again, None)
                # Its keys were not compared, so the index is compared again as a whole.
                segment.index_differs = True
            reached = max(reached, segment.reached)
            self._take(segment)
            joined.append(segment)
        return joined

    def _take(self, segment: Segment) -> None:
        self.records += segment.records
        self.findings.extend(segment.findings)
        assert segment.units is not None
        self.pending_keys += segment.pending_keys
        self.pending_units += segment.units.pending
        for row, count in segment.units.explained.items():
            self.explained[row] += count
        for row, offsets in segment.reported.items():
            self.reported[row] |= offsets
        for row, span in segment.spans.items():
            self.records_by_row[row] += span.records
            before = self._spans.get(row)
            if before is not None and span.first not in (before.next, before.other):
                if self._store.is_rocketmq and span.first == 0:
                    self.begun_again[row] = span.first_at
                else:
                    self._note_jump(segment, row, before, span)
            self.begun_again.update({row: span.begun_again} if span.begun_again else {})
            self._spans[row] = span

    def _note_jump(self, segment: Segment, row: int, before: QueueSpan, span: QueueSpan) -> None:
        queue = self._store.queues.rows[row]
        self.findings.add(
            "queue-offset",
            segment.file.path,
            f"message {span.first:,} of {queue.topic}, queue {queue.queue_id}: message {before.next:,} of that queue "
            "comes next",
            position=span.first_at - segment.file.start_offset,
            physical_offset=span.first_at,
        )

    def _compare_index_in_detail(self, segments: list[Segment]) -> None:
        """Go through the log again, in order, with one cursor, to report every error of the index."""
        examiner = self._new_examiner()
        examiner.bytes_done = 0
        store = self._store
        entries = EntryAlignment(
            store.path / "index", store.index_files, store.log_start, self._end.dispatched, self.findings
        )
        for number, segment in enumerate(segments):
            again = Segment(segment.file, segment.begin, segment.end)
            examiner.run(again, entries)
            self._progress(sum(each.end - each.begin for each in segments[: number + 1]), self.bytes)
        entries.finish()
        self.pending_keys = entries.pending


# ---- Comparison of ConsumeQueue units with the records that they should point at, in both directions.


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
                if at + number not in reported and not self._store.fits(queue, (at + number, physical_offset, size)):
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


# ---- Comparison of index entries with the keys of the records: a cursor moves through the entries in step
# with the log.

SECONDS_MAX = 2**31 - 1
LOOK_AHEAD = 512
"""Maximum number of consecutive wrong entries after which the comparison still finds its place again."""

Key = tuple[int, int, int, bool]
"""(hash, physical offset, store time in ms, whether the index may lack it)."""
Entry = tuple[int, int, int, int]
"""(hash, physical offset, seconds, previous)."""


class EntryAlignment:
    """Comparison of all entries of ``files``, oldest first, with the keys of the whole log, that reports every error.

    ``begin``: the log's start; ``dispatched``: keys of records below this must exist.
    """

    def __init__(
        self, folder: Path, files: Sequence[IndexFile], begin: int, dispatched: int, findings: Findings
    ) -> None:
        self._findings = findings
        self._folder = folder
        self._files = [file for file in files if file.index_count > 1]
        self._dispatched = dispatched
        self.pending = 0
        """Number of keys that the next start will put."""
        self._at = 0
        """Index of the file with the next entry."""
        self._number = 1
        self._held: list[Key] = []
        """The last keys, kept until later ones show what is wrong."""
        self._begin_ms: dict[IndexFile, int] = {}
        while self._at < len(self._files):
            file = self._files[self._at]
            # Not a binary search, which a wrong entry would mislead.
            offsets = file.all_entries["physical_offset"][1 : file.index_count]
            self._number = 1 + int(np.count_nonzero(offsets < begin)) if begin else 1
            if self._number < file.index_count:
                return
            self._at, self._number = self._at + 1, 1

    def compare(self, keys: np.ndarray, reached: int, optional_keys: np.ndarray) -> bool:
        """Take the next keys, as ``EntryComparison`` does; report what they show of the entries. Return True."""
        self._held += _merged(keys, optional_keys)
        if len(self._held) > 2 * LOOK_AHEAD:
            del self._held[: self._align(self._held, len(self._held) - LOOK_AHEAD)]
        return True

    def finish(self) -> None:
        """Finish the comparison: no key follows."""
        findings = self._findings
        self._align(self._held, len(self._held))
        self._held.clear()
        places, entries = self._window(LOOK_AHEAD)
        while entries:
            for place, entry in zip(places, entries, strict=True):
                _add_stray(*place, entry, set(), findings)
            self._skip(len(entries))
            places, entries = self._window(LOOK_AHEAD)

    def _window(self, count: int) -> tuple[list[tuple[IndexFile, int]], list[Entry]]:
        """Return the next entries, at most ``count``: (file, number) and content of each."""
        places: list[tuple[IndexFile, int]] = []
        entries: list[Entry] = []
        number = self._number
        for file in self._files[self._at :]:
            stop = min(file.index_count, number + count - len(places))
            places += [(file, each) for each in range(number, stop)]
            entries += file.all_entries[number:stop].tolist()
            number = 1
        return places, entries

    def _skip(self, count: int) -> None:
        """Skip entries, into the next files if necessary."""
        while count:
            file = self._files[self._at]
            step = min(count, file.index_count - self._number)
            self._number += step
            count -= step
            if self._number == file.index_count:
                self._at, self._number = self._at + 1, 1

    def _align(self, keys: list[Key], stop: int) -> int:
        """Lay keys and entries side by side, and find the smallest difference that explains what is there. Goes on to
        key ``stop`` at least, unless only missing entries explain the rest; returns how many keys are done."""
        findings = self._findings
        places, entries = self._window(len(keys) + 2 * LOOK_AHEAD)
        offsets = [key[1] for key in keys]
        known = {key[:2] for key in keys}
        at = entry = 0
        while at < stop:
            key = keys[at]
            if entry < len(entries) and _same(key, entries[entry]):
                self._check_time(*places[entry], entries[entry][2], key[2])
                at, entry = at + 1, entry + 1
            elif key[3]:  # of a deleted topic, and left out
                at += 1
            elif entry == len(entries):
                self._add_missing(keys[at:])
                at = len(keys)
            elif wrong := _wrong_in_a_row(keys, at, entries, entry):
                # These keys and entries differ in pairs, and those after them fit again.
                for step in range(wrong):
                    _add_wrong(*places[entry + step], entries[entry + step], keys[at + step], findings)
                at, entry = at + wrong, entry + wrong
            elif any(_same(key, other) for other in entries[entry + 1 : entry + LOOK_AHEAD]):
                # The key's own entry comes later, so this one is too many.
                _add_stray(*places[entry], entries[entry], known, findings)
                entry += 1
            elif entries[entry][1] > key[1]:
                # The entry belongs to a later message: the keys up to that have none.
                behind = max(bisect_left(offsets, entries[entry][1], at), at + 1)
                self._add_missing(keys[at:behind])
                at = behind
            else:
                # The entry belongs to an earlier message than the next key, and all keys of that are done.
                _add_stray(*places[entry], entries[entry], known, findings)
                entry += 1
        self._skip(entry)
        return at

    def _add_missing(self, keys: list[Key]) -> None:
        wanted = [key for key in keys if not key[3]]
        needed = [key for key in wanted if key[1] < self._dispatched]
        self.pending += len(wanted) - len(needed)
        if not needed:
            return
        path = self._files[min(self._at, len(self._files) - 1)].path if self._files else self._folder
        first, last = needed[0][1], needed[-1][1]
        where = "of the message there" if first == last else f"of messages up to physical offset {last:,}"
        how_many = "a key" if len(needed) == 1 else f"{len(needed):,} keys"
        self._findings.add("index-missing", path, f"{how_many} {where}", physical_offset=first)

    def _check_time(self, file: IndexFile, number: int, seconds: int, store_ms: int) -> None:
        """Check the time of an entry; for the first and the last entry, check the header's times too."""
        header, findings = file.header, self._findings
        if number == 1:
            self._begin_ms[file] = store_ms
            if header.begin_timestamp != store_ms:
                _add_header(file, "begin_timestamp", header.begin_timestamp, store_ms, findings)
        else:
            begin_ms = self._begin_ms.get(file, header.begin_timestamp)
            # The bounds of RocketMQ's ``IndexFile.putKey``.
            expected = min(max(store_ms - begin_ms, 0) // 1000, SECONDS_MAX) if begin_ms > 0 else 0
            if seconds != expected:
                _add_entry(
                    "index-wrong",
                    file,
                    number,
                    f"says second {seconds:,}, its message was stored in {expected:,}",
                    -1,
                    findings,
                )
        if number + 1 == file.index_count and header.end_timestamp != store_ms:
            _add_header(file, "end_timestamp", header.end_timestamp, store_ms, findings)


def _merged(keys: np.ndarray, optional: np.ndarray) -> list[Key]:
    """Merge both in log order."""
    rows: list[Key] = [
        (row[kernel.K_HASH], row[kernel.K_PHYSICAL_OFFSET], row[kernel.K_STORE_MS], may_lack)
        for flat, may_lack in ((keys, False), (optional, True))
        for row in flat.reshape(-1, kernel.KEY_ROW).tolist()
    ]
    if len(optional):
        rows.sort(key=lambda row: row[1])  # stable: the keys of a record keep their order
    return rows


def _same(key: Key, entry: Entry) -> bool:
    return key[0] == entry[0] and key[1] == entry[1]


def _wrong_in_a_row(keys: list[Key], at: int, entries: list[Entry], entry: int) -> int:
    """Return the number of wrong entries after which the rest fits again; 0 if that explains nothing."""
    for step in range(1, min(LOOK_AHEAD, len(keys) - at, len(entries) - entry) + 1):
        if at + step == len(keys) or entry + step == len(entries):
            return step if at + step == len(keys) and entry + step == len(entries) else 0
        if _same(keys[at + step], entries[entry + step]):
            return step
    return 0


def _add_entry(kind: str, file: IndexFile, number: int, text: str, physical_offset: int, findings: Findings) -> None:
    position = file.entries_at + INDEX_ENTRY_BYTES * number
    findings.add(kind, file.path, f"entry {number:,} {text}", position=position, physical_offset=physical_offset)


def _add_wrong(file: IndexFile, number: int, entry: Entry, key: Key, findings: Findings) -> None:
    text = f"says hash {entry[0]:,} at physical offset {entry[1]:,} instead of hash {key[0]:,} at {key[1]:,}"
    _add_entry("index-wrong", file, number, text, key[1], findings)


def _add_stray(file: IndexFile, number: int, entry: Entry, known: set[tuple[int, int]], findings: Findings) -> None:
    """Report a surplus entry. A repeated key of a message is harmless: RocketMQ writes it after a crash."""
    if entry[:2] not in known:
        text = f"says hash {entry[0]:,} at physical offset {entry[1]:,}, where no message has such a key"
        _add_entry("index-stray", file, number, text, -1, findings)


def _add_header(file: IndexFile, name: str, held: int, expected: int, findings: Findings) -> None:
    position = INDEX_HEADER.at[name]
    findings.add("index-header", file.path, f"{name} is {held:,} instead of {expected:,}", position=position)


# ---- Checks within one index file: header, order of the entries, and the chains of the slots.


def check_file(file: IndexFile, findings: Findings, *, clean: bool) -> None:
    """Check one file. ``clean``: the broker stopped in order, so no update may be incomplete.

    A wrong entry count is corrected in the private map, for later checks of the file.
    """
    before = findings.total
    if clean or not 0 <= file.index_count <= file.entries:
        _set_count_right(file, findings)
    if file.index_count <= 1:
        return
    # The map is private: corrections by the kernel stay in this process.
    result = index_kernel.check(file.array(), file.slots, file.entries, np.zeros(file.slots, np.int32))
    begins_right = file.header.begin_physical_offset == file.all_entries[1]["physical_offset"]
    if result == index_kernel.DAMAGED or not begins_right or (result == index_kernel.REPAIRED and clean):
        # The first map has the kernel's corrections; the places of the damage are looked for in an untouched one.
        fresh = IndexFile(file.files, file.path, file.files.open(file.path), file.slots, file.entries)
        fresh.index_count = file.index_count
        _find_damage(fresh, findings)
        fresh.close()
        assert findings.total > before, f"{file.path}: damage without a place"


def _set_count_right(file: IndexFile, findings: Findings) -> None:
    """Compare the header's count with the entries: a used one has a physical offset or a hash, an unused one is all
    zeros."""
    entries = file.all_entries
    count = file.index_count
    ends_there = 0 <= count <= file.entries and (count == file.entries or not entries[count]["key_hash"])
    if ends_there and (count <= 1 or entries[count - 1]["key_hash"]):
        return
    used = np.flatnonzero((entries["key_hash"] != 0) | (entries["physical_offset"] != 0))
    # RocketMQ counts from 1, because entry 0 is never used.
    file.index_count = int(used[-1]) + 1 if len(used) else 1
    if file.index_count != max(count, 1):
        findings.add(
            "index-header",
            file.path,
            f"index_count is {count:,}, but {file.index_count - 1:,} entries are there",
            position=INDEX_HEADER.at["index_count"],
        )


def _find_damage(file: IndexFile, findings: Findings) -> None:
    """Report where slots and chains contradict the entries. Sorts all entries by slot."""
    used = file.all_entries[1 : file.index_count]
    hashes, offsets = used["key_hash"].astype(np.int64), used["physical_offset"].astype(np.int64)
    for number in np.flatnonzero(hashes < 0).tolist():
        _add(file, number + 1, f"has the hash {hashes[number]:,}, which no key can have", findings)
    for number in np.flatnonzero(offsets[1:] < offsets[:-1]).tolist():
        text = f"points at physical offset {offsets[number + 1]:,}, the one before it at {offsets[number]:,}"
        _add(file, number + 2, text, findings)
    slots = np.abs(hashes) % file.slots
    # Each entry links to the one before it in its slot, the first one to 0. ``used`` begins with entry 1.
    order = np.argsort(slots, kind="stable")
    same_slot = np.diff(slots[order]) == 0
    expected = np.zeros(len(used), np.int64)
    expected[order[1:][same_slot]] = order[:-1][same_slot] + 1
    for number in np.flatnonzero(used["previous"] != expected).tolist():
        text = f"links to entry {used[number]['previous']:,} instead of {expected[number]:,}"
        _add(file, number + 1, text, findings)
    _check_slots(file, slots, findings)
    _check_header(file, slots, offsets, findings)


def _check_slots(file: IndexFile, slots: np.ndarray, findings: Findings) -> None:
    heads = np.zeros(file.slots, np.int64)
    heads[slots] = np.arange(1, len(slots) + 1)  # the last one of a slot wins
    held = np.frombuffer(file.array(), ">i4", file.slots, INDEX_HEADER_BYTES)
    for slot in np.flatnonzero(held != heads).tolist():
        findings.add(
            "index-chain",
            file.path,
            f"slot {slot:,} leads to entry {held[slot]:,} instead of {heads[slot]:,}",
            position=INDEX_HEADER_BYTES + INDEX_SLOT_BYTES * slot,
        )


def _check_header(file: IndexFile, slots: np.ndarray, offsets: np.ndarray, findings: Findings) -> None:
    heads = np.frombuffer(file.array(), ">i4", file.slots, INDEX_HEADER_BYTES)
    # Wrong entries or slots are reported on their own, so a count that fits either is accepted.
    slot_counts = (len(np.unique(slots)), int(np.count_nonzero(heads)))
    for name, expected in (
        ("begin_physical_offset", (int(offsets[0]),)),
        ("end_physical_offset", (int(offsets[-1]),)),
        ("hash_slot_count", slot_counts),
    ):
        held = getattr(file.header, name)
        if held not in expected:
            findings.add(
                "index-header",
                file.path,
                f"{name} is {held:,} instead of {expected[0]:,}",
                position=INDEX_HEADER.at[name],
            )


def _add(file: IndexFile, number: int, text: str, findings: Findings) -> None:
    position = file.entries_at + INDEX_ENTRY_BYTES * number
    findings.add("index-chain", file.path, f"entry {number:,} {text}", position=position)
