"""How a transactional producer is, in figures."""

from __future__ import annotations

from dataclasses import dataclass

from ...protocol.errors import FlintError
from .decisions import Decisions
from .questions import Questions
from .registration import Registration


@dataclass(frozen=True, slots=True)
class TransactionHealth:
    """How a transactional producer is.

    ``alive``: whether it can go on; ``error``: why it cannot. ``registered``: whether the broker knows it and can ask
    it; ``trouble``: what keeps it from that. ``open``: transactions that this producer has begun and of whose end the
    broker has not heard; ``checked``: how often the broker was told an outcome, ``check_failures``: how often it was
    not, because ``check`` raised, or returned something else than an ``Outcome`` (``last_check_error``); ``checking``:
    transactions that wait for ``check``. ``heard_seconds``: since the broker was heard.
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
    """How the producer with these parts is."""
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
