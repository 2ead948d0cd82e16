"""TransactionalMessageService: opens transactions and ends them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, TypeVar

from ....protocol.errors import BrokerError, BrokerFailure, MessageIllegal, SystemBusy
from ....protocol.storage.delivery import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP
from ...store import WouldBlock
from .records import TOPICS, check_destination, committed, ended_notes, ended_offsets, parked
from .table import COMMIT, PARKED, ROLLBACK, Ended, Ending, History, OpenTransactions, check_group

if TYPE_CHECKING:
    from ....protocol.commands import EndTransactionRequest
    from ....protocol.storage.record import Record
    from ..topic_changes import TopicChanges
    from ..writer import Done, RecordWriter
    from .records import Half
    from .table import AtStart, OpenTransaction


# ---- Writer of the ends of transactions: their messages, their op records, and the progress of both topics.
#
# All ends of one turn of the loop share one append: first the messages, then the op record. If the broker is
# killed in between, its next start finds the messages.

log = logging.getLogger(__name__)

ENDED_A_STEP_MAX = 128
"""Maximum number of transactions that one turn of the loop ends."""
BODIES_A_STEP_MAX = 4 * 1024 * 1024
"""Bytes of bodies after which a step ends."""
SAVE_AFTER_S = 1.0
"""Delay of saving the progress, which covers all ends in the meantime."""
RETRY_AFTER_S = 5.0
"""Pause before notes that could not be written are tried again."""


class EndWriter:
    """Writer of ends, which it also enters in ``table``. ``count_end`` is called with the outcome of each."""

    def __init__(
        self,
        writer: RecordWriter,
        topic_changes: TopicChanges,
        table: OpenTransactions,
        count_end: Callable[[str], None],
        now_ms: Callable[[], int],
    ) -> None:
        self._writer = writer
        self._store = writer.store
        self._loop = writer.loop
        self._topic_changes = topic_changes
        self._table = table
        self._count_end = count_end
        self._now_ms = now_ms
        self._batch: list[Ending] = []
        self._notes: list[int] = []
        """Queue offsets of half messages that are finished without an end: other half messages replaced them."""
        self._due = False
        self._unsaved: tuple[int, int, int] | None = None
        """(end of the log, next offsets of both topics): offsets to save when the log is on disk up to that end."""
        self._save_due = False
        self.stopped = False
        """True when nothing may be written any longer."""

    def add_end(self, ending: Ending) -> None:
        """Write this end at the end of this turn of the loop. It must have its record, if its outcome needs one."""
        self._batch.append(ending)
        self._soon()

    def note_finished(self, half_queue_offset: int) -> None:
        """Write a note that a half message is finished."""
        self._notes.append(half_queue_offset)
        self._soon()

    def notes_for(self, half_queue_offsets: Sequence[int]) -> list[Record]:
        """Return op records that mark half messages as finished; after appending them, call ``enter_notes``."""
        return ended_notes(half_queue_offsets, self._now_ms(), self._store.commitlog.store_host)

    def enter_notes(self, notes: Sequence[Record]) -> None:
        """Enter appended op records in the table."""
        for note in notes:
            self._table.add_note(note.queue_offset, max(ended_offsets(note)))

    # ---- a step

    def _soon(self) -> None:
        if not self._due:
            self._due = True
            self._writer.with_topics(TOPICS, self._topics_are_there)

    def _topics_are_there(self, error: BrokerError | None) -> None:
        if error is None:
            # Not at once: all other ends of this turn of the loop join the same append.
            self._loop.call_soon(self._write_step)
            return
        batch, self._batch = self._batch, []
        for ending in batch:
            ending.report_failure(error)
        # No caller waits for the notes on replaced half messages, so these are kept and written later.
        self._again_later()

    def _again_later(self) -> None:
        """Schedule another attempt to write the notes after a failure."""
        self._due = bool(self._notes)
        if self._due:
            self._loop.call_later(RETRY_AFTER_S, self._topics_are_there, None)

    def _write_step(self) -> None:
        if self.stopped:
            return
        self._due = False
        step, size = [], 0
        for ending in self._batch[:ENDED_A_STEP_MAX]:
            step.append(ending)
            size += len(ending.record.body) if ending.record is not None else 0
            if size > BODIES_A_STEP_MAX:
                break
        del self._batch[: len(step)]
        ready = [ending for ending in step if self._is_ready(ending)]
        self._append_ends(ready)
        if self._batch:
            self._soon()

    def _is_ready(self, ending: Ending) -> bool:
        """Return whether the message of a commit can go to its topic now."""
        if ending.outcome != COMMIT:
            return True
        half = ending.transaction.half
        # The change may be the topic's deletion, which may still fail: the commit waits for the outcome.
        if half.topic in self._topic_changes.pending:
            self._topic_changes.when_done(half.topic, lambda _: self.add_end(ending))
            return False
        try:
            check_destination(half, self._store)
        except BrokerError as error:
            ending.report_failure(error)
            return False
        return True

    def _append_ends(self, endings: list[Ending]) -> None:
        replaced, self._notes = self._notes, []
        messages = [message for ending in endings if (message := _message_of(ending)) is not None]
        notes = self.notes_for([*replaced, *(ending.transaction.half.queue_offset for ending in endings)])
        if not notes:
            return
        try:
            end_offset = self._writer.append_records([*messages, *notes])
        except MessageIllegal as error:
            self._notes = replaced
            if len(endings) == 1:
                endings[0].report_failure(error)
            for ending in endings if len(endings) > 1 else ():
                self._append_ends([ending])  # one of them cannot be stored: each alone, so that only that one fails
            return
        except Exception as error:  # noqa: BLE001 - the waiting producers must learn of any error
            self._notes = replaced
            self._not_written(endings, error)
            return
        self.enter_notes(notes)
        # In the table before the flush: a second request for the same transaction must find it ended, not open.
        ended = [(ending, self._enter_end(ending, end_offset)) for ending in endings]
        self._writer.when_acknowledged(end_offset, lambda error: self._tell(ended, error))
        self.schedule_save()

    def _tell(self, ended: Sequence[tuple[Ending, Ended]], error: BrokerError | None) -> None:
        for ending, result in ended:
            if error is None:
                self._table.confirm_end(result.transaction_id)
                ending.report_success(result)
            else:
                ending.report_failure(error)

    def _not_written(self, endings: list[Ending], error: Exception) -> None:
        if not isinstance(error, BrokerError):
            log.error("could not write the end of %d transactions", len(endings), exc_info=error)
            error = BrokerFailure(f"could not write the end of the transaction: {type(error).__name__}: {error}")
        for ending in endings:
            ending.report_failure(error)
        self._again_later()

    def _enter_end(self, ending: Ending, end_offset: int) -> Ended:
        self._count_end(ending.outcome)
        return self._table.end_transaction(ending.transaction, ending.outcome, end_offset)

    # ---- progress

    def schedule_save(self) -> None:
        """Advance the consumer offsets of both topics past everything that is finished and on disk."""
        if self._advance() and not self._save_due and not self.stopped:
            self._save_due = True
            self._loop.call_later(SAVE_AFTER_S, self._save_later)

    def save_all(self) -> None:
        """Save all progress when the broker stops and all of the log is on disk. Any thread."""
        # The first call commits what was waiting for the disk, the second one what was finished since.
        self._advance()
        self._advance()

    def _advance(self) -> bool:
        """Commit the progress that is on disk; return whether more is waiting for the disk."""
        if self._unsaved is not None and self._store.acknowledged_offset >= self._unsaved[0]:
            _, half_offset, note_offset = self._unsaved
            offsets = self._store.consumer_offsets
            offsets.commit(TRANSACTION_GROUP, HALF_TOPIC, 0, half_offset)
            offsets.commit(TRANSACTION_GROUP, OP_HALF_TOPIC, 0, note_offset)
            self._unsaved = None
        done = self._table.finished_offsets()
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


# ---- Delivery of parked messages, for an operator who found out that the transaction is to be committed.

RETRY_AFTER_MS = 100


class ParkedMessages:
    """Writer of parked messages to the topics that they were sent to, each at most once."""

    def __init__(self, writer: RecordWriter, table: OpenTransactions) -> None:
        self._writer = writer
        self._table = table
        self._writing: set[str] = set()

    async def deliver(self, half: Half, record: Record) -> None:
        """Commit the parked ``record``; return when that may be acknowledged.

        Raises if its topic or queue is gone, or if it is already being delivered.
        """
        transaction_id = half.transaction_id
        if transaction_id in self._writing:
            raise SystemBusy(f"transaction {transaction_id} is being committed already", retry_after_ms=RETRY_AFTER_MS)
        check_destination(half, self._writer.store)
        end_offset = self._writer.append_records([committed(half, record)])
        # While this request waits for its flush, another one for the same message must not append it again.
        self._writing.add(transaction_id)
        try:
            await self._writer.acknowledged(end_offset)
        finally:
            self._writing.discard(transaction_id)
        self._table.remember_end(Ended(transaction_id, half.group, COMMIT, end_offset))


T = TypeVar("T")

BUSY_RETRY_MS = 1_000


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
        self._writer = writer
        self._store = writer.store
        self._loop = writer.loop
        self._topic_changes = topic_changes
        self._readers = readers
        self.open_max = open_max
        self._parked = ParkedMessages(writer, self.table)
        self._tasks: set[asyncio.Task[None]] = set()
        self.ends = EndWriter(writer, topic_changes, self.table, self._count_end, now_ms)

    def stop(self) -> None:
        """Stop writing ends."""
        self.ends.stopped = True

    def close(self) -> None:
        """Save all progress; all of the log must be on disk. Any thread."""
        self.ends.save_all()

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
                self.ends.note_finished(half.queue_offset)
        if found.halves:
            log.info(
                "%d transactions are open; %d more were committed before a crash, writing their missing notes",
                len(table),
                len(found.committed),
            )
        self.ends.schedule_save()

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
        """Enter appended half messages."""
        for half in halves:
            self.opened += 1
            self._open(half)

    def _open(self, half: Half) -> OpenTransaction:
        transaction, replaced = self.table.add_half(half)
        if replaced is not None:
            self.ends.note_finished(replaced.queue_offset)
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
            self.ends.add_end(ending)
            return
        try:
            ending.record = self.history.read_half(transaction.half, hot=True)
        except WouldBlock:
            self.run_in_task(
                self._finish_cold(ending), lambda error: ending.report_failure(error) if error is not None else None
            )
        except BrokerError as error:
            ending.report_failure(error)
        else:
            self.ends.add_end(ending)

    async def _finish_cold(self, ending: Ending) -> None:
        half = ending.transaction.half
        ending.record = await self.in_reader(lambda: self.history.read_half(half, hot=False))
        self.ends.add_end(ending)

    def _end_past(self, request: EndTransactionRequest, done: Done, check_topic: Callable[[str], None] | None) -> None:
        """End a transaction that is not open: find out how it ended, from memory or from the log."""
        ended = self.table.find_ended(request.transaction_id)
        if ended is not None and not (request.parked and ended.outcome == PARKED):
            ended.check_group(request.group)
            # The end may still wait for its flush, and until then no caller may rely on it.
            self._writer.when_acknowledged(ended.end_offset, lambda error: done(error or ended.error()))
            return

        self.run_in_task(self._end_logged(request, check_topic), done)

    async def _end_logged(self, request: EndTransactionRequest, check_topic: Callable[[str], None] | None) -> None:
        """Find out from the log how a transaction ended, and raise that. Deliver it if it was parked and is committed
        by hand."""
        past = await self.in_reader(
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
        await self._parked.deliver(past.half, past.record)

    def _count_end(self, outcome: str) -> None:
        self.ended[outcome] += 1

    async def in_reader(self, read: Callable[[], T]) -> T:
        """Call ``read`` in a reader thread; return its result."""
        return await self._loop.run_in_executor(self._readers, read)

    def run_in_task(self, work: Coroutine[Any, Any, None], done: Done) -> None:
        """Run work that waits for the disk; call ``done`` with None after it, or with the error that it raises.

        Only such work is a task: an end that needs no cold read would pay more for the task than for itself.
        """
        task = self._loop.create_task(work)
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
