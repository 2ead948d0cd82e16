"""Open transactions, recently ended ones, and the progress of both topics."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ....protocol.commands import RECORD_SIZE_STRUCT
from ....protocol.errors import (
    BrokerFailure,
    TopicNotExist,
    TransactionEnded,
    TransactionGroupWrong,
    TransactionNotExist,
)
from ....protocol.storage.delivery import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP, TRANSACTION_PARKED_TOPIC
from ....protocol.storage.record import PROPERTY_UNIQ_KEY, decode_record
from ...store import KeySearch
from ..writer import records_from
from .records import Half, ended_offsets, id_of, is_committed

if TYPE_CHECKING:
    from ....protocol.errors import BrokerError
    from ....protocol.storage.record import Record
    from ...store import MessageStore
    from ..client_handle import ClientHandle
    from ..writer import Done

ENDED_MAX = 10_000
"""Maximum number of ended transactions in memory; the log has the others."""

COMMIT, ROLLBACK, PARKED = "commit", "rollback", "parked"
"""Outcomes of a transaction."""


@dataclass(frozen=True, slots=True)
class Ended:
    """An ended transaction. ``end_offset``: end of the log after the records of its end."""

    transaction_id: str
    group: str
    outcome: str
    end_offset: int = 0

    def error(self) -> TransactionEnded:
        """Return the error for a client that tries to end it again."""
        ends = {COMMIT: "committed", ROLLBACK: "rolled back", PARKED: "parked, because no producer could tell its end"}
        return TransactionEnded(
            f"transaction {self.transaction_id} was already {ends[self.outcome]}", outcome=self.outcome
        )

    def check_group(self, group: str) -> None:
        """Raise if it belongs to another producer group."""
        check_group(self.transaction_id, self.group, group)


class Ending:
    """A transaction whose end is being written. ``record``: its half message, if the outcome needs it."""

    __slots__ = ("callbacks", "outcome", "record", "transaction")

    def __init__(self, transaction: OpenTransaction, outcome: str, done: Done) -> None:
        self.transaction = transaction
        self.outcome = outcome
        self.callbacks = [done]
        """Callbacks of all callers that tried to end it; the first one decided the outcome."""
        self.record: Record | None = None

    def report_failure(self, error: BrokerError) -> None:
        """Report the error to all callers; the transaction stays open."""
        self.transaction.ending = None
        for done in self.callbacks:
            done(error)

    def report_success(self, ended: Ended) -> None:
        """Report success to the first caller; the others learn that the transaction was already ended."""
        for number, done in enumerate(self.callbacks):
            done(ended.error() if number else None)


class OpenTransaction:
    """An open transaction. ``half``: the newest copy of its half message, since each check appends it again;
    ``ending``: set while its end is being written; ``runs_in``: the producer that had it open at the last check, if it
    said so."""

    __slots__ = ("ending", "half", "runs_in")

    def __init__(self, half: Half) -> None:
        self.half = half
        self.ending: Ending | None = None
        self.runs_in: ClientHandle | None = None

    def check_request(self, group: str, half_queue_offset: int, half_physical_offset: int) -> None:
        """Raise if the caller's group or offsets do not match; offsets of -1 are not compared.

        If a check appended the half message again, its earlier offsets match too.
        """
        half = self.half
        check_group(half.transaction_id, half.group, group)
        if half.check_times:
            # An offset of -1 passes, too.
            right = half_queue_offset <= half.queue_offset and half_physical_offset <= half.physical_offset
        else:
            right = half_queue_offset in (-1, half.queue_offset) and half_physical_offset in (-1, half.physical_offset)
        if not right:
            raise TransactionNotExist(
                f"the half message of transaction {half.transaction_id} is at queue offset {half.queue_offset}, "
                f"physical offset {half.physical_offset}; got {half_queue_offset} and {half_physical_offset}; nothing "
                "was ended"
            )


def check_group(transaction_id: str, group: str, asking: str) -> None:
    """Raise ``TransactionGroupWrong`` if the caller's producer group is not the transaction's."""
    if asking != group:
        raise TransactionGroupWrong(
            f"transaction {transaction_id} does not belong to producer group {asking}; only a producer of its own "
            "group may end it; nothing was ended"
        )


class OpenTransactions:
    """Open transactions by id and by the queue offset of their half message, in the order of the queue.

    An id has one open transaction: a unique key names one message, so a second half message with the same key is a copy
    of the first one and replaces it.
    """

    def __init__(self) -> None:
        self._by_id: dict[str, OpenTransaction] = {}
        self._by_queue_offset: dict[int, OpenTransaction] = {}
        self._ended: dict[str, Ended] = {}
        self._unconfirmed: dict[str, OpenTransaction] = {}
        """Transactions by id whose end is written and not acknowledged yet."""
        self._notes: deque[tuple[int, int]] = deque()
        """Op records that are still needed: their queue offset, and the largest half queue offset in them."""
        self.next_half_offset = 0
        """Queue offset after the last half message."""
        self.next_note_offset = 0
        """Queue offset after the last op record."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[OpenTransaction]:
        """Iterate over a copy of the open transactions, the oldest half message first."""
        return iter(list(self._by_queue_offset.values()))

    def on_disk(self, end_offset: int) -> list[OpenTransaction]:
        """Return the transactions that are open in the log below ``end_offset``, the oldest half message first.

        ``end_offset``: the end of what is acknowledged.
        """
        begun = [each for each in self if each.half.check_times or each.half.physical_offset < end_offset]
        if not self._unconfirmed:
            return begun
        return sorted([*self._unconfirmed.values(), *begun], key=lambda each: each.half.queue_offset)

    def get(self, transaction_id: str) -> OpenTransaction | None:
        """Return the open transaction with this id, or None."""
        return self._by_id.get(transaction_id)

    def at(self, queue_offset: int) -> OpenTransaction | None:
        """Return the open transaction whose half message is at a queue offset of the half topic, or None."""
        return self._by_queue_offset.get(queue_offset)

    def is_open(self, transaction: OpenTransaction) -> bool:
        """Return whether the transaction is still open."""
        return self._by_id.get(transaction.half.transaction_id) is transaction

    def find_ended(self, transaction_id: str) -> Ended | None:
        """Return how the transaction with this id ended, if that is still in memory."""
        return self._ended.get(transaction_id)

    def add_half(self, half: Half) -> tuple[OpenTransaction, Half | None]:
        """Enter a new half message. Return (its transaction, the half message that it replaces).

        The caller must write a note for a replaced half message.
        """
        self.next_half_offset = max(self.next_half_offset, half.queue_offset + 1)
        before = self._by_id.get(half.transaction_id)
        if before is not None:
            replaced = before.half
            self.move_half(before, half)
            return before, replaced
        transaction = self._by_id[half.transaction_id] = OpenTransaction(half)
        self._by_queue_offset[half.queue_offset] = transaction
        return transaction, None

    def move_half(self, transaction: OpenTransaction, half: Half) -> None:
        """Enter the new offsets of a half message that was appended again."""
        self.next_half_offset = max(self.next_half_offset, half.queue_offset + 1)
        # Out and in again, so that the dict stays in the order of queue offsets.
        del self._by_queue_offset[transaction.half.queue_offset]
        transaction.half = half
        self._by_queue_offset[half.queue_offset] = transaction

    def end_transaction(self, transaction: OpenTransaction, outcome: str, end_offset: int) -> Ended:
        """Enter the end of a transaction; ``confirm_end`` follows when it is acknowledged."""
        half = transaction.half
        del self._by_id[half.transaction_id]
        del self._by_queue_offset[half.queue_offset]
        self._unconfirmed[half.transaction_id] = transaction
        ended = Ended(half.transaction_id, half.group, outcome, end_offset)
        self.remember_end(ended)
        return ended

    def confirm_end(self, transaction_id: str) -> None:
        """Note that the end of a transaction is acknowledged."""
        self._unconfirmed.pop(transaction_id, None)

    def remember_end(self, ended: Ended) -> None:
        """Remember how a transaction ended; forget the oldest one if there are too many."""
        self._ended[ended.transaction_id] = ended
        if len(self._ended) > ENDED_MAX:
            del self._ended[next(iter(self._ended))]

    def add_note(self, note_offset: int, half_queue_offset_max: int) -> None:
        """Enter an op record, at ``note_offset`` of its queue, that mentions half messages up to the given one."""
        self.next_note_offset = max(self.next_note_offset, note_offset + 1)
        self._notes.append((note_offset, half_queue_offset_max))

    def finished_offsets(self) -> tuple[int, int]:
        """Return the next offsets of the half and of the op topic: records below them are no longer needed."""
        # Half messages enter with growing queue offsets, so the first key belongs to the oldest open transaction.
        half_offset = next(iter(self._by_queue_offset), self.next_half_offset)

        # A start reads no half message below ``half_offset``, so it needs no note that mentions only those.
        notes = self._notes
        while notes and notes[0][1] < half_offset:
            notes.popleft()
        return half_offset, notes[0][0] if notes else self.next_note_offset


# ---- Transactions in the log: the open ones when the broker starts, and how an old one ended.
#
# Everything reads from disk and must not run on the event loop, except ``read_half``.

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
