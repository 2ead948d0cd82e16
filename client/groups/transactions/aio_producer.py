"""The transactional producer for asyncio.

It registers with the broker from a thread, so that a blocked loop does not make the producer look dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from types import TracebackType
from typing import Self

from ....protocol.errors import FlintError
from ...aio.producer import Producer
from ...application_code import ends_program
from ...core.consume.batch import StoredMessage
from ...core.produce.delivery import Outbox
from ...core.produce.packer import Flush
from ...core.produce.receipts import Receipt
from ...message import Message
from . import registration
from .decisions import Outcome, decide, not_ended, note_not_rolled_back
from .registration import Question
from .shell import HalfOptions, TransactionProducerShell, TransactionShell

CHECKS_AT_A_TIME = 16


class _Halves(Producer):
    """Sends half messages and ends their transactions."""

    @property
    def delivery(self) -> Outbox:
        """The delivery that sends them."""
        return self._delivery

    @property
    def closed(self) -> bool:
        """True after ``close``."""
        return self._life.closed

    @property
    def forked(self) -> bool:
        """True in a child process of the one that created the producer."""
        return self._life.forked

    def enter(self) -> asyncio.AbstractEventLoop:
        """Return the loop; raises if the producer cannot be used."""
        return self._life.enter()

    async def end_transaction(self, group: str, receipt: Receipt, outcome: Outcome, timeout: float | None) -> None:
        """Tell the broker the outcome; retry while that can help and time is left."""
        await self._caller.call(registration.end_transaction(group, receipt, outcome), self._caller.deadline(timeout))


class Transaction(TransactionShell["TransactionProducer"]):
    """A message that waits for its commit. ``message_id``: its id, the same in the message that ``check`` gets."""

    __slots__ = ()

    async def commit(self, *, timeout: float | None = None) -> None:
        """Have the message delivered; returns once that is acknowledged.

        Raises like the synchronous producer's. If the call is cancelled, the commit is decided nevertheless.
        """
        await self._end(Outcome.COMMIT, timeout)

    async def rollback(self, *, timeout: float | None = None) -> None:
        """Have the message never delivered; raises like ``commit``."""
        await self._end(Outcome.ROLLBACK, timeout)

    async def _end(self, outcome: Outcome, timeout: float | None) -> None:
        if self._outcome is not outcome:  # else it is done
            await self._producer._end(self, outcome, timeout)
            self._outcome = outcome


Check = Callable[[StoredMessage], Outcome | Awaitable[Outcome]]


class TransactionProducer(TransactionProducerShell[_Halves, Check]):
    """Sends messages that are delivered if, and only if, the sender's related work succeeded. Like
    ``flintmq.client.TransactionProducer``, for the tasks of one event loop.

        async with TransactionProducer("127.0.0.1:10911", "payments", check) as producer:
            async with producer.transaction(Message("orders", b"…")) as transaction:
                await database.insert(order, transaction.message_id)

    ``check`` is a function or a coroutine function and runs in the loop; coroutines for several messages at a time.
    """

    _checked = staticmethod(registration.check_check)

    def _new_halves(self, addresses: str | Iterable[str] | None, options: HalfOptions) -> _Halves:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turns = asyncio.Semaphore(CHECKS_AT_A_TIME)
        self._checks: set[asyncio.Task[None]] = set()
        return _Halves(addresses, **options)

    def start(self) -> Self:
        """Register with the broker, which may send checks from then on; does not wait for it. Idempotent."""
        self._loop = self._halves.enter()
        self._registration.check()
        self._registration.start()
        return self

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

    # ---- checks

    def _check_later(self, question: Question) -> None:
        """Pass a check to the loop; called on the registration's thread."""
        assert self._loop is not None, "started"
        try:
            self._loop.call_soon_threadsafe(self._start_check, question)
        except RuntimeError as error:  # the loop was closed without closing the producer
            self._registration.fail_checks(error)

    def _start_check(self, question: Question) -> None:
        assert self._loop is not None
        task = self._loop.create_task(self._run_check(question), name=f"flintmq check {self._group}")
        self._checks.add(task)
        task.add_done_callback(self._check_ended)

    def _check_ended(self, task: asyncio.Task[None]) -> None:
        self._checks.discard(task)
        if not task.cancelled():
            task.exception()  # what ends the program has been raised

    async def _run_check(self, question: Question) -> None:
        async with self._turns:
            try:
                outcome = self._check(question.message)
                if inspect.isawaitable(outcome):
                    outcome = await outcome
            except BaseException as error:
                self._questions.check_failed(question, error)
                if self._halves.closed or ends_program(error):
                    raise
            else:
                self._questions.check_returned(question, outcome)

    # ---- end

    async def close(self) -> None:
        """Stop receiving checks, and disconnect. Open transactions stay open: the broker asks another producer of the
        group about them. Idempotent."""
        if not self._halves.closed and not self._halves.forked:
            await asyncio.to_thread(self._registration.leave)
            for task in self._checks:
                task.cancel()
            if self._checks:
                await asyncio.wait(self._checks)
        await self._halves.close()

    async def __aenter__(self) -> Self:
        return self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
