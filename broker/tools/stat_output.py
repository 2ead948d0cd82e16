"""Statistics of a store as tables, JSON lines, or plain lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING

from ...protocol.display import show_bytes, to_json, to_plain
from ...protocol.escaping import escape
from .stat import StoreStat

if TYPE_CHECKING:
    from rich.console import Console

MEDIUM, WIDE = 72, 110
"""Minimum width of a terminal, in columns, for the additional columns of a table."""


def as_json(stat: StoreStat) -> Iterator[str]:
    """Yield JSON lines with a ``kind``: store, queue, files or index."""
    row = asdict(stat)
    parts = {kind: row.pop(name) for kind, name in (("queue", "queues"), ("files", "files"), ("index", "index"))}
    yield to_json({"kind": "store", **row})
    for kind, rows in parts.items():
        for each in rows:
            yield to_json({"kind": kind, **each})


def as_plain(stat: StoreStat) -> Iterator[str]:
    """Yield lines of values separated by tabs, the kind first."""
    row = asdict(stat)
    parts = {kind: row.pop(name) for kind, name in (("queue", "queues"), ("files", "files"), ("index", "index"))}
    checkpoint = row.pop("checkpoint")
    yield "\t".join(map(to_plain, ["store", *row.values(), *checkpoint.values()]))
    for kind, rows in parts.items():
        for each in rows:
            yield "\t".join(map(to_plain, [kind, *each.values()]))


def _moment(iso: str | None) -> str:
    """Format a time in local time, to the second."""
    return f"{datetime.fromisoformat(iso).astimezone():%Y-%m-%d %H:%M:%S}" if iso else "–"


def print_tables(stat: StoreStat) -> None:
    """Print tables for a terminal; a narrow one gets fewer columns."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    stopped = "stopped in order" if stat.stopped_in_order else "running, or not stopped in order"
    console.print(Text.assemble((stat.store, "bold"), f"  {stat.broker}'s, {stopped}"))
    console.print(f"log from {stat.log_start:,} to {stat.log_end:,}, {show_bytes(stat.log_end - stat.log_start)}")
    for name, value in stat.checkpoint.items():
        shown = f"{value:,}" if isinstance(value, int) else _moment(value)
        console.print(Text(f"{name.replace('_', ' ')}: {shown}", style="dim"))
    _print_table(
        console,
        "queues",
        {
            "topic": 0,
            "queue": 0,
            "from": MEDIUM,
            "to": MEDIUM,
            "messages": 0,
            "size": 0,
            "first stored": WIDE,
            "last stored": MEDIUM,
        },
        [
            (
                escape(each.topic),
                str(each.queue),
                f"{each.min_offset:,}",
                f"{each.max_offset:,}",
                f"{each.messages:,}",
                show_bytes(each.bytes),
                _moment(each.first_stored_at),
                _moment(each.last_stored_at),
            )
            for each in stat.queues
        ],
    )
    _print_table(
        console,
        "files",
        {"folder": 0, "files": 0, "size": 0, "on disk": 0},
        [
            (each.files, f"{each.count:,}", show_bytes(each.bytes), show_bytes(each.allocated_bytes))
            for each in stat.files
        ],
    )
    _print_table(
        console,
        "index",
        {"file": 0, "entries": 0, "full": 0, "first stored": WIDE, "last stored": MEDIUM},
        [
            (
                each.file,
                f"{each.entries:,}",
                f"{100 * each.entries / max(each.entries_max, 1):.1f} %",
                _moment(each.first_stored_at),
                _moment(each.last_stored_at),
            )
            for each in stat.index
        ],
    )


def _print_table(console: Console, title: str, columns: dict[str, int], rows: list[tuple[str, ...]]) -> None:
    """Print a table. ``columns``: each heading with the minimum width of a terminal that shows it."""
    from rich.table import Table
    from rich.text import Text

    shown = [number for number, width in enumerate(columns.values()) if console.width >= width]
    headings = list(columns)
    table = Table(title=f"\n{title}", title_justify="left", title_style="bold", box=None, pad_edge=False)
    for number in shown:
        table.add_column(headings[number], justify="right" if number else "left", overflow="fold", header_style="dim")
    for row in rows:
        table.add_row(*(Text(row[number]) for number in shown))
    console.print(table)
