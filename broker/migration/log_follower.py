"""The store's side of a migration: append, flush and dispatch what a master sends. One thread owns all of it."""

from __future__ import annotations

import logging
import struct

from ...protocol.storage.layout import MAGIC_BLANK, SysFlag
from ...protocol.storage.record import Record, decode_record
from ..store import MessageStore
from ..store.queue.queue_check import last_record_unit
from ..store.tables.store_state import DeletedTopic
from .ha_codec import RecordBytes

_BEGINNING = struct.Struct(">ii")
"""Length and magic number of a record."""

log = logging.getLogger(__name__)


class LogFollower:
    """A store that gets its log from a master."""

    def __init__(self, store: MessageStore) -> None:
        self.store = store

    @property
    def is_empty(self) -> bool:
        """Return whether the store has no record."""
        return self.store.write_offset == self.store.min_physical_offset

    @property
    def unflushed_bytes(self) -> int:
        """Number of bytes that were appended since the last flush."""
        return self.store.write_offset - self.store.flushed_offset

    def begin_at(self, physical_offset: int) -> None:
        """Begin a log without files where the master's begins."""
        if physical_offset and not self.store.commitlog.queue.files:
            self.store.log_copy.begin_at(physical_offset)
            self.store.dispatcher.reput_offset = physical_offset

    def newest_record(self) -> tuple[int, bytes] | None:
        """Return physical offset and bytes of the newest record that has a ConsumeQueue unit; None without one."""
        units = [last_record_unit(queue, queue.max_offset) for queue in self.store.queues]
        newest = max(((unit[1], unit[2]) for unit in units if unit is not None), default=None)
        if newest is None or newest[0] < self.store.min_physical_offset:
            return None
        return newest[0], bytes(self._read(*newest))

    def append(self, records: RecordBytes) -> None:
        """Append records that follow the log. Raises ``LogCopyRefused`` if they are damaged, with nothing written."""
        self.store.log_copy.append(records.offset, records.data)

    def flush(self) -> None:
        """Put everything that was appended on disk, then into queues and index.

        After an OSError it is unknown what is on disk: the process must end without closing the store in order.
        """
        store = self.store
        # First: after a loss of power, the unit of a record that was not on disk would point to other bytes.
        end = store.flush()
        while (at := store.reput_offset) < end:
            store.dispatch(end)
            # Each record makes a unit, except for those of transactions of RocketMQ before 4.3 and of deleted topics.
            if store.dispatcher.dispatched_units < store.dispatcher.dispatched_records:
                self._find_recreated_topic(at, store.reput_offset)

    def check_dispatched(self, begin: int) -> None:
        """Look for recreated topics in what a start after a crash has dispatched, from ``begin`` on.

        A start takes their records for ones that have a unit already.
        """
        # A topic that begins again takes dispatch back; the flush dispatches from there.
        self._find_recreated_topic(max(begin, self.store.min_physical_offset), self.store.reput_offset)
        self.flush()

    def delete_below(self, physical_offset: int) -> None:
        """Delete the log's files that end at or before an offset, as the master did; never the last one."""
        files = self.store.commitlog.queue.files[:-1]
        if count := sum(1 for file in files if file.end_offset <= physical_offset):
            self.store.expire(count)

    def _find_recreated_topic(self, begin: int, end: int) -> None:
        """Look for a record without a unit, because the master deleted its topic and created it again.

        RocketMQ then counts queue offsets from 0 again. The queues here begin again too, and dispatch continues with
        that record; the older messages are deleted, as they are at the master.
        """
        at = begin
        while at < end:
            size, magic = _BEGINNING.unpack(self._read(at, _BEGINNING.size))
            if magic != MAGIC_BLANK:
                record = decode_record(bytes(self._read(at, size)))
                if self._lacks_unit(record):
                    self._begin_again(record.topic.decode(), at)
                    return
            at += size

    def _lacks_unit(self, record: Record) -> bool:
        topic = record.topic.decode()
        transaction = record.sys_flag & SysFlag.TRANSACTION_MASK
        queue = self.store.queues.get(topic, record.queue_id)
        return (
            transaction not in (SysFlag.TRANSACTION_PREPARED, SysFlag.TRANSACTION_ROLLBACK)
            and record.physical_offset >= self.store.state.deleted_below(topic)
            and queue is not None
            # The unit at its queue offset is that of an older message of the deleted topic.
            and queue.unit(record.queue_offset, hot=False)[0] != record.physical_offset
        )

    def _begin_again(self, topic: str, physical_offset: int) -> None:
        log.warning(
            "the master deleted topic %s and created it again: its messages before physical offset %d are gone",
            topic,
            physical_offset,
        )
        store = self.store
        # The note first: without it, a start after a crash could make the units of the older messages again.
        store.state.delete({topic: DeletedTopic(physical_offset, {})})
        for queue in store.queues.by_topic[topic].values():
            store.queues.move_aside(queue)
        store.queues.topic_deleted(topic)
        store.dispatcher.reput_offset = physical_offset

    def _read(self, physical_offset: int, size: int) -> bytearray:
        buffer = bytearray(size)
        self.store.commitlog.queue.read(physical_offset, memoryview(buffer), hot=False)
        return buffer
