"""Checks of the small files of a store: the JSON tables, the checkpoint, and FlintMQ's own notes."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from ...protocol.storage.layout import (
    CHECKPOINT,
    CHECKPOINT_FILE_BYTES,
    CHECKPOINT_MARK,
    CHECKPOINT_MARK_AT,
    CHECKPOINT_MARK_MAGIC,
)
from ...protocol.store_files import file_name
from ..kernels import dispatch as kernel
from ..store.files.json_table import SHAPE_ERRORS, parse_table
from ..store.queues import count_units, last_record_unit
from ..store.tables.checkpoint import FUTURE_MS_MAX
from .offline import LogEnd, OfflineStore


def check_tables(store: OfflineStore) -> None:
    """Check every JSON file in ``config/`` and FlintMQ's own, each with its ``.bak``."""
    reported = {finding.path for finding in store.findings if finding.kind == "table"}
    own = store.state.path.parent
    folders = (store.path / "config", own, own / "timers", own / "quarantine")
    for path in sorted(path for folder in folders for path in [*folder.glob("*.json"), *folder.glob("*.json.bak")]):
        if path not in reported and path.is_file():
            _check_table(store, path)


def _check_table(store: OfflineStore, path: Path) -> None:
    try:
        parse_table(path.read_text(encoding="utf-8"))
    except SHAPE_ERRORS as error:
        store.findings.add("table", path, f"{type(error).__name__}: {error}")


def check_log_is_whole(store: OfflineStore) -> None:
    """Check that the log begins and ends where the checkpoint and FlintMQ's notes say."""
    mark, size = store.checkpoint.mark, store.settings.commitlog_file_bytes
    if mark is None:
        return
    folder = store.path / "commitlog"
    log_end = store.log_files[-1].start_offset + size if store.log_files else 0
    if mark.flushed_offset > log_end:
        store.findings.add(
            "missing-file",
            folder / file_name(log_end),
            f"the log ends at {log_end:,}, but {mark.flushed_offset:,} bytes were flushed",
            physical_offset=log_end,
        )
    begin = mark.log_begins_at_most(store.state.snapshot.log_start)
    if store.log_files and store.log_start > begin:
        begin -= begin % size
        store.findings.add(
            "missing-file",
            folder / file_name(begin),
            f"the log now begins at {store.log_start:,}",
            physical_offset=begin,
        )


def check_checkpoint(store: OfflineStore, end: LogEnd) -> None:
    """Check that the checkpoint's times and FlintMQ's mark are possible."""
    path = store.checkpoint.path
    if not path.is_file():
        store.findings.note(f"there is no {path.name}: a start checks the whole log")
        return
    blob = path.read_bytes()
    if len(blob) != CHECKPOINT_FILE_BYTES:
        store.findings.add("checkpoint", path, f"it has {len(blob):,} bytes instead of {CHECKPOINT_FILE_BYTES:,}")
        return
    _check_times(store, path, blob, _last_store_ms(store, end))
    if store.checkpoint.mark is None:
        _check_mark(store, path, blob, end)


def _check_times(store: OfflineStore, path: Path, blob: bytes, last_ms: int) -> None:
    times = CHECKPOINT.unpack(blob)
    now_ms = int(time.time() * 1000)
    for name in ("physic_msg_timestamp", "logics_msg_timestamp", "index_msg_timestamp"):
        held: int = getattr(times, name)
        if held < 0 or held > now_ms + FUTURE_MS_MAX:
            text = f"{name} is {held:,}, which is not a time"
        # After a crash, the messages of that time may be lost.
        elif last_ms and store.clean and held > last_ms:
            text = f"{name} is {held:,}, but the last message was stored at {last_ms:,}"
        else:
            continue
        store.findings.add("checkpoint", path, text, position=CHECKPOINT.at[name])


def _check_mark(store: OfflineStore, path: Path, blob: bytes, end: LogEnd) -> None:
    """Check a mark with a wrong checksum: either RocketMQ wrote the file last, or it is damaged."""
    mark = CHECKPOINT_MARK.unpack(blob, CHECKPOINT_MARK_AT)
    if not any(blob):
        if store.state.sizes:  # RocketMQ would have left the mark as it was
            store.findings.add("checkpoint", path, "it is all zeros, and FlintMQ's mark is gone")
        return
    if not any(blob[CHECKPOINT_MARK_AT : CHECKPOINT_MARK_AT + CHECKPOINT_MARK.size]):
        return
    if mark.magic != CHECKPOINT_MARK_MAGIC or not 0 <= mark.flushed_offset < end.offset:
        # If RocketMQ continued, the log is longer than FlintMQ left it.
        store.findings.add(
            "checkpoint",
            path,
            "FlintMQ's mark has a wrong checksum, and no other broker has written the log since",
            position=CHECKPOINT_MARK_AT,
        )
    else:
        store.findings.note("FlintMQ's mark in the checkpoint has a wrong checksum: RocketMQ used the store last")


def _last_store_ms(store: OfflineStore, end: LogEnd) -> int:
    """Return the store time of the last message that a queue knows, or 0."""
    last = (-1, 0)
    for queue in store.queues:
        unit = last_record_unit(queue, count_units(queue, end.offset))
        if unit is not None:
            last = max(last, unit[1:])
    file = store.find(last[0])
    if file is None:
        return 0
    parts = np.zeros(kernel.PARTS, np.int64)
    array, at = file.array(), last[0] - file.start_offset
    at_end = False
    last_ms = 0
    while not at_end:  # records without a unit may follow
        at_end = file.start_offset + at >= end.offset or (
            kernel.locate(array, at, len(array), file.start_offset + at, parts) != kernel.DONE
        )
        if not at_end:
            last_ms = int(parts[kernel.R_STORE_MS])
            at += int(parts[kernel.R_SIZE])
    return last_ms


def check_offsets(store: OfflineStore, ends: dict[tuple[str, int], int]) -> None:
    """Compare groups' offsets, and FlintMQ's notes of queue ends, with ``ends``: the offset after each last unit."""
    snapshot = store.state.snapshot
    mark = store.checkpoint.mark
    if mark is not None and mark.dispatched_offset >= snapshot.physical_offset:
        for topic, queue_id, next_offset in store.state.recorded_ends(store.log_start, mark.dispatched_offset):
            held = ends.get((topic, queue_id), 0)
            if held < next_offset:
                store.findings.add(
                    "queue-end",
                    store.queues.folder / topic / str(queue_id),
                    f"{topic}, queue {queue_id} ends at {held:,}, not at {next_offset:,}",
                )
        held_files = {file.path.name for file in store.index_files}
        for name in snapshot.index_files:
            if name not in held_files and not (store.path / "index" / name).exists():
                store.findings.add("index-missing", store.path / "index" / name, "the file is missing")
    # After a crash, a start sets them back by itself.
    if store.clean:
        _check_consumer_offsets(store, ends)


def _check_consumer_offsets(store: OfflineStore, ends: dict[tuple[str, int], int]) -> None:
    path = store.path / "config" / "consumerOffset.json"
    for group, topic, queue_id, offset in store.consumer_offsets.all_committed(own=True):
        if store.topics.get(topic) is None:
            continue
        held = max(ends.get((topic, queue_id), 0), store.state.next_offset(topic, queue_id))
        if offset > held:
            store.findings.add(
                "consumer-offset",
                path,
                f"group {group} is at {offset:,} in {topic}, queue {queue_id}, which ends at {held:,}",
            )
