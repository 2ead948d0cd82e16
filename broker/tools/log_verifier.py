"""The check of one segment of the log: every record is checked, and compared with queues and index."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...protocol.storage.layout import RECORD
from ..kernels import dispatch as kernel
from ..kernels import search
from ..store.check import EntryComparison, UnitComparison, UnitFlaw, unit_place
from ..store.derivation import CheckDerivation, ends_file, message_at
from ..store.files.mapped_file import MappedFile
from ..store.files.system_calls import usable_processors, will_read
from ..store.index import IndexFile
from ..store.queues import ConsumeQueue
from .derived_checks import EntryAlignment, check_file
from .findings import Findings
from .offline import LogEnd, OfflineStore

_QUEUE_ID_AT = RECORD.at["queue_id"]
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
                row = self._row_of(segment.file.array(), place)
                self._begun_again[row] = segment.file.start_offset + place
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

    def _row_of(self, array: np.ndarray, at: int) -> int:
        """Return the queue's row of a record that ``examine`` has checked."""
        topic, queue_id, _ = which_message(array, at)
        queue = self._store.queues.get(topic, queue_id)
        assert queue is not None
        return queue.row

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
    topic, queue_id, queue_offset = which_message(file.array(), at)
    segment.findings.add(
        name,
        file.path,
        f"message {queue_offset:,} of {topic}, queue {queue_id}: {text.format(detail)}",
        position=at,
        physical_offset=file.start_offset + at,
    )


def which_message(array: np.ndarray, at: int) -> tuple[str, int, int]:
    """Return (topic, queue, queue offset) of the record at ``at``, whose parts are sound."""
    parts = np.zeros(kernel.PARTS, np.int64)
    kernel.locate(array, at, len(array), RECORD.unpack(array.data, at).physical_offset, parts)
    topic, queue_id, queue_offset = message_at(array, at, parts)
    return topic.decode("utf-8", "replace"), queue_id, queue_offset


def store_time(store: OfflineStore, physical_offset: int) -> int | None:
    """Return the store time of the record there in ms; None if there is no record."""
    file = store.find(physical_offset)
    if file is None:
        return None
    parts = np.zeros(kernel.PARTS, np.int64)
    array, at = file.array(), physical_offset - file.start_offset
    found = kernel.locate(array, at, len(array), physical_offset, parts)
    return int(parts[kernel.R_STORE_MS]) if found in (kernel.DONE, kernel.BAD_CRC) else None


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
        begin = store_time(self._store, header.begin_physical_offset)
        end = store_time(self._store, header.end_physical_offset)
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


__all__ = ["LogPass", "PassStopped", "Progress"]
