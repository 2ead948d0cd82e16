"""Finds the end of the readable log, once, before the read is planned."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from ....protocol.storage.record import CorruptRecord, decode_record
from ....protocol.store_files import file_name
from ..scan import Part
from .errors import SKIP_HINT, CorruptLog
from .log_files import LogFile, LogFiles
from .log_scanner import FILE_ENDS, WINDOW_BYTES, ZEROS, LogRange, LogScanner, judge
from .queues import LastUnit
from .split_points import next_record

_TAIL_RECORDS = 1024
"""Maximum number of records whose bodies are checked from the end backwards, until one is sound."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReadableLog:
    """A log's files with the end of their readable part; no file begins after it."""

    log: LogFiles
    end: int

    @property
    def stretches(self) -> list[LogRange]:
        """Each file's readable part."""
        return [LogRange(file, file.start, min(file.end, self.end)) for file in self.log.files]


def find_end(log: LogFiles, *, fail_on_corruption: bool = True) -> ReadableLog:
    """Return the log up to FlintMQ's mark, below which nothing changes any more.

    Without a mark (in RocketMQ's store, or for files alone), the log ends after the last sound record; to find it, the
    last file that contains records is scanned. Raises ``CorruptLog`` for damage before that record, unless
    ``fail_on_corruption`` is false.
    """
    if log.flushed_offset is not None:
        end = min(log.flushed_offset, log.files[-1].end) if log.files else log.start
        return ReadableLog(log, end)
    # The queues are read first: a record that a queue points at was already in the log.
    last_unit = log.queues().last_unit() if log.stopped_in_order else None
    found = _last_with_records(log, fail_on_corruption)
    if last_unit is not None and last_unit.end > found.end:
        _tolerate(_lost_end(log, found, last_unit), fail_on_corruption)
    return found


def _last_with_records(log: LogFiles, fail: bool) -> ReadableLog:
    files = list(log.files)
    while files:
        end = _end_of_records(files[-1], fail)
        if end is not None:
            return ReadableLog(replace(log, files=tuple(files)), end)
        files.pop()  # preallocated, and still without records
    return ReadableLog(replace(log, files=()), log.start)


def _lost_end(log: LogFiles, found: ReadableLog, last_unit: LastUnit) -> CorruptLog:
    """Return the error for a missing end: the store was stopped in order, so all records in its queues were flushed."""
    file = found.log.files[-1] if found.log.files else None
    path = file.path if file is not None else log.folder / file_name(found.end)
    return CorruptLog(
        path,
        found.end - (file.start if file is not None else found.end),
        found.end,
        f"no sound record follows, but {last_unit.path} points at one that ends at {last_unit.end:,}: the log was cut "
        "short, or its end is damaged",
        f"Restore the file from a backup, or {SKIP_HINT}; "
        "to read files that were copied while a broker wrote, put them into a folder of their own",
    )


def _end_of_records(file: LogFile, fail: bool) -> int | None:
    """Return the end of a file's last sound record, the file's end if a blank follows it, or None without a record."""
    places: list[tuple[int, int]] = []
    with file.open() as fd:
        at: int | None = file.start
        while at is not None:
            walk = LogScanner(LogRange(file, file.start, file.end), fd, at)
            for block in walk:
                offsets = block.records.parts[Part.PHYSICAL_OFFSET, -_TAIL_RECORDS:].tolist()
                places = (places + list(zip(offsets, block.records.sizes[-_TAIL_RECORDS:].tolist(), strict=True)))[
                    -_TAIL_RECORDS:
                ]
            if walk.damage is None:
                return file.end
            at = next_record(file, fd, walk.damage.physical_offset + 1, file.end)
            if at is not None:
                _tolerate(walk.damage, fail)
        if not places:
            _check_own(file, fd, fail)
            return None
        if walk.damage is not None and walk.damage.reason not in (ZEROS, FILE_ENDS):
            logger.warning("taking this for the log's end: %s", walk.damage)
        return _behind_last_checked(file, fd, places)


def _behind_last_checked(file: LogFile, fd: int, places: list[tuple[int, int]]) -> int:
    """Return the end of the last record whose body is intact: a crash left the records after it half-written."""
    for physical_offset, size in reversed(places):
        if judge(file, fd, physical_offset, check_crc=True)[1] is None:
            return physical_offset + size
    return places[0][0]


def _check_own(file: LogFile, fd: int, fail: bool) -> None:
    """Check that a file without own records is not another log's; it may be preallocated, or its first record torn."""
    try:
        other = decode_record(file.read(fd, file.start, WINDOW_BYTES))
    except CorruptRecord:
        return
    reason = f"its first record claims offset {other.physical_offset:,}: it was renamed, or is another log's"
    _tolerate(file.damaged(file.start, reason, f"Correct its name or move it away, or {SKIP_HINT}"), fail)


def _tolerate(damage: CorruptLog, fail: bool) -> None:
    if fail:
        raise damage
    logger.warning("skipped: %s", damage)
