"""TransactionalMessageService: opens transactions and ends them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from typing import TypeVar

from ....protocol.commands import EndTransactionRequest
from ....protocol.errors import BrokerError, BrokerFailure, FlintError, MessageIllegal, SystemBusy
from ....protocol.storage.record import Record
from ...store import WouldBlock
from ..topic_changes import TopicChanges
from ..writer import RecordWriter
from .end_writer import EndWriter
from .parked import ParkedMessages
from .records import Half
from .startup_scan import AtStart, History, Past
from .table import COMMIT, PARKED, ROLLBACK, Done, Ending, Open, OpenTransactions, check_group

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
        self.on_open: Callable[[Open], None] = lambda transaction: None
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
        self.ends = EndWriter(writer, topic_changes, self.table, self._over, now_ms)

    def stop(self) -> None:
        """Stop writing ends."""
        self.ends.stopped = True

    def close(self) -> None:
        """Save all progress; all of the log must be on disk. Any thread."""
        self.ends.save_all()

    # ---- opening

    def start(self, found: AtStart) -> None:
        """Take over the transactions in the log; write the missing notes of those that a crash interrupted."""
        table = self.table
        table.next_half_offset, table.next_note_offset = found.next_half_offset, found.next_note_offset
        for note in found.notes:
            table.noted(*note)
        for half in found.halves:
            transaction = self._open(half)
            if half.queue_offset in found.committed:
                table.end(transaction, COMMIT, 0)
                self.ends.note(half.queue_offset)
        if found.halves:
            log.info(
                "%d transactions are open; %d more were committed before a crash, writing their missing notes",
                len(table),
                len(found.committed),
            )
        self.ends.save()

    def check_new(self, transaction_ids: Sequence[str]) -> None:
        """Raise if half messages with these ids cannot be appended: ``MessageIllegal`` for an id that is in use,
        ``SystemBusy`` if too many transactions are open."""
        for index, transaction_id in enumerate(transaction_ids):
            if self.table.get(transaction_id) is not None:
                raise MessageIllegal(
                    f"message {index}: its unique key {transaction_id} is that of an open transaction; nothing of the "
                    "frame was written",
                    message_index=index,
                )
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

    def add(self, halves: Iterable[Half]) -> None:
        """Enter appended half messages."""
        for half in halves:
            self.opened += 1
            self._open(half)

    def _open(self, half: Half) -> Open:
        transaction, replaced = self.table.add(half)
        if replaced is not None:
            self.ends.note(replaced.queue_offset)
        else:
            self.on_open(transaction)
        return transaction

    # ---- ending

    def end(self, request: EndTransactionRequest, done: Done, check_topic: Callable[[str], None] | None = None) -> None:
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
            transaction.check(request.group, request.half_queue_offset, request.half_physical_offset)
        except BrokerError as error:
            done(error)
            return
        self.finish(transaction, COMMIT if request.commit else ROLLBACK, done)

    def finish(self, transaction: Open, outcome: str, done: Done) -> None:
        """End an open transaction with one of the three outcomes. The first caller decides the outcome."""
        if transaction.ending is not None:
            transaction.ending.done.append(done)
            return
        ending = transaction.ending = Ending(transaction, outcome, done)
        if outcome == ROLLBACK:
            self.ends.add(ending)
            return
        try:
            ending.record = self.history.record(transaction.half, hot=True)
        except WouldBlock:
            self._read_cold(ending)
        except BrokerError as error:
            ending.failed(error)
        else:
            self.ends.add(ending)

    def _read_cold(self, ending: Ending) -> None:
        def read() -> Record:
            return self.history.record(ending.transaction.half, hot=False)

        def was_read(record: Record) -> None:
            ending.record = record
            self.ends.add(ending)

        self.in_reader(read, was_read, ending.failed)

    def _end_past(self, request: EndTransactionRequest, done: Done, check_topic: Callable[[str], None] | None) -> None:
        """End a transaction that is not open: find out how it ended, from memory or from the log."""
        ended = self.table.ended(request.transaction_id)
        if ended is not None and not (request.parked and ended.outcome == PARKED):
            ended.check(request.group)
            self._writer.when_acknowledged(ended.end_offset, lambda error: done(error or ended.error()))
            return

        def look() -> Past:
            return self.history.past(request.transaction_id, request.group, request.half_physical_offset)

        def found(past: Past) -> None:
            if past.half is None or past.record is None or not request.parked:
                done(past.ended.error())
            elif not request.commit:
                done(None)  # a rollback of a parked message: there is nothing to deliver
            else:
                try:
                    if check_topic is not None:
                        check_topic(past.half.topic)
                except BrokerError as error:
                    done(error)
                    return
                self._deliver_parked(past.half, past.record, done)

        self.in_reader(look, found, done)

    def _deliver_parked(self, half: Half, record: Record, done: Done) -> None:
        ended = self.table.ended(half.transaction_id)
        if ended is not None and ended.outcome == COMMIT:  # another request delivered it first
            done(ended.error())
            return
        try:
            self._parked.deliver(half, record, done)
        except FlintError as error:
            done(error if isinstance(error, BrokerError) else BrokerFailure(str(error)))

    def _over(self, outcome: str) -> None:
        self.ended[outcome] += 1

    def in_reader(
        self, read: Callable[[], T], done: Callable[[T], None], failed: Callable[[BrokerError], None]
    ) -> None:
        """Call ``read`` in a reader thread, then ``done`` with its result or ``failed`` with its error on the loop."""
        future = self._loop.run_in_executor(self._readers, read)

        def was_read() -> None:
            error = future.exception()
            if error is None:
                done(future.result())
            elif isinstance(error, BrokerError):
                failed(error)
            else:
                log.error("could not read a transaction", exc_info=error)
                failed(BrokerFailure(f"could not read the log: {type(error).__name__}: {error}"))

        future.add_done_callback(lambda _: was_read())
