"""What this process knows of its own transactions: which are still going on, and what was decided."""

from __future__ import annotations

import threading
import weakref
from typing import Any

from .outcome import Outcome

UNCONFIRMED_MAX = 10_000
"""As many decisions are kept of which the broker has not heard; of older ones ``check`` is asked."""


class Decisions:
    """The broker's question is answered by what is known here, before anybody else is asked. Safe from threads.

    A transaction that is going on is not to be judged by what can be seen of it from outside, and one that was decided
    stays decided, although the broker could not be told.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self._decided: dict[str, Outcome] = {}

    def opened(self, transaction_id: str, handle: object) -> None:
        """A transaction goes on as long as somebody holds its ``handle``."""
        with self._lock:
            self._open[transaction_id] = handle

    def decide(self, transaction_id: str, outcome: Outcome) -> Outcome:
        """It is to end so; returns how it does end, which was decided before where it was."""
        with self._lock:
            decided = self._decided.setdefault(transaction_id, outcome)
            if len(self._decided) > UNCONFIRMED_MAX:
                del self._decided[next(iter(self._decided))]
            return decided

    def undecided(self, transaction_id: str) -> None:
        """The broker refused: it goes on, and may be decided anew."""
        with self._lock:
            self._decided.pop(transaction_id, None)

    def confirmed(self, transaction_id: str) -> None:
        """The broker knows."""
        with self._lock:
            self._decided.pop(transaction_id, None)
            self._open.pop(transaction_id, None)

    def known(self, transaction_id: str) -> Outcome | None:
        """How it ended, ``UNKNOWN`` while it goes on; None where this process has nothing to do with it."""
        with self._lock:
            decided = self._decided.get(transaction_id)
            if decided is not None:
                return decided
            return Outcome.UNKNOWN if transaction_id in self._open else None

    def __len__(self) -> int:
        """How many are going on, or decided and not confirmed."""
        with self._lock:
            return len(self._open.keys() | self._decided.keys())
