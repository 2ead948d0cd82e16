"""CheckpointService: puts queues, index, checkpoint and the consumer offsets on disk now and then."""

from __future__ import annotations

import errno
from collections.abc import Callable

from ..store import MessageStore
from .service import OnFatal, Post, Service, log


class CheckpointService(Service):
    """Bounds what a crash leaves to dispatch again."""

    name = "checkpoint"

    def __init__(self, store: MessageStore, post: Post, on_fatal: OnFatal) -> None:
        super().__init__(post, on_fatal)
        self._store = store
        self.interval_seconds = store.settings.checkpoint_interval_ms / 1000
        self._synced = -1
        self._topics_version = -1
        self.also: list[Callable[[], None]] = []
        """What else is put on disk in every round."""

    def do_once(self) -> bool:
        """One round, where there is something new."""
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
                log.error("no room for the %s of %s: %s; trying again", name, store.path, error)
        self._fold_topics()
        for persist in self.also:
            persist()
        return False

    def _fold_topics(self) -> None:
        """Write the table of topics if its journal has rested for a round: RocketMQ reads the table alone. If that
        fails, nothing is lost: the journal is on disk."""
        topics = self._store.topics
        rested, self._topics_version = topics.version == self._topics_version, topics.version
        if rested and topics.dirty:
            try:
                topics.persist()
            except OSError as error:
                log.error("the topics of %s cannot be written: %s; trying again", self._store.path, error)

    def behind(self) -> int:
        """Bytes of the log whose units and entries a crash would lose."""
        return max(self._store.reput_offset - self.synced_offset, 0)

    @property
    def synced_offset(self) -> int:
        """Queues and index are on disk for the log below this, as far as is known."""
        return max(self._synced, 0)
