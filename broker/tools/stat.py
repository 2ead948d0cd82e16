"""``flintmq-broker stat``: what is in a store, by queue, by file, and what its checkpoint says. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..store.index.index_file import IndexFile
from ..store.queue.consume_queue import ConsumeQueue
from ..store.queue.queue_check import BLOCK_UNITS, count_units, first_unit, is_filling, read_units
from .log_verifier import store_time
from .offline import OfflineStore
from .output import iso_time


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
        first_stored_at=iso_time(store_time(store, first[1])) if first else None,
        last_stored_at=iso_time(store_time(store, last[1])) if first else None,
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
