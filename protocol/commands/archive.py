"""The archive that the broker writes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from ..auth import rules
from ..auth.permissions import QUERY
from ..rows import ValueKind, array_row, column, row, shown
from ..times import from_millis
from .common import EmptyRequest, RowCommand


@array_row
class ArchiveGapRow:
    """A range of the log that the archive lacks."""

    start: int = column("physical offset at which it begins")
    end: int = column("physical offset at which it ends")
    reason: str = column("why the archive lacks it")


@row
class ArchiveStatus:
    """The archive that the broker writes, and how far it is. Counts of requests are of this process."""

    url: str = column("where it is; empty: the broker has no archive", "archive")
    state: str = column("`starting`, `running`, `unavailable` (it is tried again), `stopped` or `off`", "state")
    reason: str = column("why it does not run", "reason", fold=True)
    version: int = column("version of its manifest; 0: nothing is archived yet", "version", ValueKind.COUNT)
    start_offset: int = column("physical offset at which it begins", "begins at", ValueKind.COUNT)
    archived_offset: int = column("physical offset below which the log is archived", "archived to", ValueKind.COUNT)
    behind_bytes: int = column("bytes of the log that are confirmed and not archived", "not archived", ValueKind.BYTES)
    oldest_age_ms: int = column("age of the oldest message that is not archived, at most; 0: all are")
    archived_ms: int = column("store time of the newest archived message, ms since 1970 UTC; 0: there is none")
    messages: int = column("number of archived records", "messages", ValueKind.COUNT)
    raw_bytes: int = column("bytes of the log that they take", "log", ValueKind.BYTES)
    stored_bytes: int = column("bytes of the objects with them", "stored", ValueKind.BYTES)
    fragments: int = column("number of fragments", "fragments", ValueKind.COUNT)
    requests: int = column("requests to the bucket since the broker started", "requests", ValueKind.COUNT)
    failures: int = column("those that failed", "failures", ValueKind.COUNT)
    gaps: Sequence[ArchiveGapRow] = column(
        "what it lacks of the log since its beginning", "gaps", fold=True, of=ArchiveGapRow
    )

    @property
    @shown("archived until", ValueKind.SECOND)
    def archived_at(self) -> datetime | None:
        """Store time of the newest archived message, None if there is none."""
        return from_millis(self.archived_ms) if self.archived_ms else None

    @property
    @shown("oldest not archived", ValueKind.SECONDS)
    def oldest_age_seconds(self) -> float:
        """Age in seconds of the oldest message that is not archived, at most; 0.0 if all are."""
        return self.oldest_age_ms / 1000


GET_ARCHIVE = RowCommand(
    1040, EmptyRequest, "the archive that the broker writes", rules.broker(QUERY), row=ArchiveStatus
)
