"""POP for the other parts of the broker: the messages in flight, the consumers that wait, and the file."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ....protocol.errors import (
    BrokerError,
    BrokerFailure,
    NoPermission,
    OffsetOutOfRange,
    QueueNotExist,
    SystemBusy,
    TopicNotExist,
)
from ....protocol.storage.delivery import RETRY_TOPIC_PREFIX, old_pop_retry_topic, pop_retry_topic
from ....protocol.storage.record import decode_record
from ...background.loop_work import LoopWorker
from ...store import CorruptLog, DamagedRecord, PullSelection, SettledAhead, WouldBlock
from ..redelivery import EXPIRED, PoppedFrom, redelivered, topic_config
from . import table
from .table import IN_FLIGHT_MAX, Expired, InFlightTable, QueueKey, Take

if TYPE_CHECKING:
    from ....protocol.storage.record import Record
    from ...background.loop_work import CallAt, LoopTimer, OnFatal
    from ...store import MessageStore, PopEntry
    from ..groups.coordinator import GroupCoordinator
    from ..redelivery import RetryPolicy, Tally
    from ..writer import RecordWriter
    from .table import InFlight, QueueInFlight

log = logging.getLogger(__name__)


# ---- Consumers that wait for messages of a topic (long polling), by topic and group. Belongs to the event
# loop.
#
# A message that arrives wakes one waiting consumer of each group. That consumer takes what there is, and the
# next one is woken only if it leaves some, so a thousand idle consumers cost no more than one.

ALL_QUEUES = -1


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
        self.timer: LoopTimer | None = None

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

    def __init__(self, call_at: CallAt, *, every: bool = False) -> None:
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


# ---- Redelivery of popped messages whose time at a consumer is over, or that it gave back.
#
# Unlike in RocketMQ, a message whose attempts are used up becomes a dead letter even if no consumer counts them.

MOVED_AT_ONCE_MAX = 256
"""Maximum number of messages that one append stores again."""
MOVED_BYTES_MAX = 1024 * 1024
"""Bytes of records after which no more are read for the same append."""
AGAIN_MS = 1_000
"""Pause after a failed append."""
SIZE_BYTES = 4
"""Width of the size before a pulled record."""
GIVEN_BACK_MAX = 5_000
"""Maximum number of messages that were given back and are not stored again yet."""


class RedeliveryBatch:
    """The messages that one request gives back. ``ended``: when all are stored, the numbers of messages that are
    redelivered and of dead letters; or the error that kept some from being stored."""

    def __init__(self, policy: RetryPolicy, left: int, ended: asyncio.Future[tuple[int, int]]) -> None:
        self.policy = policy
        self.ended = ended
        self._left = left
        self._retried = 0
        self._dead = 0
        self._error: BrokerError | None = None

    def done(self, dead: bool | None) -> None:
        """Note that a message is stored, as a dead letter or to be delivered again; None: it no longer exists."""
        self._dead += dead is True
        self._retried += dead is False
        self._left -= 1
        if self._left or self.ended.done():  # the task that waits was cancelled
            return
        if self._error is None:
            self.ended.set_result((self._retried, self._dead))
        else:
            self.ended.set_exception(self._error)

    def failed(self, error: BrokerError) -> None:
        """Note that a message could not be stored."""
        self._error = error
        self.done(None)


class Moving(NamedTuple):
    """A message to be stored again. ``visible_ms``: the end of its time; ``batch``: None if its time is over."""

    message: Expired
    visible_ms: int
    batch: RedeliveryBatch | None = None
    reason: str = ""


def _topics_for(moving: Moving, record: Record) -> tuple[str, str]:
    """Return the topics that the record goes through, or that an operator sends a dead letter to."""
    group, topic, _ = moving.message.key
    return record.topic.decode(), PoppedFrom(topic, 0).retry_topic(group)


# ---- The service.

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
        self._writer = writer
        self._readers = readers
        self._tally = tally
        self._returned: deque[Moving] = deque()
        """Messages that were given back and are not stored again yet."""
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
        self._worker = LoopWorker("redelivery of popped messages", self, self._loop, self.now_ms, on_fatal)
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
        return topic in self.waits.by_topic or topic in self.watches.by_topic

    async def stop(self) -> None:
        if self._worker is not None:
            await self._worker.stop()

    def close(self) -> None:
        """Write the file, after the stop; do nothing if the service was never started. Blocks."""
        if self._worker is not None:
            self._offer()
            self._store.pop_state.persist(last=True)
            self.write_journal()
            self._journal.close()

    # ---- taking and settling

    def check_may_pop(self, group: str, topic: str) -> None:
        """Raise if no client may pop messages of the topic for the group, at the moment."""
        self._store.topics.check_readable(topic)
        if not self._store.groups.may_consume(group):
            raise NoPermission(f"group {group} is disabled; to enable it, set its consumeEnable")
        self._groups.clients.check_may_consume(group)

    def take(self, key: QueueKey, start: int, offsets: Iterable[int], end: int, take: Take, pop_ms: int) -> list[int]:
        """Hand out messages as ``InFlightTable.take`` does. Raises ``LimitReached`` if the group cannot commit."""
        taken = self.hand_out(key, start, offsets, end, take, pop_ms)
        self.write_journal()
        return taken

    def hand_out(
        self, key: QueueKey, start: int, offsets: Iterable[int], end: int, take: Take, pop_ms: int
    ) -> list[int]:
        """Do what ``take`` does; the caller calls ``write_journal`` before a client hears of it."""
        if self._store.consumer_offsets.committed_of(*key) is None:
            self._groups.check_may_commit(key.group, ((key.topic, key.queue),))
            self._groups.ensure_group(key.group)
        taken = self.table.take(key, start, offsets, end, take, pop_ms)
        self._note(key, table.taken(key, start, end, taken, take, pop_ms))
        if taken and self._worker is not None and self.table.next_end_ms() == pop_ms + take.invisible_ms:
            self._worker.wake()
        return taken

    def settle(self, key: QueueKey, offset: int, pop_ms: int) -> bool:
        """Settle a message; return False if the receipt is not that of its current delivery."""
        return self.settle_all([(key, offset, pop_ms)])[0]

    def settle_all(self, receipts: Sequence[Receipt]) -> list[bool]:
        """Settle messages; return for each whether the receipt is that of its current delivery."""
        places: dict[QueueKey, list[int]] = {}
        for place, (key, _, _) in enumerate(receipts):
            places.setdefault(key, []).append(place)
        valid = [False] * len(receipts)
        for key, of_queue in places.items():
            settled = self.settle_of(key, [receipts[place][1:] for place in of_queue])
            for place, is_valid in zip(of_queue, settled, strict=True):
                valid[place] = is_valid
        self.write_journal()
        return valid

    def settle_of(self, key: QueueKey, receipts: Sequence[tuple[int, int]]) -> list[bool]:
        """Settle messages of one queue by (offset, pop time), as ``settle_all`` does. The caller calls
        ``write_journal`` before a client hears of it."""
        valid = self.table.settle_all(key, receipts)
        settled = [offset for (offset, _), is_valid in zip(receipts, valid, strict=True) if is_valid]
        if settled:
            self._note(key, table.settled(key, sorted(settled)))
            if self._waited_for(key) and self.table.is_free(key, self.now_ms()):
                self.freed(key)
        return valid

    def renew(self, key: QueueKey, offset: int, pop_ms: int, invisible_ms: int) -> InFlight | None:
        """Give a message new time from now on; return None if the receipt is not that of its current delivery.

        Unless the queue is ordered, the receipt becomes void.
        """
        renewed = self._renew(key, offset, pop_ms, invisible_ms, keep=False)
        self.write_journal()
        return renewed

    def renew_all(self, receipts: Iterable[Receipt], invisible_ms: int) -> list[bool]:
        """Give messages new time from now on, with the same receipts; return for each whether its receipt is that of
        its current delivery."""
        valid = [self._renew(*receipt, invisible_ms, keep=True) is not None for receipt in receipts]
        self.write_journal()
        return valid

    def _renew(self, key: QueueKey, offset: int, pop_ms: int, invisible_ms: int, *, keep: bool) -> InFlight | None:
        renewed = self.table.renew(key, offset, pop_ms, Take(self.now_ms(), invisible_ms), keep=keep)
        if renewed is None:
            return None
        self._note(key, table.renewed(key, offset, renewed))
        if self._worker is not None:
            self._worker.wake()
        return renewed

    async def redeliver(
        self, receipts: Sequence[Receipt], reasons: Sequence[str], policy: RetryPolicy
    ) -> tuple[list[bool], int, int]:
        """Redeliver messages. Return for each whether its receipt is that of its current delivery; and, once they are
        stored, how many are delivered again, and how many are dead letters now.

        Raises ``SystemBusy``, or the error that kept some from being stored.
        """
        if len(self._returned) + len(receipts) > GIVEN_BACK_MAX:
            raise SystemBusy(
                f"{len(self._returned)} messages that were given back wait to be stored again, at most "
                f"{GIVEN_BACK_MAX} may; try again later",
                retry_after_ms=AGAIN_MS,
            )
        found = [self.table.begin_return(*receipt) for receipt in receipts]
        valid = [delivery is not None for delivery in found]
        if not any(valid):
            return valid, 0, 0
        batch = RedeliveryBatch(policy, sum(valid), self._loop.create_future())
        self._returned.extend(
            Moving(Expired(*receipt), delivery.visible_ms, batch, reason)
            for receipt, delivery, reason in zip(receipts, found, reasons, strict=True)
            if delivery is not None
        )
        if self._worker is not None:
            self._worker.wake()
        return valid, *await batch.ended

    def look_at(self, group: str) -> None:
        """Check whether the group's committed offsets were set from outside, and forget what it had in flight there."""
        self.table.look_at(group)
        self.write_journal()

    def live(self, group: str, topic: str = "") -> int:
        """Return the number of messages of a group that are in flight, and of its consumers that wait for some; in
        ``topic`` and its retries, if given."""
        waiting = self.waits.count(group, topic) if topic else self.waits.count_of(group)
        names = (topic, pop_retry_topic(group, topic), old_pop_retry_topic(group, topic)) if topic else ()
        return waiting + self.table.in_flight_of(group, names)

    # ---- the job of a ``LoopWorker``: to store again what is given back, or not settled in time

    def next_due_ms(self) -> int | None:
        """Return when the next message's time is over, at the earliest."""
        return 0 if self._returned else self.table.next_end_ms()

    def backlog(self) -> int:
        return self.table.in_flight

    async def step(self, now_ms: int) -> bool:
        """Store again the messages whose time is over or that were given back; return whether there may be more."""
        due = self.table.due(now_ms, MOVED_AT_ONCE_MAX)
        for key in due.free:
            self.freed(key)
        # That time counts only if the message cannot be stored: it is then tried again after AGAIN_MS.
        pending = deque(Moving(each, now_ms + AGAIN_MS) for each in due.expired)
        while self._returned and len(pending) < MOVED_AT_ONCE_MAX:
            pending.append(self._returned.popleft())
        count = len(pending) + len(due.free)
        try:
            while pending:
                records = await self._read_moving(pending)
                await self._store_again([(pending.popleft(), record) for record in records], pending)
        except BaseException as error:
            # Whatever the error, a cancellation included: nothing else can end the state "moving".
            self._keep(pending, error)
            raise
        return count >= MOVED_AT_ONCE_MAX

    def _keep(self, pending: Iterable[Moving], error: BaseException) -> None:
        """Keep in flight the messages that could not be stored."""
        for message, visible_ms, batch, _ in pending:
            self.table.keep(message.key, message.offset, visible_ms)
            if batch is not None:
                batch.failed(error if isinstance(error, BrokerError) else BrokerFailure(f"it was not stored: {error}"))

    async def _read_moving(self, pending: Iterable[Moving]) -> list[Record | None]:
        """Return the records of the first messages, at least one; None for a message that cannot be read any more."""
        records: list[Record | None] = []
        read_bytes = 0
        for message, *_ in pending:
            try:
                record = self._record(message, hot=True)
            except WouldBlock:
                read = partial(self._record, message, hot=False)
                record = await self._loop.run_in_executor(self._readers, read)
            records.append(record)
            read_bytes += len(record.body) if record is not None else 0
            if read_bytes >= MOVED_BYTES_MAX:
                break
        return records

    def _record(self, message: Expired, *, hot: bool) -> Record | None:
        group, topic, queue = message.key
        try:
            pulled = self._store.pulls.pull(topic, queue, message.offset, PullSelection(1, 1), hot=hot)
        except (CorruptLog, DamagedRecord, OffsetOutOfRange, QueueNotExist, TopicNotExist) as error:
            log.error("group %s does not get message %d of %s again: %s", group, message.offset, topic, error)
            return None
        return decode_record(pulled.body, SIZE_BYTES) if pulled.count else None

    async def _store_again(self, messages: Sequence[tuple[Moving, Record | None]], pending: deque[Moving]) -> None:
        """Append the messages to the retry or dead letter topics of their groups; return when they are on disk.

        If that fails, they are ``pending`` again.
        """
        again = [(moving, *self._new_record(moving, record)) for moving, record in messages if record is not None]
        try:
            if again:
                records = [record for _, record, _ in again]
                names = dict.fromkeys(name for moving, record, _ in again for name in _topics_for(moving, record))
                await self._writer.topics_exist([topic_config(name) for name in names])
                # Only now may the committed offset pass them, and with it the file that a start reads.
                await self._writer.on_disk(self._writer.append_records(records))
        except BaseException:
            # In reverse, because each goes before the others: they are at the front again, in their order.
            pending.extendleft(moving for moving, _ in reversed(messages))
            raise
        dead_of = {moving.message: dead for moving, _, dead in again}
        for moving, _ in messages:
            key, offset, _ = moving.message
            self.table.moved(key, offset)
            self._note(key, table.settled(key, (offset,)))
            dead, batch = dead_of.get(moving.message), moving.batch
            if batch is None:
                self._tally.count_expired(key.group, 1)
            if dead is not None and (batch is None or batch.policy.is_attempt):
                self._tally.count_sent_back(key.group, not dead, dead)
            if batch is not None:
                batch.done(dead)
        # Before the tasks that wait for a batch run, and their clients hear of it.
        self.write_journal()

    def _new_record(self, moving: Moving, record: Record) -> tuple[Record, bool]:
        """Return the record to append for a message, and whether it is a dead letter."""
        group, topic, _ = moving.message.key
        policy = moving.batch.policy if moving.batch is not None else EXPIRED
        times_max = self._store.groups.retry_times_max(group, policy.times_max)
        return redelivered(record, group, policy, times_max, moving.reason, PoppedFrom(topic, moving.message.pop_ms))

    # ---- waking

    def arrived(self, touched: Iterable[tuple[str, int, int]]) -> None:
        """Wake consumers: the queues (topic, queue, offset of the next message) have new messages."""
        for waits in (self.waits, self.watches):
            if waits.by_topic:
                for topic, queue, _ in touched:
                    waits.arrived(topic, queue)

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

    def write_journal(self) -> None:
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
        self.write_journal()
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
