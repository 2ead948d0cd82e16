"""The live screen of ``flintmq top``, for a terminal of any size."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table
from rich.text import Text

from ...protocol.display import escape, show_bytes
from ..operator.display import is_group_topic, show_count, show_rate, show_seconds, shown_name
from ..operator.rates import GroupRate, Rates, TopicRate

# ---- Sort order and scroll position of the two tables, and the keys that change them.

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


NARROW = 60
WIDE = 150
LABEL_CHARS = 8
GAP_CHARS = 2
MIN_NAME_CHARS = 10
_BEHIND_WARNING_BYTES = 16 << 20
_DISK_WARNING_SHARE = 0.15


class Screen:
    """The screen that draws the rates. ``away``: reason why the broker is unreachable; the last figures stay."""

    def __init__(self, address: str, interval: float) -> None:
        self.address = address
        self.interval = interval
        self.rates: Rates | None = None
        self.away = ""
        self.view = View()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines, no more than the height of the terminal."""
        width, height = console.size
        parts: list[Text | Table] = [self._title(width)]
        if self.away:
            parts.append(Text(escape(self.away), style="bold red", overflow="ellipsis", no_wrap=True))
        if self.rates is None:
            parts.append(Text("waiting for the broker …", style="dim"))
        else:
            if self.rates.condition.withheld:
                text = f"most figures are hidden: {escape(self.rates.condition.withheld)}"
                parts.append(Text(text, style="bold yellow", overflow="ellipsis", no_wrap=True))
            if self.rates.condition.write_refusal:
                refusal = f"the broker refuses messages: {escape(self.rates.condition.write_refusal)}"
                parts.append(Text(refusal, style="bold red", overflow="ellipsis", no_wrap=True))
            columns = 1 if width < NARROW else 2 if width < WIDE else 4
            figures = _figures(self.rates)[: (height - len(parts)) * columns]
            parts.append(_grid(figures, columns, width))
            left = height - len(parts) - -(-len(figures) // columns)
            parts += _tables(self.rates, self.view, width, left)
        yield Group(*parts)

    def _title(self, width: int) -> Text:
        clock = time.strftime("%H:%M:%S")
        name = "flintmq" if self.rates is None else str(self.rates.condition.info.get("name"))
        up = "" if self.rates is None else f"  up {show_seconds(self.rates.condition.number('uptime_seconds'))}"
        pieces = [(escape(name), "bold"), (f"  {self.address}", ""), (f"  {clock}", "dim")]
        if width >= NARROW:
            pieces += [(up, "dim"), (f"  every {show_seconds(self.interval)}  s: {self.view.order}  q: end", "dim")]
        return Text.assemble(*pieces, overflow="ellipsis", no_wrap=True)


Figure = tuple[str, str, str]
"""Label, value, style."""


def _figures(rates: Rates) -> list[Figure]:
    condition, per_second = rates.condition, rates.per_second
    behind = max(condition.reput_behind_bytes or 0, condition.index_behind_bytes or 0)
    share = condition.disk_free_share
    runway = condition.disk_runway_seconds
    flush = str(condition.info.get("flush"))
    if condition.flush_p99_seconds is not None:
        flush += f"  p50 {show_seconds(condition.flush_p50_seconds)}  p99 {show_seconds(condition.flush_p99_seconds)}"
    return [
        (
            "produce",
            f"{show_rate(per_second['produced_messages'])}  {show_bytes(per_second['produced_bytes'])}/s",
            "green",
        ),
        ("pull", f"{show_rate(per_second['pulled_messages'])}  {show_bytes(per_second['pulled_bytes'])}/s", "cyan"),
        ("flush", flush, ""),
        (
            "behind",
            f"queues {show_bytes(condition.reput_behind_bytes)}  index {show_bytes(condition.index_behind_bytes)}",
            "bold yellow" if behind > _BEHIND_WARNING_BYTES else "",
        ),
        (
            "free",
            f"{show_bytes(condition.number('disk_free_bytes'))}"
            + ("" if share is None else f" ({share:.0%})")
            + ("" if runway is None else f"  for {show_seconds(runway)}"),
            "bold yellow" if share is not None and share < _DISK_WARNING_SHARE else "",
        ),
        ("memory", show_bytes(condition.memory_bytes), ""),
        (
            "clients",
            f"{show_count(condition.number('connections'))}  {show_count(condition.number('held_pulls'))} wait"
            + _members(condition.number("group_members")),
            "",
        ),
        (
            "errors",
            f"{show_count(None if condition.withheld else sum(condition.errors.values()))}"
            f"  {show_rate(per_second['errors'])}",
            "bold red" if per_second["errors"] else "",
        ),
    ]


def _members(count: float | None) -> str:
    return f"  {show_count(count)} in groups" if count else ""


def _grid(figures: Sequence[Figure], columns: int, width: int) -> Table:
    grid = Table.grid(padding=(0, 1))
    for _ in range(columns):
        grid.add_column(no_wrap=True, width=LABEL_CHARS)
        grid.add_column(no_wrap=True, width=width // columns - LABEL_CHARS - 2)
    for first in range(0, len(figures), columns):
        cells: list[Text] = []
        for label, value, style in figures[first : first + columns]:
            cells += [Text(label, style="dim"), Text(value, style=style, overflow="ellipsis", no_wrap=True)]
        grid.add_row(*cells)
    return grid


def _tables(rates: Rates, view: View, width: int, lines: int) -> list[Text | Table]:
    """Return the tables of topics and groups for the lines that are left; half each if both need more."""
    topics, groups = view.topics(rates), view.groups(rates)
    heads = 2 * bool(topics) + 2 * bool(groups)  # an empty line and the heading of each
    room = max(0, lines - heads)
    for_groups = min(len(groups), max(room // 2, room - len(topics)))
    for_topics = min(len(topics), room - for_groups)
    parts: list[Text | Table] = []
    if for_topics:
        some, others = view.window(TOPICS, topics, for_topics)
        parts += [Text(""), _topics(rates, some, width), *_others(others, view, TOPICS)]
    if for_groups:
        rows, others = view.window(GROUPS, groups, for_groups)
        parts += [Text(""), _groups(rows, width), *_others(others, view, GROUPS)]
    if not topics and lines > 1:
        parts += [Text(""), Text("no topics yet", style="dim")]
    return parts


def _others(others: str, view: View, table: str) -> list[Text]:
    """Return the line about the rows that are not shown; it is bold for the table that the keys scroll."""
    if not others:
        return []
    here = view.focus == table
    style, key = ("bold", "↑ ↓") if here else ("dim", "Tab")
    return [Text(f"{others} ({key})", style=style, overflow="ellipsis", no_wrap=True)]


def _table(names: Sequence[str], figures: Sequence[str], rows: Sequence[Sequence[Text]], width: int) -> Table:
    """Return a table that truncates names if there is no room, and never figures."""
    table = Table(box=None, pad_edge=False, padding=(0, GAP_CHARS, 0, 0), header_style="bold")
    widths = [
        max(len(heading), *(row[place].cell_len for row in rows)) for place, heading in enumerate([*names, *figures])
    ]
    room = max(MIN_NAME_CHARS, width - sum(widths[len(names) :]) - GAP_CHARS * (len(widths) - 1))
    for place, heading in enumerate(names):
        share = room // (len(names) - place) - GAP_CHARS * bool(place)
        room -= min(widths[place], share)
        table.add_column(Text(heading), no_wrap=True, width=min(widths[place], share))
    for place, heading in enumerate(figures, len(names)):
        table.add_column(Text(heading), justify="right", no_wrap=True, width=widths[place])
    for row in rows:
        table.add_row(*row)
    return table


def _name(text: str) -> Text:
    return Text(escape(shown_name(text)), overflow="ellipsis", no_wrap=True)


def _topics(rates: Rates, topics: Sequence[TopicRate], width: int) -> Table:
    lag: dict[str, int] = {}
    for group in rates.groups:
        lag[group.topic] = max(lag.get(group.topic, 0), group.lag or 0)
    figures = ["IN", "MESSAGES", *(["LAG"] if lag and width >= NARROW else [])]
    rows = []
    for row in topics:
        values = [show_rate(row.produced_per_second), show_count(row.messages), show_count(lag.get(row.topic))]
        rows.append([_name(row.topic), *map(Text, values[: len(figures)])])
    return _table(["TOPIC"], figures, rows, width)


def _groups(groups: Sequence[GroupRate], width: int) -> Table:
    narrow = width < NARROW
    rows = []
    for row in groups:
        names = [f"{shown_name(row.group)} {shown_name(row.topic)}"] if narrow else [row.group, row.topic]
        lag = Text(show_count(row.lag), style="" if row.lag == 0 else "yellow")
        rows.append([*map(_name, names), Text(show_rate(row.committed_per_second)), lag])
    return _table(["GROUP, TOPIC"] if narrow else ["GROUP", "IN TOPIC"], ["COMMITS", "LAG"], rows, width)
