"""The transactional producer for asyncio.

It registers with the broker from a thread, so that a blocked loop does not make the producer look dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, Self, Unpack

from ....protocol.errors import FlintError
from ...aio.producer import Producer
from ...connection_log import ConnectionLog
from ...core.compression import COMPRESS_OVER_BYTES, Compression
from ...core.consume.stored import StoredMessage
from ...core.produce.delivery import Delivery
from ...core.produce.grouping import Flush
from ...core.produce.receipts import Receipt
from ...core.rpc.access import AccessOptions, access_for
from ...core.rpc.address import parse_addresses
from ...core.rpc.timeouts import DELIVERY_SECONDS
from ...message import Message
from ...sync.pool import Dialer
from . import requests
from .decisions import Decisions
from .end_errors import decide, not_ended, note_not_rolled_back
from .health import TransactionHealth, health_of
from .outcome import Outcome
from .questions import Questions
from .registration import Question, Registration

CHECKS_AT_A_TIME = 16


class _Halves(Producer):
    """Sends half messages and ends their transactions."""

    def __init__(self, group: str, addresses: str | Iterable[str] | None, **options: Any) -> None:
        super().__init__(addresses, **options)
        self._delivery.common = requests.half_common(group)

    @property
    def delivery(self) -> Delivery:
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

    async def end(self, group: str, receipt: Receipt, outcome: Outcome, timeout: float | None) -> None:
        """Tell the broker the outcome; retry while that can help and time is left."""
        await self._caller.call(requests.end(group, receipt, outcome), self._caller.deadline(timeout))


class Transaction:
    """A message that waits for its commit. ``message_id``: its id, the same in the message that ``check`` gets."""

    __slots__ = ("__weakref__", "_outcome", "_producer", "message", "receipt")

    def __init__(self, producer: TransactionProducer, message: Message, receipt: Receipt) -> None:
        self.message = message
        self.receipt = receipt
        """Receipt of the half message: its location differs from that of the delivered message."""
        self._producer = producer
        self._outcome: Outcome | None = None

    @property
    def message_id(self) -> str:
        """The message's id, which is also the transaction's."""
        return self.receipt.message_id

    @property
    def outcome(self) -> Outcome | None:
        """The outcome, None while the transaction is open."""
        return self._outcome

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

    def __repr__(self) -> str:
        return f"<Transaction {self.message_id} {self._outcome or 'open'}>"


class TransactionProducer:
    """Sends messages that are delivered if, and only if, the sender's related work succeeded. Like
    ``flintmq.client.TransactionProducer``, for the tasks of one event loop.

        async with TransactionProducer("127.0.0.1:10911", "payments", check) as producer:
            async with producer.transaction(Message("orders", b"…")) as transaction:
                await database.insert(order, transaction.message_id)

    ``check`` is a function or a coroutine function and runs in the loop; coroutines for several messages at a time.
    """

    def __init__(
        self,
        addresses: str | Iterable[str] | None = None,
        group: str = "",
        check: Callable[[StoredMessage], Outcome | Awaitable[Outcome]] | None = None,
        *,
        session_timeout: float = requests.SESSION_SECONDS,
        delivery_timeout: float = DELIVERY_SECONDS,
        compress_over: int | None = COMPRESS_OVER_BYTES,
        compression: Compression | None = None,
        flush: Flush | None = None,
        **access: Unpack[AccessOptions],
    ) -> None:
        entry = access_for(self, access)
        self._check = requests.check_check(check)
        self._group = requests.check_group(group)
        seconds = requests.check_session(session_timeout)
        self._halves = _Halves(
            self._group,
            addresses,
            delivery_timeout=delivery_timeout,
            compress_over=compress_over,
            compression=compression,
            flush=flush,
            **access,
        )
        self._decisions = Decisions(self._halves.delivery)
        self._questions = Questions(self._decisions, self._check_later)
        connection_log = ConnectionLog(f"producer group {self._group}", logging.WARNING)
        dialer = Dialer(parse_addresses(addresses), entry, connection_log)
        self._registration = Registration(self._group, requests.new_member(), seconds, dialer, self._questions.ask)
        self._questions.registration = self._registration
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turns = asyncio.Semaphore(CHECKS_AT_A_TIME)
        self._checks: set[asyncio.Task[None]] = set()

    @property
    def group(self) -> str:
        """The producer group's name."""
        return self._group

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
            await self._halves.end(self._group, transaction.receipt, outcome, timeout)
        except FlintError as error:
            raise not_ended(self._decisions, message_id, outcome, error) from error.__cause__
        self._decisions.confirmed(message_id)

    # ---- checks

    def _check_later(self, question: Question) -> None:
        """Pass a check to the loop; called on the registration's thread."""
        assert self._loop is not None, "started"
        try:
            self._loop.call_soon_threadsafe(self._start_check, question)
        except RuntimeError as error:  # the loop was closed without closing the producer
            self._registration.fail(error)

    def _start_check(self, question: Question) -> None:
        assert self._loop is not None
        task = self._loop.create_task(self._run_check(question), name=f"flintmq check {self._group}")
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)

    async def _run_check(self, question: Question) -> None:
        async with self._turns:
            try:
                outcome = self._check(question.message)
                if inspect.isawaitable(outcome):
                    outcome = await outcome
            except asyncio.CancelledError as error:
                self._questions.failed(question, error)
                raise
            except Exception as error:  # noqa: BLE001 - any error of the application is logged, and the broker retries
                self._questions.failed(question, error)
            else:
                self._questions.checked(question, outcome)

    def health(self) -> TransactionHealth:
        """Return the producer's current state and counters."""
        return health_of(self._registration, self._questions, self._decisions, closed=self._halves.closed)

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
