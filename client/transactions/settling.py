"""What it means that a transaction could not be ended as asked for."""

from __future__ import annotations

import logging

from ...protocol.errors import FlintError, RequestTimeout, TransactionEnded, TransactionNotExist
from .decisions import Decisions
from .outcome import Outcome

log = logging.getLogger(__name__)

_VERBS = {Outcome.COMMIT: "committed", Outcome.ROLLBACK: "rolled back"}


def decide(decisions: Decisions, transaction_id: str, outcome: Outcome) -> None:
    """Decide how a transaction ends. Raises ``TransactionEnded`` where that was decided otherwise before."""
    decided = decisions.decide(transaction_id, outcome)
    if decided is not outcome:
        raise TransactionEnded(
            f"transaction {transaction_id} was {_VERBS[decided]} here before, although the broker has not confirmed it "
            "so far: try that again, or leave it to the broker, which asks",
            outcome=decided.value,
        )


def not_ended(decisions: Decisions, transaction_id: str, outcome: Outcome, error: FlintError) -> FlintError:
    """The broker could not be told, or refused: what its caller is to get."""
    if isinstance(error, TransactionEnded | TransactionNotExist):
        decisions.confirmed(transaction_id)  # nothing is left to be told
    elif isinstance(error, RequestTimeout):
        late = RequestTimeout(
            f"the broker did not confirm in time that transaction {transaction_id} is {_VERBS[outcome]}; it is decided "
            "all the same: try again, or leave it to the broker, which asks"
        )
        late.__cause__ = error
        return late
    elif not getattr(error, "retriable", False):
        decisions.undecided(transaction_id)
    return error


def note_not_rolled_back(raised: BaseException, transaction_id: str, failure: FlintError) -> None:
    """What was raised within a transaction comes first; that it could not be rolled back is noted on it."""
    log.warning("transaction %s could not be rolled back: %s", transaction_id, failure)
    raised.add_note(f"transaction {transaction_id} could not be rolled back: {failure}")
