"""What this process knows of its own transactions: which are still going on, and what was decided."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from ...protocol.ids import unique_key
from ..core.delivery import Delivery
from .outcome import Outcome

UNCONFIRMED_MAX = 10_000
"""As many decisions are kept of which the broker has not heard; of older ones ``check`` is asked."""


class Decisions:
    """The broker's question is answered by what is known here, before anybody else is asked. Safe from threads.

    A transaction that is going on is not to be judged by what can be seen of it from outside, and one that was decided
    stays decided, although the broker could not be told.
    """

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        """What sends the half messages."""
        self._sending: list[int] = []
        """Of each half message that is being sent: a counter that is not above the one in its unique key."""
        self._lock = threading.Lock()
        self._open: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self._decided: dict[str, Outcome] = {}

    @contextlib.contextmanager
    def sending(self) -> Iterator[None]:
        """A half message is sent: the broker may have it, and ask, before this process hears so."""
        first = self._delivery.unique_next
        with self._lock:
            self._sending.append(first)
        try:
            yield
        finally:
            with self._lock:
                self._sending.remove(first)

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
            going_on = transaction_id in self._open or self._may_be_sending(transaction_id)
            return Outcome.UNKNOWN if going_on else None

    def _may_be_sending(self, transaction_id: str) -> bool:
        prefix = self._delivery.unique_prefix
        if not self._sending or not prefix or not transaction_id.startswith(prefix):
            return False
        return transaction_id >= unique_key(prefix, min(self._sending))

    def __len__(self) -> int:
        """How many are going on, or decided and not confirmed."""
        with self._lock:
            return len(self._open.keys() | self._decided.keys())
