"""Transactions in the log: the open ones when the broker starts, and how an old one ended.

Everything reads from disk and must not run on the event loop, except ``read_half``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ....protocol.commands import RECORD_SIZE_STRUCT
from ....protocol.errors import BrokerFailure, TopicNotExist, TransactionGroupWrong, TransactionNotExist
from ....protocol.storage.delivery import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP, TRANSACTION_PARKED_TOPIC
from ....protocol.storage.record import PROPERTY_UNIQ_KEY, decode_record
from ...store import KeySearch
from ..topic_scan import records_from
from .records import Half, ended_offsets, id_of, is_committed
from .table import COMMIT, PARKED, ROLLBACK, Ended

if TYPE_CHECKING:
    from ....protocol.storage.record import Record
    from ...store import MessageStore

log = logging.getLogger(__name__)


@dataclass(slots=True)
class AtStart:
    """The transactions in the log when the broker starts.

    ``halves``: half messages that no op record mentions, the oldest first; ``committed``: queue offsets of those whose
    message is nevertheless in its topic, because the broker was killed in between; ``notes``: op records that are still
    needed, as (queue offset, largest half queue offset in it).
    """

    halves: list[Half] = field(default_factory=list)
    committed: set[int] = field(default_factory=set)
    notes: list[tuple[int, int]] = field(default_factory=list)
    next_half_offset: int = 0
    next_note_offset: int = 0


@dataclass(frozen=True, slots=True)
class Past:
    """The end of an old transaction and, if it was parked, its message."""

    ended: Ended
    half: Half | None = None
    record: Record | None = None


class History:
    """Reader of the transactions in a store."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def read_at_start(self) -> AtStart:
        """Read both topics from their saved progress. Blocks."""
        found = AtStart()
        ended: set[int] = set()
        # The notes first: they say which half messages are done.
        for note in self._unfinished(OP_HALF_TOPIC):
            offsets = list(ended_offsets(note))
            if offsets:
                ended.update(offsets)
                found.notes.append((note.queue_offset, max(offsets)))
        places: dict[str, set[int]] = {}
        for record in self._unfinished(HALF_TOPIC):
            half = Half.of(record)
            if half is None:
                log.error("the half message at physical offset %d lacks its target topic", record.physical_offset)
                continue
            # All copies: a committed message names the one that was the newest at its commit.
            places.setdefault(half.transaction_id, set()).add(half.physical_offset)
            if half.queue_offset not in ended:
                found.halves.append(half)

        # The message of a commit is written before its note, so a crash may have left it without one.
        for half in found.halves:
            if self._commit_of(half.topic, half.transaction_id, places[half.transaction_id]):
                found.committed.add(half.queue_offset)
        queue_reads = self._store.queue_reads
        found.next_half_offset = queue_reads.next_offset(HALF_TOPIC, 0)
        found.next_note_offset = queue_reads.next_offset(OP_HALF_TOPIC, 0)
        return found

    def read_half(self, half: Half, *, hot: bool) -> Record:
        """Read the half message itself. Raises ``BrokerFailure`` if it is damaged; with ``hot`` also ``WouldBlock``."""
        record = self._store.log_reads.record_at(half.physical_offset, 0, hot=hot)
        if record is None:
            raise BrokerFailure(
                f"the half message of transaction {half.transaction_id}, at physical offset {half.physical_offset}, is "
                "damaged; its producer must send it again"
            )
        return record

    def find_end(self, transaction_id: str, group: str, physical_offset: int) -> Past:
        """Return how a transaction ended. ``physical_offset``: of its half message, -1 if unknown.

        Raises ``TransactionNotExist`` if it is not in the log, ``TransactionGroupWrong`` if it is another group's.
        Blocks.
        """
        half = self._half_of(transaction_id, physical_offset)
        if half is None:
            raise TransactionNotExist(
                f"there is no transaction {transaction_id}: it is not open and the log has no half message of it; "
                "its message was not delivered, send it again"
            )
        if half.group != group:
            raise TransactionGroupWrong(
                f"transaction {transaction_id} belongs to another producer group than {group}; nothing was ended"
            )
        # Before the parked ones: a parked message that an operator delivered is in both topics.
        if self.is_delivered(half):
            return Past(Ended(transaction_id, group, COMMIT))
        for record in self._with_id(TRANSACTION_PARKED_TOPIC, transaction_id):
            parked = Half.of(record, TRANSACTION_PARKED_TOPIC)
            if parked is not None:
                return Past(Ended(transaction_id, group, PARKED), parked, record)
        return Past(Ended(transaction_id, group, ROLLBACK))

    def is_delivered(self, half: Half) -> bool:
        """Return whether the message of a transaction is in its topic. Blocks."""
        return any(map(is_committed, self._with_id(half.topic, half.transaction_id)))

    def read_parked(self, first: int, count: int) -> tuple[list[Record], int, bool]:
        """Return (messages of the parked topic from queue offset ``first`` on, next offset, whether there are more).
        Blocks."""
        queue = self._store.queues.get(TRANSACTION_PARKED_TOPIC, 0)
        if queue is None:
            return [], 0, False
        begin = max(first, self._store.queue_reads.first_offset(queue))
        end = min(begin + count, queue.max_offset)
        return list(records_from(self._store, TRANSACTION_PARKED_TOPIC, begin, end)), end, end < queue.max_offset

    def parked_count(self) -> int:
        """Return the number of messages in the parked topic. Blocks."""
        queue = self._store.queues.get(TRANSACTION_PARKED_TOPIC, 0)
        return queue.max_offset - self._store.queue_reads.first_offset(queue) if queue is not None else 0

    # ---- parts

    def _unfinished(self, topic: str) -> Iterator[Record]:
        """Yield the records of a topic from its saved progress on."""
        saved = self._store.consumer_offsets.committed(TRANSACTION_GROUP, topic).get(0, 0)
        return records_from(self._store, topic, saved)

    def _commit_of(self, topic: str, transaction_id: str, half_offsets: set[int]) -> bool:
        return any(
            is_committed(record) and record.prepared_transaction_offset in half_offsets
            for record in self._with_id(topic, transaction_id)
        )

    def _half_of(self, transaction_id: str, physical_offset: int) -> Half | None:
        record = self._store.log_reads.record_at(physical_offset, 0) if physical_offset >= 0 else None
        candidates = [record] if record is not None else []
        # The client may have named any offset, so whatever is there must prove to be the half message.
        for found in (*candidates, *self._with_id(HALF_TOPIC, transaction_id)):
            half = Half.of(found)
            if half is not None and id_of(found, found.property_map().get(PROPERTY_UNIQ_KEY)) == transaction_id:
                return half
        return None

    def _with_id(self, topic: str, transaction_id: str) -> Iterator[Record]:
        """Yield the records of a topic whose unique key is the id of a transaction, the newest first."""
        cursor = ""
        while True:
            try:
                page = self._store.queries.query(KeySearch(topic, transaction_id, cursor=cursor), hot=False)
            except TopicNotExist:
                return
            at = page.count * RECORD_SIZE_STRUCT.size
            for (size,) in RECORD_SIZE_STRUCT.iter_unpack(page.body[:at]):
                record = decode_record(page.body, at, check_crc=False)
                # The index also finds messages of others that refer to this one by a key of their own.
                if record.property_map().get(PROPERTY_UNIQ_KEY) == transaction_id:
                    yield record
                at += size
            cursor = page.cursor
            if not cursor:
                return
