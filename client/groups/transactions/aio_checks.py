"""What a transactional producer does for asyncio: it sends half messages, and calls ``check`` in the loop.

It registers with the broker from a thread, so that a blocked loop does not make the producer look dead.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Self

from ...aio.producer import Producer
from ...application_code import ends_program
from ...core.client_guard import Guard
from ...core.consume.batch import StoredMessage
from ...core.produce.receipts import Receipt
from . import registration
from .decisions import Outcome
from .registration import Question
from .shell import HalfOptions, HalfProducer, TransactionProducerShell

CHECKS_AT_A_TIME = 16
Check = Callable[[StoredMessage], Outcome | Awaitable[Outcome]]


class Halves(HalfProducer, Producer):
    """Sends half messages and ends their transactions."""

    @property
    def guard(self) -> Guard:
        """The check whether the producer can be used."""
        return self._life.guard

    def enter(self) -> asyncio.AbstractEventLoop:
        """Return the loop; raises if the producer cannot be used."""
        return self._life.enter()

    async def end_transaction(self, group: str, receipt: Receipt, outcome: Outcome, timeout: float | None) -> None:
        """Tell the broker the outcome; retry while that can help and time is left."""
        await self._caller.call(registration.end_transaction(group, receipt, outcome), self._caller.deadline(timeout))


class CheckingProducer(TransactionProducerShell[Halves, Check]):
    """A transactional producer without the methods that tell what it does."""

    _checked = staticmethod(registration.check_check)

    def _new_halves(self, addresses: str | Iterable[str] | None, options: HalfOptions) -> Halves:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turns = asyncio.Semaphore(CHECKS_AT_A_TIME)
        self._checks: set[asyncio.Task[None]] = set()
        return Halves(addresses, **options)

    def start(self) -> Self:
        """Register with the broker, which may send checks from then on; does not wait for it. Idempotent."""
        self._loop = self._halves.enter()
        self._registration.check()
        self._registration.start()
        return self

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
                if self._halves.guard.closed or ends_program(error):
                    raise
            else:
                self._questions.check_returned(question, outcome)

    async def _end_checks(self) -> None:
        await asyncio.to_thread(self._registration.leave)
        for task in self._checks:
            task.cancel()
        if self._checks:
            await asyncio.wait(self._checks)
