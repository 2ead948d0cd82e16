"""What a start did to a store, for whoever started it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..damage.quarantine import Quarantine, QuarantinedRange


@dataclass(slots=True)
class RecoveryReport:
    """What a start found: whether the stop before was orderly, records checked and dispatched, bytes cut, and why
    queues or index files were rebuilt. ``seconds``: what it took."""

    clean: bool
    seconds: float = 0.0
    messages_checked: int = 0
    messages_recovered: int = 0
    truncated_bytes: int = 0
    quarantined: list[QuarantinedRange] = field(default_factory=list)
    """Holes of the log that this start contained."""
    damage: str = ""
    """All that are known, in a line for whoever starts a broker; empty where there are none."""
    rebuilt: list[str] = field(default_factory=list)


def damage_line(kept: Quarantine, new: int) -> str:
    """What of the log is damaged; empty where nothing is. ``new``: holes that this start found."""
    if not kept:
        return ""
    holes = len(kept.ranges)
    return (
        f"{holes:,} hole{'s' * (holes != 1)} of the log{f', {new:,} found now' if new else ''}: {kept.bytes:,} "
        f"bytes, {kept.lost_messages:,} messages known to be lost. {kept.path} says which, beside what was there"
    )
