"""Lag of consumer groups, summed over queues: shared by ``group list``, ``top`` and ``check``."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...protocol.storage.delivery import MEMBER_SEPARATOR, dead_letter_topic
from ..core.times import from_millis
from .units import plural

if TYPE_CHECKING:
    from datetime import datetime

    from ..core.admin.groups import GroupInfo, GroupQueue
    from ..core.topics import ConsumeStats

BROADCASTING = "broadcasting"
MEMBER_SEPARATORS = (MEMBER_SEPARATOR, "|")
"""Separators between group and member; brokers of earlier releases use the second one."""


def read_rows(rows: Iterable[ConsumeStats]) -> list[ConsumeStats]:
    """Return the rows without the groups' own dead-letter topics, which they do not read."""
    return [row for row in rows if row.topic != dead_letter_topic(row.group)]


@dataclass(frozen=True, slots=True)
class Lag:
    """Number of messages that a group has still to read, as far as it is known.

    ``unknown_queues``: number of queues in which the broker does not know where the group will start; ``partial``: the
    group has topics that the user may not see. ``oldest_ms``: store time of the oldest of these messages, ms since 1970
    UTC; None: everything is read, or it was not asked for.
    """

    messages: int = 0
    unknown_queues: int = 0
    partial: bool = False
    oldest_ms: int | None = None

    @property
    def known(self) -> int | None:
        """Lag, or None unless it is known for all queues."""
        return None if self.unknown_queues or self.partial else self.messages

    @property
    def why_unknown(self) -> str:
        """Reason why the lag is unknown; empty if it is known."""
        reasons = []
        if self.unknown_queues:
            reasons.append(
                f"it has not started {plural(self.unknown_queues, 'queue')}, and its first member decides where"
            )
        if self.partial:
            reasons.append("the user needs the permission query on all of its topics (flintmq user grant NAME --query)")
        return "; ".join(reasons)

    @property
    def oldest_at(self) -> datetime | None:
        """Store time of the oldest message to read; None as for ``oldest_ms``."""
        return None if self.oldest_ms is None else from_millis(self.oldest_ms)

    @property
    def seconds(self) -> float | None:
        """Age of the oldest message to read: the lag in time; None as for ``oldest_ms``."""
        return None if self.oldest_ms is None else max(0.0, time.time() - self.oldest_ms / 1000)

    def __add__(self, other: Lag) -> Lag:
        """Return the sum of both lags."""
        times = [each.oldest_ms for each in (self, other) if each.oldest_ms is not None]
        return Lag(
            self.messages + other.messages,
            self.unknown_queues + other.unknown_queues,
            self.partial or other.partial,
            min(times, default=None),
        )


def lag_in(row: ConsumeStats | GroupQueue) -> Lag:
    """Return the lag in one queue."""
    oldest = row.next_stored_ms if row.next_stored_ms >= 0 else None
    return Lag(row.lag, oldest_ms=oldest) if row.known else Lag(unknown_queues=1)


def lag_by_group(rows: Iterable[ConsumeStats]) -> dict[str, Lag]:
    """Return the lag of each group over all topics. ``rows`` must include queues without a committed offset."""
    lags: dict[str, Lag] = {}
    for row in read_rows(rows):
        lags[row.group] = lags.get(row.group, Lag()) + lag_in(row)
    return lags


def lag_of(info: GroupInfo, lags: dict[str, Lag]) -> Lag:
    """Return the lag of one group; for a broadcasting group, the largest lags of a member."""
    if info.mode != BROADCASTING:
        found = lags.get(info.group, Lag())
    else:
        # Each member reads all messages, so a sum would count them several times.
        own = tuple(info.group + separator for separator in MEMBER_SEPARATORS)
        of_members = [lag for name, lag in lags.items() if name.startswith(own)]
        unknown = max((lag.unknown_queues for lag in of_members), default=0)
        oldest = min((lag.oldest_ms for lag in of_members if lag.oldest_ms is not None), default=None)
        found = Lag(max((lag.messages for lag in of_members), default=0), unknown, oldest_ms=oldest)
    return found + Lag(partial=info.partial)
