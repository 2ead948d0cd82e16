"""POP for the other parts of the broker: the messages in flight, the consumers that wait, and the file."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Executor

from ....protocol.storage.delivery import RETRY_TOPIC_PREFIX
from ...background.loop_worker import LoopWorker
from ...background.service import OnFatal
from ...store import MessageStore, SettledAhead
from ..groups.coordinator import GroupCoordinator
from ..writer import RecordWriter
from .in_flight import InFlight, Take
from .redelivery import Redelivery
from .table import InFlightTable, QueueKey
from .waits import ALL_QUEUES, Waits

log = logging.getLogger(__name__)

OFFER_SECONDS = 0.5
"""Interval at which what is settled is offered to the checkpoint, while it changes."""


class PopService:
    """The messages in flight of all groups. Belongs to the event loop.

    ``now_ms``: the broker's clock; ``counted``: called with group, messages stored for a retry, and dead letters.
    """

    def __init__(
        self,
        writer: RecordWriter,
        groups: GroupCoordinator,
        loop: asyncio.AbstractEventLoop,
        readers: Executor,
        counted: Callable[[str, int, int], None],
        *,
        now_ms: Callable[[], int],
        in_flight_max: int,
    ) -> None:
        self.table = InFlightTable(writer.store.consumer_offsets, in_flight_max)
        self.waits = Waits(loop.call_at)
        """Consumers that wait for messages."""
        self.watches = Waits(loop.call_at, every=True)
        """Consumers that want to know when there are messages."""
        self.now_ms = now_ms
        self._store: MessageStore = writer.store
        self._groups = groups
        self._loop = loop
        self._redelivery = Redelivery(self.table, writer, readers, self.freed, counted)
        self._worker: LoopWorker | None = None
        self._offered = 0
        self._offer_due = False

    # ---- life

    def restore(self) -> None:
        """Take over what the file says."""
        self.table.restore(
            (QueueKey(row.group, row.topic, row.queue), row.committed, row.ranges)
            for row in self._store.pop_state.saved
        )

    def start(self, on_fatal: OnFatal) -> None:
        """Store messages again whose time is over, from now on."""
        self._worker = LoopWorker("redelivery of popped messages", self._redelivery, self._loop, self.now_ms, on_fatal)
        self._worker.start()

    def answer_all(self) -> None:
        """End every wait because the broker stops."""
        for waits in (self.waits, self.watches):
            waits.answer_all()

    def check_again(self) -> None:
        """Let every waiting consumer check again, after a change of topics or permissions."""
        for waits in (self.waits, self.watches):
            waits.wake_all()

    def has_waiting(self, topic: str) -> bool:
        """Return whether a consumer waits for messages of the topic."""
        return self.waits.has(topic) or self.watches.has(topic)

    async def stop(self) -> None:
        """Store nothing more."""
        if self._worker is not None:
            await self._worker.stop()

    def close(self) -> None:
        """Write the file, after the stop; do nothing if the service was never started. Blocks."""
        if self._worker is not None:
            self._offer()
            self._store.pop_state.persist(last=True)

    # ---- taking and settling

    def take(self, key: QueueKey, start: int, offsets: Iterable[int], end: int, take: Take, pop_ms: int) -> list[int]:
        """Hand out messages as ``InFlightTable.take`` does. Raises ``LimitReached`` if the group cannot commit."""
        if self._store.consumer_offsets.committed_of(*key) is None:
            self._groups.check_may_commit(key.group, key.topic, (key.queue,))
            self._groups.ensure_group(key.group)
        taken = self.table.take(key, start, offsets, end, take, pop_ms)
        self._changed()
        if taken and self._worker is not None and self.table.next_end_ms() == pop_ms + take.invisible_ms:
            self._worker.wake()
        return taken

    def settle(self, key: QueueKey, offset: int, pop_ms: int) -> bool:
        """Settle a message; return False if the receipt is not that of its current delivery."""
        settled = self.table.settle(key, offset, pop_ms)
        if settled:
            self._changed()
            if self._waited_for(key) and self.table.is_free(key, self.now_ms()):
                self.freed(key)
        return settled

    def renew(self, key: QueueKey, offset: int, pop_ms: int, invisible_ms: int) -> InFlight | None:
        """Give a message new time from now on; return None if the receipt is not that of its current delivery."""
        renewed = self.table.renew(key, offset, pop_ms, Take(self.now_ms(), invisible_ms))
        if renewed is not None and self._worker is not None:
            self._worker.wake()
        return renewed

    # ---- waking

    def arrived(self, touched: Iterable[tuple[str, int, int]]) -> None:
        """Wake consumers: the queues (topic, queue, offset of the next message) have new messages."""
        for topic, queue, _ in touched:
            self.waits.arrived(topic, queue)
            self.watches.arrived(topic, queue)

    def freed(self, key: QueueKey) -> None:
        """Wake a consumer: the group may take from the queue again."""
        for waits in (self.waits, self.watches):
            waits.wake(key.group, key.topic, key.queue)

    def left_some(self, group: str, topic: str) -> None:
        """Wake the next consumer: one has taken what it wanted and left messages."""
        self.waits.wake(group, topic, ALL_QUEUES)

    def _waited_for(self, key: QueueKey) -> bool:
        return not key.topic.startswith(RETRY_TOPIC_PREFIX) and self.has_waiting(key.topic)

    def topic_deleted(self, topic: str) -> None:
        """Forget what is in flight in a deleted topic, and let consumers that wait for it check again."""
        self.table.forget_topic(topic)
        self.check_again()

    # ---- the file

    def _changed(self) -> None:
        if not self._offer_due:
            self._offer_due = True
            self._loop.call_later(OFFER_SECONDS, self._offer)

    def _offer(self) -> None:
        self._offer_due = False
        if self._offered != self.table.changes:
            self._offered = self.table.changes
            self._store.pop_state.offer(
                SettledAhead(key.group, key.topic, key.queue, committed, tuple(ranges))
                for key, committed, ranges in self.table.settled()
            )
