"""The pass over the whole log, by several threads.

The log is cut into segments that threads check in parallel; the kernels run without the GIL. Each cut is at the start
of a record, found by its magic and physical offset. If a cut turns out to be inside a record, the segment after it is
checked again from the end of the previous one.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from ..kernels import dispatch as kernel
from ..kernels import examine
from ..store.files.mapped_file import MappedFile
from ..store.files.system_calls import usable_processors
from ..store.index.index_cursor import IndexCursor
from ..store.index.index_file import IndexFile
from .findings import Findings
from .index_chains import check_file
from .index_entries import EntryAlignment, EntryComparison
from .log_end import LogEnd
from .log_verifier import Examiner, PassStopped, QueueSpan, Segment, store_time
from .offline import OfflineStore

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
        return int(examine.next_record(file.array(), begin, end, file.start_offset, parts))

    def _examine(self, segment: Segment) -> Segment:
        examiner = getattr(self._local, "examiner", None)
        if examiner is None:
            examiner = self._local.examiner = self._new_examiner()
        cursor = IndexCursor(self._store.index_files, segment.file.start_offset + segment.begin)
        entries = EntryComparison(cursor, self._end.dispatched)
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
        for row, offsets in segment.units.reported.items():
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
        entries = EntryAlignment(store.path / "index", store.index_files, store.log_start, self._end.dispatched)
        for number, segment in enumerate(segments):
            again = Segment(segment.file, segment.begin, segment.end)
            examiner.run(again, entries)
            self._progress(sum(each.end - each.begin for each in segments[: number + 1]), self.bytes)
            self.findings.extend(again.findings, "index-")
        entries.finish(self.findings)
        self.pending_keys = entries.pending


__all__ = ["LogPass", "PassStopped", "Progress"]
