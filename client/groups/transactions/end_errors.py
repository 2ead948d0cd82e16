"""Errors of ending a transaction: their meaning for the decision and for the caller."""

from __future__ import annotations

import logging

from ....protocol.errors import ConnectionFailed, FlintError, RequestTimeout, TransactionEnded, TransactionNotExist
from .decisions import Decisions
from .outcome import Outcome

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
