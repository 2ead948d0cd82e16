"""TransactionalMessageService: opens transactions and ends them; the open ones, and those in the log."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from ....protocol.commands import RECORD_SIZE_STRUCT
from ....protocol.errors import (
    BrokerError,
    BrokerFailure,
    MessageIllegal,
    SystemBusy,
    TopicNotExist,
    TransactionEnded,
    TransactionGroupWrong,
    TransactionNotExist,
)
from ....protocol.storage.delivery import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP, TRANSACTION_PARKED_TOPIC
from ....protocol.storage.record import PROPERTY_UNIQ_KEY, decode_record
from ...store import KeySearch, WouldBlock
from ..writer import records_from
from .records import TOPICS, Half, check_destination, committed, ended_notes, ended_offsets, id_of, is_committed, parked

if TYPE_CHECKING:
    from ....protocol.commands import EndTransactionRequest
    from ....protocol.storage.record import Record
    from ...store import MessageStore
    from ..client_handle import ClientHandle
    from ..topic_changes import TopicChanges
    from ..writer import Done, RecordWriter

log = logging.getLogger(__name__)

T = TypeVar("T")

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
        return self._by_id.get(transaction_id)

    def at(self, queue_offset: int) -> OpenTransaction | None:
        """Return the open transaction whose half message is at a queue offset of the half topic, or None."""
        return self._by_queue_offset.get(queue_offset)

    def is_open(self, transaction: OpenTransaction) -> bool:
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


# ---- The service: opens transactions, and writes their ends.

BUSY_RETRY_MS = 1_000
ENDED_A_STEP_MAX = 128
"""Maximum number of transactions that one turn of the loop ends."""
BODIES_A_STEP_MAX = 4 * 1024 * 1024
"""Bytes of bodies after which a step ends."""
SAVE_AFTER_S = 1.0
"""Delay of saving the progress, which covers all ends in the meantime."""
RETRY_AFTER_S = 5.0
"""Pause before notes that could not be written are tried again."""
DELIVERING_RETRY_MS = 100


class TransactionalMessageService:
    """The open transactions of one broker. Runs on the event loop.

    ``readers``: threads for cold reads; ``open_max``: maximum number of open transactions; ``now_ms``: wall clock.
    ``on_open`` is called with each transaction that opens.
    """

    def __init__(
        self,
        writer: RecordWriter,
        topic_changes: TopicChanges,
        readers: Executor,
        *,
        open_max: int,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.table = OpenTransactions()
        self.history = History(writer.store)
        self.on_open: Callable[[OpenTransaction], None] = lambda transaction: None
        self.opened = 0
        """Number of transactions opened since the start."""
        self.ended = {COMMIT: 0, ROLLBACK: 0, PARKED: 0}
        """Number of transactions ended since the start, by outcome."""
        self.open_max = open_max
        self.loop = writer.loop
        self._writer = writer
        self._store = writer.store
        self._topic_changes = topic_changes
        self._readers = readers
        self._now_ms = now_ms
        self._tasks: set[asyncio.Task[None]] = set()
        self._endings: list[Ending] = []
        """Ends to be written; each has its record, if its outcome needs one."""
        self._finished: list[int] = []
        """Queue offsets of half messages that are finished without an end to write: another one replaced them, or their
        commit was written before a crash."""
        self._write_due = False
        self._delivering: set[str] = set()
        """Parked transactions that are being committed."""
        self._unsaved: tuple[int, int, int] | None = None
        """(end of the log, next offsets of both topics): offsets to save when the log is on disk up to that end."""
        self._save_due = False
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    def close(self) -> None:
        """Save all progress when the broker stops and all of the log is on disk. Any thread."""
        # The first call commits what was waiting for the disk, the second one what was finished since.
        self._advance()
        self._advance()

    # ---- opening

    def restore(self, found: AtStart) -> None:
        """Take over the transactions in the log; write the missing notes of those that a crash interrupted."""
        table = self.table
        # If no transaction is open, the progress of both topics is at their ends.
        table.next_half_offset, table.next_note_offset = found.next_half_offset, found.next_note_offset
        for note in found.notes:
            table.add_note(*note)
        for half in found.halves:
            transaction = self._open(half)
            if half.queue_offset in found.committed:
                # Its message is in its topic already; only the op record is missing.
                table.end_transaction(transaction, COMMIT, 0)
                table.confirm_end(half.transaction_id)
                self._note_finished(half)
        if found.halves:
            log.info(
                "%d transactions are open; %d more were committed before a crash, writing their missing notes",
                len(table),
                len(found.committed),
            )
        self.schedule_save()

    def check_new_ids(self, transaction_ids: Sequence[str]) -> None:
        """Raise if half messages with these ids cannot be appended: ``MessageIllegal`` for an id that is in use,
        ``SystemBusy`` if too many transactions are open."""
        for index, transaction_id in enumerate(transaction_ids):
            if self.table.get(transaction_id) is not None:
                raise MessageIllegal(
                    f"message {index}: its unique key {transaction_id} is that of an open transaction; nothing of the "
                    "frame was written",
                    message_index=index,
                )
        # The second half message would replace the first, whose message would never be delivered.
        if len(set(transaction_ids)) != len(transaction_ids):
            raise MessageIllegal("two messages of the frame have the same unique key; nothing of it was written")
        count = len(transaction_ids)
        if len(self.table) + count > self.open_max:
            raise SystemBusy(
                f"{len(self.table)} transactions are open and transactions.open_max is {self.open_max}; end some, or "
                "try again later",
                retry_after_ms=BUSY_RETRY_MS,
                open_max=self.open_max,
            )

    def add_halves(self, halves: Iterable[Half]) -> None:
        for half in halves:
            self.opened += 1
            self._open(half)

    def _open(self, half: Half) -> OpenTransaction:
        transaction, replaced = self.table.add_half(half)
        if replaced is not None:
            self._note_finished(replaced)
        else:
            self.on_open(transaction)
        return transaction

    # ---- ending

    def end_transaction(
        self, request: EndTransactionRequest, done: Done, check_topic: Callable[[str], None] | None = None
    ) -> None:
        """End a transaction; call ``done`` with None when the end may be acknowledged, or with the error.

        ``check_topic``: raises if the caller may not send to the topic of the transaction's message.
        """
        transaction = self.table.get(request.transaction_id)
        try:
            if transaction is None:
                self._end_past(request, done, check_topic)
                return
            check_group(request.transaction_id, transaction.half.group, request.group)
            if check_topic is not None:
                check_topic(transaction.half.topic)
            transaction.check_request(request.group, request.half_queue_offset, request.half_physical_offset)
        except BrokerError as error:
            done(error)
            return
        self.finish_transaction(transaction, COMMIT if request.commit else ROLLBACK, done)

    def finish_transaction(self, transaction: OpenTransaction, outcome: str, done: Done) -> None:
        """End an open transaction with one of the three outcomes. The first caller decides the outcome."""
        if transaction.ending is not None:
            transaction.ending.callbacks.append(done)
            return
        ending = transaction.ending = Ending(transaction, outcome, done)
        if outcome == ROLLBACK:  # its end is an op record alone, so the half message need not be read
            self._add_end(ending)
            return

        def read(record: Record) -> None:
            ending.record = record
            self._add_end(ending)

        self.with_half(transaction.half, read, ending.report_failure)

    def _end_past(self, request: EndTransactionRequest, done: Done, check_topic: Callable[[str], None] | None) -> None:
        """End a transaction that is not open: find out how it ended, from memory or from the log."""
        ended = self.table.find_ended(request.transaction_id)
        if ended is not None and not (request.parked and ended.outcome == PARKED):
            check_group(ended.transaction_id, ended.group, request.group)
            # The end may still wait for its flush, and until then no caller may rely on it.
            self._writer.when_acknowledged(ended.end_offset, lambda error: done(error or ended.error()))
            return
        self._run_in_task(self._end_logged(request, check_topic), done)

    async def _end_logged(self, request: EndTransactionRequest, check_topic: Callable[[str], None] | None) -> None:
        """Find out from the log how a transaction ended, and raise that. Deliver it if it was parked and is committed
        by hand."""
        past = await self._in_reader(
            lambda: self.history.find_end(request.transaction_id, request.group, request.half_physical_offset)
        )
        if past.half is None or past.record is None or not request.parked:
            raise past.ended.error()
        if not request.commit:
            return  # a rollback of a parked message: there is nothing to deliver
        if check_topic is not None:
            check_topic(past.half.topic)
        ended = self.table.find_ended(past.half.transaction_id)
        if ended is not None and ended.outcome == COMMIT:  # another request delivered it while this one read
            raise ended.error()
        await self._deliver_parked(past.half, past.record)

    async def _deliver_parked(self, half: Half, record: Record) -> None:
        """Commit the parked ``record``, which an operator asked for; return when that may be acknowledged.

        Raises if its topic or queue is gone, or if it is already being delivered.
        """
        transaction_id = half.transaction_id
        if transaction_id in self._delivering:
            raise SystemBusy(
                f"transaction {transaction_id} is being committed already", retry_after_ms=DELIVERING_RETRY_MS
            )
        check_destination(half, self._store)
        end_offset = self._writer.append_records([committed(half, record)])
        # While this request waits for its flush, another one for the same message must not append it again.
        self._delivering.add(transaction_id)
        try:
            await self._writer.acknowledged(end_offset)
        finally:
            self._delivering.discard(transaction_id)
        self.table.remember_end(Ended(transaction_id, half.group, COMMIT, end_offset))

    # ---- reading

    def with_half(self, half: Half, use: Callable[[Record], None], failed: Callable[[BrokerError], None]) -> int:
        """Call ``use`` with the record of a half message, or ``failed``: at once, or later if it must be read from
        disk. Return the size of its body; 0 if it is read later."""
        try:
            record = self.history.read_half(half, hot=True)
        except WouldBlock:

            async def read() -> None:
                use(await self._in_reader(lambda: self.history.read_half(half, hot=False)))

            self._run_in_task(read(), lambda error: failed(error) if error is not None else None)
        except BrokerError as error:
            failed(error)
        else:
            use(record)
            return len(record.body)
        return 0

    async def _in_reader(self, read: Callable[[], T]) -> T:
        return await self.loop.run_in_executor(self._readers, read)

    def _run_in_task(self, work: Coroutine[Any, Any, None], done: Done) -> None:
        """Run work that waits for the disk; call ``done`` with None after it, or with the error that it raises.

        Only such work is a task: an end that needs no cold read would pay more for the task than for itself.
        """
        task = self.loop.create_task(work)
        self._tasks.add(task)  # the loop has only a weak reference

        def finished(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if task.cancelled():  # the process ends, and no client waits for the result any longer
                return
            error = task.exception()
            if error is not None and not isinstance(error, BrokerError):
                log.error("could not end a transaction, or check it", exc_info=error)
                error = BrokerFailure(f"could not end the transaction: {type(error).__name__}: {error}")
            done(error)

        task.add_done_callback(finished)

    # ---- writing ends
    #
    # All ends of one turn of the loop share one append: first the messages, then the op record. If the broker is
    # killed in between, its next start finds the messages.

    def _add_end(self, ending: Ending) -> None:
        self._endings.append(ending)
        self._write_soon()

    def _note_finished(self, half: Half) -> None:
        self._finished.append(half.queue_offset)
        self._write_soon()

    def append_finished(self, records: Iterable[Record], half_queue_offsets: Iterable[int]) -> int:
        """Append records and, after them, op records that mark half messages as finished. Return the log's end.

        Raises as ``MessageStore.append_records``; nothing is written then.
        """
        notes = ended_notes(half_queue_offsets, self._now_ms(), self._store.commitlog.store_host)
        end_offset = self._writer.append_records([*records, *notes])
        for note in notes:
            self.table.add_note(note.queue_offset, max(ended_offsets(note)))
        return end_offset

    def _write_soon(self) -> None:
        if not self._write_due:
            self._write_due = True
            self._writer.with_topics(TOPICS, self._topics_are_there)

    def _topics_are_there(self, error: BrokerError | None) -> None:
        if error is None:
            # Not at once: all other ends of this turn of the loop join the same append.
            self.loop.call_soon(self._write_step)
            return
        endings, self._endings = self._endings, []
        for ending in endings:
            ending.report_failure(error)
        # No caller waits for these notes, so they are kept and written later.
        self._write_again_later()

    def _write_again_later(self) -> None:
        self._write_due = bool(self._finished)
        if self._write_due:
            self.loop.call_later(RETRY_AFTER_S, self._topics_are_there, None)

    def _write_step(self) -> None:
        if self._stopped:
            return
        self._write_due = False
        step, size = [], 0
        for ending in self._endings[:ENDED_A_STEP_MAX]:
            step.append(ending)
            size += len(ending.record.body) if ending.record is not None else 0
            if size > BODIES_A_STEP_MAX:
                break
        del self._endings[: len(step)]
        self._append_ends([ending for ending in step if self._is_ready(ending)])
        if self._endings:
            self._write_soon()

    def _is_ready(self, ending: Ending) -> bool:
        """Return whether the message of a commit can go to its topic now."""
        if ending.outcome != COMMIT:
            return True
        half = ending.transaction.half
        # The change may be the topic's deletion, which may still fail: the commit waits for the outcome.
        if half.topic in self._topic_changes.pending:
            self._topic_changes.when_done(half.topic, lambda _: self._add_end(ending))
            return False
        try:
            check_destination(half, self._store)
        except BrokerError as error:
            ending.report_failure(error)
            return False
        return True

    def _append_ends(self, endings: list[Ending]) -> None:
        finished, self._finished = self._finished, []
        if not endings and not finished:
            return
        messages = [message for ending in endings if (message := _message_of(ending)) is not None]
        ended_halves = (ending.transaction.half.queue_offset for ending in endings)
        try:
            end_offset = self.append_finished(messages, [*finished, *ended_halves])
        except MessageIllegal as error:
            self._finished = finished
            if len(endings) == 1:
                endings[0].report_failure(error)
            for ending in endings if len(endings) > 1 else ():
                self._append_ends([ending])  # one of them cannot be stored: each alone, so that only that one fails
            return
        except Exception as error:
            self._finished = finished
            if not isinstance(error, BrokerError):
                log.error("could not write the end of %d transactions", len(endings), exc_info=error)
                error = BrokerFailure(f"could not write the end of the transaction: {type(error).__name__}: {error}")
            for ending in endings:
                ending.report_failure(error)
            self._write_again_later()
            return
        # In the table before the flush: a second request for the same transaction must find it ended, not open.
        ended = [self.table.end_transaction(each.transaction, each.outcome, end_offset) for each in endings]
        for each in endings:
            self.ended[each.outcome] += 1

        def acknowledged(error: BrokerError | None) -> None:
            for ending, result in zip(endings, ended, strict=True):
                if error is None:
                    self.table.confirm_end(result.transaction_id)
                    ending.report_success(result)
                else:
                    ending.report_failure(error)

        self._writer.when_acknowledged(end_offset, acknowledged)
        self.schedule_save()

    # ---- progress

    def schedule_save(self) -> None:
        """Advance the consumer offsets of both topics past everything that is finished and on disk."""
        if self._advance() and not self._save_due and not self._stopped:
            self._save_due = True
            self.loop.call_later(SAVE_AFTER_S, self._save_later)

    def _advance(self) -> bool:
        """Commit the progress that is on disk; return whether more is waiting for the disk."""
        if self._unsaved is not None and self._store.acknowledged_offset >= self._unsaved[0]:
            _, half_offset, note_offset = self._unsaved
            offsets = self._store.consumer_offsets
            offsets.commit(TRANSACTION_GROUP, HALF_TOPIC, 0, half_offset)
            offsets.commit(TRANSACTION_GROUP, OP_HALF_TOPIC, 0, note_offset)
            self._unsaved = None
        done = self.table.finished_offsets()
        # Not saved before the log is on disk up to here: after a power cut the ends below it could be lost, and a start
        # would not read their half messages any more.
        if self._unsaved is None and done != self._saved():
            self._unsaved = (self._store.write_offset, *done)
        return self._unsaved is not None

    def _save_later(self) -> None:
        self._save_due = False
        self.schedule_save()

    def _saved(self) -> tuple[int, int]:
        committed_offsets = self._store.consumer_offsets.committed
        half_offset = committed_offsets(TRANSACTION_GROUP, HALF_TOPIC).get(0, 0)
        return half_offset, committed_offsets(TRANSACTION_GROUP, OP_HALF_TOPIC).get(0, 0)


def _message_of(ending: Ending) -> Record | None:
    """Return the message that the end of the transaction appends; None for a rollback."""
    if ending.outcome not in (COMMIT, PARKED):
        return None
    assert ending.record is not None, "read before"
    return committed(ending.transaction.half, ending.record) if ending.outcome == COMMIT else parked(ending.record)
