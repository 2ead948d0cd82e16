"""Sort order and scroll position of the two tables of ``flintmq top``, and the keys that change them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ..operator.names import is_group_topic
from .sampler import GroupRate, Rates, TopicRate

R = TypeVar("R")

TOPICS, GROUPS = "topics", "groups"
BUSIEST, LARGEST, BY_NAME = "busiest", "largest", "by name"
ORDERS = (BUSIEST, LARGEST, BY_NAME)

END_KEYS = ("q", "Q", "\x04")
SORT_KEY, OTHER_TABLE_KEY = "s", "\t"
_STEPS = {"\x1b[A": -1, "\x1bOA": -1, "k": -1, "\x1b[B": 1, "\x1bOB": 1, "j": 1}
_PAGES = {"\x1b[5~": -1, "\x1b[6~": 1, " ": 1, "b": -1}
_ENDS = {"\x1b[H": 0, "\x1b[1~": 0, "g": 0, "\x1b[F": 1, "\x1b[4~": 1, "G": 1}


@dataclass
class View:
    """The visible part of the tables. ``focus``: the table that the keys scroll; ``first``: number of the first visible
    row, by table; ``shown``: number of rows that were visible when the table was last drawn."""

    focus: str = TOPICS
    order: str = BUSIEST
    first: dict[str, int] = field(default_factory=lambda: {TOPICS: 0, GROUPS: 0})
    shown: dict[str, int] = field(default_factory=lambda: {TOPICS: 1, GROUPS: 1})

    def press(self, key: str) -> None:
        """Scroll, sort or switch to the other table; ignore any other key."""
        if key == OTHER_TABLE_KEY:
            self.focus = GROUPS if self.focus == TOPICS else TOPICS
        elif key == SORT_KEY:
            self.order = ORDERS[(ORDERS.index(self.order) + 1) % len(ORDERS)]
        elif key in _ENDS:
            # Far beyond the last row: ``window`` reduces it.
            self.first[self.focus] = _ENDS[key] * 2**31
        else:
            step = _STEPS.get(key, 0) + _PAGES.get(key, 0) * self.shown[self.focus]
            self.first[self.focus] = max(0, self.first[self.focus] + step)

    def topics(self, rates: Rates) -> list[TopicRate]:
        """Return the topics in the chosen order."""
        if self.order == BY_NAME:
            return sorted(rates.topics, key=lambda row: row.topic)
        if self.order == LARGEST:
            return sorted(rates.topics, key=lambda row: (-row.messages, row.topic))
        return rates.topics

    def groups(self, rates: Rates) -> list[GroupRate]:
        """Return the groups in the chosen order, without the rows of retry and dead-letter topics that have no lag."""
        rows = [row for row in rates.groups if row.lag != 0 or not is_group_topic(row.topic)]
        return sorted(rows, key=lambda row: (row.group, row.topic)) if self.order == BY_NAME else rows

    def window(self, table: str, rows: Sequence[R], room: int) -> tuple[Sequence[R], str]:
        """Return the rows of a table that fit into ``room`` lines, and a line about the others. The line is empty if
        there are no others or no room for it."""
        if len(rows) <= room:
            self.first[table], self.shown[table] = 0, max(1, len(rows))
            return rows, ""
        count = max(1, room - 1)  # one line for the line about the others
        first = self.first[table] = min(self.first[table], len(rows) - count)
        self.shown[table] = count
        above, below = first, len(rows) - first - count
        parts = [f"{above:,} more above"] if above else []
        parts += [f"{below:,} more below"] if below else []
        return rows[first : first + count], f"… {table}: {', '.join(parts)}" if room > 1 else ""
