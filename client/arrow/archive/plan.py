"""Cuts a log into partitions on the driver, reading only a few records of each."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ....protocol.storage.layout import RECORD_HEAD_BYTES_MAX
from ....protocol.storage.record import CorruptRecord, decode_record, unpack_head
from ....protocol.store_files import file_name
from ..errors import DataLoss, InvalidOption
from ..scan import Part
from .errors import SKIP_HINT, CorruptLog
from .log_files import LogFile, LogFiles
from .log_reader import (
    FILE_ENDS,
    WINDOW_BYTES,
    ZEROS,
    Boundary,
    LogRange,
    LogScanner,
    find_boundary,
    judge,
    next_record,
)
from .options import ArchiveOptions
from .queues import LastUnit, Queues

# ---- Finds the end of the readable log, once, before the read is planned.

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


@dataclass(frozen=True, slots=True)
class Piece:
    """A planned stretch: ``certain`` if its beginning is, and the store time of its first record in ms (None if that
    record is damaged)."""

    stretch: LogRange
    certain: bool
    stored_ms: int | None


def plan(log: ReadableLog, options: ArchiveOptions) -> list[list[LogRange]]:
    """Return the stretches of each partition, in the log's order; none if no record is in the requested range.

    Files are skipped by the store time of their first records, which a broker never lets decrease. Raises
    ``CorruptLog`` if a file does not begin with a record of its own, ``DataLoss`` and ``InvalidOption`` if the
    requested offsets are not in the log.
    """
    _check_offsets(log, options)
    firsts = [_first_piece(stretch, options) for stretch in log.stretches if stretch.begin < stretch.end]
    pieces: list[Piece] = []
    queues = log.log.queues()
    for first in _wanted(firsts, options):
        pieces += _cut(first, options.partition_bytes, queues)
    return _pack([piece.stretch for piece in _wanted(pieces, options)], options.partition_bytes)


def _check_offsets(log: ReadableLog, options: ArchiveOptions) -> None:
    begin, end = options.starting_physical_offset, options.ending_physical_offset
    if begin is not None and begin < log.log.start:
        raise DataLoss(
            f'option("startingPhysicalOffset", "{begin}"): the log begins at {log.log.start:,}, the records before it '
            f"were deleted. Begin there, or leave the option out"
        )
    for name, value in (("startingPhysicalOffset", begin), ("endingPhysicalOffset", end)):
        if value is not None and value > log.end:
            raise InvalidOption(
                f'option("{name}", "{value}"): the log can be read up to {log.end:,}'
                + (", which its checkpoint says is flushed" if log.log.flushed_offset is not None else "")
                + "; ask for no more, or leave the option out"
            )


def _first_piece(stretch: LogRange, options: ArchiveOptions) -> Piece:
    """Return a file's piece with its first record's store time; that record must contain the file's offset."""
    with stretch.file.open() as fd:
        size, reason = judge(stretch.file, fd, stretch.begin)
        if reason is None:
            stored_ms = _store_time(stretch, fd, stretch.begin) if size else None
            return Piece(stretch, True, stored_ms)
    error = stretch.file.damaged(stretch.begin, f"no record begins the file: {reason}", f"Restore it, or {SKIP_HINT}")
    if options.fail_on_corruption:
        raise error
    logger.warning("will be skipped: %s", error)
    return Piece(stretch, True, None)


def _store_time(stretch: LogRange, fd: int, at: int) -> int:
    return unpack_head(stretch.file.read(fd, at, RECORD_HEAD_BYTES_MAX)).store_timestamp


def _wanted(pieces: list[Piece], options: ArchiveOptions) -> Iterator[Piece]:
    """Yield the pieces except those that cannot contain anything in the requested range.

    A piece before the range is left out only if the next piece's beginning is certain: otherwise the walk through the
    piece must prove that it ends there.
    """
    kept = False
    for piece, following in zip(pieces, [*pieces, None][1:], strict=True):
        if not kept and following is not None and following.certain and _all_before(following, options):
            continue
        if _all_behind(piece, options):
            return
        kept = True
        yield piece


def _all_before(following: Piece, options: ArchiveOptions) -> bool:
    """Return whether everything before a piece is before the requested range."""
    begin, begin_ms = options.starting_physical_offset, options.starting_ms
    return (begin is not None and following.stretch.begin <= begin) or (
        begin_ms is not None and following.stored_ms is not None and following.stored_ms < begin_ms
    )


def _all_behind(piece: Piece, options: ArchiveOptions) -> bool:
    """Return whether a piece and everything after it is after the requested range."""
    end, end_ms = options.ending_physical_offset, options.ending_ms
    return (end is not None and piece.stretch.begin >= end) or (
        end_ms is not None and piece.stored_ms is not None and piece.stored_ms >= end_ms
    )


def _cut(piece: Piece, partition_bytes: int, queues: Queues) -> list[Piece]:
    """Cut a file's readable part into about equal pieces of at most ``partition_bytes`` and a record."""
    stretch = piece.stretch
    total = stretch.end - stretch.begin
    count = -(-total // partition_bytes)
    if count <= 1:
        return [piece]
    pieces = []
    with stretch.file.open() as fd:
        begin = Boundary(stretch.begin, True)
        stored_ms = piece.stored_ms
        for number in range(1, count + 1):
            wanted = stretch.begin + total * number // count
            if wanted <= begin.physical_offset and number < count:
                continue  # a record that is longer than a piece
            end = (
                find_boundary(stretch.file, fd, wanted, stretch.end, queues)
                if number < count
                else Boundary(stretch.end, True)
            )
            pieces.append(
                Piece(LogRange(stretch.file, begin.physical_offset, end.physical_offset), begin.certain, stored_ms)
            )
            if end.physical_offset >= stretch.end:
                break
            begin, stored_ms = end, _store_time(stretch, fd, end.physical_offset)
    return pieces


def _pack(stretches: list[LogRange], partition_bytes: int) -> list[list[LogRange]]:
    """Combine small neighbours into partitions."""
    partitions: list[list[LogRange]] = []
    filled = 0
    for stretch in stretches:
        size = stretch.end - stretch.begin
        if not partitions or filled + size > partition_bytes:
            partitions.append([])
            filled = 0
        partitions[-1].append(stretch)
        filled += size
    return partitions
