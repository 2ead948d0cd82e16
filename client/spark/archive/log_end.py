"""How far a log may be read, fixed once before anything is planned."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from ....protocol.layout import RECORD_BYTES_MIN
from .boundaries import next_record
from .errors import CorruptLog
from .log_files import LogFile, LogFiles
from .walking import Stretch, judge, walk

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
    end: int | None = None
    with file.open() as fd:
        at: int | None = file.start
        while at is not None and at < file.end:
            damage = None
            for found in walk(Stretch(file, file.start, file.end), fd, at):
                if isinstance(found, CorruptLog):
                    damage = found
                else:
                    at = file.start + 0
                    end = _behind_last_checked(file, fd, found.head["physical_offset"], found.sizes, end)
            if damage is None:
                return file.end
            at = next_record(file, fd, damage.physical_offset + 1, file.end)
            if at is not None:
                if fail:
                    raise damage
                logger.warning("passed over while looking for the log's end: %s", damage)
    return end
