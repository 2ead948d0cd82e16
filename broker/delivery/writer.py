"""Appending records of the broker's own making: retried, delivered, committed messages, and notes about them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from ...protocol.errors import BrokerError
from ...protocol.record import Record
from ..services.flush import FlushService
from ..store import MessageStore, TopicConfig
from .topic_changes import TopicChanges

Done = Callable[[BrokerError | None], None]


class RecordWriter:
    """Writes records to topics that it makes where they are not there.

    ``appended``: called after each append, so that it is flushed and dispatched. ``sync``: whether an acknowledgement
    means that a record is on disk.
    """

    def __init__(
        self,
        store: MessageStore,
        flush: FlushService,
        topic_changes: TopicChanges,
        loop: asyncio.AbstractEventLoop,
        appended: Callable[[], None],
        *,
        sync: bool,
    ) -> None:
        self.store = store
        self.loop = loop
        self._flush = flush
        self._topic_changes = topic_changes
        self._appended = appended
        self._sync = sync

    def with_topics(self, configs: Sequence[TopicConfig], done: Done) -> None:
        """Call ``done`` once these topics are there, at once where they are: made as given, durably, where one is not.

        A topic that is there stays as it is.
        """
        for config in configs:
            pending = config.name in self._topic_changes.pending
            if not pending and self.store.topics.get(config.name) is not None:
                continue

            def again(error: BrokerError | None) -> None:
                if error is not None:
                    done(error)
                else:
                    self.with_topics(configs, done)

            if pending:
                self._topic_changes.when_done(config.name, again)
            else:
                self._topic_changes.put(config, again)
            return
        done(None)

    def append(self, records: Sequence[Record]) -> int:
        """See ``MessageStore.append_records``; the topics must be there. Returns the log's end behind them."""
        end_offset = self.store.append_records(records)
        self._appended()
        return end_offset

    def when_acknowledged(self, end_offset: int, done: Done) -> None:
        """Call ``done`` when what lies below ``end_offset`` may be acknowledged: with sync flush, once it is on
        disk."""
        if self._sync:
            self._flush.wait_for(end_offset, done)
        else:
            done(None)

    def when_on_disk(self, end_offset: int, done: Done) -> None:
        """Call ``done`` when the log is on disk below ``end_offset``, whatever the flush policy."""
        self._flush.wait_for(end_offset, done)
        self._flush.wake()  # with async flush nobody else does
