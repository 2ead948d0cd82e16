"""The transactional producer, and its transactions."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from ....protocol.errors import FlintError
from ...core.produce.packer import Flush
from ...message import Message
from .aio_checks import CheckingProducer
from .decisions import Outcome, decide, not_ended, note_not_rolled_back
from .shell import TransactionShell

# sync: .aio_checks
# => .checks
# sync: If the call is cancelled, the commit is decided nevertheless.
# =>
# sync: Any number of tasks of one event loop may use it.
# => Thread-safe.
# sync: is a function or a coroutine function and runs in the loop; coroutines for several messages
# sync: at a time.
# => runs in a separate thread, for one message at a time.
# sync: if the block raises or is cancelled.
# => if the block raises.


class Transaction(TransactionShell["TransactionProducer"]):
    """A message that waits for its commit. ``message_id``: its id, the same in the message that ``check`` gets."""

    __slots__ = ()

    async def commit(self, *, timeout: float | None = None) -> None:
        """Have the message delivered; returns once that is acknowledged.

        Raises ``TransactionEnded`` if the transaction has ended differently, and ``RequestTimeout`` or
        ``ConnectionFailed`` if the broker could not be told in time. Even then the commit is decided: as long as this
        producer exists, it answers the broker's checks accordingly. After that the result of ``check`` counts.
        If the call is cancelled, the commit is decided nevertheless.
        """
        await self._end(Outcome.COMMIT, timeout)

    async def rollback(self, *, timeout: float | None = None) -> None:
        """Have the message never delivered; raises like ``commit``."""
        await self._end(Outcome.ROLLBACK, timeout)

    async def _end(self, outcome: Outcome, timeout: float | None) -> None:
        if self._outcome is not outcome:  # repeating the same end does nothing
            await self._producer._end(self, outcome, timeout)
            self._outcome = outcome


class TransactionProducer(CheckingProducer):
    """Sends messages that are delivered if, and only if, the sender's related work succeeded. Any number of
    tasks of one event loop may use it.

        async with TransactionProducer("127.0.0.1:10911", "payments", check) as producer:
            async with producer.transaction(Message("orders", b"…", keys=["o-1"])) as transaction:
                await database.insert(order, transaction.message_id)

    The message is stored at once, but no consumer sees it. At the end of the block it is committed, or rolled back if
    the block raised an exception. If the broker does not learn the outcome (this process was killed, or the network
    failed), it asks the producers of ``group``: ``check`` is called with the stored message and returns the outcome.
    Any process of the group must be able to find it out (here: whether the database has the order). Processes that send
    for the same purpose share a group.

    ``check`` is a function or a coroutine function and runs in the loop; coroutines for several messages at a time. If
    it raises an exception, the producer logs it, counts it in ``health()``, and the broker asks again. It is not called
    for transactions that are open in this very producer or were decided by it. ``session_timeout``: seconds of silence
    from this process after which the broker asks another one. The other arguments are those of ``Producer``.

    The producer registers with the broker, and receives its checks, from ``start()`` on, which ``with`` and the first
    send call.
    """

    # ---- transactions

    async def send_half(
        self, message: Message, *, queue: int | None = None, flush: Flush | None = None, timeout: float | None = None
    ) -> Transaction:
        """Store a message that no consumer sees until ``commit`` of the returned transaction. Arguments and errors are
        those of ``Producer.send``."""
        self.start()
        with self._decisions.sending():
            receipt = await self._halves.send(message, queue=queue, flush=flush, timeout=timeout)
            transaction = Transaction(self, message, receipt)
            self._decisions.opened(receipt.message_id, transaction)
        return transaction

    @contextlib.asynccontextmanager
    async def transaction(
        self, message: Message, *, queue: int | None = None, flush: Flush | None = None, timeout: float | None = None
    ) -> AsyncIterator[Transaction]:
        """Call ``send_half``, and at the end of the block ``commit``, or ``rollback`` if the block raises or is
        cancelled.

        A transaction that is ended within the block stays as it is. If a rollback fails, that is added as a note to the
        exception of the block.
        """
        transaction = await self.send_half(message, queue=queue, flush=flush, timeout=timeout)
        try:
            yield transaction
        except BaseException as error:
            if transaction.outcome is None:
                try:
                    await transaction.rollback(timeout=timeout)
                except FlintError as failure:
                    note_not_rolled_back(error, transaction.message_id, failure)
            raise
        if transaction.outcome is None:
            await transaction.commit(timeout=timeout)

    async def _end(self, transaction: Transaction, outcome: Outcome, timeout: float | None) -> None:
        message_id = transaction.message_id
        decide(self._decisions, message_id, outcome)
        try:
            await self._halves.end_transaction(self._group, transaction.receipt, outcome, timeout)
        except FlintError as error:
            failure = not_ended(self._decisions, message_id, outcome, error)
            try:
                raise failure from (error.__cause__ if failure is error else error)
            finally:
                del failure  # its traceback has this frame: with the name, both would be in a cycle
        self._decisions.confirmed(message_id)

    # ---- end

    async def close(self) -> None:
        """Stop receiving checks, and disconnect. Open transactions stay open: the broker asks another producer of the
        group about them. Idempotent."""
        if not self._halves.guard.closed and not self._halves.guard.forked:
            await self._end_checks()
        await self._halves.close()

    async def __aenter__(self) -> Self:
        return self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
