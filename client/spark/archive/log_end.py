"""How far a log may be read, fixed once before anything is planned."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from ....protocol.record import CorruptRecord, decode_record
from ..records import RecordBlock
from ..scan import Part
from .boundaries import next_record
from .errors import SKIP_HINT, CorruptLog
from .log_files import LogFile, LogFiles
from .walking import WINDOW_BYTES, Stretch, Walk, why_unsound

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReadableLog:
    """A log's files with the end of what may be read of them; no file begins behind it."""

    log: LogFiles
    end: int

    @property
    def stretches(self) -> list[Stretch]:
        """Each file's readable part."""
        return [Stretch(file, file.start, min(file.end, self.end)) for file in self.log.files]


def find_end(log: LogFiles, *, fail_on_corruption: bool = True) -> ReadableLog:
    """The log up to FlintMQ's mark, below which nothing changes any more.

    Without a mark (RocketMQ's store, or files alone) up to the last record that is sound, for which the last file that
    holds any is gone through. Raises ``CorruptLog`` where damage lies before that record, unless
    ``fail_on_corruption`` is false.
    """
    if log.flushed_offset is not None:
        end = min(log.flushed_offset, log.files[-1].end) if log.files else log.start
        return ReadableLog(log, end)
    files = list(log.files)
    while files:
        end = _end_of_records(files[-1], fail_on_corruption)
        if end is not None:
            return ReadableLog(replace(log, files=tuple(files)), end)
        files.pop()  # made ahead, nothing was written to it yet
    return ReadableLog(replace(log, files=()), log.start)


def _end_of_records(file: LogFile, fail: bool) -> int | None:
    """Behind the last sound record of a file; the file's own end where a blank follows it. None without a record."""
    last: RecordBlock | None = None
    with file.open() as fd:
        at: int | None = file.start
        while at is not None:
            walk = Walk(Stretch(file, file.start, file.end), fd, at)
            for block in walk:
                last = block.records
            if walk.damage is None:
                return file.end
            at = next_record(file, fd, walk.damage.physical_offset + 1, file.end)
            if at is not None:
                _tolerate(walk.damage, fail)
        if last is None:
            _check_own(file, fd, fail)
            return None
    return _behind_last_checked(last)


def _behind_last_checked(block: RecordBlock) -> int:
    """Where the last record ends whose body checks: what a crash left behind it was not written whole."""
    for row in range(len(block) - 1, -1, -1):
        physical_offset = int(block.parts[Part.PHYSICAL_OFFSET, row])
        if why_unsound(block.record(row), physical_offset, check_crc=True) is None:
            return physical_offset + int(block.sizes[row])
    return int(block.parts[Part.PHYSICAL_OFFSET, 0])


def _check_own(file: LogFile, fd: int, fail: bool) -> None:
    """A file without a record of this log was made ahead, or its first record was torn; but it may be another log's."""
    try:
        other = decode_record(file.read(fd, file.start, WINDOW_BYTES))
    except CorruptRecord:
        return
    reason = f"its first record says that it lies at {other.physical_offset:,}: it was renamed, or is another log's"
    _tolerate(file.damaged(file.start, reason, f"Put its name right or move it away, or {SKIP_HINT}"), fail)


def _tolerate(damage: CorruptLog, fail: bool) -> None:
    if fail:
        raise damage
    logger.warning("passed over: %s", damage)
