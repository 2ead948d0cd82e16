"""MessageStore: the whole store, from the lock to the last byte of the index.

It uses neither asyncio nor sockets, so a plain script can open, append, dispatch, read and close. Thread ownership:
``append`` and the topic table belong to one thread (the broker's event loop), ``flush`` to one thread, and ``dispatch``
to the owner of reput. Any thread may read or call ``sync_derived``.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ...protocol.errors import BrokerError, ServiceNotAvailable
from ...protocol.storage.record import Record
from ...protocol.store_files import refuse_backup
from .damage import Quarantine
from .dispatch import DerivedFiles, Dispatcher, ProducerRuns
from .errors import CorruptFile, StoreFailed
from .files.file_system import Files, make_durable_folder, remove_content
from .files.store_lock import AbortFile, StoreLock, strange_places
from .index import IndexService
from .log.commitlog import CommitLog
from .log.log_copy import LogCopy
from .log.produce_batch import Appended, FrameBody, ProduceBatch, RepeatedBatch
from .queues import SCHEDULE_TOPIC, AppendOffsets, ConsumeQueueTable
from .read.pages import Pages
from .read.pulls import Pulls
from .read.queries import KeySearch, Queries, QueryResult
from .read.queue_reads import LogReads, QueueReads
from .read.record_copies import Place, RecordCopier, WaitingRecords
from .recovery.loaded_store import LoadedStore, Progress
from .recovery.log_cut import ReplicaFiles
from .recovery.recovery import Recovery, RecoveryReport
from .retention import Expiry, TopicRetention
from .settings import ENTRIES, LOG_SIZE, QUEUE_SIZE, SLOTS, StoreSettings
from .tables.checkpoint import StoreCheckpoint
from .tables.clock import SteadyClock, StoreClock
from .tables.offset_tables import ConsumerOffsetTable, DelayOffsetTable
from .tables.pop_state import PopJournal, PopState
from .tables.store_state import DeletedTopic, FollowedMaster, StagedState, StoreState
from .tables.topic_table import SubscriptionGroupTable, TopicConfig, TopicTable

REPUT_CHUNK_BYTES = 1024 * 1024
"""CommitLog bytes that one dispatch step covers."""
OWN_FOLDER = "flintmq"
UNLIMITED = (1 << 63) - 1
log = logging.getLogger(__name__)


class MessageStore:
    """A store on disk.

    ``store_host``: the advertised address, 8 or 20 bytes, which is written into every record. ``steady_clock``: use a
    ``SteadyClock``, as the broker does, instead of the plain wall clock.
    """

    def __init__(
        self,
        path: Path,
        settings: StoreSettings,
        *,
        store_host: bytes = b"\x7f\0\0\1\0\0\0\0",
        files: Files | None = None,
        steady_clock: bool = False,
    ) -> None:
        self.path = path
        self.settings = settings
        self.files = files = files or Files()
        self.own_folder = own = path / OWN_FOLDER
        """Folder of everything that RocketMQ does not know."""
        self.commitlog = CommitLog(files, path / "commitlog", own / "new", settings, store_host)
        if steady_clock:
            self.commitlog.clock = SteadyClock(files, own / "clock.json", self.commitlog.end)
        self.queues = ConsumeQueueTable(files, path / "consumequeue", own / "aside", settings.consumequeue_file_bytes)
        self.index = IndexService(
            files, path / "index", own / "aside", own / "new", settings.index_slots, settings.index_entries
        )
        self.topics = TopicTable(files, path / "config" / "topics.json")
        self.consumer_offsets = ConsumerOffsetTable(files, path / "config" / "consumerOffset.json")
        self.groups = SubscriptionGroupTable(files, path / "config" / "subscriptionGroup.json")
        self.delay_offsets = DelayOffsetTable(files, path / "config" / "delayOffset.json")
        self.staged_state = StagedState(files, own / "prepared.json")
        self.pop_state = PopState(files, own / "pop.json")
        self.pop_journal = PopJournal(files, own / "pop.json")
        self.state = StoreState(files, own / "state.json")
        self.dispatcher = Dispatcher(self.commitlog, self.queues, self.index)
        self.queues.deleted_below = self.state.deleted_below
        self.quarantine = Quarantine(files, own / "quarantine")
        self.followed_master = FollowedMaster(files, own / "following.json")
        self.log_reads = LogReads(self.commitlog, self.state, self.quarantine)
        self.queue_reads = QueueReads(self.commitlog, self.queues, self.topics, self.state, self.log_reads)
        self.pulls = Pulls(self.commitlog, self.queue_reads, self.log_reads)
        self.pages = Pages(self.commitlog, self.queue_reads, self.log_reads)
        self.queries = Queries(self.index, self.topics, self.state, self.log_reads)
        self.producer_runs = ProducerRuns(self.commitlog, self.queues, self.index, self.topics, self.state)
        self.rewriter = RecordCopier(self.commitlog, self.log_reads)
        self.topic_retention = TopicRetention(self.queues, self.queue_reads, self.log_reads, self.topics, self.state)
        self.expiry = Expiry(
            self.commitlog,
            self.queues,
            self.queue_reads,
            self.log_reads,
            self.topics,
            self.consumer_offsets,
            self.delay_offsets,
            self.staged_state,
        )
        self._only_flushed = settings.flush_policy == "sync"
        self.confirmed_offset = UNLIMITED
        """Physical offset below which a replica set allows the log to be shown and acknowledged."""
        self.ended_clean = True
        """The process that had the store before closed it cleanly; also true for a new store. False once a member of a
        replica set leads, because another process wrote what it has."""
        self.failed: BaseException | None = None
        """Error that stopped all writing; None while the store is writable."""
        self.on_failure: Callable[[StoreFailed], object] = lambda failure: None
        """Called by every append that finds that the log can no longer be written."""
        self.refusal: Callable[[], ServiceNotAvailable] | None = None
        """Factory of the error that appends raise while the disk is too full; set by retention."""
        self.set_refusal: Callable[[], BrokerError] | None = None
        """The same for a replica set."""
        self._checkpoint = StoreCheckpoint(files, path / "checkpoint")
        self.mark_flushed = self._checkpoint.flushed
        self.replica = ReplicaFiles(files, path, own, settings.commitlog_file_bytes)
        self._lock = StoreLock(files, path)
        self._abort = AbortFile(files, path)
        self._derived = DerivedFiles(
            self.commitlog, self.queues, self.index, self.dispatcher, self.state, self._checkpoint
        )
        self.append_offsets = AppendOffsets(self.queue_reads.next_offset)
        self.log_copy = LogCopy(self.commitlog, self.append_offsets.forget, self._check_disk, self._stop_writing)

    def open(
        self, progress: Progress = lambda stage, done, total: None, *, rebuild: bool = False, verify_all: bool = False
    ) -> RecoveryReport:
        """Lock the store, recover it and dispatch everything. Blocks.

        ``rebuild``: rebuild queues and index from the log. ``verify_all``: check the whole log instead of only its last
        ``verify_at_start_bytes``.

        Raises ``NotAStore`` for a backup, ``StoreLocked``, ``SettingMismatch``, ``CorruptLog`` or ``CorruptFile``; the
        store is then closed.
        """
        started = time.perf_counter()
        refuse_backup(self.path)
        self.followed_master.check()
        make_durable_folder(self.files, self.path)
        for path, problem in strange_places(self.path):
            raise CorruptFile(f"{path}: {problem}. Put the right entry back, or move it away. Nothing was changed")
        self._lock.take()
        try:
            self.replica.finish_changes()
            report = self._recover(progress, rebuild, verify_all)
        except BaseException as error:
            self._close_files()
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StoreFailed(
                    f"the disk of {self.path} is full, and the start needs room for queues and index: {error}. Free "
                    "space, then start again"
                ) from error
            raise
        report.seconds = time.perf_counter() - started
        return report

    def _recover(self, progress: Progress, rebuild: bool, verify_all: bool) -> RecoveryReport:
        clean = self.ended_clean = not self._abort.exists()
        tables = (self.topics, self.consumer_offsets, self.groups, self.delay_offsets)
        for table in (*tables, self.staged_state, self.pop_state, self.state, self.quarantine, self.replica.state):
            table.load()
        if self.consumer_offsets.is_missing:
            self.groups.warn_of_lost_offsets(self.path)
        self._checkpoint.load()
        sizes = self.state.sizes
        if self._checkpoint.mark is None:
            self.state.somebody_else_wrote()
            if sizes:
                self._checkpoint.warn_of_lost_mark()
        mark = self._checkpoint.mark
        self.commitlog.queue.load(sizes.get(LOG_SIZE), mark.flushed_offset if mark is not None else 0)
        queue_problems = self.queues.load(sizes.get(QUEUE_SIZE), keep_ends=True)
        index_problem = self.index.load((sizes[SLOTS], sizes[ENTRIES]) if SLOTS in sizes and ENTRIES in sizes else None)
        loaded = LoadedStore(
            self.commitlog,
            self.queues,
            self.index,
            self._checkpoint,
            self.state,
            self.topics,
            self.dispatcher,
            self.quarantine,
            clean,
            queue_problems,
            index_problem,
        )
        recovery = Recovery(loaded, progress, self._begin_changes, rebuild=rebuild, verify_all=verify_all)
        report = recovery.run()
        self.queues.forget_ends()
        self.clock.begin(self.commitlog.last_store_ms, self.write_offset)
        if not clean:
            # The crash may have taken messages that were consumed and committed: new ones get their queue offsets.
            self.consumer_offsets.clamp(self.queue_reads.end_offset)
            if self.consumer_offsets.dirty:
                self.consumer_offsets.persist()
            self.delay_offsets.clamp(lambda queue_id: self.queue_reads.end_offset(SCHEDULE_TOPIC, queue_id))
        self.pop_state.clip(self.consumer_offsets.committed_of, self.queue_reads.end_offset)
        self._note_what_is_there()
        # Everything that recovery moved aside has been rebuilt by now.
        remove_content(self.files, self.own_folder / "aside")
        return report

    def _begin_changes(self) -> None:
        """Create the store's folders and the file ``abort``: until then, a start changes nothing."""
        files = self.files
        for name in ("commitlog", "consumequeue", "index", "config", OWN_FOLDER):
            files.make_folder(self.path / name)
        remove_content(files, self.own_folder / "new")
        self._checkpoint.create()
        self._abort.create()

    def _note_what_is_there(self) -> None:
        """Save the state that the next start checks the store against. Everything must be dispatched and on disk."""
        self.state.take(self._derived.snapshot())
        if self.settings.record_checksum:
            self.state.checksummed.begin(self.write_offset)
        else:
            self.state.checksummed.end(self.write_offset)
        self.state.sizes = self.settings.fixed_sizes
        self.state.persist()

    def close(self) -> None:
        """Flush, dispatch the rest, sync queues and index, write the tables and the checkpoint, remove ``abort``.

        The caller must have stopped the services. After a failure nothing is written and ``abort`` stays, so that the
        next start recovers.
        """
        try:
            if self.failed is None:
                self.flush()
                while self.dispatcher.reput_offset < self.commitlog.write_offset:
                    self.dispatch(self.commitlog.write_offset)
                if not self.sync_derived():
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.queues.folder))
                for table in (self.topics, self.consumer_offsets, self.groups):
                    if table.dirty:
                        table.persist()
                self._abort.remove()
        finally:
            self._close_files()

    def _close_files(self) -> None:
        self.commitlog.close()
        self.queues.close()
        self.index.close()
        self._checkpoint.close()
        self._lock.release()

    @property
    def clock(self) -> StoreClock:
        return self.commitlog.clock

    @property
    def write_offset(self) -> int:
        """Physical offset at which the next record begins."""
        return self.commitlog.write_offset

    @property
    def flushed_offset(self) -> int:
        """Physical offset below which the log is on disk."""
        return self.commitlog.flushed_offset

    @property
    def acknowledged_offset(self) -> int:
        """Physical offset below which the log is on disk, in a replica set on all members in sync."""
        return min(self.commitlog.flushed_offset, self.confirmed_offset)

    def confirm(self, physical_offset: int) -> None:
        """Note that every member of the set that must have the log below ``physical_offset`` has it on disk."""
        self.confirmed_offset = physical_offset
        self._checkpoint.confirmed(physical_offset)

    @property
    def last_confirmed_offset(self) -> int:
        """The confirmed offset that this process or an earlier one noted last; 0 without a set."""
        return min(self._checkpoint.confirmed_offset, self.commitlog.write_offset)

    @property
    def reput_offset(self) -> int:
        """Physical offset below which queues and index cover the log."""
        return self.dispatcher.reput_offset

    @property
    def min_physical_offset(self) -> int:
        """Physical offset at which the log begins."""
        return self.commitlog.start_offset

    @property
    def dispatchable_offset(self) -> int:
        """Physical offset up to which records may be dispatched.

        With sync flush only flushed records are dispatched: no consumer sees a message that a crash could take back. In
        a replica set they must be confirmed too.
        """
        log = self.commitlog
        return min(log.flushed_offset if self._only_flushed else log.write_offset, self.confirmed_offset)

    def append(self, topic: TopicConfig, queue_id: int, batch: ProduceBatch) -> Appended:
        """Append a batch as ``CommitLog.append`` does. The caller has checked topic, queue and permission."""
        self.check_writable()
        queue_offset = self.append_offsets.next_offset(topic.name, queue_id)
        try:
            appended = self.commitlog.append(topic.name.encode(), queue_id, queue_offset, batch)
        except StoreFailed as failure:
            self._stop_writing(failure)
            raise
        self.append_offsets.advance(topic.name, queue_id, queue_offset + batch.count)
        return appended

    def append_repeated(
        self, topic: str, queue_id: int, repeated: RepeatedBatch, frame: FrameBody, common: bytes = b""
    ) -> Appended | None:
        """Append a batch as ``CommitLog.append_repeated`` does; None: nothing was written, and ``append`` must try."""
        queue_offset = self.append_offsets.known(topic, queue_id)
        if queue_offset < 0 or self.failed is not None or self.refusal is not None or self.set_refusal is not None:
            return None
        try:
            appended = self.commitlog.append_repeated(repeated, frame, queue_id, queue_offset, common)
        except StoreFailed as failure:
            self._stop_writing(failure)
            return None
        if appended is not None:
            self.append_offsets.advance(topic, queue_id, queue_offset + frame[3])
        return appended

    def append_made(self, written: int, size: int, store_ms: int) -> bool:
        """Append the records that a kernel has made in the log's buffer, and partly written; return False if the others
        were not written. They fit into the current file and its allocated blocks."""
        try:
            return self.commitlog.append_made(written, size, store_ms)
        except StoreFailed as failure:
            self._stop_writing(failure)
            return False

    def append_records(self, records: Sequence[Record]) -> int:
        """Append records that the broker itself makes (retried, delivered, committed …), each to its topic and queue.

        All of them are appended, or none. Sets their queue offsets, physical offsets, store time and store host, and
        returns the log's end after them. The caller must make sure that the topics exist. Raises as ``append`` does.
        """
        self.check_writable()
        taken: dict[tuple[bytes, int], int] = {}
        for record in records:
            key = (record.topic, record.queue_id)
            queue_offset = taken.get(key, -1)
            if queue_offset < 0:
                queue_offset = self.append_offsets.next_offset(record.topic.decode(), record.queue_id)
            record.queue_offset = queue_offset
            taken[key] = queue_offset + 1
        try:
            self.commitlog.append_records(records)
        except StoreFailed as failure:
            self._stop_writing(failure)
            raise
        for (topic, queue_id), queue_offset in taken.items():
            self.append_offsets.advance(topic.decode(), queue_id, queue_offset)
        return self.commitlog.write_offset

    def deliver(self, waiting: WaitingRecords, places: Sequence[Place | None], *, committed: bool = False) -> int:
        """Append copies of waiting records, each group to its place; see ``RecordCopier.deliver``.

        All of them are appended, or none. Returns the log's end after them. The caller must make sure that the topics
        and queues exist. Raises as ``append`` does.
        """
        self.check_writable()
        try:
            following = self.rewriter.deliver(waiting, places, self.append_offsets.next_offset, committed=committed)
        except StoreFailed as failure:
            self._stop_writing(failure)
            raise
        for (topic, queue_id), queue_offset in following.items():
            self.append_offsets.advance(topic, queue_id, queue_offset)
        return self.commitlog.write_offset

    def _stop_writing(self, failure: StoreFailed) -> None:
        self.failed = failure
        self.on_failure(failure)

    def check_writable(self) -> None:
        """Raise ``ServiceNotAvailable``, or the replica set's error, if nothing may be appended at the moment."""
        self._check_disk()
        if self.set_refusal is not None:
            raise self.set_refusal()

    def _check_disk(self) -> None:
        if self.failed is not None:
            raise ServiceNotAvailable(f"the store stopped writing: {self.failed}")
        if self.refusal is not None:
            raise self.refusal()

    def flush(self, on_disk: Callable[[int], object] | None = None) -> int:
        """Flush the log and return the flushed offset; ``on_disk`` is called with it before the checkpoint is written.

        One thread at a time; after an OSError the process must end.
        """
        store_ms = self.commitlog.last_store_ms  # before the flush, so that it is not the time of a later record
        flushed = self.commitlog.flush()
        if on_disk is not None:
            on_disk(flushed)
        self._checkpoint.flushed(flushed, store_ms)
        return flushed

    def dispatch(self, end_offset: int, chunk_bytes: int = 0) -> list[tuple[str, int, int]]:
        """Dispatch one chunk of the log; see ``Dispatcher.step``. ``chunk_bytes`` 0 means ``REPUT_CHUNK_BYTES``."""
        return self.dispatcher.step(end_offset, chunk_bytes or REPUT_CHUNK_BYTES)

    def sync_derived(self) -> bool:
        """Sync queues, index and the checkpoint, so that less is dispatched again after a crash. Blocks.

        Returns False, syncing nothing, if the disk has no room for units that wait in memory.
        """
        return self._derived.sync()

    def expire(self, count: int) -> int:
        """Delete the oldest ``count`` CommitLog files; return the deleted bytes. One thread at a time."""
        gone_bytes = self._derived.expire(count)
        self.expiry.forget_below(self.commitlog.start_offset)
        return gone_bytes

    def delete_topic(self, *names: str) -> None:
        """Delete topics, but keep their queues' ends: a new topic of the same name continues from there. Blocks.

        The caller must have removed the topics from ``topics`` first, so that nothing is appended to them meanwhile.
        """
        deleted = {}
        for name in names:
            appended = self.append_offsets.of_topic(name)
            next_offsets = {
                queue_id: appended.get(queue_id) or self.queue_reads.next_offset(name, queue_id)
                for queue_id in sorted({*self.queues.by_topic.get(name, {}), *appended})
            }
            deleted[name] = DeletedTopic(self.write_offset, next_offsets)
        # The table is saved first: after a stop in between, the start finds the topics again by their messages.
        self.topics.save()
        self.state.delete(deleted)
        self.topics.left(*names)
        self.dispatcher.deleted_topics.extend(names)

    def query(self, search: KeySearch, *, hot: bool) -> QueryResult:
        """Find messages of a topic by key, as ``Queries.query`` does."""
        behind = max(self.write_offset - self.reput_offset, 0)
        return self.queries.query(search, hot=hot, behind_bytes=behind)

    def view(
        self, message_id: str, topic: str, hot: bool, may_show: Callable[[str], bool] | None = None
    ) -> QueryResult:
        """Find one message by its id, as ``Queries.view`` does."""
        return self.queries.view(message_id, topic, hot=hot, visible_below=self.dispatchable_offset, may_show=may_show)
