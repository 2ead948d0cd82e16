"""Appending of records that the broker itself creates: retried, delivered and committed messages, and notes on them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ...protocol.errors import BrokerError
from ...protocol.storage.layout import UNIT
from ..background.loop_work import called_back

if TYPE_CHECKING:
    from ...protocol.storage.record import Record
    from ..background.flush import FlushService
    from ..store import MessageStore, TopicConfig
    from .topic_changes import TopicChanges

Done = Callable[[BrokerError | None], None]


class RecordWriter:
    """A writer of records that creates missing topics.

    ``appended``: called after each append, to have it flushed and dispatched. ``sync``: an acknowledgement means that
    the record is on disk.
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
        """Create the topics that do not exist, durably; then call ``done``, at once if all of them exist.

        An existing topic stays as it is.
        """
        for config in configs:
            # A topic in the table does not count while its change is pending: that may still fail, and is then undone.
            pending = config.name in self._topic_changes.pending
            if not pending and self.store.topics.get(config.name) is not None:
                continue

            def check_next(error: BrokerError | None) -> None:
                if error is not None:
                    done(error)
                else:
                    # All topics again: one that existed may have been deleted meanwhile.
                    self.with_topics(configs, done)

            if pending:
                self._topic_changes.when_done(config.name, check_next)
            else:
                self._topic_changes.put(config, check_next)
            return
        done(None)

    def append_records(self, records: Sequence[Record]) -> int:
        """Append records to existing topics; return the end of the log after them. Raises as
        ``MessageStore.append_records``."""
        end_offset = self.store.append_records(records)
        self._appended()
        return end_offset

    def when_acknowledged(self, end_offset: int, done: Done) -> None:
        """Call ``done`` when the records below ``end_offset`` may be acknowledged: with sync flush, when they are on
        disk."""
        if self._sync:
            self._flush.wait_for(end_offset, done)
        else:
            done(None)

    def when_on_disk(self, end_offset: int, done: Done) -> None:
        """Call ``done`` when the log is on disk below ``end_offset``, whatever the flush policy."""
        self._flush.wait_for(end_offset, done)
        self._flush.wake()  # with async flush nothing else wakes the service early

    async def topics_exist(self, configs: Sequence[TopicConfig]) -> None:
        """Do what ``with_topics`` does, and wait for it. Raises its error."""
        missing = True
        while missing:
            await called_back(partial(self.with_topics, configs))
            # The wait ends in a later turn of the loop: one may have been deleted.
            missing = any(self.store.topics.get(config.name) is None for config in configs)

    async def acknowledged(self, end_offset: int) -> None:
        """Wait until the records below ``end_offset`` may be acknowledged. Raises the error of a failed flush."""
        await called_back(partial(self.when_acknowledged, end_offset))

    async def on_disk(self, end_offset: int) -> None:
        """Wait until the log is on disk below ``end_offset``. Raises the error of a failed flush."""
        await called_back(partial(self.when_on_disk, end_offset))


# ---- Reading of a system topic from an offset on, as a start does with half messages and with notes. Blocks.

log = logging.getLogger(__name__)

UNITS_A_READ = 1024


def records_from(store: MessageStore, topic: str, first: int, end: int | None = None) -> Iterator[Record]:
    """Yield the records of queue 0 of a topic with offsets in ``[first, end)``; ``end`` None: all from ``first`` on.

    Records that are lost to damage are skipped, and logged together after the last one.
    """
    queue = store.queues.get(topic, 0)
    if queue is None:
        return
    lost = 0
    last = queue.max_offset if end is None else min(end, queue.max_offset)
    # Retention may have deleted records since the caller's offset was saved.
    at, name = max(first, store.queue_reads.first_offset(queue)), topic.encode()
    while at < last:
        count = min(UNITS_A_READ, last - at)
        for physical_offset, size, _ in UNIT.unpack_all(queue.read_units(at, count, hot=False)):
            record = store.log_reads.record_at(physical_offset, size)
            # A damaged unit can lead to a sound record of another topic.
            if record is None or record.topic != name:
                lost += 1
            else:
                yield record
        at += count
    if lost:
        log.error("%d records of %s are lost to damage of the log: continuing without them", lost, topic)
