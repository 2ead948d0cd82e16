"""Places in the middle of a log file where a record begins, found without reading the file from its beginning."""

from __future__ import annotations

import errno
import os
import re
import struct
from dataclasses import dataclass

from ....protocol.layout import MAGIC_V1, MAGIC_V2, RECORD, RECORD_HEAD_BYTES
from ....protocol.record import CorruptRecord, Record, decode_record
from .log_files import LogFile
from .queues import Queues
from .walking import judge

_MAGIC_BYTES = [struct.pack(">i", magic) for magic in (MAGIC_V1, MAGIC_V2)]
_COMMON = _MAGIC_BYTES[0][:3]
_MAGIC = re.compile(
    re.escape(_COMMON) + b"[" + b"".join(re.escape(each[len(_COMMON) :]) for each in _MAGIC_BYTES) + b"]"
)
assert all(each.startswith(_COMMON) for each in _MAGIC_BYTES)  # a literal beginning makes the search fast
_MAGIC_AT = RECORD.at["magic"]
_PHYSICAL_OFFSET_AT = RECORD.at["physical_offset"]
_SCAN_BYTES = 1024 * 1024
_CHAIN_RECORDS = 8
_FIRST_STEP_BYTES = 64
_CONFIRMED_WITHIN_BYTES = 64 * 1024 * 1024
"""How far a confirmed boundary is looked for, in steps that double: bodies are shorter, but the queues know nothing of
deleted topics, nor of what was not dispatched yet."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """A physical offset. ``certain``: a file begins there, or a ConsumeQueue says that a record does; otherwise the
    bytes look like it, which a message's body can feign."""

    physical_offset: int
    certain: bool


def find_boundary(file: LogFile, fd: int, wanted: int, end: int, queues: Queues) -> Boundary:
    """A record's beginning at ``wanted`` or behind it; ``end``, the file's or the log's, where there is none before.

    One that its ConsumeQueue confirms is taken before others that are nearer: the nearest may lie in a body.
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
    """The first place in ``[begin, end)`` where ``chain`` sound records stand one behind the other, or fewer up to
    ``end``. None where there is none."""
    at = begin
    while at < end:
        at = _next_data(file, fd, at, end)
        # Heads that lie across the end of a piece are whole in the next one.
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
    """``at``, or where the hole ends that it lies in."""
    try:
        return file.start + os.lseek(fd, at - file.start, os.SEEK_DATA)
    except OSError as error:
        return end if error.errno == errno.ENXIO else at  # nothing but a hole follows; a file system without holes


def _says(blob: bytes, start: int) -> int:
    """The physical offset that a record at ``start`` would have."""
    return int.from_bytes(blob[start + _PHYSICAL_OFFSET_AT : start + _PHYSICAL_OFFSET_AT + 8], "big", signed=True)


def _chains(file: LogFile, fd: int, at: int, end: int, count: int) -> bool:
    for number in range(count):
        if at >= end:
            return at == end
        size, reason = judge(file, fd, at, check_crc=True)
        if reason is not None:
            return False
        if size == 0:
            return number > 0  # a blank ends the file
        at += size
    return at <= end


def _decode(file: LogFile, fd: int, at: int) -> tuple[Record, int]:
    size, _ = judge(file, fd, at)
    try:
        return decode_record(file.read(fd, at, size), check_crc=False), size
    except CorruptRecord:  # pragma: no cover - it was sound a moment ago
        raise file.damaged(at, "the record changed while it was read", "Read again") from None
