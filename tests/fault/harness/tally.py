"""What the rounds of a run came to, kind by kind."""

from __future__ import annotations

from dataclasses import dataclass

from .ledger import Finding


@dataclass
class Tally:
    """What all rounds of a kind came to."""

    rounds: int = 0
    failed: int = 0
    faults: int = 0
    acknowledged: int = 0
    resent: int = 0
    """In doubt when the fault came, sent again by the client, and stored once."""
    lost: int = 0
    vanished: int = 0
    wrong: int = 0
    duplicates: int = 0
    disorder: int = 0
    said: int = 0
    unchecked: int = 0
    tail: int = 0
    seconds: float = 0.0

    def add(self, finding: Finding) -> None:
        """Count what one round found."""
        for kind in ("lost", "vanished", "wrong", "duplicates", "disorder", "said", "unchecked", "tail"):
            setattr(self, kind, getattr(self, kind) + getattr(finding, kind))
