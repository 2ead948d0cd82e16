"""The end of a log, found without changing anything, and a check of the bytes after it.

The rules are those of recovery: everything below the mark's flushed offset, or below a message that a queue proves,
belongs to the log; after that, the log ends at the first place without a sound record.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...protocol.storage.layout import RECORD
from ..kernels import dispatch as kernel
from ..kernels import examine
from ..store.files.file_system import ZERO_CHUNK
from ..store.queue.consume_queue import ConsumeQueue
from ..store.queue.queue_check import count_units, last_record_unit
from .offline import FOREVER, OfflineStore


@dataclass(frozen=True, slots=True)
class LogEnd:
    """``offset``: end of the log; ``dispatched``: records below this must be in queues and index."""

    offset: int
    dispatched: int


def find_end(store: OfflineStore) -> LogEnd:
    """Find the end of the log. Reads little, unless the store is not FlintMQ's and has no queues."""
    mark = store.checkpoint.mark
    proven = mark.flushed_offset if mark is not None else _proven_by_queues(store)
    if store.log_files:
        # Mark and queues may name a place outside of the files that are there.
        proven = min(max(proven, store.log_start), store.log_files[-1].end_offset)
    end = _first_bad(store, proven)
    if mark is not None:
        return LogEnd(end, min(mark.dispatched_offset, end))
    # After a crash of RocketMQ nothing says what it has dispatched.
    return LogEnd(end, end if store.clean else 0)


def _proven_by_queues(store: OfflineStore) -> int:
    """Return the end of the last message that a queue knows and that exists; 0 without one."""
    proven = 0
    for queue in store.queues:
        last = last_record_unit(queue, count_units(queue, FOREVER))
        if last is not None and last[1] + last[2] > proven and unit_fits(store, queue, *last):
            proven = last[1] + last[2]
    return proven


def unit_fits(store: OfflineStore, queue: ConsumeQueue, queue_offset: int, physical_offset: int, size: int) -> bool:
    """Return whether a unit of the queue points at the record of that message."""
    file = store.find(physical_offset)
    if file is None:
        return False
    array, at = file.array(), physical_offset - file.start_offset
    parts = np.zeros(kernel.PARTS, np.int64)
    # A damaged body does not matter here: it is still the record of that message.
    if at + size > len(array) or kernel.locate(array, at, len(array), physical_offset, parts) not in (
        kernel.DONE,
        kernel.BAD_CRC,
    ):
        return False
    head = RECORD.unpack(array.data, at)
    topic = array[parts[kernel.R_TOPIC_AT] : parts[kernel.R_TOPIC_END]].tobytes()
    expected = (size, queue.topic.encode(), queue.queue_id, queue_offset)
    return (head.total_size, topic, head.queue_id, head.queue_offset) == expected


def _first_bad(store: OfflineStore, begin: int) -> int:
    """Return the first place without a sound record, starting at ``begin``, a record boundary."""
    state, parts = np.zeros(kernel.STATE, np.int64), np.zeros(kernel.PARTS, np.int64)
    at = begin
    while (file := store.find(at)) is not None:
        # Records must have a checksum over all of them on one side of a border, and need none on the other.
        state[kernel.S_CHECKSUMMED], border = store.state.checksummed.at(at)
        stop = min(file.size, border - file.start_offset)
        status, position = kernel.scan(file.array(), at - file.start_offset, stop, file.start_offset, parts, state)
        at = file.end_offset if status == kernel.BLANK else file.start_offset + position
        if status not in (kernel.BLANK, kernel.DONE):
            break
    return at


def check_behind(store: OfflineStore, end: LogEnd) -> None:
    """Check the bytes after the end: after an orderly stop of FlintMQ there are none; else note what a start would
    cut."""
    for file in store.log_files:
        begin = max(end.offset - file.start_offset, 0)
        if begin >= file.size:
            continue
        position = _first_not_zero(store, file.fd, begin, file.size)
        if position is None:
            continue
        if store.clean and not store.is_rocketmq:
            store.findings.add(
                "behind-end",
                file.path,
                f"the log ends at {end.offset:,}, but there are bytes after it",
                position=position,
                physical_offset=file.start_offset + position,
            )
            return
        array, parts = file.array(), np.zeros(kernel.PARTS, np.int64)
        stop = _data_end(store, file.fd, position, file.size)
        record = examine.next_record(array, position, stop, file.start_offset, parts)
        sound = (
            f"; a plausible record begins at {file.start_offset + record:,}: unless it is left over from an earlier "
            "crash, the log is damaged at its end"
            if record < stop
            else ""
        )
        store.findings.note(
            f"the log ends at {end.offset:,}; a start cuts the {stop - begin:,} bytes after it in {file.path}{sound}"
        )
        return


def _first_not_zero(store: OfflineStore, fd: int, begin: int, end: int) -> int | None:
    for at, stop in store.files.data_ranges(fd, begin, end):
        for chunk in range(at, stop, len(ZERO_CHUNK)):
            held = bytearray(min(len(ZERO_CHUNK), stop - chunk))
            store.files.read(fd, memoryview(held), chunk, wait=True)
            if held != ZERO_CHUNK[: len(held)]:
                return chunk + len(held) - len(held.lstrip(b"\0"))
    return None


def _data_end(store: OfflineStore, fd: int, begin: int, end: int) -> int:
    return max((stop for _, stop in store.files.data_ranges(fd, begin, end)), default=begin)
