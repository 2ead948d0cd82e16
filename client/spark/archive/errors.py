"""What is wrong with a log that is read: each error names file, byte and physical offset."""

from __future__ import annotations

from pathlib import Path

from ....protocol.record import CorruptRecord

SKIP_HINT = 'option("failOnCorruption", "false") goes on with the next sound record and logs what it passes over'


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
        return CorruptLog, (self.path, self.position, self.physical_offset, self.reason, self.help)


class AmbiguousBoundary(CorruptLog):
    """A partition was to begin at what turned out to be the middle of a record: a body that holds whole records."""
