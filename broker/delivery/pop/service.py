"""POP for the other parts of the broker: the messages in flight, the consumers that wait, and the file."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Protocol

from ....protocol.storage.delivery import RETRY_TOPIC_PREFIX, old_pop_retry_topic, pop_retry_topic
from ...background.loop_work import LoopWorker
from ...store import SettledAhead
from . import table
from .redelivery import Moving, Redelivery, ReturnedBatch
from .table import IN_FLIGHT_MAX, Expired, InFlightTable, QueueKey, Take

if TYPE_CHECKING:
    from ...background.service import OnFatal
    from ...store import MessageStore, PopEntry
    from ..groups.coordinator import GroupCoordinator
    from ..groups.retry import RetryPolicy, Tally
    from ..writer import RecordWriter
    from .table import InFlight, QueueInFlight


# ---- Consumers that wait for messages of a topic (long polling), by topic and group. Belongs to the event
# loop.
#
# A message that arrives wakes one waiting consumer of each group. That consumer takes what there is, and the
# next one is woken only if it leaves some, so a thousand idle consumers cost no more than one.

ALL_QUEUES = -1


class Timer(Protocol):
    """A call that can be cancelled."""

    def cancel(self) -> object:
        """Cancel the call."""


class WaitEnd(enum.Enum):
    """Reason for the end of a wait."""

    WOKEN = "there may be messages"
    EXPIRED = "its time is over"
    STOPPED = "the broker stops"


class Wait:
    """One waiting consumer. ``ended`` gets the reason exactly once, or never after ``cancel``."""

    __slots__ = ("ended", "group", "queue", "timer", "topic", "waits")

    def __init__(self, waits: Waits, group: str, topic: str, queue: int, ended: Callable[[WaitEnd], None]) -> None:
        self.waits: Waits | None = waits
        self.group = group
        self.topic = topic
        self.queue = queue
        self.ended = ended
        self.timer: Timer | None = None

    def cancel(self) -> None:
        """Stop waiting; may be called at any time and more than once."""
        # The timer, a message and the loss of the connection may each end the wait: only the first one finds it.
        waits, self.waits = self.waits, None
        if waits is not None:
            waits.forget(self)

    def end(self, reason: WaitEnd) -> None:
        """End the wait, unless it has ended."""
        if self.waits is not None:
            # Before the call, which may let the consumer wait again at once.
            self.cancel()
            self.ended(reason)


class Waits:
    """All waiting consumers. ``call_at``: calls a function at a time of the loop's clock.

    ``every``: wake all consumers of a group instead of one, because they take nothing.
    """

    def __init__(self, call_at: Callable[[float, Callable[[], None]], Timer], *, every: bool = False) -> None:
        self._call_at = call_at
        self._every = every
        self._groups: dict[tuple[str, str], dict[Wait, None]] = {}
        """By topic and group: the waiting consumers, in the order in which they came."""
        self.by_topic: dict[str, dict[tuple[str, str], None]] = {}
        """By topic, including retry topics: the (topic, group) pairs that wait for it. Read by other modules too."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def count(self, group: str, topic: str) -> int:
        """Return how many consumers of a group wait for messages of a topic."""
        return len(self._groups.get((topic, group), ()))

    def count_of(self, group: str) -> int:
        """Return how many consumers of a group wait, for whatever topic."""
        return sum(len(waiting) for (_, name), waiting in self._groups.items() if name == group)

    def hold(self, group: str, topic: str, queue: int, deadline: float, ended: Callable[[WaitEnd], None]) -> Wait:
        """Let a consumer wait for a queue, or for ``ALL_QUEUES``, and for retries, until ``deadline`` in seconds."""
        wait = Wait(self, group, topic, queue, ended)
        key = (topic, group)
        waiting = self._groups.get(key)
        if waiting is None:
            waiting = self._groups[key] = {}
            # A retried message is in a topic of its own, but is popped together with those of this one.
            for name in _watched(group, topic):
                self.by_topic.setdefault(name, {})[key] = None
        waiting[wait] = None
        self._count += 1
        wait.timer = self._call_at(deadline, lambda: wait.end(WaitEnd.EXPIRED))
        return wait

    def forget(self, wait: Wait) -> None:
        """Remove a wait that ends."""
        key = (wait.topic, wait.group)
        waiting = self._groups[key]
        del waiting[wait]
        self._count -= 1
        if wait.timer is not None:
            wait.timer.cancel()
        if waiting:
            return
        del self._groups[key]
        for name in _watched(wait.group, wait.topic):
            del self.by_topic[name][key]
            if not self.by_topic[name]:
                del self.by_topic[name]

    def arrived(self, topic: str, queue: int) -> None:
        """Wake consumers: there is a message in a queue of a topic, which may be a retry topic."""
        # A copy, because a wait that ends may be the last of its topic.
        for waited_for, group in list(self.by_topic.get(topic, ())):
            # A retry may come from any queue of the topic.
            self.wake(group, waited_for, queue if waited_for == topic else ALL_QUEUES)

    def wake(self, group: str, topic: str, queue: int) -> None:
        """Wake one consumer of a group (or all, if ``every``) that can take a message of a queue.

        ``ALL_QUEUES``: of any queue, or a retry.
        """
        for wait in list(self._takers(group, topic, queue)) if self._every else self._first(group, topic, queue):
            wait.end(WaitEnd.WOKEN)

    def _takers(self, group: str, topic: str, queue: int) -> Iterator[Wait]:
        for wait in self._groups.get((topic, group), ()):
            if queue == ALL_QUEUES or wait.queue in (ALL_QUEUES, queue):
                yield wait

    def _first(self, group: str, topic: str, queue: int) -> Iterable[Wait]:
        wait = next(self._takers(group, topic, queue), None)
        return () if wait is None else (wait,)

    def wake_all(self) -> None:
        """Wake every consumer, after a change of topics or permissions, so that it checks again."""
        self._end_all(WaitEnd.WOKEN)

    def answer_all(self) -> None:
        """End every wait because the broker stops."""
        self._end_all(WaitEnd.STOPPED)

    def _end_all(self, reason: WaitEnd) -> None:
        # Copies, because every end removes the wait from the dicts.
        for waiting in list(self._groups.values()):
            for wait in list(waiting):
                wait.end(reason)


def _watched(group: str, topic: str) -> tuple[str, str, str]:
    return topic, pop_retry_topic(group, topic), old_pop_retry_topic(group, topic)


log = logging.getLogger(__name__)

OFFER_SECONDS = 0.5
"""Interval at which settled messages are offered to the checkpoint, while they change."""
JOURNAL_BYTES_MIN = 8 * 1024 * 1024
"""A journal that is longer than this, and four times as long as what it began with, begins again."""
JOURNAL_SECONDS_MIN = 15.0
"""Minimum time until a journal begins again: by then the file of committed offsets is newer than the last one."""

Receipt = tuple[QueueKey, int, int]
"""Queue, offset and pop time of a delivery."""


class PopService:
    """The messages in flight of all groups. Belongs to the event loop.

    ``now_ms``: the broker's clock; ``tally`` counts what happens to messages.
    """

    def __init__(
        self,
        writer: RecordWriter,
        groups: GroupCoordinator,
        loop: asyncio.AbstractEventLoop,
        readers: Executor,
        tally: Tally,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        self.table = InFlightTable(writer.store.consumer_offsets, IN_FLIGHT_MAX, self._forgotten)
        self.waits = Waits(loop.call_at)
        """Consumers that wait for messages."""
        self.watches = Waits(loop.call_at, every=True)
        """Consumers that want to know when there are messages."""
        self.now_ms = now_ms
        self._store: MessageStore = writer.store
        self._groups = groups
        self._loop = loop
        self._redelivery = Redelivery(self.table, writer, readers, self.freed, self._moved, tally)
        self._worker: LoopWorker | None = None
        self._offered = 0
        self._offer_due = False
        self._journal = writer.store.pop_journal
        self._journal.everything = self._everything
        self._entries: list[PopEntry] = []
        """Changes that are not in the journal yet."""
        self._touched: dict[QueueKey, None] = {}
        """Queues with changes since the journal began."""
        self._journal_began = 0.0

    # ---- life

    def restore(self) -> None:
        """Take over the state in the files: the journal, and for queues that are not in it, the table. Blocks."""
        store = self._store
        found = self._replayed()
        for key, state in found.items():
            state.clip(store.queue_reads.end_offset(key.topic, key.queue))
            self.table.adopt(key, state)
        self.table.restore(
            (key, row.committed, row.ranges)
            for row in store.pop_state.saved
            if (key := QueueKey(row.group, row.topic, row.queue)) not in found
        )
        if found:
            log.info("%d popped messages are still in flight", self.table.in_flight)
        # The journal must not name offsets that new messages are going to get.
        self._journal.begin()
        self._journal_began = self._loop.time()

    def _replayed(self) -> dict[QueueKey, QueueInFlight]:
        """Return the states in the journal, from the committed offsets on: those on disk may be older than the journal,
        and those of another primary may be newer."""
        try:
            states = table.replayed(self._journal.read())
        except (TypeError, ValueError) as error:
            log.error("%s is left out, so what was in flight is delivered again: %s", self._journal.path, error)
            return {}
        found = {key: state for key, state in states.items() if self._store.topics.get(key.topic) is not None}
        for key, state in found.items():
            state.advance(self._store.consumer_offsets.committed_of(*key) or 0)
        return found

    def start(self, on_fatal: OnFatal) -> None:
        """From now on, store again the messages whose time is over."""
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
        return topic in self.waits.by_topic or topic in self.watches.by_topic

    async def stop(self) -> None:
        """Stop storing expired messages again."""
        if self._worker is not None:
            await self._worker.stop()

    def close(self) -> None:
        """Write the file, after the stop; do nothing if the service was never started. Blocks."""
        if self._worker is not None:
            self._offer()
            self._store.pop_state.persist(last=True)
            self._write_journal()
            self._journal.close()

    # ---- taking and settling

    def take(self, key: QueueKey, start: int, offsets: Iterable[int], end: int, take: Take, pop_ms: int) -> list[int]:
        """Hand out messages as ``InFlightTable.take`` does. Raises ``LimitReached`` if the group cannot commit."""
        if self._store.consumer_offsets.committed_of(*key) is None:
            self._groups.check_may_commit(key.group, ((key.topic, key.queue),))
            self._groups.ensure_group(key.group)
        taken = self.table.take(key, start, offsets, end, take, pop_ms)
        self._note(key, table.taken(key, start, end, taken, take, pop_ms))
        self._write_journal()
        if taken and self._worker is not None and self.table.next_end_ms() == pop_ms + take.invisible_ms:
            self._worker.wake()
        return taken

    def settle(self, key: QueueKey, offset: int, pop_ms: int) -> bool:
        """Settle a message; return False if the receipt is not that of its current delivery."""
        return self.settle_all([(key, offset, pop_ms)])[0]

    def settle_all(self, receipts: Iterable[Receipt]) -> list[bool]:
        """Settle messages; return for each whether the receipt is that of its current delivery."""
        settled: dict[QueueKey, list[int]] = {}
        valid = []
        for key, offset, pop_ms in receipts:
            is_valid = self.table.settle(key, offset, pop_ms)
            valid.append(is_valid)
            if is_valid:
                settled.setdefault(key, []).append(offset)
        for key, offsets in settled.items():
            self._note(key, table.settled(key, sorted(offsets)))
            if self._waited_for(key) and self.table.is_free(key, self.now_ms()):
                self.freed(key)
        self._write_journal()
        return valid

    def renew(self, key: QueueKey, offset: int, pop_ms: int, invisible_ms: int) -> InFlight | None:
        """Give a message new time from now on; return None if the receipt is not that of its current delivery.

        Unless the queue is ordered, the receipt becomes void.
        """
        renewed = self._renew(key, offset, pop_ms, invisible_ms, keep=False)
        self._write_journal()
        return renewed

    def renew_all(self, receipts: Iterable[Receipt], invisible_ms: int) -> list[bool]:
        """Give messages new time from now on, with the same receipts; return for each whether its receipt is that of
        its current delivery."""
        valid = [self._renew(*receipt, invisible_ms, keep=True) is not None for receipt in receipts]
        self._write_journal()
        return valid

    def _renew(self, key: QueueKey, offset: int, pop_ms: int, invisible_ms: int, *, keep: bool) -> InFlight | None:
        renewed = self.table.renew(key, offset, pop_ms, Take(self.now_ms(), invisible_ms), keep=keep)
        if renewed is None:
            return None
        self._note(key, table.renewed(key, offset, renewed))
        if self._worker is not None:
            self._worker.wake()
        return renewed

    async def give_back(
        self, receipts: Sequence[Receipt], reasons: Sequence[str], policy: RetryPolicy
    ) -> tuple[list[bool], int, int]:
        """Store messages again, or as dead letters. Return for each whether its receipt is that of its current
        delivery; and, once they are stored, how many are delivered again, and how many are dead letters now.

        Raises ``SystemBusy``, or the error that kept some from being stored.
        """
        self._redelivery.check_may_return(len(receipts))
        found = [self.table.begin_return(*receipt) for receipt in receipts]
        valid = [delivery is not None for delivery in found]
        if not any(valid):
            return valid, 0, 0
        batch = ReturnedBatch(policy, sum(valid), self._loop.create_future())
        self._redelivery.give_back(
            Moving(Expired(*receipt), delivery.visible_ms, batch, reason)
            for receipt, delivery, reason in zip(receipts, found, reasons, strict=True)
            if delivery is not None
        )
        if self._worker is not None:
            self._worker.wake()
        return valid, *await batch.ended

    def _moved(self, key: QueueKey, offset: int) -> None:
        self.table.moved(key, offset)
        self._note(key, table.settled(key, (offset,)))
        self._write_journal()

    def look_at(self, group: str) -> None:
        """Check whether the group's committed offsets were set from outside, and forget what it had in flight there."""
        self.table.look_at(group)
        self._write_journal()

    def live(self, group: str, topic: str = "") -> int:
        """Return the number of messages of a group that are in flight, and of its consumers that wait for some; in
        ``topic`` and its retries, if given."""
        waiting = self.waits.count(group, topic) if topic else self.waits.count_of(group)
        names = (topic, pop_retry_topic(group, topic), old_pop_retry_topic(group, topic)) if topic else ()
        return waiting + self.table.in_flight_of(group, names)

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

    # ---- the files

    def _note(self, key: QueueKey, entry: PopEntry) -> None:
        self._entries.append(entry)
        self._touched[key] = None
        if not self._offer_due:
            self._offer_due = True
            self._loop.call_later(OFFER_SECONDS, self._offer)

    def _forgotten(self, key: QueueKey) -> None:
        self._note(key, table.forgotten(key))

    def _write_journal(self) -> None:
        """Write the changes to the journal before a client hears of them."""
        entries, self._entries = self._entries, []
        if entries:
            self._journal.append(entries)

    def _everything(self) -> Iterable[PopEntry]:
        committed_of = self._store.consumer_offsets.committed_of
        touched = ((key, committed) for key in self._touched if (committed := committed_of(*key)) is not None)
        return table.everything(self.table, touched)

    def _offer(self) -> None:
        self._offer_due = False
        self._write_journal()
        if self._offered != self.table.changes:
            self._offered = self.table.changes
            self._store.pop_state.offer(
                SettledAhead(key.group, key.topic, key.queue, committed, tuple(ranges))
                for key, committed, ranges in self.table.settled()
            )
        if self._journal.bytes > max(JOURNAL_BYTES_MIN, 4 * self._journal.base_bytes) or not self._journal.is_open:
            self._begin_journal_again()

    def _begin_journal_again(self) -> None:
        now = self._loop.time()
        if now < self._journal_began + JOURNAL_SECONDS_MIN:
            return
        self._journal_began = now
        try:
            self._journal.begin_again()
        except OSError as error:
            log.error("%s cannot be written, so a crash would repeat what is in flight: %s", self._journal.path, error)
        else:
            self._touched.clear()
