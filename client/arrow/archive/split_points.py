"""Finds positions in the middle of a log file where a record begins, without reading the file from its beginning."""

from __future__ import annotations

import errno
import os
import re
import struct
from dataclasses import dataclass

from ....protocol.storage.layout import MAGIC_V1, MAGIC_V2, RECORD, RECORD_HEAD_BYTES
from ....protocol.storage.record import CorruptRecord, Record, decode_record
from .log_files import LogFile
from .log_scanner import judge
from .queues import Queues

_MAGIC_BYTES = [struct.pack(">i", magic) for magic in (MAGIC_V1, MAGIC_V2)]
_COMMON = _MAGIC_BYTES[0][:3]
_MAGIC = re.compile(
    re.escape(_COMMON) + b"[" + b"".join(re.escape(each[len(_COMMON) :]) for each in _MAGIC_BYTES) + b"]"
)
assert all(each.startswith(_COMMON) for each in _MAGIC_BYTES)  # a literal prefix makes the search fast
_MAGIC_AT = RECORD.at["magic"]
_PHYSICAL_OFFSET_AT = RECORD.at["physical_offset"]
_SCAN_BYTES = 1024 * 1024
_CHAIN_RECORDS = 8
_FIRST_STEP_BYTES = 64
_CONFIRMED_WITHIN_BYTES = 64 * 1024 * 1024
"""How far to look for a confirmed boundary, in steps that double. Bodies are shorter, but the queues do not know the
messages of deleted topics, nor those that are not dispatched yet."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """A physical offset. ``certain``: a file begins there, or a ConsumeQueue confirms that a record does. Otherwise the
    bytes only look like a record, which a message's body can imitate."""

    physical_offset: int
    certain: bool


def find_boundary(file: LogFile, fd: int, wanted: int, end: int, queues: Queues) -> Boundary:
    """Return the beginning of a record at or after ``wanted``, or ``end`` (the file's or the log's) if there is none.

    A boundary that its ConsumeQueue confirms is preferred to nearer ones: the nearest may be in a body.
    """
    nearest = next_record(file, fd, wanted, end, chain=_CHAIN_RECORDS)
    if nearest is None:
        return Boundary(end, True)
    found: int | None = nearest
    step = _FIRST_STEP_BYTES
    while found is not None and found - wanted < _CONFIRMED_WITHIN_BYTES and queues.there:
        record, size = _decode(file, fd, found)
        if queues.confirm(record, size):
            return Boundary(found, True)
        found = next_record(file, fd, found + size + step, end, chain=_CHAIN_RECORDS)
        step *= 2
    return Boundary(nearest, False)


def next_record(file: LogFile, fd: int, begin: int, end: int, *, chain: int = 1) -> int | None:
    """Return the first position in ``[begin, end)`` at which ``chain`` sound records, or fewer up to ``end``, follow
    each other; None if there is no such position."""
    at = begin
    while at < end:
        at = _next_data(file, fd, at, end)
        # A head that crosses the end of a piece is complete in the next piece.
        blob = file.read(fd, at, min(_SCAN_BYTES + RECORD_HEAD_BYTES, end - at))
        for match in _MAGIC.finditer(blob):
            start = match.start() - _MAGIC_AT
            if (
                0 <= start < _SCAN_BYTES
                and _says(blob, start) == at + start
                and _chains(file, fd, at + start, end, chain)
            ):
                return at + start
        at += _SCAN_BYTES
    return None


def _next_data(file: LogFile, fd: int, at: int, end: int) -> int:
    """Return ``at``, or the end of the sparse hole that contains it."""
    try:
        return file.start + os.lseek(fd, at - file.start, os.SEEK_DATA)
    except OSError as error:
        return (
            end if error.errno == errno.ENXIO else at
        )  # ENXIO: only a hole follows; else the file system has no holes


def _says(blob: bytes, start: int) -> int:
    """Return the physical offset in the head of a record at ``start``."""
    return int.from_bytes(blob[start + _PHYSICAL_OFFSET_AT : start + _PHYSICAL_OFFSET_AT + 8], "big", signed=True)


def _chains(file: LogFile, fd: int, at: int, end: int, count: int) -> bool:
    for number in range(count):
        if at >= end:
            return at == end
        size, reason = judge(file, fd, at, check_crc=True)
        if reason is not None:
            return False
        if size == 0:
            return number > 0  # a blank fills the rest of the file
        at += size
    return at <= end


def _decode(file: LogFile, fd: int, at: int) -> tuple[Record, int]:
    size, _ = judge(file, fd, at)
    try:
        return decode_record(file.read(fd, at, size), check_crc=False), size
    except CorruptRecord:  # pragma: no cover - it was sound a moment earlier
        raise file.damaged(at, "the record changed while it was read", "Read again") from None
