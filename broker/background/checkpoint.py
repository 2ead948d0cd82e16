"""CheckpointService: periodically puts queues, index, checkpoint and tables on disk."""

from __future__ import annotations

import errno
from collections.abc import Callable

from ..store import MessageStore
from .service import OnFatal, Post, Service, log


class CheckpointService(Service):
    """The service that limits how much of the log has to be dispatched again after a crash."""

    name = "checkpoint"

    def __init__(self, store: MessageStore, post: Post, on_fatal: OnFatal) -> None:
        super().__init__(post, on_fatal)
        self._store = store
        self.interval_seconds = store.settings.checkpoint_interval_ms / 1000
        self._synced = -1
        self._topics_version = -1
        self.also: list[Callable[[], None]] = []
        """Functions that persist other state, called in every round."""

    def do_once(self) -> bool:
        """Do one round: persist what has changed."""
        store = self._store
        reput_offset = store.reput_offset
        if store.failed is None and reput_offset != self._synced:
            store.sync_derived()
            self._synced = reput_offset
        for name, table in (("consumer offsets", store.consumer_offsets), ("groups", store.groups)):
            if not table.dirty:
                continue
            try:
                table.persist()
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                log.error("cannot save the %s of %s, the disk is full: %s; retrying", name, store.path, error)
        self._fold_topics()
        for persist in self.also:
            persist()
        return False

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
