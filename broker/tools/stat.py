"""``flintmq-broker stat``: what is in a store, by queue, by file, and what its checkpoint says. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...protocol.display import escape, show_bytes, to_json, to_plain
from ..store.index import IndexFile
from ..store.queues import BLOCK_UNITS, ConsumeQueue, count_units, first_unit, is_filling, read_units
from .offline import OfflineStore
from .output import iso_time

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, slots=True)
class QueueStat:
    """Statistics of a queue below the end of the log: readable offsets, number of messages, and their bytes."""

    topic: str
    queue: int
    min_offset: int
    max_offset: int
    messages: int
    bytes: int
    first_stored_at: str | None
    last_stored_at: str | None


@dataclass(frozen=True, slots=True)
class FileStat:
    """Statistics of one kind of files: logical size and disk usage."""

    files: str
    count: int
    bytes: int
    allocated_bytes: int


@dataclass(frozen=True, slots=True)
class IndexStat:
    """Statistics of one index file: number of entries, and store times of its first and last message."""

    file: str
    entries: int
    entries_max: int
    first_stored_at: str | None
    last_stored_at: str | None


@dataclass(frozen=True, slots=True)
class StoreStat:
    """Statistics of a store. ``log_end``: end of the part of the log that they cover."""

    store: str
    broker: str
    stopped_in_order: bool
    log_start: int
    log_end: int
    checkpoint: dict[str, Any]
    queues: list[QueueStat]
    files: list[FileStat]
    index: list[IndexStat]


def store_stat(store: OfflineStore, end: int) -> StoreStat:
    """Return the statistics of a store up to ``end`` of its log."""
    queues = sorted(store.queues, key=lambda queue: (queue.topic, queue.queue_id))
    return StoreStat(
        store=str(store.path),
        broker="RocketMQ" if store.is_rocketmq else "FlintMQ",
        stopped_in_order=store.clean,
        log_start=store.log_start,
        log_end=end,
        checkpoint=_checkpoint(store),
        queues=[_queue_stat(store, queue, end) for queue in queues],
        files=[
            _file_stat(kind, store.path / kind) for kind in ("commitlog", "consumequeue", "index", "config", "flintmq")
        ],
        index=[_index_stat(file) for file in store.index_files],
    )


def _checkpoint(store: OfflineStore) -> dict[str, Any]:
    checkpoint = store.checkpoint
    return {
        "log_flushed_at": iso_time(checkpoint.physic_msg_timestamp),
        "queues_flushed_at": iso_time(checkpoint.logics_msg_timestamp),
        "index_full_at": iso_time(checkpoint.index_msg_timestamp),
        "flushed_offset": checkpoint.mark.flushed_offset if checkpoint.mark else None,
        "dispatched_offset": checkpoint.mark.dispatched_offset if checkpoint.mark else None,
    }


def _queue_stat(store: OfflineStore, queue: ConsumeQueue, end: int) -> QueueStat:
    low = store.first_live(queue)
    stop = count_units(queue, end)
    messages = size = 0
    first: tuple[int, int] | None = None
    last = (0, 0)
    for at in range(first_unit(queue), stop, BLOCK_UNITS):
        units = read_units(queue, at, min(BLOCK_UNITS, stop - at))
        offsets = units["physical_offset"].astype(np.int64)
        places = np.flatnonzero(~is_filling(units) & (offsets >= low) & (offsets < end))
        if not len(places):
            continue
        messages += len(places)
        size += int(units["size"][places].astype(np.int64).sum())
        first = first or (at + int(places[0]), int(offsets[places[0]]))
        last = at + int(places[-1]), int(offsets[places[-1]])
    # A queue whose files retention has deleted continues from its noted end.
    stop = max(stop, store.state.next_offset(queue.topic, queue.queue_id))
    return QueueStat(
        topic=queue.topic,
        queue=queue.queue_id,
        min_offset=first[0] if first else stop,
        max_offset=last[0] + 1 if first else stop,
        messages=messages,
        bytes=size,
        first_stored_at=iso_time(store.store_time(first[1])) if first else None,
        last_stored_at=iso_time(store.store_time(last[1])) if first else None,
    )


def _file_stat(kind: str, folder: Path) -> FileStat:
    status = [path.stat() for path in _files_below(folder)]
    # ``st_blocks`` counts 512 bytes, whatever the size of the file system's blocks is.
    return FileStat(
        kind, len(status), sum(each.st_size for each in status), sum(each.st_blocks for each in status) * 512
    )


def _files_below(folder: Path) -> Iterable[Path]:
    return (path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else ()


def _index_stat(file: IndexFile) -> IndexStat:
    header = file.header
    used = file.index_count > 1
    return IndexStat(
        file=file.path.name,
        entries=max(file.index_count - 1, 0),
        entries_max=file.entries - 1,
        first_stored_at=iso_time(header.begin_timestamp) if used else None,
        last_stored_at=iso_time(header.end_timestamp) if used else None,
    )


# ---- Statistics of a store as tables, JSON lines, or plain lines.

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
