"""Cuts a log into partitions on the driver, reading only a few records of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ....protocol.storage.layout import RECORD_HEAD_BYTES_MAX
from ....protocol.storage.reader.errors import SKIP_HINT, DataLoss
from ....protocol.storage.reader.log_reader import Boundary, LogRange, ReadableLog, find_boundary, judge
from ....protocol.storage.reader.queues import Queues
from ....protocol.storage.record import unpack_head
from ..errors import InvalidOption
from .options import StoreReadOptions


@dataclass(frozen=True, slots=True)
class Piece:
    """A planned stretch: ``certain`` if its beginning is, and the store time of its first record in ms (None if that
    record is damaged)."""

    stretch: LogRange
    certain: bool
    stored_ms: int | None


def plan(log: ReadableLog, options: StoreReadOptions) -> list[list[LogRange]]:
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


def _check_offsets(log: ReadableLog, options: StoreReadOptions) -> None:
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


def _first_piece(stretch: LogRange, options: StoreReadOptions) -> Piece:
    """Return a file's piece with its first record's store time; that record must contain the file's offset."""
    with stretch.file.open() as fd:
        size, reason = judge(stretch.file, fd, stretch.begin)
        if reason is None:
            stored_ms = _store_time(stretch, fd, stretch.begin) if size else None
            return Piece(stretch, True, stored_ms)
    error = stretch.file.damaged(stretch.begin, f"no record begins the file: {reason}", f"Restore it, or {SKIP_HINT}")
    options.on_damage(error)
    return Piece(stretch, True, None)


def _store_time(stretch: LogRange, fd: int, at: int) -> int:
    return unpack_head(stretch.file.read(fd, at, RECORD_HEAD_BYTES_MAX)).store_timestamp


def _wanted(pieces: list[Piece], options: StoreReadOptions) -> Iterator[Piece]:
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


def _all_before(following: Piece, options: StoreReadOptions) -> bool:
    """Return whether everything before a piece is before the requested range."""
    begin, begin_ms = options.starting_physical_offset, options.starting_ms
    return (begin is not None and following.stretch.begin <= begin) or (
        begin_ms is not None and following.stored_ms is not None and following.stored_ms < begin_ms
    )


def _all_behind(piece: Piece, options: StoreReadOptions) -> bool:
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
