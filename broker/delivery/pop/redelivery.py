"""Redelivery of popped messages whose time at a consumer is over, or that it gave back: the broker stores them again
for the group, or makes them dead letters.

As RocketMQ's ``PopReviveService.reviveRetry``: the new record is in ``%RETRY%group+topic``, with one more attempt.
Unlike RocketMQ's, a message whose attempts are used up becomes a dead letter even if no consumer counts them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ....protocol.errors import BrokerError, BrokerFailure, OffsetOutOfRange, QueueNotExist, SystemBusy, TopicNotExist
from ....protocol.storage.delivery import (
    DEAD_LETTER_LEVEL,
    DELAY_LEVEL_MAX,
    PROPERTY_FIRST_POP_TIME,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RECORD_CRC,
    PROPERTY_RETRY_TOPIC,
    RETRY_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
    pop_retry_topic,
    popped_from,
)
from ....protocol.storage.record import decode_record, encode_properties, offset_id
from ...store import CorruptLog, DamagedRecord, PullSelection, TopicConfig, WouldBlock
from ..groups.retry import copied, send_back

if TYPE_CHECKING:
    from ....protocol.storage.record import Record
    from ...store import MessageStore
    from ..groups.retry import RetryPolicy, Tally
    from ..writer import RecordWriter
    from .table import Expired, InFlightTable, QueueKey

log = logging.getLogger(__name__)

MOVED_AT_ONCE_MAX = 256
"""Maximum number of messages that one append stores again."""
MOVED_BYTES_MAX = 1024 * 1024
"""Bytes of records after which no more are read for the same append."""
AGAIN_MS = 1_000
"""Pause after a failed append."""
SIZE_BYTES = 4
"""Width of the size before a pulled record."""
RETURNED_MAX = 5_000
"""Maximum number of messages that were given back and are not stored again yet."""


class ReturnedBatch:
    """The messages of one request. ``ended``: when all are stored, the numbers of messages that are delivered again and
    of dead letters; or the error that kept some from being stored."""

    def __init__(self, policy: RetryPolicy, left: int, ended: asyncio.Future[tuple[int, int]]) -> None:
        self.policy = policy
        self.ended = ended
        self._left = left
        self._retried = 0
        self._dead = 0
        self._error: BrokerError | None = None

    def stored(self, *, dead: bool) -> None:
        """Note that a message is stored."""
        self._dead += dead
        self._retried += not dead
        self._count()

    def gone(self) -> None:
        """Note that a message no longer exists."""
        self._count()

    def failed(self, error: BrokerError) -> None:
        """Note that a message could not be stored."""
        self._error = error
        self._count()

    def _count(self) -> None:
        self._left -= 1
        if self._left or self.ended.done():  # the task that waits was cancelled
            return
        if self._error is None:
            self.ended.set_result((self._retried, self._dead))
        else:
            self.ended.set_exception(self._error)


class Moving(NamedTuple):
    """A message to be stored again. ``visible_ms``: the end of its time; ``batch``: None if its time is over."""

    message: Expired
    visible_ms: int
    batch: ReturnedBatch | None = None
    reason: str = ""


def stored_again(record: Record, key: QueueKey, pop_ms: int, *, is_attempt: bool = True) -> Record:
    """Return the record to append for a message of ``key`` that its consumer did not settle in time.

    ``is_attempt``: the delivery was one.
    """
    properties = record.property_map()
    # The checksum is that of the old record.
    properties.pop(PROPERTY_RECORD_CRC, None)
    topic = key.topic
    if not topic.startswith(RETRY_TOPIC_PREFIX):
        # A producer may have set these: they must not decide where an operator resends a dead letter to.
        properties[PROPERTY_RETRY_TOPIC] = topic
        properties[PROPERTY_ORIGIN_MESSAGE_ID] = offset_id(record.store_host, record.physical_offset)
        properties[PROPERTY_FIRST_POP_TIME] = str(pop_ms)
    return copied(record, _retry_topic(key), 0, encode_properties(properties), int(is_attempt))


class Redelivery:
    """The job that stores again the messages whose time is over or that a consumer gave back.

    ``freed``: called with each ordered queue that can give messages again; ``moved``: called with each message that is
    stored, or no longer exists.
    """

    def __init__(
        self,
        table: InFlightTable,
        writer: RecordWriter,
        readers: Executor,
        freed: Callable[[QueueKey], None],
        moved: Callable[[QueueKey, int], None],
        tally: Tally,
    ) -> None:
        self._table = table
        self._writer = writer
        self._store: MessageStore = writer.store
        self._readers = readers
        self._freed = freed
        self._moved = moved
        self._tally = tally
        self._returned: deque[Moving] = deque()

    def check_may_return(self, count: int) -> None:
        """Raise ``SystemBusy`` if too many messages wait to be stored again."""
        if len(self._returned) + count > RETURNED_MAX:
            raise SystemBusy(
                f"{len(self._returned)} messages that were given back wait to be stored again, at most {RETURNED_MAX} "
                "may; try again later",
                retry_after_ms=AGAIN_MS,
            )

    def give_back(self, messages: Iterable[Moving]) -> None:
        """Queue messages that are already moving to be stored again."""
        self._returned.extend(messages)

    def next_due_ms(self) -> int | None:
        """Return when the next message's time is over, at the earliest."""
        return 0 if self._returned else self._table.next_end_ms()

    def backlog(self) -> int:
        """Return the number of messages in flight."""
        return self._table.in_flight

    async def step(self, now_ms: int) -> bool:
        """Store again the messages whose time is over or that were given back; return whether there may be more."""
        due = self._table.due(now_ms, MOVED_AT_ONCE_MAX)
        for key in due.free:
            self._freed(key)
        # That time counts only if the message cannot be stored: it is then tried again after AGAIN_MS.
        pending = deque(Moving(each, now_ms + AGAIN_MS) for each in due.expired)
        while self._returned and len(pending) < MOVED_AT_ONCE_MAX:
            pending.append(self._returned.popleft())
        count = len(pending) + len(due.free)
        try:
            while pending:
                records = await self._read(pending)
                await self._append([(pending.popleft(), record) for record in records], pending)
        except BaseException as error:
            # Whatever the error, a cancellation included: nothing else can end the state "moving".
            self._keep(pending, error)
            raise
        return count >= MOVED_AT_ONCE_MAX

    def _keep(self, pending: Iterable[Moving], error: BaseException) -> None:
        """Keep in flight the messages that could not be stored."""
        for message, visible_ms, batch, _ in pending:
            self._table.keep(message.key, message.offset, visible_ms)
            if batch is not None:
                batch.failed(error if isinstance(error, BrokerError) else BrokerFailure(f"it was not stored: {error}"))

    async def _read(self, pending: Iterable[Moving]) -> list[Record | None]:
        """Return the records of the first messages, at least one; None for a message that cannot be read any more."""
        records: list[Record | None] = []
        read_bytes = 0
        for message, *_ in pending:
            try:
                record = self._record(message, hot=True)
            except WouldBlock:
                read = partial(self._record, message, hot=False)
                record = await self._writer.loop.run_in_executor(self._readers, read)
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

    async def _append(self, messages: Sequence[tuple[Moving, Record | None]], pending: deque[Moving]) -> None:
        """Append the messages to the retry or dead letter topics of their groups; return when they are on disk.

        If that fails, they are ``pending`` again.
        """
        again = [(moving, *self._new_record(moving, record)) for moving, record in messages if record is not None]
        try:
            if again:
                records = [record for _, record, _ in again]
                names = dict.fromkeys(name for moving, record, _ in again for name in _topics_for(moving, record))
                await self._writer.topics_exist([_topic(name) for name in names])
                # Only now may the committed offset pass them, and with it the file that a start reads.
                await self._writer.on_disk(self._writer.append_records(records))
        except BaseException:
            # In reverse, because each goes before the others: they are at the front again, in their order.
            pending.extendleft(moving for moving, _ in reversed(messages))
            raise
        dead_of = {moving.message: dead for moving, _, dead in again}
        for moving, record in messages:
            self._moved(moving.message.key, moving.message.offset)
            self._count(moving, record, dead=dead_of.get(moving.message, False))

    def _count(self, moving: Moving, record: Record | None, *, dead: bool) -> None:
        batch = moving.batch
        if batch is None:
            self._tally.count_expired(moving.message.key.group, 1)
        if record is not None and (batch is None or batch.policy.is_attempt):
            self._tally.count_sent_back(moving.message.key.group, not dead, dead)
        if batch is None:
            return
        if record is None:
            batch.gone()
        else:
            batch.stored(dead=dead)

    def _new_record(self, moving: Moving, record: Record) -> tuple[Record, bool]:
        """Return the record to append for a message, and whether it is a dead letter."""
        (key, _, pop_ms), _, batch, reason = moving
        if batch is not None and batch.policy.is_attempt:
            policy = batch.policy
            times_max = self._store.groups.retry_times_max(key.group, policy.times_max)
            popped, to = _popped(record, key, pop_ms), _retry_topic(key)
            sent = send_back(popped, key.group, policy.delay_level, times_max, reason, policy.member, to)
            return sent.record, sent.dead
        if batch is None and record.reconsume_times >= self._store.groups.retry_times_max(key.group):
            popped = _popped(record, key, pop_ms)
            return send_back(popped, key.group, DEAD_LETTER_LEVEL, 0, to=_retry_topic(key)).record, True
        # With a batch, its consumer gave the message back without an attempt; without one, the time is over.
        return stored_again(record, key, pop_ms, is_attempt=batch is None), False


def _retry_topic(key: QueueKey) -> str:
    """Return where the messages of a queue go for another delivery. Nothing new goes to a topic of an old name."""
    topic = popped_from(key.group, key.topic)
    return topic if topic.startswith(RETRY_TOPIC_PREFIX) else pop_retry_topic(key.group, topic)


def _popped(record: Record, key: QueueKey, pop_ms: int) -> Record:
    """Return the record with the time of its first delivery, which marks a dead letter of a group that pops."""
    properties = record.property_map()
    if key.topic.startswith(RETRY_TOPIC_PREFIX):
        # RocketMQ notes no topic.
        properties.setdefault(PROPERTY_RETRY_TOPIC, popped_from(key.group, key.topic))
    else:
        properties[PROPERTY_FIRST_POP_TIME] = str(pop_ms)
    return replace(record, properties=encode_properties(properties))


def _topics_for(moving: Moving, record: Record) -> tuple[str, str]:
    """Return the topics that the record goes through, or that an operator sends a dead letter to."""
    return record.topic.decode(), _retry_topic(moving.message.key)


def _topic(name: str) -> TopicConfig:
    """Return the settings for creating a topic."""
    queues = DELAY_LEVEL_MAX if name == SCHEDULE_TOPIC else 1
    return TopicConfig(name, read_queues=queues, write_queues=queues)
