"""A store's figures as tables, JSON lines, or plain lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime

from .output import escape, show_bytes, to_json, to_plain
from .stat import StoreStat

WIDE = 110
"""Columns of a terminal that shows everything; a narrower one gets less."""


def as_json(stat: StoreStat) -> Iterator[str]:
    """One object a line; ``kind`` says which: store, queue, files, index."""
    row = asdict(stat)
    parts = {kind: row.pop(name) for kind, name in (("queue", "queues"), ("files", "files"), ("index", "index"))}
    yield to_json({"kind": "store", **row})
    for kind, rows in parts.items():
        for each in rows:
            yield to_json({"kind": kind, **each})


def as_plain(stat: StoreStat) -> Iterator[str]:
    """The same separated by tabs, the kind first."""
    row = asdict(stat)
    parts = {kind: row.pop(name) for kind, name in (("queue", "queues"), ("files", "files"), ("index", "index"))}
    checkpoint = row.pop("checkpoint")
    yield to_plain(["store", *row.values(), *checkpoint.values()])
    for kind, rows in parts.items():
        for each in rows:
            yield to_plain([kind, *each.values()])


def _moment(iso: str | None) -> str:
    """In local time, to the second."""
    return f"{datetime.fromisoformat(iso).astimezone():%Y-%m-%d %H:%M:%S}" if iso else "–"


def print_tables(stat: StoreStat) -> None:
    """For a terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)

    def table(title: str, *headings: str) -> Table:
        made = Table(
            title=title, title_justify="left", title_style="bold", box=None, header_style="dim", pad_edge=False
        )
        for number, heading in enumerate(headings):
            made.add_column(heading, justify="right" if number else "left", overflow="fold")
        return made

    stopped = "stopped in order" if stat.stopped_in_order else "running, or not stopped in order"
    console.print(Text.assemble((stat.store, "bold"), f"  {stat.broker}'s, {stopped}"))
    console.print(f"log from {stat.log_start:,} to {stat.log_end:,}, {show_bytes(stat.log_end - stat.log_start)}")
    for name, value in stat.checkpoint.items():
        shown = f"{value:,}" if isinstance(value, int) else value
        console.print(Text(f"{name.replace('_', ' ')}: {shown or '–'}", style="dim"))
    wide = console.width >= WIDE
    queues = table(
        "\nqueues",
        "topic",
        "queue",
        "from",
        "to",
        "messages",
        "size",
        *(["first stored"] if wide else []),
        "last stored",
    )  # fmt: skip
    for queue in stat.queues:
        queues.add_row(
            Text(escape(queue.topic)), str(queue.queue), f"{queue.min_offset:,}", f"{queue.max_offset:,}",
            f"{queue.messages:,}", show_bytes(queue.bytes), *([_moment(queue.first_stored_at)] if wide else []),
            _moment(queue.last_stored_at),
        )  # fmt: skip
    console.print(queues)
    files = table("\nfiles", "folder", "files", "size", "on disk")
    for each in stat.files:
        files.add_row(each.files, f"{each.count:,}", show_bytes(each.bytes), show_bytes(each.allocated_bytes))
    console.print(files)
    index = table("\nindex", "file", "entries", "full", "first stored", "last stored")
    for file in stat.index:
        full = f"{100 * file.entries / max(file.entries_max, 1):.1f} %"
        index.add_row(file.file, f"{file.entries:,}", full, _moment(file.first_stored_at), _moment(file.last_stored_at))
    console.print(index)
