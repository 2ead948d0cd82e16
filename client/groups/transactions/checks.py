"""What a transactional producer does for threads: it sends half messages, and calls ``check`` in a thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from typing import Self

from ...core.client_guard import Guard
from ...core.consume.batch import StoredMessage
from ...core.produce.receipts import Receipt
from ...sync.producer import Producer
from . import registration
from .decisions import Outcome
from .registration import Question
from .shell import HalfOptions, HalfProducer, TransactionProducerShell

Check = Callable[[StoredMessage], Outcome]


class Halves(HalfProducer, Producer):
    """Sends half messages and ends their transactions."""

    @property
    def guard(self) -> Guard:
        """The check whether the producer can be used."""
        return self._guard

    def end_transaction(self, group: str, receipt: Receipt, outcome: Outcome, timeout: float | None) -> None:
        """Tell the broker the outcome; retry while that can help and time is left."""
        self._caller.call(registration.end_transaction(group, receipt, outcome), self._caller.deadline(timeout))


class CheckingProducer(TransactionProducerShell[Halves, Check]):
    """A transactional producer without the methods that tell what it does."""

    _checked = staticmethod(registration.check_plain_check)

    def _new_halves(self, addresses: str | Iterable[str] | None, options: HalfOptions) -> Halves:
        self._to_check: queue.SimpleQueue[Question | None] = queue.SimpleQueue()
        self._worker: threading.Thread | None = None
        return Halves(addresses, **options)

    def start(self) -> Self:
        """Register with the broker, which may send checks from then on; does not wait for it. Idempotent."""
        self._halves.guard.check()
        self._registration.check()
        self._registration.start()
        return self

    def _check_later(self, question: Question) -> None:
        if self._worker is None:
            name = f"flintmq-check-{self._group}"
            self._worker = threading.Thread(target=self._run_checks, name=name, daemon=True)
            self._worker.start()
        self._to_check.put(question)

    def _run_checks(self) -> None:
        while (question := self._to_check.get()) is not None:
            try:
                outcome = self._check(question.message)
            except BaseException as error:  # noqa: BLE001 - any error of the application is logged, and the broker retries
                self._questions.check_failed(question, error)
            else:
                self._questions.check_returned(question, outcome)

    def _end_checks(self) -> None:
        self._registration.leave()
        if self._worker is not None:
            self._to_check.put(None)
