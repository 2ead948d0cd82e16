"""This process's knowledge of its own transactions: which ones are open, and what was decided."""

from __future__ import annotations

import contextlib
import enum
import logging
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from ....protocol.errors import ConnectionFailed, FlintError, RequestTimeout, TransactionEnded, TransactionNotExist
from ....protocol.storage.record import unique_key
from ...core.produce.delivery import Outbox

# ---- The outcome of a transaction, as a producer reports it.


class Outcome(enum.StrEnum):
    """The result of ``check`` when the broker asks about a transaction."""

    COMMIT = "commit"
    """The related work succeeded: the broker delivers the message."""
    ROLLBACK = "rollback"
    """The related work failed: the broker never delivers the message."""
    UNKNOWN = "unknown"
    """The outcome is not known yet: the broker asks again later."""


UNCONFIRMED_MAX = 10_000
"""Maximum number of decisions kept that the broker has not confirmed; for older ones ``check`` is called."""


class Decisions:
    """Answers the broker's checks from what this process knows, before the application is asked. Thread-safe.

    An open transaction must not be judged by what is visible of it from outside, and a decided one stays decided even
    if the broker could not be told.
    """

    def __init__(self, delivery: Outbox) -> None:
        self._delivery = delivery
        """Sends the half messages."""
        self._sending: list[int] = []
        """For each half message that is being sent: a lower bound of the counter in its unique key."""
        self._lock = threading.Lock()
        self._open: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self._decided: dict[str, Outcome] = {}

    @contextlib.contextmanager
    def sending(self) -> Iterator[None]:
        """Cover the sending of a half message: the broker may have it, and check it, before this process gets the
        receipt."""
        first = self._delivery.frames.unique_next
        with self._lock:
            self._sending.append(first)
        try:
            yield
        finally:
            with self._lock:
                self._sending.remove(first)

    def opened(self, transaction_id: str, handle: object) -> None:
        """Record a transaction, which is open as long as its ``handle`` is referenced."""
        with self._lock:
            self._open[transaction_id] = handle

    def decide(self, transaction_id: str, outcome: Outcome) -> Outcome:
        """Decide the outcome of a transaction; returns the decided outcome, which may be an earlier one."""
        with self._lock:
            decided = self._decided.setdefault(transaction_id, outcome)
            if len(self._decided) > UNCONFIRMED_MAX:
                del self._decided[next(iter(self._decided))]
            return decided

    def undecided(self, transaction_id: str) -> None:
        """Make the transaction open again, because the broker refused the decision."""
        with self._lock:
            self._decided.pop(transaction_id, None)

    def confirmed(self, transaction_id: str) -> None:
        """Forget the transaction: the broker knows its outcome."""
        with self._lock:
            self._decided.pop(transaction_id, None)
            self._open.pop(transaction_id, None)

    def known(self, transaction_id: str) -> Outcome | None:
        """Return the outcome, ``UNKNOWN`` while the transaction is open; None if it is not this process's."""
        with self._lock:
            decided = self._decided.get(transaction_id)
            if decided is not None:
                return decided
            going_on = transaction_id in self._open or self._may_be_sending(transaction_id)
            return Outcome.UNKNOWN if going_on else None

    def _may_be_sending(self, transaction_id: str) -> bool:
        prefix = self._delivery.frames.unique_prefix
        if not self._sending or not prefix or not transaction_id.startswith(prefix):
            return False
        return transaction_id >= unique_key(prefix, min(self._sending))

    def __len__(self) -> int:
        """Return the number of transactions that are open, or decided and not confirmed."""
        with self._lock:
            return len(self._open.keys() | self._decided.keys())


# ---- Errors of ending a transaction: their meaning for the decision and for the caller.

log = logging.getLogger(__name__)

_VERBS = {Outcome.COMMIT: "committed", Outcome.ROLLBACK: "rolled back"}


def decide(decisions: Decisions, transaction_id: str, outcome: Outcome) -> None:
    """Decide the outcome of a transaction. Raises ``TransactionEnded`` if it was decided differently before."""
    decided = decisions.decide(transaction_id, outcome)
    if decided is not outcome:
        raise TransactionEnded(
            f"transaction {transaction_id} was already {_VERBS[decided]} here, but the broker has not confirmed it "
            "yet: repeat that call, or leave it to the broker's check",
            outcome=decided.value,
        )


def not_ended(decisions: Decisions, transaction_id: str, outcome: Outcome, error: FlintError) -> FlintError:
    """Return the error for the caller if the broker could not be told the outcome, or refused it."""
    if isinstance(error, TransactionEnded | TransactionNotExist):
        decisions.confirmed(transaction_id)  # there is nothing left to tell the broker
    elif isinstance(error, RequestTimeout | ConnectionFailed):
        return (RequestTimeout if isinstance(error, RequestTimeout) else ConnectionFailed)(
            f"the broker did not confirm in time that transaction {transaction_id} is {_VERBS[outcome]}; it is decided "
            "nevertheless: try again, or leave it to the broker's check"
        )
    elif not getattr(error, "retriable", False):
        decisions.undecided(transaction_id)
    return error


def note_not_rolled_back(raised: BaseException, transaction_id: str, failure: FlintError) -> None:
    """Add a failed rollback as a note to the exception from within the transaction, which has priority."""
    log.warning("could not roll back transaction %s: %s", transaction_id, failure)
    raised.add_note(f"could not roll back transaction {transaction_id}: {failure}")
