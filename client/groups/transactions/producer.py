# Generated from client/groups/transactions/aio_producer.py:
# change that file, and run python scripts/lib/shells.py
"""The transactional producer, and its transactions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from ....protocol.errors import FlintError
from ...core.produce.packer import Flush
from ...message import Message
from .checks import CheckingProducer
from .decisions import Outcome, decide, not_ended, note_not_rolled_back
from .shell import TransactionShell


class Transaction(TransactionShell["TransactionProducer"]):
    """A message that waits for its commit. ``message_id``: its id, the same in the message that ``check`` gets."""

    __slots__ = ()

    def commit(self, *, timeout: float | None = None) -> None:
        """Have the message delivered; returns once that is acknowledged.

        Raises ``TransactionEnded`` if the transaction has ended differently, and ``RequestTimeout`` or
        ``ConnectionFailed`` if the broker could not be told in time. Even then the commit is decided: as long as this
        producer exists, it answers the broker's checks accordingly. After that the result of ``check`` counts.
        """
        self._end(Outcome.COMMIT, timeout)

    def rollback(self, *, timeout: float | None = None) -> None:
        """Have the message never delivered; raises like ``commit``."""
        self._end(Outcome.ROLLBACK, timeout)

    def _end(self, outcome: Outcome, timeout: float | None) -> None:
        if self._outcome is not outcome:  # repeating the same end does nothing
            self._producer._end(self, outcome, timeout)
            self._outcome = outcome


class TransactionProducer(CheckingProducer):
    """Sends messages that are delivered if, and only if, the sender's related work succeeded. Thread-safe.

        with TransactionProducer("127.0.0.1:10911", "payments", check) as producer:
            with producer.transaction(Message("orders", b"…", keys=["o-1"])) as transaction:
                database.insert(order, transaction.message_id)

    The message is stored at once, but no consumer sees it. At the end of the block it is committed, or rolled back if
    the block raised an exception. If the broker does not learn the outcome (this process was killed, or the network
    failed), it asks the producers of ``group``: ``check`` is called with the stored message and returns the outcome.
    Any process of the group must be able to find it out (here: whether the database has the order). Processes that send
    for the same purpose share a group.

    ``check`` runs in a separate thread, for one message at a time. If
    it raises an exception, the producer logs it, counts it in ``health()``, and the broker asks again. It is not called
    for transactions that are open in this very producer or were decided by it. ``session_timeout``: seconds of silence
    from this process after which the broker asks another one. The other arguments are those of ``Producer``.

    The producer registers with the broker, and receives its checks, from ``start()`` on, which ``with`` and the first
    send call.
    """

    # ---- transactions

    def send_half(
        self, message: Message, *, queue: int | None = None, flush: Flush | None = None, timeout: float | None = None
    ) -> Transaction:
        """Store a message that no consumer sees until ``commit`` of the returned transaction. Arguments and errors are
        those of ``Producer.send``."""
        self.start()
        with self._decisions.sending():
            receipt = self._halves.send(message, queue=queue, flush=flush, timeout=timeout)
            transaction = Transaction(self, message, receipt)
            self._decisions.opened(receipt.message_id, transaction)
        return transaction

    @contextlib.contextmanager
    def transaction(
        self, message: Message, *, queue: int | None = None, flush: Flush | None = None, timeout: float | None = None
    ) -> Iterator[Transaction]:
        """Call ``send_half``, and at the end of the block ``commit``, or ``rollback`` if the block raises.

        A transaction that is ended within the block stays as it is. If a rollback fails, that is added as a note to the
        exception of the block.
        """
        transaction = self.send_half(message, queue=queue, flush=flush, timeout=timeout)
        try:
            yield transaction
        except BaseException as error:
            if transaction.outcome is None:
                try:
                    transaction.rollback(timeout=timeout)
                except FlintError as failure:
                    note_not_rolled_back(error, transaction.message_id, failure)
            raise
        if transaction.outcome is None:
            transaction.commit(timeout=timeout)

    def _end(self, transaction: Transaction, outcome: Outcome, timeout: float | None) -> None:
        message_id = transaction.message_id
        decide(self._decisions, message_id, outcome)
        try:
            self._halves.end_transaction(self._group, transaction.receipt, outcome, timeout)
        except FlintError as error:
            failure = not_ended(self._decisions, message_id, outcome, error)
            try:
                raise failure from (error.__cause__ if failure is error else error)
            finally:
                del failure  # its traceback has this frame: with the name, both would be in a cycle
        self._decisions.confirmed(message_id)

    # ---- end

    def close(self) -> None:
        """Stop receiving checks, and disconnect. Open transactions stay open: the broker asks another producer of the
        group about them. Idempotent."""
        if not self._halves.guard.closed and not self._halves.guard.forked:
            self._end_checks()
        self._halves.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
