"""Errors about damage of a log; each names file, byte and physical offset."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from ...errors import FlintError
from ..record import CorruptRecord

SKIP_HINT = (
    'on_loss="report" (in Spark: option("failOnCorruption", "false")) continues with the next sound record and logs '
    "what it skips"
)


logger = logging.getLogger(__name__)


class DataLoss(FlintError):
    """Messages that a read should return are no longer in the log: retention deleted them, a topic was deleted, or the
    log is damaged.

    The message names the range, and the argument or option that skips it and continues.
    """


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


OnDamage = Callable[[CorruptLog], None]
"""Function that is called with damage of the log. It raises it, or returns to continue behind it."""


def raise_damage(error: CorruptLog) -> None:
    """Raise the damage: the ``OnDamage`` of a read that must be whole."""
    raise error


def log_damage(error: CorruptLog) -> None:
    """Log the damage: the ``OnDamage`` of a read that skips it."""
    logger.warning("skipped: %s", error)
