"""The state and counters of a transactional producer."""

from __future__ import annotations

from dataclasses import dataclass

from ....protocol.errors import FlintError
from .decisions import Decisions
from .questions import Questions
from .registration import Registration


@dataclass(frozen=True, slots=True)
class TransactionHealth:
    """The state and counters of a transactional producer.

    ``alive``: it can continue; ``error``: why it cannot. ``registered``: the broker knows it and can send it checks;
    ``trouble``: what prevents that. ``open``: transactions that this producer has begun and whose end the broker has
    not confirmed; ``checked``: number of checks answered with an outcome, ``check_failures``: number of checks that
    failed because ``check`` raised or did not return an ``Outcome`` (``last_check_error``); ``checking``: transactions
    that wait for ``check``. ``heard_seconds``: time since the broker's last response.
    """

    alive: bool
    registered: bool
    group: str
    member: str
    open: int
    checked: int
    check_failures: int
    checking: int
    heard_seconds: float
    error: FlintError | None
    trouble: FlintError | None
    last_check_error: BaseException | None


def health_of(
    registration: Registration, questions: Questions, decisions: Decisions, *, closed: bool
) -> TransactionHealth:
    """Return the health of the producer with these parts."""
    return TransactionHealth(
        alive=registration.alive and not closed,
        registered=registration.registered.is_set(),
        group=registration.group,
        member=registration.member,
        open=len(decisions),
        checked=questions.checked_count,
        check_failures=questions.failed_count,
        checking=questions.waiting,
        heard_seconds=registration.heard_seconds(),
        error=registration.failure,
        trouble=registration.trouble,
        last_check_error=questions.last_error,
    )
