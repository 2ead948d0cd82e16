"""MessageStore: the whole store, from the lock to the last byte of the index.

No asyncio and no sockets: it opens, appends, dispatches, reads and closes in a plain script. Who may call what: ``append``
and the topic table belong to one thread (the broker's event loop), ``flush`` to one, ``dispatch`` to whoever owns reput;
reads and ``sync_derived`` to any.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from pathlib import Path

from ...protocol.errors import ServiceNotAvailable
from .checkpoint import StoreCheckpoint
from .commitlog import Appended, CommitLog, ProduceBatch
from .config_files import ConsumerOffsetTable, TopicConfig, TopicTable
from .dispatcher import Dispatcher
from .errors import StoreFailed, StoreLocked
from .files import Files
from .index_file import IndexService
from .queue_table import ConsumeQueueTable
from .reads import Found, Pulled, Reads
from .recovery import Progress, Recovery, RecoveryReport
from .settings import StoreSettings
from .store_state import DeletedTopic, Snapshot, StoreState

LOCK_CONTENT = b"lock"
OWN_FOLDER = "flintmq"

log = logging.getLogger(__name__)

_locked_here: set[str] = set()
"""Stores open in this process: POSIX locks do not exclude their own process."""


def _ignore_progress(stage: str, done: int, total: int) -> None:
    pass


class MessageStore:
    """A store on disk. ``store_host``: the advertised address, 8 or 20 bytes, written into every record."""

    def __init__(
        self, path: Path, settings: StoreSettings, *, store_host: bytes = b"\x7f\0\0\1\0\0\0\0", files: Files | None = None
    ) -> None:
        self.path = path
        self.settings = settings
        self.files = files = files or Files()
        own = path / OWN_FOLDER
        self.commitlog = CommitLog(files, path / "commitlog", own / "new", settings, store_host)
        self.queues = ConsumeQueueTable(files, path / "consumequeue", own / "aside", settings.consumequeue_file_bytes)
        self.index = IndexService(
            files, path / "index", own / "aside", own / "new", settings.index_slots, settings.index_entries
        )
        self.topics = TopicTable(files, path / "config" / "topics.json")
        self.consumer_offsets = ConsumerOffsetTable(files, path / "config" / "consumerOffset.json")
        self.state = StoreState(files, own / "state.json")
        self.dispatcher = Dispatcher(self.commitlog, self.queues, self.index)
        self.queues.deleted_below = self.state.deleted_below
        self.reads = Reads(self.commitlog, self.queues, self.index, self.topics, self.state)
        self.failed: BaseException | None = None
        self._checkpoint: StoreCheckpoint | None = None
        self._lock_fd = -1
        self._snapshot = Snapshot()
        self._append_next: dict[str, dict[int, int]] = {}
        """The queue offset that the next message of a queue gets: RocketMQ's topicQueueTable."""
        self._topic_bytes: dict[str, bytes] = {}

    # Opening and closing.

    def open(self, progress: Progress = _ignore_progress) -> RecoveryReport:
        """Lock, recover and dispatch everything. Blocks.

        Raises ``StoreLocked``, ``SettingMismatch``, ``CorruptLog`` or ``CorruptFile``; then nothing is open.
        """
        started = time.perf_counter()
        self.files.make_folder(self.path)
        self._take_lock()
        try:
            report = self._recover(progress)
        except BaseException:
            self._close_files()
            raise
        report.seconds = time.perf_counter() - started
        return report

    def _take_lock(self) -> None:
        key = str(self.path.resolve())
        locked = StoreLocked(
            f"{self.path} is open in another broker (it holds a lock on {self.path / 'lock'}). Stop that one, or "
            "choose another folder with --store"
        )
        if key in _locked_here:
            raise locked  # without opening the file: closing any descriptor of it drops this process's lock
        fd = self.files.open(self.path / "lock", create=True)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except (BlockingIOError, PermissionError):
            self.files.close(fd)
            raise locked from None
        if self.files.size(fd) != len(LOCK_CONTENT):
            self.files.resize(fd, 0)
            self.files.write(fd, LOCK_CONTENT, 0)
        _locked_here.add(key)
        self._lock_fd = fd

    def _recover(self, progress: Progress) -> RecoveryReport:
        self.topics.load()
        self.consumer_offsets.load()
        self.state.load()
        abort = self.path / "abort"
        clean = not abort.exists()
        self._checkpoint = StoreCheckpoint(self.files, self.path / "checkpoint")
        recovery = Recovery(
            self.settings, self.commitlog, self.queues, self.index, self._checkpoint, self.state, self.dispatcher,
            progress, clean=clean,
        )  # fmt: skip
        recovery.before_changes = self._write_abort
        report = recovery.run()
        self._adopt_topics()
        if recovery.cut:
            for queue in self.queues:
                self.consumer_offsets.clamp(queue.topic, queue.queue_id, queue.max_offset)
            self.consumer_offsets.persist()
        if report.rebuilt:
            self.sync_derived()
        return report

    def _write_abort(self) -> None:
        fd = self.files.open(self.path / "abort", create=True)
        try:
            self.files.resize(fd, 0)
            self.files.write(fd, str(os.getpid()).encode(), 0)
            self.files.sync_data(fd)
        finally:
            self.files.close(fd)
        self.files.sync_folder(self.path)

    def _adopt_topics(self) -> None:
        """Topics that stand in the log but not in the table (a store that is only a log) are entered."""
        found: dict[str, int] = {}
        for queue in self.queues:
            if self.topics.get(queue.topic) is None and queue.max_offset > queue.start_offset:
                physical_offset, _, _ = queue.unit(queue.max_offset - 1, hot=False)
                if physical_offset >= self.state.deleted_below(queue.topic):
                    found[queue.topic] = max(found.get(queue.topic, 0), queue.queue_id + 1)
        for name, queues in found.items():
            self.topics.put(TopicConfig(name, read_queues=queues, write_queues=queues))
        if found:
            self.topics.persist()

    def _next_offset(self, topic: str, queue_id: int) -> int:
        """The queue offset of the queue's next message, when this process has appended none to it yet.

        All that was in the log at the start is dispatched, so the ConsumeQueue's end is right, unless retention or a
        deletion took its records: then only the store's state knows.
        """
        queue = self.queues.get(topic, queue_id)
        return max(queue.max_offset if queue is not None else 0, self.state.next_offset(topic, queue_id))

    def close(self) -> None:
        """Flush, dispatch what is left, sync queues and index, write the tables and the checkpoint, remove ``abort``.

        The services must be stopped. After a failure nothing is claimed: ``abort`` stays.
        """
        try:
            if self.failed is None:
                self.flush()
                while self.dispatcher.reput_offset < self.commitlog.write_offset:
                    self.dispatch(self.commitlog.write_offset)
                self.sync_derived()
                self.sync_derived()  # the snapshot of queue ends is written one sync after it was taken
                self.topics.persist()
                self.consumer_offsets.persist()
                self.files.unlink(self.path / "abort")
                self.files.sync_folder(self.path)
        finally:
            self._close_files()

    def _close_files(self) -> None:
        self.commitlog.close()
        self.queues.close()
        self.index.close()
        if self._checkpoint is not None:
            self._checkpoint.close()
            self._checkpoint = None
        if self._lock_fd >= 0:
            _locked_here.discard(str(self.path.resolve()))
            self.files.close(self._lock_fd)
            self._lock_fd = -1

    # Writing.

    @property
    def write_offset(self) -> int:
        """Where the next record goes."""
        return self.commitlog.write_offset

    @property
    def flushed_offset(self) -> int:
        """The log is on disk below this."""
        return self.commitlog.flushed_offset

    @property
    def reput_offset(self) -> int:
        """Queues and index cover the log below this."""
        return self.dispatcher.reput_offset

    @property
    def min_physical_offset(self) -> int:
        """Where the log begins."""
        return self.commitlog.start_offset

    @property
    def dispatchable_offset(self) -> int:
        """What may be dispatched: with sync flush only what is on disk, so that nothing seen can vanish in a crash."""
        return self.flushed_offset if self.settings.flush_policy == "sync" else self.write_offset

    @property
    def store_host(self) -> bytes:
        """The advertised address, written into every record and offset id."""
        return self.commitlog.store_host

    @store_host.setter
    def store_host(self, host: bytes) -> None:
        self.commitlog.store_host = host

    def append(self, topic: TopicConfig, queue_id: int, batch: ProduceBatch) -> Appended:
        """Append a batch to a queue; see ``CommitLog.append``. The caller has checked topic, queue and permission."""
        if self.failed is not None:
            raise ServiceNotAvailable(f"the store stopped writing: {self.failed}")
        queues = self._append_next.get(topic.name)
        if queues is None:
            queues = self._append_next[topic.name] = {}
            self._topic_bytes[topic.name] = topic.name.encode()
        queue_offset = queues.get(queue_id, -1)
        if queue_offset < 0:
            queue_offset = self._next_offset(topic.name, queue_id)
        try:
            appended = self.commitlog.append(self._topic_bytes[topic.name], queue_id, queue_offset, batch)
        except StoreFailed as failure:
            self.failed = failure
            raise
        queues[queue_id] = queue_offset + batch.count
        return appended

    def flush(self) -> int:
        """fdatasync the log; returns the flushed offset. For one thread at a time; an OSError must end the process."""
        store_ms = self.commitlog.last_store_ms
        flushed = self.commitlog.flush()
        if self._checkpoint is not None:
            self._checkpoint.flushed(flushed, store_ms)
        return flushed

    def dispatch(self, end_offset: int, chunk_bytes: int = 0) -> list[tuple[str, int, int]]:
        """One step of reput; see ``Dispatcher.step``."""
        return self.dispatcher.step(end_offset, chunk_bytes or self.settings.reput_chunk_bytes)

    def sync_derived(self) -> None:
        """Put queues, index and the checkpoint on disk, so that a crash leaves less to dispatch again. Blocks."""
        store_ms = self.dispatcher.last_store_ms
        dispatched = min(self.reput_offset, self.flushed_offset)
        self.queues.sync()
        self.index.sync()
        taken = self._snapshot
        if taken.physical_offset <= dispatched and taken != self.state.snapshot and taken.physical_offset:
            self.state.snapshot = taken
            self.state.persist()
        if self._checkpoint is not None:
            self._checkpoint.dispatched(dispatched, store_ms, self.index.full_end_ms)
        self._snapshot = self._take_snapshot()
        self.commitlog.release_below(dispatched)

    def _take_snapshot(self) -> Snapshot:
        """Queue ends as they are now; all of their records lie below the write offset that is read behind them."""
        names = [file.path.name for file in list(self.index.files)]
        ends: dict[str, dict[int, int]] = {}
        for queue in self.queues:
            if queue.max_offset:
                ends.setdefault(queue.topic, {})[queue.queue_id] = queue.max_offset
        return Snapshot(self.write_offset, ends, names)

    def delete_topic(self, name: str) -> None:
        """Forget a topic; its queues' ends are kept, so that a new topic of the name goes on behind them. Blocks.

        The caller has taken it out of ``topics`` before, so nothing is appended to it meanwhile.
        """
        queue_ids = {*self.queues.by_topic.get(name, {}), *self._append_next.get(name, {})}
        appended = self._append_next.get(name, {})
        next_offsets = {
            queue_id: appended.get(queue_id) or self._next_offset(name, queue_id) for queue_id in sorted(queue_ids)
        }
        self.state.deleted[name] = DeletedTopic(self.write_offset, next_offsets)
        self.dispatcher.deleted_topics.append(name)
        self.state.persist()
        self.topics.persist()

    # Reading: see ``Reads``.

    def pull(
        self, topic: str, queue: int, offset: int, max_count: int, max_bytes: int, tags: frozenset[int] | None, hot: bool
    ) -> Pulled:
        """See ``Reads.pull``."""
        return self.reads.pull(topic, queue, offset, max_count, max_bytes, tags, hot=hot)

    def query(
        self, topic: str, key: str, begin_ms: int, end_ms: int, max_count: int, cursor: str, hot: bool
    ) -> Found:
        """See ``Reads.query``."""
        behind = max(self.write_offset - self.reput_offset, 0)
        return self.reads.query(topic, key, begin_ms, end_ms, max_count, cursor, hot=hot, behind_bytes=behind)

    def view(self, message_id: str, topic: str, hot: bool) -> Found:
        """See ``Reads.view``."""
        return self.reads.view(message_id, topic, hot=hot, visible_below=self.dispatchable_offset)

    def max_offset(self, topic: str, queue: int) -> int:
        """See ``Reads.max_offset``."""
        return self.reads.max_offset(topic, queue)

    def min_offset(self, topic: str, queue: int, hot: bool) -> int:
        """See ``Reads.min_offset``."""
        return self.reads.min_offset(topic, queue, hot=hot)

    def offset_by_time(self, topic: str, queue: int, timestamp_ms: int, hot: bool) -> int:
        """See ``Reads.offset_by_time``."""
        return self.reads.offset_by_time(topic, queue, timestamp_ms, hot=hot)

    def earliest_store_time(self, topic: str, queue: int, hot: bool) -> int:
        """See ``Reads.earliest_store_time``."""
        return self.reads.earliest_store_time(topic, queue, hot=hot)

    def topic_stats(self, topic: str, hot: bool) -> list[tuple[int, int, int, int]]:
        """See ``Reads.topic_stats``."""
        return self.reads.topic_stats(topic, hot=hot)
