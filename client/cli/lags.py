"""How far groups are, summed up: what ``group list``, ``top`` and ``check`` share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...protocol.delivery import dead_letter_topic

if TYPE_CHECKING:
    from ..core.groups import GroupInfo
    from ..core.topics import ConsumeStats

BROADCASTING = "broadcasting"
MEMBER_SEPARATOR = "|"


def read_rows(rows: Iterable[ConsumeStats]) -> list[ConsumeStats]:
    """Without the groups' own dead letters: they do not read those."""
    return [row for row in rows if row.topic != dead_letter_topic(row.group)]


def lag_by_group(rows: Iterable[ConsumeStats]) -> dict[str, int]:
    """Messages that each group has still to read, over all topics."""
    lags: dict[str, int] = {}
    for row in read_rows(rows):
        lags[row.group] = lags.get(row.group, 0) + row.lag
    return lags


def lag_of(info: GroupInfo, lags: dict[str, int]) -> int:
    """The lag of one group; of a broadcasting one that of the member which is furthest behind."""
    if info.mode != BROADCASTING:
        return lags.get(info.group, 0)
    own = info.group + MEMBER_SEPARATOR
    return max((lag for name, lag in lags.items() if name.startswith(own)), default=0)
