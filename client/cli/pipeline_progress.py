"""Progress of the pipeline's queries on standard error: a table that is redrawn on a terminal, else lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from .output import TableColumn, number
from .units import plural, show_count, show_seconds

if TYPE_CHECKING:
    from rich.table import Table

    from ..pipeline.progress import QueryProgress

    Show = Callable[[Sequence[QueryProgress]], None]

LINE_SECONDS = 5.0
"""Minimum seconds between two lines about a query without a terminal; its end is always reported."""

COLUMNS = (
    TableColumn("query", "QUERY"),
    TableColumn("state", "STATE"),
    number("messages", "MESSAGES", show_count),
    number("batches", "BATCHES", show_count),
    number("behind", "BEHIND", show_count),
    number("late", "LATE", show_count),
    number("unreadable", "UNREADABLE", show_count),
    TableColumn("watermark", "CLOSED BEFORE, UTC", lambda moment: moment[:16].replace("T", " ")),
)
"""Columns of the table; their names are fields of ``QueryProgress``."""
NARROW = 90
NARROW_COLUMNS = ("query", "state", "messages", "behind")
"""Columns on a terminal narrower than ``NARROW`` characters."""


@contextmanager
def shown_progress() -> Iterator[Show]:
    """Yield a function that shows the progress of the queries at each call."""
    if sys.stderr.isatty():
        with _live() as show:
            yield show
    else:
        yield _Lines().show


@contextmanager
def _live() -> Iterator[Show]:
    from rich.console import Console
    from rich.live import Live

    began = time.monotonic()
    console = Console(stderr=True)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield lambda progress: live.update(_table(progress, time.monotonic() - began, console.width), refresh=True)


def _table(progress: Sequence[QueryProgress], seconds: float, width: int) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim", title=show_seconds(seconds), title_justify="left")
    columns = [column for column in COLUMNS if width >= NARROW or column.name in NARROW_COLUMNS]
    for column in columns:
        table.add_column(column.heading, justify="right" if column.number else "left", no_wrap=True)
    for row in progress:
        values = [getattr(row, column.name) for column in columns]
        table.add_row(
            *(Text("–" if value is None else column.show(value)) for column, value in zip(columns, values, strict=True))
        )
    return table


class _Lines:
    """Progress as lines: one for each query that has advanced, at most every ``LINE_SECONDS``."""

    def __init__(self) -> None:
        self._shown: dict[str, tuple[int, str, float]] = {}

    def show(self, progress: Sequence[QueryProgress]) -> None:
        now = time.monotonic()
        for row in progress:
            batches, state, at = self._shown.get(row.query, (0, "", -LINE_SECONDS))
            is_end = state != row.state and row.state in ("ended", "failed", "stopped")
            if is_end or (batches != row.batches and now - at >= LINE_SECONDS):
                self._shown[row.query] = (row.batches, row.state, now)
                click.echo(line_of(row), err=True)


def line_of(row: QueryProgress) -> str:
    """Return a line such as ``departures: working, 150,000 messages in 3 batches, 186,888 behind``."""
    done = f"{plural(row.messages, 'message')} in {plural(row.batches, 'batch', 'batches')}"
    parts = [f"{row.query}: {row.state}", done]
    if row.behind is not None:
        parts.append(f"{show_count(row.behind)} behind")
    if row.watermark is not None:
        parts.append(f"closed before {row.watermark}")
    return ", ".join(parts)
