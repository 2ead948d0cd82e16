"""TransactionalMessageService: opens transactions and ends them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, TypeVar

from ....protocol.errors import BrokerError, BrokerFailure, MessageIllegal, SystemBusy
from ...store import WouldBlock
from .end_writer import EndWriter
from .parked import ParkedMessages
from .startup_scan import History
from .table import COMMIT, PARKED, ROLLBACK, Ending, OpenTransactions, check_group

if TYPE_CHECKING:
    from ....protocol.commands import EndTransactionRequest
    from ..topic_changes import TopicChanges
    from ..writer import Done, RecordWriter
    from .records import Half
    from .startup_scan import AtStart
    from .table import OpenTransaction

log = logging.getLogger(__name__)
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
