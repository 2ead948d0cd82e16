"""Dispatch: from records in the log to units, index entries and producer runs, and syncing those to disk."""

from __future__ import annotations

import errno
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...protocol.errors import MessageNotFound
from ...protocol.storage.delivery import PREPARED_TOPIC, PROPERTY_REAL_QUEUE, SCHEDULE_TOPIC, TIMER_TOPIC
from ...protocol.storage.layout import INDEX_ENTRY_BYTES, RECORD_HEAD_BYTES_MAX, UNIT_BYTES
from ...protocol.storage.record import decode_record, unpack_head
from ..kernels import dispatch, sequences
from ..kernels import dispatch as kernel
from .derivation import Derivation, may_be_queue
from .errors import CorruptLog, DamagedRecord
from .queues import GATHERED_UNITS_MAX, UNIT_DTYPE, ConsumeQueue, is_filling
from .tables.store_state import FOREVER, Snapshot

if TYPE_CHECKING:
    from .files.mapped_file import MappedFile
    from .index import IndexService
    from .log.commitlog import CommitLog
    from .queues import ConsumeQueueTable
    from .tables.checkpoint import StoreCheckpoint
    from .tables.store_state import QueueEnds, StoreState
    from .tables.topic_table import TopicTable


# ---- Dispatch: reads new CommitLog records and writes their ConsumeQueue units and index entries.
#
# One ``step`` makes one kernel call over a chunk of the log and writes the units and entries that it found.
# Only the owner of reput calls it.

GATHER_RUNS_MIN = 16
"""Number of queues from which on a step's units wait in memory; those of fewer are written at once, if none wait."""
GAP_MAX = 10_000_000
"""Maximum jump of a queue's offsets that counts as lost messages; a larger one is damage."""

log = logging.getLogger(__name__)


OnGap = Callable[[ConsumeQueue, int], None]
"""Callback: receives a queue that ends before the queue offset of its next record, and that offset."""


class Dispatcher:
    """The state of reput. ``reput_offset`` is published after the units and entries below it are written."""

    def __init__(self, commitlog: CommitLog, queues: ConsumeQueueTable, index: IndexService) -> None:
        self._commitlog = commitlog
        self._queues = queues
        self._index = index
        self.reput_offset = 0
        self.last_store_ms = 0
        """Store time of the last dispatched record."""
        self.dispatched_records = 0
        """Number of records that the last step read."""
        self.dispatched_units = 0
        """Number of units that the last step made of them."""
        self.derived_bytes = 0
        """Bytes of units and entries that were derived from the log since the store was opened."""
        self.deleted_topics: deque[str] = deque()
        """Topics deleted since the last step."""
        self._derivation = Derivation(kernel.DISPATCH)
        self._unfinished: _Unfinished | None = None

    def step(self, end_offset: int, chunk_bytes: int, *, on_gap: OnGap | None = None) -> list[tuple[str, int, int]]:
        """Dispatch up to ``chunk_bytes`` of the log below ``end_offset``, which must be a record's boundary.

        Returns (topic, queue id, new max offset) of the queues that got units. Raises ``CorruptLog`` if a record below
        ``end_offset`` is damaged, and OSError ENOSPC if the disk is full; the next call then continues with the units
        and entries that were not written.

        ``on_gap``: for recovery, called before a gap before the record at ``reput_offset`` is closed; its exceptions
        propagate.
        """
        self.dispatched_records = self.dispatched_units = 0
        # The thread that deletes topics only adds names: only the owner of reput may change the kernel's rows.
        while self.deleted_topics:
            self._queues.topic_deleted(self.deleted_topics.popleft())
        if self._unfinished is not None:
            return self._finish(self._unfinished)
        at = self.reput_offset
        if at >= end_offset:
            return []
        file = self._commitlog.queue.find(at)
        if file is None:
            folder = self._commitlog.queue.folder
            raise CorruptLog(f"{folder} has no file that contains offset {at:,}, which is not dispatched yet")
        queues = self._queues
        position = at - file.start_offset
        # A chunk bounds the time of one step: on the event loop, other clients wait for it.
        end = min(end_offset - file.start_offset, file.size, position + chunk_bytes)
        derivation = self._derivation
        counts = derivation.counts
        counts[kernel.S_INDEX_FROM] = self._index.indexed_below
        array = file.array()
        status, position = derivation.call(
            array, position, end, file.start_offset, queues.slots, queues.kernel_rows, queues.topics
        )
        stopped_at = file.start_offset + position
        keys = counts[kernel.S_KEYS]
        # A blank fills the rest of the file: the next record is the first one of the next file.
        next_offset = file.end_offset if status == kernel.BLANK else stopped_at
        self.dispatched_records, self.dispatched_units = counts[kernel.S_RECORDS], counts[kernel.S_UNITS]
        store_ms = counts[kernel.S_LAST_STORE_MS] if self.dispatched_records else self.last_store_ms
        self.derived_bytes += UNIT_BYTES * self.dispatched_records + INDEX_ENTRY_BYTES * keys
        # The units found so far are written even if the kernel stopped at a special record: what follows below needs
        # queues that end directly before that record.
        result = self._finish(_Unfinished(derivation.runs(), keys, next_offset, store_ms))
        if status == kernel.NEW_QUEUE:
            self._add_queue(array, position)
        elif status == kernel.GAP:
            self._close_gap(array, position, on_gap)
        elif status not in (kernel.DONE, kernel.BLANK, kernel.FULL):
            raise damaged_record(file, position, status)
        return result

    def _finish(self, work: _Unfinished) -> list[tuple[str, int, int]]:
        """Write the units and entries of a kernel call; if the disk is full, keep the rest for the next step."""
        self._unfinished = work
        rows, runs, grouped = self._queues.rows, work.runs, self._derivation.grouped
        gather_below = GATHERED_UNITS_MAX if len(runs) >= GATHER_RUNS_MIN * kernel.RUN_ROW else 0
        # Plain indexing instead of a row for each run: with many topics, this runs once for each message.
        while (at := work.runs_at) < len(runs):
            queue = rows[runs[at]]
            begin, count = runs[at + kernel.U_FIRST] * UNIT_BYTES, runs[at + kernel.U_COUNT]
            units = grouped[begin : begin + count * UNIT_BYTES]
            if count < gather_below:
                queue.gather(units)
            else:
                queue.append(units)
            work.result.append((queue.topic, queue.queue_id, queue.max_offset))
            work.runs_at = at + kernel.RUN_ROW
        for done in self._index.put(self._derivation.keys, work.keys, work.keys_done):
            work.keys_done = done
        # Everything is written: only now may readers look at queues and index up to the new offset.
        self._unfinished = None
        self.last_store_ms = work.store_ms
        self.reput_offset = work.next_offset
        return work.result

    def _add_queue(self, log_array: np.ndarray, position: int) -> None:
        """Add the queue of the record for which the kernel stopped with ``NEW_QUEUE``."""
        topic, queue_id, _ = self._derivation.record_queue(log_array, position)
        if not may_be_queue(topic, queue_id):
            raise impossible_queue(self._commitlog, self.reput_offset, topic, queue_id)
        self._queues.add(topic.decode(), queue_id)

    def _close_gap(self, log_array: np.ndarray, position: int, on_gap: OnGap | None) -> None:
        """Make the queue continue at the record's queue offset, which is beyond the queue's next.

        An empty queue begins there: retention or the deletion of the topic took the messages before. In the middle of a
        queue the gap is filled, so that later units keep their queue offsets.
        """
        queue = self._queues.rows[self._derivation.counts[kernel.S_GAP_QUEUE]]
        _, _, queue_offset = self._derivation.record_queue(log_array, position)
        # Recovery raises here if the record may be wrong, or if units of the queue may only have been lost.
        if on_gap is not None:
            on_gap(queue, queue_offset)
        if queue.max_offset == queue.start_offset:
            queue.begin_at(queue_offset)
        elif queue_offset - queue.max_offset > GAP_MAX:
            raise DamagedRecord(
                f"the record at physical offset {self.reput_offset:,} says queue offset {queue_offset:,}, but queue "
                f"{queue.queue_id} of {queue.topic} ends at {queue.max_offset:,}. Start the broker again: a start "
                "contains it",
                self.reput_offset,
                "a queue offset that cannot be",
            )
        else:
            log.warning(
                "topic %s queue %d: messages %d to %d are not in the log",
                queue.topic,
                queue.queue_id,
                queue.max_offset,
                queue_offset - 1,
            )
            queue.skip_to(queue_offset)
        # The kernel compares queue offsets with its own row, not with the queue.
        self._queues.sync_row(queue)


class _Unfinished:
    """The results of a kernel call, and how many of them are written."""

    __slots__ = ("keys", "keys_done", "next_offset", "result", "runs", "runs_at", "store_ms")

    def __init__(self, runs: list[int], keys: int, next_offset: int, store_ms: int) -> None:
        self.runs = runs
        self.runs_at = 0
        self.keys = keys
        self.keys_done = 0
        self.next_offset = next_offset
        self.store_ms = store_ms
        self.result: list[tuple[str, int, int]] = []


def damaged_record(file: MappedFile, position: int, status: int) -> DamagedRecord:
    """Return the error for a record below the log's end that the kernel refused with ``status``."""
    physical_offset = file.start_offset + position
    return DamagedRecord(
        f"{file.path} has {kernel.BAD_NAMES[status]} at byte {position:,} (physical offset {physical_offset:,}), "
        "below the log's end. Start the broker again: a start contains it",
        physical_offset,
        kernel.BAD_NAMES[status],
    )


def impossible_queue(commitlog: CommitLog, physical_offset: int, topic: bytes, queue_id: int) -> DamagedRecord:
    """Return the error for a record that names a queue that cannot exist."""
    return DamagedRecord(
        f"the record at physical offset {physical_offset:,} in {commitlog.queue.folder} names topic {topic!r}, queue "
        f"{queue_id}, which cannot be a queue. Start the broker again: a start contains it",
        physical_offset,
        "a topic or queue that cannot be one",
    )


# ---- Derived files (ConsumeQueues, index): syncs them to disk, and deletes the oldest ones with those of the
# log.


class DerivedFiles:
    """Queues and index of a recovered store. Runs beside appends, dispatch and reads."""

    def __init__(
        self,
        commitlog: CommitLog,
        queues: ConsumeQueueTable,
        index: IndexService,
        dispatcher: Dispatcher,
        state: StoreState,
        checkpoint: StoreCheckpoint,
    ) -> None:
        self._commitlog = commitlog
        self._queues = queues
        self._index = index
        self._dispatcher = dispatcher
        self._state = state
        self._checkpoint = checkpoint
        self._pending_snapshot = Snapshot()
        self._syncing = threading.Lock()
        """Held while queues and index are synced, or their oldest files are deleted."""

    def sync(self) -> bool:
        """Sync queues, index and the checkpoint, so that less is dispatched again after a crash. Blocks.

        Returns False, syncing nothing, if the disk has no room for units that wait in memory.
        """
        with self._syncing:
            return self._sync()

    def _sync(self) -> bool:
        # All values are read before the syncs, which therefore cover everything that they describe.
        taken = self.snapshot()
        store_ms = self._dispatcher.last_store_ms
        flushed = self._commitlog.flushed_offset
        dispatched = min(self._dispatcher.reput_offset, flushed)
        if not self._fits(self._queues.write_out):
            log.warning("the disk has no room for %s; the last units wait in memory", self._queues.folder)
            return False
        self._queues.sync()
        self._index.sync()
        # A snapshot is valid once all records that it covers are flushed and dispatched: the new one if the store is
        # idle, otherwise the one of the last call.
        for snapshot in (taken, self._pending_snapshot):
            if 0 < snapshot.physical_offset <= dispatched:
                self._state.take(snapshot)
                if not self._fits(self._state.persist):
                    log.warning("the disk has no room for %s; it is written as soon as there is room", self._state.path)
                break
        else:
            self._pending_snapshot = taken
        self._checkpoint.dispatched(flushed, dispatched, store_ms, self._index.full_end_ms)
        # Only dispatch reads these files through their maps, and it is past them.
        self._commitlog.release_below(dispatched)
        return True

    def expire(self, count: int) -> int:
        """Delete the oldest ``count`` CommitLog files, and the queue and index files that refer only to them.

        Runs beside all other work, on one thread at a time. Returns how many bytes of the log are gone: 0 if the
        records of these files are not yet dispatched and synced. Blocks.
        """
        files = self._commitlog.queue.files
        assert 0 < count < len(files), "the last file never goes"
        log_start = files[count - 1].end_offset
        with self._syncing:
            # A queue's next offset follows only from its units until the snapshot has it. So the units must be on disk,
            # and the offset in the snapshot, before the records go.
            # Without room for it, what the last sync put on disk may be enough.
            self._sync()
            if self._checkpoint.dispatched_offset < log_start:
                return 0
            index_count = self._index.expired(log_start)
            index_names = [file.path.name for file in self._index.files[index_count:]]
            self._index.sync_names()  # of a file that has become the newest since
            # The state first: after a stop in between, it must not list files that are gone.
            if not self._fits(lambda: self._state.log_begins_at(log_start, index_names)):
                log.error(
                    "the disk has no room for %s, so nothing can be deleted: free some kilobytes", self._state.path
                )
                return 0
            # The pending snapshot names files that are deleted now.
            self._pending_snapshot = Snapshot()
            self._commitlog.queue.remove_first(count)
            self._index.remove_first(index_count)
            for queue in self._queues:
                queue.expire(log_start)
        return log_start - files[0].start_offset

    def snapshot(self) -> Snapshot:
        """Return the queue ends as they are now. The write offset is read after them, so that it covers their
        records."""
        names = [file.path.name for file in list(self._index.files)]
        ends: QueueEnds = {}
        for queue in self._queues:
            if queue.max_offset:
                ends.setdefault(queue.topic, {})[queue.queue_id] = queue.max_offset
        return Snapshot(self._commitlog.write_offset, ends, names, self._commitlog.start_offset)

    @staticmethod
    def _fits(write: Callable[[], None]) -> bool:
        """Write; return False if the disk is full, which must not stop the broker."""
        try:
            write()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            return False
        return True


# ---- Producer runs, read back from the end of the log, and the places of a run's messages.

RUNS_A_CALL = 8192
"""Maximum number of runs that one kernel call finds."""


class StoredRun(NamedTuple):
    """Messages of one producer that are consecutive both by its counter and in the queue.

    The producer sent them to ``asked_topic``; they are stored in ``queue`` of ``topic``, a different topic if they wait
    for their delivery. ``first``, ``queue_offset``: counter and queue offset of the first of ``messages`` messages.
    """

    prefix: str
    asked_topic: str
    first: int
    messages: int
    topic: str
    queue: int
    queue_offset: int


@dataclass(slots=True)
class Places:
    """Places of consecutive messages of a queue.

    ``physical_offsets``: count × i64; ``store_ms``: store time of the first message; ``end_offset``: where the last
    record ends; ``queue``: the queue in the producer's acknowledgement. Waiting messages name the queue that they will
    be delivered to.
    """

    physical_offsets: bytes
    store_ms: int
    end_offset: int
    queue: int


class ProducerRuns:
    """Reads of a recovered store. ``tail`` runs at the start; any thread may call ``places``."""

    def __init__(
        self,
        commitlog: CommitLog,
        queues: ConsumeQueueTable,
        index: IndexService,
        topics: TopicTable,
        state: StoreState,
    ) -> None:
        self._commitlog = commitlog
        self._queues = queues
        self._index = index
        self._topics = topics
        self._state = state

    def places(self, topic: str, queue_id: int, queue_offset: int, count: int, *, hot: bool) -> Places:
        """Return the places of ``count`` messages from ``queue_offset`` on, all of which were stored and dispatched.

        Raises ``MessageNotFound`` if retention deleted the first, and ``WouldBlock`` with ``hot``.
        """
        queue = self._queues.get(topic, queue_id)
        blob = queue.read_units(queue_offset, count, hot=hot) if queue is not None else b""
        units = np.frombuffer(blob, UNIT_DTYPE)
        offsets = units["physical_offset"]
        if (
            len(blob) < count * UNIT_BYTES
            or (units["size"] <= 0).any()
            or is_filling(units).any()
            or offsets[0] < self._commitlog.start_offset
        ):
            raise MessageNotFound(
                f"message {queue_offset} of queue {queue_id} of topic {topic} was stored before, and retention has "
                "taken it away since; it was not stored again"
            )
        # The head holds the store time; a waiting message's target queue is in its properties.
        waits = topic in (SCHEDULE_TOPIC, TIMER_TOPIC, PREPARED_TOPIC)
        size = int(units["size"][0])
        blob = bytearray(size if waits else min(size, RECORD_HEAD_BYTES_MAX))
        self._commitlog.queue.read(int(offsets[0]), memoryview(blob), hot=hot)
        if waits:
            queue_id = int(decode_record(blob).property_map()[PROPERTY_REAL_QUEUE])
        end_offset = int(offsets[-1] + units["size"][-1])
        return Places(offsets.tobytes(), unpack_head(blob).store_timestamp, end_offset, queue_id)

    def tail(self, tail_bytes: int, runs_max: int) -> list[StoredRun]:
        """Return the runs in the last ``tail_bytes`` of the log, oldest first, and at most the newest ``runs_max``.

        Leaves out deleted topics. Blocks.
        """
        end = self._commitlog.write_offset
        # An offset inside a record is not a place to begin. Every producer's record has a key, so the index knows the
        # first boundary.
        begin = self._index.first_record_at(max(end - tail_bytes, self._commitlog.start_offset))
        if begin is None or begin >= end:
            return []
        blocks: deque[tuple[MappedFile, np.ndarray]] = deque()
        held = 0
        for block in self._blocks(begin, end):
            blocks.append(block)
            held += len(block[1])
            while held - len(blocks[0][1]) >= runs_max and len(blocks) > 1:
                held -= len(blocks.popleft()[1])
        return self._newest(blocks, runs_max)

    def _newest(self, blocks: Sequence[tuple[MappedFile, np.ndarray]], runs_max: int) -> list[StoredRun]:
        left = runs_max
        runs: list[StoredRun] = []
        for file, rows in reversed(blocks):
            newest = rows[-left:] if left else rows[:0]
            left -= len(newest)
            runs[:0] = self._named(file, newest)
        return runs

    def _blocks(self, begin: int, end: int) -> Iterator[tuple[MappedFile, np.ndarray]]:
        """Yield the rows that the kernel finds, each block with its file."""
        rows = np.zeros(RUNS_A_CALL * sequences.RUN_ROW, np.int64)
        scratch = np.zeros(sequences.SCRATCH, np.int64)
        # A run must not extend across a topic's deletion, because the records before it do not count.
        deletions = {row.physical_offset for row in self._state.deleted.values()}
        stops = sorted(offset for offset in deletions if begin < offset < end)
        at = begin
        for stop in [*stops, end]:
            while at < stop and (file := self._commitlog.queue.find(at)) is not None:
                base = file.start_offset
                status, position, count = sequences.stored_runs(
                    file.array(), at - base, min(stop - base, file.size), base, rows, scratch
                )
                yield file, rows[: count * sequences.RUN_ROW].reshape(-1, sequences.RUN_ROW).copy()
                at = file.end_offset if status == dispatch.BLANK else base + position
                if at >= file.end_offset:
                    file.release()
                if status not in (dispatch.DONE, dispatch.BLANK, dispatch.FULL):
                    log.warning(
                        "%s has %s at byte %d: producers' messages after it are not recognised when they are sent "
                        "again",
                        file.path,
                        dispatch.BAD_NAMES[status],
                        position,
                    )
                    return

    def _named(self, file: MappedFile, rows: np.ndarray) -> list[StoredRun]:
        """Return the rows as runs, without those of topics that no longer exist."""
        view = file.array().data
        runs = []
        # The same text object each time, because thousands of runs refer to it.
        texts: dict[bytes, str] = {}
        existing: dict[bytes, tuple[str, int]] = {}
        for at, prefix_at, first, count, asked_at, asked, topic_at, topic, queue, queue_offset in rows.tolist():
            name = bytes(view[asked_at : asked_at + asked])
            if name not in existing:
                existing[name] = self._existing(_text(texts, name))
            asked_topic, begins = existing[name]
            if file.start_offset + at < begins:
                continue
            prefix = _text(texts, bytes(view[prefix_at : prefix_at + sequences.PREFIX_DIGITS]))
            stored_in = asked_topic if topic_at == asked_at else _text(texts, bytes(view[topic_at : topic_at + topic]))
            runs.append(StoredRun(prefix, asked_topic, first, count, stored_in, queue, queue_offset))
        return runs

    def _existing(self, topic: str) -> tuple[str, int]:
        """Return a topic and the physical offset at which it begins; one beyond all records if it does not exist."""
        return topic, FOREVER if self._topics.get(topic) is None else self._state.deleted_below(topic)


def _text(texts: dict[bytes, str], blob: bytes) -> str:
    text = texts.get(blob)
    if text is None:
        text = texts[blob] = blob.decode("utf-8", "replace")
    return text
