"""Derived files (ConsumeQueues, index): syncs them to disk, and deletes the oldest ones with those of the log."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..tables.store_state import Snapshot

if TYPE_CHECKING:
    from ..index.index_file import IndexService
    from ..log.commitlog import CommitLog
    from ..queue.queue_table import ConsumeQueueTable
    from ..tables.checkpoint import StoreCheckpoint
    from ..tables.store_state import QueueEnds, StoreState
    from .dispatcher import Dispatcher

log = logging.getLogger(__name__)


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

    def sync(self) -> None:
        """Sync queues, index and the checkpoint, so that less is dispatched again after a crash. Blocks."""
        with self._syncing:
            self._sync()

    def _sync(self) -> int:
        """Sync, and return the physical offset below which log, queues and index are on disk."""
        # All values are read before the syncs, which therefore cover everything that they describe.
        taken = self.snapshot()
        store_ms = self._dispatcher.last_store_ms
        flushed = self._commitlog.flushed_offset
        dispatched = min(self._dispatcher.reput_offset, flushed)
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
        return dispatched

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
            if self._sync() < log_start:
                return 0
            index_count = self._index.expired(log_start)
            index_names = [file.path.name for file in self._index.files[index_count:]]
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
        """Write a small file; return False if the disk is full, which must not stop the broker."""
        try:
            write()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            return False
        return True
