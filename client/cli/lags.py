"""How far groups are, summed up: what ``group list``, ``top`` and ``check`` share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...protocol.delivery import MEMBER_SEPARATOR, dead_letter_topic
from .units import plural

if TYPE_CHECKING:
    from ..core.groups import GroupInfo, GroupQueue
    from ..core.topics import ConsumeStats

BROADCASTING = "broadcasting"
MEMBER_SEPARATORS = (MEMBER_SEPARATOR, "|")
"""The second: brokers of earlier releases."""


def read_rows(rows: Iterable[ConsumeStats]) -> list[ConsumeStats]:
    """Without the groups' own dead letters: they do not read those."""
    return [row for row in rows if row.topic != dead_letter_topic(row.group)]


@dataclass(frozen=True, slots=True)
class Lag:
    """Messages that a group has still to read, as far as that is known.

    ``unknown_queues``: queues with messages of which nobody knows how many the group will read; ``partial``: it has
    topics that the user may not see.
    """

    messages: int = 0
    unknown_queues: int = 0
    partial: bool = False

    @property
    def known(self) -> int | None:
        """The lag; None if it is not known of all queues."""
        return None if self.unknown_queues or self.partial else self.messages

    @property
    def why_unknown(self) -> str:
        """Why the lag is not known; empty if it is."""
        reasons = []
        if self.unknown_queues:
            reasons.append(
                f"it has not begun with {plural(self.unknown_queues, 'queue')}, and its first member will say where"
            )
        if self.partial:
            reasons.append("the user may not see all of its topics: query on each (flintmq user grant NAME --query)")
        return "; ".join(reasons)

    def __add__(self, other: Lag) -> Lag:
        """Of both."""
        return Lag(
            self.messages + other.messages,
            self.unknown_queues + other.unknown_queues,
            self.partial or other.partial,
        )


def lag_in(row: ConsumeStats | GroupQueue) -> Lag:
    """The lag in one queue."""
    return Lag(row.lag) if row.known else Lag(unknown_queues=1)


def lag_by_group(rows: Iterable[ConsumeStats]) -> dict[str, Lag]:
    """The lag of each group over all topics. ``rows``: with those of queues of which nothing is committed."""
    lags: dict[str, Lag] = {}
    for row in read_rows(rows):
        lags[row.group] = lags.get(row.group, Lag()) + lag_in(row)
    return lags


def lag_of(info: GroupInfo, lags: dict[str, Lag]) -> Lag:
    """The lag of one group; of a broadcasting one that of the member which is furthest behind."""
    if info.mode != BROADCASTING:
        found = lags.get(info.group, Lag())
    else:
        own = tuple(info.group + separator for separator in MEMBER_SEPARATORS)
        of_members = [lag for name, lag in lags.items() if name.startswith(own)]
        unknown = max((lag.unknown_queues for lag in of_members), default=0)
        found = Lag(max((lag.messages for lag in of_members), default=0), unknown)
    return found + Lag(partial=info.partial)
