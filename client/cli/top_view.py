"""The part of its two tables that ``flintmq top`` shows, as keys choose it: sorted in some order, scrolled so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from .sampling import GroupRate, Rates, TopicRate
from .topics import is_group_topic

R = TypeVar("R")

TOPICS, GROUPS = "topics", "groups"
BUSIEST, LARGEST, BY_NAME = "busiest", "largest", "by name"
ORDERS = (BUSIEST, LARGEST, BY_NAME)

END_KEYS = ("q", "Q", "\x04")
SORT_KEY, OTHER_TABLE_KEY = "s", "\t"
_STEPS = {
    "\x1b[A": -1, "\x1bOA": -1, "k": -1, "\x1b[B": 1, "\x1bOB": 1, "j": 1,
}  # fmt: skip
_PAGES = {"\x1b[5~": -1, "\x1b[6~": 1, " ": 1, "b": -1}
_ENDS = {"\x1b[H": 0, "\x1b[1~": 0, "g": 0, "\x1b[F": 1, "\x1b[4~": 1, "G": 1}


@dataclass
class View:
    """``focus``: the table that is scrolled; ``first``: the number of its first row by table; ``shown``: how many rows
    there was room for when it was last drawn."""

    focus: str = TOPICS
    order: str = BUSIEST
    first: dict[str, int] = field(default_factory=lambda: {TOPICS: 0, GROUPS: 0})
    shown: dict[str, int] = field(default_factory=lambda: {TOPICS: 1, GROUPS: 1})

    def press(self, key: str) -> None:
        """Scroll, sort or go to the other table; any other key does nothing."""
        if key == OTHER_TABLE_KEY:
            self.focus = GROUPS if self.focus == TOPICS else TOPICS
        elif key == SORT_KEY:
            self.order = ORDERS[(ORDERS.index(self.order) + 1) % len(ORDERS)]
        elif key in _ENDS:
            self.first[self.focus] = _ENDS[key] * 2**31
        else:
            step = _STEPS.get(key, 0) + _PAGES.get(key, 0) * self.shown[self.focus]
            self.first[self.focus] = max(0, self.first[self.focus] + step)

    def topics(self, rates: Rates) -> list[TopicRate]:
        """The topics in their order."""
        if self.order == BY_NAME:
            return sorted(rates.topics, key=lambda row: row.topic)
        if self.order == LARGEST:
            return sorted(rates.topics, key=lambda row: (-row.messages, row.topic))
        return rates.topics

    def groups(self, rates: Rates) -> list[GroupRate]:
        """The groups in their order, without those rows of a group's own topics in which nothing waits."""
        rows = [row for row in rates.groups if row.lag != 0 or not is_group_topic(row.topic)]
        return sorted(rows, key=lambda row: (row.group, row.topic)) if self.order == BY_NAME else rows

    def window(self, table: str, rows: Sequence[R], room: int) -> tuple[Sequence[R], str]:
        """The rows of a table that ``room`` lines show, and a line on the others; it is empty if there are none, or no
        room for it."""
        if len(rows) <= room:
            self.first[table], self.shown[table] = 0, max(1, len(rows))
            return rows, ""
        count = max(1, room - 1)  # the line on the others
        first = self.first[table] = min(self.first[table], len(rows) - count)
        self.shown[table] = count
        above, below = first, len(rows) - first - count
        parts = [f"{above:,} more above"] if above else []
        parts += [f"{below:,} more below"] if below else []
        return rows[first : first + count], f"… {table}: {', '.join(parts)}" if room > 1 else ""
