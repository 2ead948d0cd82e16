"""Statistics of the messages that wait at the broker for later delivery."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ....protocol import commands
from ....protocol.errors import RemoteProtocolError
from ....protocol.fields import decode_fields
from ..rpc.operation import Operation, operation, unpack_body
from ..rpc.session import Answer
from ..times import from_millis


@dataclass(frozen=True, slots=True)
class DelayedMessages:
    """A number of waiting messages, and when the next of them is due, ms since 1970 UTC (0: none waits)."""

    messages: int
    next_due_ms: int

    @property
    def next_due_at(self) -> datetime | None:
        """Time at which the next message is due, or None."""
        return from_millis(self.next_due_ms) if self.messages else None


@dataclass(frozen=True, slots=True)
class DelayStats:
    """Statistics of delayed and timed messages. ``levels``: by delay level, for levels that have had a message;
    ``hours``: timed messages by the hour in which they are due, the last row for all later ones; ``timed``: their total
    number; ``behind``: number of timed messages that are not counted yet; ``parked``: number of messages that could not
    be delivered."""

    levels: dict[int, DelayedMessages]
    hours: Sequence[tuple[datetime, DelayedMessages]]
    timed: int
    behind: int
    parked: int


def delays(*, max_hours: int = 24, timeout: float | None = None) -> Operation[DelayStats]:
    """Return the number of messages that wait for later delivery, by delay level and by hour. ``max_hours``:
    maximum number of hours to list."""

    def decode(answer: Answer) -> DelayStats:
        head = decode_fields(commands.DelayStatsAnswer, answer.fields)
        tables = unpack_body(answer)
        if not isinstance(tables, dict):
            raise RemoteProtocolError(f"delay stats as {type(tables).__name__}")
        return DelayStats(
            {level: DelayedMessages(messages, due_ms) for level, messages, due_ms in tables["levels"]},
            [(from_millis(begins), DelayedMessages(messages, due_ms)) for begins, messages, due_ms in tables["hours"]],
            head.timed,
            head.behind,
            head.parked,
        )

    return operation(commands.GET_DELAY_STATS, decode, timeout=timeout, max_hours=max_hours)
