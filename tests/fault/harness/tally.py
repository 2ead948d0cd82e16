"""Totals of a run's rounds, by kind."""

from __future__ import annotations

from dataclasses import dataclass

from .ledger import Finding


@dataclass
class Tally:
    """Totals of all rounds of one kind."""

    rounds: int = 0
    failed: int = 0
    faults: int = 0
    acknowledged: int = 0
    resent: int = 0
    """Messages in doubt when the fault came, resent by the client and stored once."""
    lost: int = 0
    vanished: int = 0
    wrong: int = 0
    duplicates: int = 0
    disorder: int = 0
    reported: int = 0
    unchecked: int = 0
    tail: int = 0
    seconds: float = 0.0

    def add(self, finding: Finding) -> None:
        """Count the result of one round."""
        for kind in ("lost", "vanished", "wrong", "duplicates", "disorder", "reported", "unchecked", "tail"):
            setattr(self, kind, getattr(self, kind) + getattr(finding, kind))
