"""The report of a recovery: what it found in the store and what it changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..damage.quarantine import Quarantine, QuarantinedRange


@dataclass(slots=True)
class RecoveryReport:
    """The result of one recovery.

    ``clean``: the previous stop was orderly; ``seconds``: duration; then the records checked and dispatched, and the
    bytes cut. ``rebuilt``: the reasons why queues or index files were rebuilt.
    """

    clean: bool
    seconds: float = 0.0
    messages_checked: int = 0
    messages_recovered: int = 0
    truncated_bytes: int = 0
    quarantined: list[QuarantinedRange] = field(default_factory=list)
    """Holes of the log that this start contained."""
    damage: str = ""
    """One line about all known holes, shown when a broker starts; empty if there are none."""
    rebuilt: list[str] = field(default_factory=list)


def damage_line(kept: Quarantine, new: int) -> str:
    """Return one line about the damage of the log, or an empty string. ``new``: holes that this start found."""
    if not kept:
        return ""
    holes = len(kept.ranges)
    return (
        f"{holes:,} hole{'s' * (holes != 1)} of the log{f', {new:,} found now' if new else ''}: {kept.bytes:,} "
        f"bytes, {kept.lost_messages:,} messages known to be lost. {kept.path} lists them, beside copies of the bytes"
    )
