"""Errors about damage of a log; each names file, byte and physical offset."""

from __future__ import annotations

from pathlib import Path

from ....protocol.storage.record import CorruptRecord

SKIP_HINT = (
    'on_loss="report" (in Spark: option("failOnCorruption", "false")) continues with the next sound record and logs '
    "what it skips"
)


class CorruptLog(CorruptRecord):
    """Files of a CommitLog are damaged, missing or misnamed.

    ``path``: the file; ``position``: the byte in it; ``physical_offset``: the same place in the whole log.
    """

    def __init__(self, path: Path | str, position: int, physical_offset: int, reason: str, help_: str = "") -> None:
        super().__init__(
            f"{path}, byte {position:,} (physical offset {physical_offset:,}): {reason}."
            + (f" {help_}" if help_ else "")
        )
        self.path = Path(path)
        self.position = position
        self.physical_offset = physical_offset
        self.reason = reason
        self.help = help_

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.path, self.position, self.physical_offset, self.reason, self.help)


class AmbiguousBoundary(CorruptLog):
    """A partition began in the middle of a record, because that record's body contains whole records."""
