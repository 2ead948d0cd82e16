"""Messages whose time at a consumer is over: the broker stores them again for the group, or makes them dead letters.

As RocketMQ's ``PopReviveService.reviveRetry``: the new record is in ``%RETRY%group_topic``, with one more attempt.
Unlike RocketMQ's, a message whose attempts are used up becomes a dead letter even if no consumer counts them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial

from ....protocol.errors import OffsetOutOfRange, QueueNotExist, TopicNotExist
from ....protocol.storage.delivery import (
    DEAD_LETTER_LEVEL,
    PROPERTY_FIRST_POP_TIME,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RECORD_CRC,
    PROPERTY_RETRY_TOPIC,
    RETRY_TOPIC_PREFIX,
    pop_retry_topic,
)
from ....protocol.storage.ids import offset_id
from ....protocol.storage.layout import SysFlag
from ....protocol.storage.record import Record, decode_record, encode_properties
from ...store import CorruptLog, DamagedRecord, MessageStore, PullSelection, TopicConfig, WouldBlock
from ..groups.retry import send_back
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


def stored_again(record: Record, key: QueueKey, pop_ms: int) -> Record:
    """Return the record to append for a message of ``key`` that its consumer did not settle in time."""
    properties = record.property_map()
    properties.pop(PROPERTY_RECORD_CRC, None)
    topic = key.topic
    if not topic.startswith(RETRY_TOPIC_PREFIX):
        # A producer may have set these: they must not decide where an operator resends a dead letter to.
        properties[PROPERTY_RETRY_TOPIC] = topic
        properties[PROPERTY_ORIGIN_MESSAGE_ID] = offset_id(record.store_host, record.physical_offset)
        properties[PROPERTY_FIRST_POP_TIME] = str(pop_ms)
        topic = pop_retry_topic(key.group, topic)
    return replace(
        record,
        topic=topic.encode(),
        queue_id=0,
        properties=encode_properties(properties),
        sys_flag=record.sys_flag & ~SysFlag.TRANSACTION_MASK,
        reconsume_times=record.reconsume_times + 1,
        prepared_transaction_offset=0,
    )


class Redelivery:
    """The job that stores messages again whose time is over. ``freed``: called with ordered queues that give messages
    again; ``counted``: called with group, messages stored for a retry, and dead letters."""

    def __init__(
        self,
        table: InFlightTable,
        writer: RecordWriter,
        readers: Executor,
        freed: Callable[[QueueKey], None],
        counted: Callable[[str, int, int], None],
    ) -> None:
        self._table = table
        self._writer = writer
        self._store: MessageStore = writer.store
        self._readers = readers
        self._freed = freed
        self._counted = counted

    def next_due_ms(self) -> int | None:
        """Return when the next message's time is over, at the earliest."""
        return self._table.next_end_ms()

    def backlog(self) -> int:
        """Return the number of messages in flight."""
        return self._table.in_flight

    async def step(self, now_ms: int) -> bool:
        """Store the messages again whose time is over; return whether there may be more."""
        due = self._table.due(now_ms, MOVED_AT_ONCE_MAX)
        for key in due.free:
            self._freed(key)
        pending = deque(due.expired)
        try:
            while pending:
                records = await self._read(pending)
                read = zip(pending, records, strict=False)  # the first ones
                await self._append([(each, record) for each, record in read if record is not None])
                for _ in records:
                    each = pending.popleft()
                    self._table.moved(each.key, each.offset)
        finally:
            # There are some only after an error: they are tried again.
            for each in pending:
                self._table.keep(each.key, each.offset, now_ms + AGAIN_MS)
        return len(due.expired) + len(due.free) >= MOVED_AT_ONCE_MAX

    async def _read(self, pending: Iterable[Expired]) -> list[Record | None]:
        """Return the records of the first messages, at least one; None for a message that cannot be read any more."""
        records: list[Record | None] = []
        read_bytes = 0
        for each in pending:
            try:
                record = self._record(each, hot=True)
            except WouldBlock:
                record = await self._writer.loop.run_in_executor(self._readers, partial(self._record, each, hot=False))
            records.append(record)
            read_bytes += len(record.body) if record is not None else 0
            if read_bytes >= MOVED_BYTES_MAX:
                break
        return records

    def _record(self, expired: Expired, *, hot: bool) -> Record | None:
        group, topic, queue = expired.key
        try:
            pulled = self._store.pulls.pull(topic, queue, expired.offset, PullSelection(1, 1), hot=hot)
        except (CorruptLog, DamagedRecord, OffsetOutOfRange, QueueNotExist, TopicNotExist) as error:
            log.error("group %s does not get message %d of %s again: %s", group, expired.offset, topic, error)
            return None
        return decode_record(pulled.body, SIZE_BYTES) if pulled.count else None

    async def _append(self, messages: list[tuple[Expired, Record]]) -> None:
        """Append the messages to the retry or dead letter topics of their groups; return when they are on disk."""
        records = []
        counts: dict[str, list[int]] = {}
        for expired, record in messages:
            group = expired.key.group
            is_dead = record.reconsume_times >= self._store.groups.retry_times_max(group)
            counts.setdefault(group, [0, 0])[is_dead] += 1
            if is_dead:
                records.append(send_back(record, group, DEAD_LETTER_LEVEL, 0).record)
            else:
                records.append(stored_again(record, expired.key, expired.pop_ms))
        if not records:
            return
        names = dict.fromkeys(record.topic.decode() for record in records)
        await self._writer.topics_exist([TopicConfig(name, read_queues=1, write_queues=1) for name in names])
        end_offset = self._writer.append_records(records)
        # Only now may the committed offset pass them, and with it the file that a start reads.
        await self._writer.on_disk(end_offset)
        for group, (retried, dead) in counts.items():
            self._counted(group, retried, dead)
