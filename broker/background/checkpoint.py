"""CheckpointService: periodically puts queues, index, checkpoint and tables on disk."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from .service import Service, log

if TYPE_CHECKING:
    from ..store import MessageStore
    from .service import OnFatal, Post

SYNC_SHARE = 20
"""After a sync of queues and index, this many times its duration pass before the next one."""
SYNC_PAUSE_MAX_SECONDS = 60.0
"""Maximum of that pause."""
UNSYNCED_BYTES_MAX = 1 << 30
"""Bytes of the log after which the next sync waits no longer: a start dispatches them in about 2 s."""


class CheckpointService(Service):
    """The service that limits how much of the log has to be dispatched again after a crash.

    ``sync_share``: the pause after a sync, in multiples of its duration; 0: every round may sync.
    """

    name = "checkpoint"

    def __init__(self, store: MessageStore, post: Post, on_fatal: OnFatal, *, sync_share: int = SYNC_SHARE) -> None:
        super().__init__(post, on_fatal)
        self._store = store
        self.interval_seconds = store.settings.checkpoint_interval_ms / 1000
        self._sync_share = sync_share
        self._synced = -1
        self._next_sync = 0.0
        """Time from which on queues and index are synced again, by ``time.monotonic``."""
        self._topics_version = -1
        self.also: list[Callable[[], None]] = []
        """Functions that persist other state, called in every round."""

    def do_once(self) -> bool:
        """Do one round: persist what has changed."""
        store = self._store
        # Read before the sync, which may cover more but never less.
        reput_offset = store.reput_offset
        if store.failed is None and reput_offset != self._synced and self._is_due():
            began = time.monotonic()
            store.sync_derived()
            self._synced = reput_offset
            # Each changed queue is a file to sync: with thousands of them, a sync in each round would keep the disk
            # busy and take a large part of a processor.
            ended = time.monotonic()
            self._next_sync = ended + min(self._sync_share * (ended - began), SYNC_PAUSE_MAX_SECONDS)
        for name, table in (("consumer offsets", store.consumer_offsets), ("groups", store.groups)):
            if not table.dirty:
                continue
            try:
                table.persist()
            except OSError as error:
                # A full disk ends nothing: the progress is only older after a crash, and its messages are delivered
                # again.
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                log.error("cannot save the %s of %s, the disk is full: %s; retrying", name, store.path, error)
        self._fold_topics()
        for persist in self.also:
            persist()
        return False

    def _is_due(self) -> bool:
        """Return whether the pause after the last sync is over, or a start would have too much to dispatch."""
        return time.monotonic() >= self._next_sync or self.backlog() > UNSYNCED_BYTES_MAX

    def _fold_topics(self) -> None:
        """Write the topic table if its journal did not change for a round, since RocketMQ reads only the table.

        If that fails, nothing is lost: the journal is on disk.
        """
        topics = self._store.topics
        rested, self._topics_version = topics.version == self._topics_version, topics.version
        if rested and topics.dirty:
            try:
                topics.persist()
            except OSError as error:
                log.error("cannot write the topic table of %s: %s; retrying", self._store.path, error)

    def backlog(self) -> int:
        """Return the number of bytes of the log whose units and index entries a crash would lose."""
        return max(self._store.reput_offset - self.synced_offset, 0)

    @property
    def synced_offset(self) -> int:
        """Physical offset below which queues and index are known to be on disk."""
        return max(self._synced, 0)
