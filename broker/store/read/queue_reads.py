"""Bounds of queues, and their offsets by time.

``hot`` means the same as in ``LogReads``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ....protocol.errors import QueueNotExist
from ....protocol.frames import FRAME_BYTES_MAX, HEADER_BYTES_MAX
from ....protocol.storage.layout import RECORD, RECORD_BYTES_MIN, UNIT
from ....protocol.storage.record import CorruptRecord, check_record_crc, decode_record
from ...kernels import gather as kernel
from ..errors import WouldBlock
from ..queues import QueueTotals

if TYPE_CHECKING:
    from ....protocol.storage.record import Record
    from ..damage import Quarantine
    from ..log.commitlog import CommitLog
    from ..queues import ConsumeQueue, ConsumeQueueTable
    from ..tables.store_state import ChecksummedRanges, StoreState
    from ..tables.topic_table import TopicConfig, TopicTable


class ArchivedQueues(Protocol):
    """The part of the queues that only the archive has; ``broker.archive.reads.ArchivedReads`` implements it.

    With ``hot``, what is not known yet raises ``InArchive`` outside of the archive's threads; without it is left out
    there. ``visible_from``: the topic's messages before this physical offset are not shown.
    """

    def known_first(self, topic: str, queue_id: int, visible_from: int) -> int | None:
        """Return the first queue offset, as far as it is known; None if there is none. Never waits."""

    def first_offset(self, topic: str, queue_id: int, visible_from: int, *, hot: bool) -> int | None:
        """Return the first queue offset, None if the archive has no message of the queue."""

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, *, hot: bool) -> int | None:
        """Return the first queue offset stored at a time or later; None if all that are archived are older."""


TAGS_LOOKED_AT_MAX = 256
"""Maximum number of new messages whose tags are read in order to wake only the held pulls that want one of them."""


class QueueReads:
    """The queues of a store as readers see them. Any thread may call these functions."""

    def __init__(
        self, commitlog: CommitLog, queues: ConsumeQueueTable, topics: TopicTable, state: StoreState, log: LogReads
    ) -> None:
        self._commitlog = commitlog
        self._queues = queues
        self._topics = topics
        self._state = state
        self._log = log
        self.archived: ArchivedQueues | None = None
        """The history of the queues that the disk no longer has; None: there is no archive."""

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue; None if it has no message. Raises ``TopicNotExist`` or ``QueueNotExist``."""
        config = self._topics.existing(topic)
        if queue_id < 0 or (queue_id >= config.read_queues and queue_id >= config.write_queues):
            raise QueueNotExist(f"topic {topic!r} has queues 0 to {config.queues - 1}, not {queue_id}")
        return self._with_messages(topic, queue_id)

    def is_there(self, config: TopicConfig, queue_id: int) -> bool:
        """Return whether the topic has the queue, or once had it and the queue still has messages.

        The number of a topic's queues may be reduced; the messages of the others are there again when it grows.
        """
        return 0 <= queue_id < config.queues or self._with_messages(config.name, queue_id) is not None

    def _with_messages(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        queue = self._queues.get(topic, queue_id)
        if queue is None or queue.max_offset <= queue.start_offset:
            return None
        # The units of a deleted topic stay until retention removes their files; a crash may have taken the last ones.
        return queue if queue.max_offset > self._state.deleted_end(topic, queue_id) else None

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the queue's next message, provided that all appended records are dispatched.

        It is the ConsumeQueue's end, unless retention or a deletion took its records: then only the store's state has
        it.
        """
        queue = self._queues.get(topic, queue_id)
        return max(queue.max_offset if queue is not None else 0, self._state.next_offset(topic, queue_id))

    def end_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset after the queue's last message, or its next offset if it has none; the topic may be
        missing."""
        queue = self._with_messages(topic, queue_id)
        return queue.max_offset if queue is not None else self.next_offset(topic, queue_id)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the queue's next dispatched message."""
        return self.end_of(topic, queue_id, self.queue(topic, queue_id))

    def end_of(self, topic: str, queue_id: int, queue: ConsumeQueue | None) -> int:
        """Return the same for a queue that ``queue`` has just returned."""
        return queue.max_offset if queue is not None else self.next_offset(topic, queue_id)

    def min_offset(self, topic: str, queue_id: int, *, hot: bool) -> int:
        """Return the first queue offset that can be read, in the archive too."""
        queue = self.queue(topic, queue_id)
        first = self.first_offset(queue, hot=hot) if queue is not None else self.next_offset(topic, queue_id)
        return self._archived_first(topic, queue_id, first, hot)

    def _archived_first(self, topic: str, queue_id: int, first: int, hot: bool) -> int:
        """Return the first offset of the archive, if that is before ``first``, the one on the disk."""
        deleted_end = self._state.deleted_end(topic, queue_id)
        if self.archived is None or first <= deleted_end:
            return first
        found = self.archived.first_offset(topic, queue_id, self._state.readable_from(topic), hot=hot)
        return first if found is None else min(max(found, deleted_end), first)

    def shown_first(self, topic: str, queue_id: int, first: int) -> int:
        """Return what ``min_offset`` returns, as far as it is known; ``first``: the first offset on the disk."""
        deleted_end = self._state.deleted_end(topic, queue_id)
        if self.archived is None or first <= deleted_end:
            return first
        found = self.archived.known_first(topic, queue_id, self._state.readable_from(topic))
        return first if found is None else min(max(found, deleted_end), first)

    def tags_codes(self, topic: str, queue_id: int, first: int, end: int) -> frozenset[int] | None:
        """Return the tag codes of the messages from ``first`` up to ``end``; None if that would take too long."""
        queue = self._queues.get(topic, queue_id)
        if queue is None or not queue.start_offset <= first < end or end - first > TAGS_LOOKED_AT_MAX:
            return None
        try:
            blob = queue.read_units(first, end - first, hot=True)
        except (WouldBlock, OSError):
            return None
        return frozenset(code for _, _, code in UNIT.unpack_all(blob)) if len(blob) else None

    def first_offset(self, queue: ConsumeQueue, *, hot: bool = False) -> int:
        """Return the first offset of a queue whose message is still in the log and not hidden by retention."""
        log_start = max(self._commitlog.start_offset, self._state.readable_from(queue.topic))
        low, high = queue.min_hint, queue.max_offset
        if log_start == 0 or low >= high or queue.unit(low, hot=hot)[0] >= log_start:
            return low
        low += bisect_left(range(low, high), log_start, key=lambda offset: queue.unit(offset, hot=hot)[0])
        # Any thread may set the hint without a lock: an older value is a lower bound too.
        queue.min_hint = low
        return low

    def _store_ms(self, queue: ConsumeQueue, queue_offset: int, hot: bool) -> int | None:
        physical_offset, size, _ = queue.unit(queue_offset, hot=hot)
        return self._log.stored_ms(physical_offset, size, hot=hot) if size > 0 else None

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, *, hot: bool) -> int:
        """Return the first offset whose message was stored at ``timestamp_ms`` or later, or the max offset."""
        queue = self.queue(topic, queue_id)
        found = self.first_since(queue, timestamp_ms, hot=hot) if queue is not None else None
        first = self.first_offset(queue, hot=hot) if queue is not None else self.next_offset(topic, queue_id)
        if (
            self.archived is not None
            and found in (None, first)
            and ((low := self._archived_first(topic, queue_id, first, hot)) < first)
        ):
            archived = self.archived.offset_by_time(topic, queue_id, timestamp_ms, hot=hot)
            if archived is not None and archived < first:
                return max(archived, low)
        return first if found is None else found

    def first_since(self, queue: ConsumeQueue, timestamp_ms: int, *, hot: bool) -> int:
        """Return the first offset whose store time is not before ``timestamp_ms``; the max offset if there is none."""
        low = self.first_offset(queue, hot=hot)

        def is_since(offset: int) -> bool:
            store_ms = self._store_ms(queue, offset, hot)
            return store_ms is not None and store_ms >= timestamp_ms

        return low + bisect_left(range(low, queue.max_offset), True, key=is_since)

    def log_bytes_since(self, topic: str, queue_id: int, offset: int, *, hot: bool) -> int | None:
        """Return the size of the CommitLog from the message at a queue offset on; None if the queue does not hold
        it."""
        queue = self.queue(topic, queue_id)
        if queue is None or not queue.start_offset <= offset < queue.max_offset:
            return None
        return max(self._commitlog.write_offset - queue.unit(offset, hot=hot)[0], 0)

    def stored_ms(self, topic: str, queue_id: int, offset: int, *, hot: bool) -> int | None:
        """Return the store time of the message at a queue offset in ms; None if the queue does not hold it."""
        queue = self.queue(topic, queue_id)
        if queue is None or not queue.start_offset <= offset < queue.max_offset:
            return None
        return self._store_ms(queue, offset, hot)

    def earliest_store_time(self, topic: str, queue_id: int, *, hot: bool) -> int:
        """Return the store time of the queue's first message in ms; -1 if the queue is empty."""
        queue = self.queue(topic, queue_id)
        if queue is None:
            return -1
        first = self.first_offset(queue, hot=hot)
        store_ms = self._store_ms(queue, first, hot) if first < queue.max_offset else None
        return -1 if store_ms is None else store_ms

    def topic_stats(self, topic: str, *, hot: bool) -> list[tuple[int, int, int, int]]:
        """Return (queue, min offset, max offset, store time of the last message or -1) of every queue of the topic."""
        self.queue(topic, 0)
        config = self._topics.get(topic)
        rows = []
        for queue_id in range(config.queues if config is not None else 0):
            queue = self._with_messages(topic, queue_id)
            if queue is None:
                next_offset = self.next_offset(topic, queue_id)
                rows.append((queue_id, self._archived_first(topic, queue_id, next_offset, hot), next_offset, -1))
                continue
            low, high = self.first_offset(queue, hot=hot), queue.max_offset
            store_ms = self._store_ms(queue, high - 1, hot) if high > low else None
            low = self._archived_first(topic, queue_id, low, hot)
            rows.append((queue_id, low, high, -1 if store_ms is None else store_ms))
        return rows

    def topic_totals(self, topic: str) -> tuple[int, int, int, int]:
        """Return (queues, messages, sum of the max offsets, store time of the newest message or -1) of a topic.
        Blocks."""
        self.queue(topic, 0)
        config = self._topics.get(topic)
        count = config.queues if config is not None else 0
        # A page of the console asks for thousands of queues: what is the same for all of them is looked up once.
        log_start = max(self._commitlog.start_offset, self._state.readable_from(topic))
        messages = ends = 0
        newest: ConsumeQueue | None = None
        newest_at = -1
        for queue_id in range(count):
            queue = self._with_messages(topic, queue_id)
            if queue is None:
                ends += self.next_offset(topic, queue_id)
                continue
            totals = queue.totals
            if totals is None or totals.max_offset != queue.max_offset or totals.log_start != log_start:
                totals = self._count(queue, log_start)
            messages += totals.max_offset - totals.min_offset
            ends += totals.max_offset
            if totals.physical_offset > newest_at:
                newest, newest_at = queue, totals.physical_offset
        return count, messages, ends, -1 if newest is None else self._newest_ms(newest, log_start)

    def _count(self, queue: ConsumeQueue, log_start: int) -> QueueTotals:
        """Return what a queue contains, and remember it: a thousand topics are counted quickly if few have changed."""
        high = queue.max_offset
        low = min(self.first_offset(queue), high)
        physical_offset, size, _ = queue.unit(high - 1, hot=False) if high > low else (-1, 0, 0)
        queue.totals = found = QueueTotals(high, log_start, low, physical_offset, size, -1)
        return found

    def _newest_ms(self, queue: ConsumeQueue, log_start: int) -> int:
        """Return the store time of a queue's last message in ms, -1 if it is damaged."""
        found = queue.totals or self._count(queue, log_start)
        if found.stored_ms < 0 and found.size > 0:
            stored_ms = self._log.stored_ms(found.physical_offset, found.size)
            found = queue.totals = found._replace(stored_ms=-1 if stored_ms is None else stored_ms)
        return found.stored_ms


def first_stored_since(reads: QueueReads, queues: Iterable[ConsumeQueue], since_ms: int) -> int | None:
    """Return the physical offset of the first message of these queues that was stored at ``since_ms`` or later; None if
    there is none. Blocks."""
    found = []
    for queue in list(queues):
        if queue.max_offset <= queue.start_offset:
            continue
        offset = reads.first_since(queue, since_ms, hot=False)
        if offset < queue.max_offset:
            found.append(queue.unit(offset, hot=False)[0])
    return min(found, default=None)


# ---- Reading records of the log at physical offsets, for pulls and queries.
#
# Every function is synchronous and takes ``hot``. With ``hot`` it reads from the page cache alone, and raises
# ``WouldBlock`` if that does not hold the bytes; the caller repeats the call with ``hot=False`` in a reader
# thread, so that a consumer far behind never delays a producer. Functions never return a view of a map: they
# read records into a fresh buffer.

ANSWER_BYTES_MAX = FRAME_BYTES_MAX - HEADER_BYTES_MAX - 8
"""Maximum bytes of the sizes and records in one response."""
GAP_BYTES_MAX = 4096
"""Maximum number of unwanted bytes between two records that one read covers."""
SPARSE_MAX = 8
"""Maximum ratio of the bytes of a read to the wanted bytes in it."""
SPAN_BYTES_MAX = 4 * 1024 * 1024
"""Maximum bytes of a read that covers unwanted bytes."""


class LogReads:
    """Reads of records at physical offsets. Any thread may call them."""

    def __init__(self, commitlog: CommitLog, state: StoreState, quarantine: Quarantine) -> None:
        self.quarantine = quarantine
        self._commitlog = commitlog
        self._state = state

    @property
    def start_offset(self) -> int:
        """Physical offset at which the log on the disk begins."""
        return self._commitlog.start_offset

    @property
    def checksummed(self) -> ChecksummedRanges:
        """Ranges in which every record must have a checksum over the whole record."""
        return self._state.checksummed

    def should_have(self, physical_offset: int) -> bool:
        """Return whether the offset is in the log and not covered by a tombstone."""
        commitlog = self._commitlog
        return commitlog.start_offset <= physical_offset < commitlog.write_offset and not self.quarantine.covers(
            physical_offset
        )

    def record_at(self, physical_offset: int, size: int = 0, *, hot: bool = False) -> Record | None:
        """Return the record at an offset, checked; None for a tombstone or an empty place. ``size``: 0 if unknown."""
        return self._decoded(self.bytes_of(physical_offset, size, hot=hot), physical_offset)

    def stored_ms(self, physical_offset: int, size: int, *, hot: bool = False) -> int | None:
        """Return the store time of the record at an offset in ms, or None. A tombstone has that of the record before
        it."""
        record = self._decoded(self._bytes_at(physical_offset, size, hot), physical_offset)
        return record.store_timestamp if record is not None else None

    def bytes_of(self, physical_offset: int, size: int = 0, *, hot: bool) -> bytearray | None:
        """Return the unchecked bytes of the record at an offset; None for a tombstone or an empty place."""
        if self.quarantine and self.quarantine.covers(physical_offset):
            return None
        return self._bytes_at(physical_offset, size, hot)

    def _decoded(self, blob: bytearray | None, physical_offset: int) -> Record | None:
        if blob is None:
            return None
        try:
            record = decode_record(blob)
            if self.checksummed.at(physical_offset)[0]:
                check_record_crc(blob)
        except CorruptRecord:
            return None
        return record if record.physical_offset == physical_offset else None

    def _bytes_at(self, physical_offset: int, size: int, hot: bool) -> bytearray | None:
        commitlog = self._commitlog
        file = commitlog.queue.find(physical_offset)
        end = min(file.end_offset, commitlog.write_offset) if file is not None else 0
        if physical_offset < 0 or physical_offset + max(size, RECORD_BYTES_MIN) > end:
            return None
        if size <= 0:
            head = bytearray(RECORD_BYTES_MIN)
            commitlog.queue.read(physical_offset, memoryview(head), hot=hot)
            size = RECORD.unpack(head).total_size
            if size < RECORD_BYTES_MIN or physical_offset + size > end:
                return None
        blob = bytearray(size)
        commitlog.queue.read(physical_offset, memoryview(blob), hot=hot)
        return blob

    def records(self, chosen: np.ndarray, *, hot: bool) -> bytearray:
        """Return the unchecked bytes of records, one after the other.

        ``chosen``: a row of (physical offset, size, anything) for each; all must be in the log.
        """
        count = len(chosen) // kernel.CHOSEN_ROW
        body = bytearray(int(chosen[kernel.C_SIZE :: kernel.CHOSEN_ROW].sum()))
        self.copy(chosen, count, body, 0, hot=hot)
        return body

    def copy(self, chosen: np.ndarray, count: int, body: bytearray, at: int, *, hot: bool) -> None:
        """Copy the first ``count`` records of ``chosen`` to ``body``, from ``at`` on."""
        out = np.frombuffer(body, np.uint8)
        view = memoryview(body)
        log_files = self._commitlog.queue
        reads = np.empty(count * kernel.READ_ROW, np.int64)
        read_count = kernel.plan_reads(
            chosen, count, log_files.file_bytes, GAP_BYTES_MAX, SPARSE_MAX, SPAN_BYTES_MAX, reads
        )
        for begin, length, first, records in (
            reads[: read_count * kernel.READ_ROW].reshape(-1, kernel.READ_ROW).tolist()
        ):
            wanted = int(chosen[first * 3 + 1 : (first + records) * 3 : 3].sum()) if records > 1 else length
            if wanted == length:
                log_files.read(begin, view[at : at + length], hot=hot)
                at += length
                continue
            span = bytearray(length)
            log_files.read(begin, memoryview(span), hot=hot)
            at = kernel.gather(np.frombuffer(span, np.uint8), begin, chosen, first, records, out, at)
