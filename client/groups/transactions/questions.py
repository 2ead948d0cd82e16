"""The broker's checks: answered from what this process knows, else by the application's ``check``."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ...errors import InvalidArgumentType
from .decisions import Decisions
from .outcome import Outcome
from .registration import Question, Registration, failure_of

log = logging.getLogger(__name__)


class Questions:
    """Counts and answers the broker's checks. ``check_later`` calls the application's ``check``, once at a time for
    each transaction, and then ``check_returned`` or ``check_failed``. Thread-safe."""

    def __init__(self, decisions: Decisions, check_later: Callable[[Question], None]) -> None:
        self.checked_count = 0
        self.failed_count = 0
        self.last_error: BaseException | None = None
        self._decisions = decisions
        self._check_later = check_later
        self._lock = threading.Lock()
        self._waiting: dict[str, list[Question]] = {}
        self.registration: Registration
        """Set by the creator of both."""

    @property
    def waiting(self) -> int:
        """Number of transactions that wait for the application."""
        return len(self._waiting)

    def ask(self, question: Question) -> None:
        """Answer a check of the broker, now or later. Does not block."""
        known = self._decisions.known(question.transaction_id)
        if known is not None:
            with self._lock:
                self.checked_count += 1
            self.registration.answer(question, known, running=known is Outcome.UNKNOWN)
            return
        with self._lock:
            waiting = self._waiting.get(question.transaction_id)
            if waiting is not None:
                waiting.append(question)  # the broker asked again while the application was still checking
                return
            self._waiting[question.transaction_id] = [question]
        self._check_later(question)

    def check_returned(self, question: Question, outcome: object) -> None:
        """Answer with the result of ``check``."""
        if not isinstance(outcome, Outcome):
            self.check_failed(
                question,
                InvalidArgumentType(f"check must return an Outcome, not {type(outcome).__name__} ({outcome!r:.60})"),
            )
            return
        waiting = self._take(question)
        with self._lock:
            self.checked_count += 1
        for each in waiting:
            self.registration.answer(each, outcome)

    def check_failed(self, question: Question, error: BaseException) -> None:
        """Answer that ``check`` failed, so that the broker asks again later."""
        log.error(
            "producer group %s: check failed for transaction %s; the broker will ask again",
            self.registration.group,
            question.transaction_id,
            exc_info=error,
        )
        self.last_error = error
        waiting = self._take(question)
        self.failed_count += 1
        for each in waiting:
            self.registration.answer(each, failure_of(error))

    def _take(self, question: Question) -> list[Question]:
        with self._lock:
            return self._waiting.pop(question.transaction_id)
