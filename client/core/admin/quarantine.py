"""The broker's quarantine: damaged ranges of its log, and the messages that are lost in them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from ....protocol import commands
from ....protocol.commands import QUARANTINE_MAX
from ..rpc.operation import Operation, operation, unpack_rows
from ..rpc.session import Answer
from ..times import from_millis

_UNKNOWN_MS = 0


@dataclass(frozen=True, slots=True)
class LostOffsets:
    """Consecutive lost messages of a queue. ``messages``: their number; ``queue_offset``: offset of the first."""

    topic: str
    queue: int
    queue_offset: int
    messages: int


@dataclass(frozen=True, slots=True)
class QuarantineEntry:
    """A damaged range of the broker's log. ``reason``: what was wrong at its beginning; ``found_ms``: when the broker
    found it, ms since 1970 UTC.

    ``stored_ms``: store time of the record before it, or of the one after it if none precedes it; 0: unknown. Its
    messages were stored at about that time. ``file``: name of the file with the damaged bytes, in
    ``flintmq/quarantine/`` of the store.

    ``lost_messages``: number of messages that are known to have been in it. ``lost``: where they are missing;
    ``lost_left_out``: number of further such ranges. Damage that hits a range again makes another entry, which lists
    the messages again.
    """

    physical_offset: int
    bytes: int
    reason: str
    found_ms: int
    stored_ms: int
    file: str
    lost_messages: int
    lost_left_out: int
    lost: list[LostOffsets]

    @property
    def found_at(self) -> datetime:
        """Time at which the broker found the damage."""
        return from_millis(self.found_ms)

    @property
    def stored_at(self) -> datetime | None:
        """Time at about which its messages were stored, None if that is unknown."""
        return from_millis(self.stored_ms) if self.stored_ms != _UNKNOWN_MS else None


def quarantine(
    after: QuarantineEntry | None = None, *, max_count: int = QUARANTINE_MAX, timeout: float | None = None
) -> Operation[list[QuarantineEntry]]:
    """Return at most ``max_count`` entries of the quarantine (1 to 1,000) that follow ``after``, by physical offset.

    If there are ``max_count`` of them, call it again with the last one. Needs ``query`` on the broker.
    """

    def decode(answer: Answer) -> list[QuarantineEntry]:
        return [_entry(row) for row in unpack_rows(answer, "quarantine entries")]

    place: dict[str, Any] = {}
    if after is not None:
        place = {"after": after.physical_offset, "after_found_ms": after.found_ms}
    return operation(commands.GET_QUARANTINE, decode, timeout=timeout, max_count=max_count, **place)


def _entry(row: Any) -> QuarantineEntry:
    entry = QuarantineEntry(*row)
    ranges: list[Any] = list(entry.lost)
    return replace(entry, lost=[LostOffsets(*each) for each in ranges])
