"""Walks through a stretch of a log file record by record, in large reads.

It trusts nothing: it checks every record's magic, size, parts and physical offset, and that the stretch ends at its
planned end. The decoder checks the bodies' checksums.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ....protocol.storage.layout import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN, RECORD_HEAD_BYTES
from ....protocol.storage.record import Buffer, CorruptRecord, decode_record
from ...errors import CorruptMessage
from ..records import RecordBlock
from ..scan import Ints, Part
from .errors import SKIP_HINT, AmbiguousBoundary, CorruptLog
from .log_files import LogFile
from .starts import find_records

WINDOW_BYTES = 8 * 1024 * 1024
"""Bytes of one read: large for few system calls, and enough for some 30,000 small records in a batch."""
BLOCK_ROWS_MAX = 65_536
RECORD_BYTES_MAX = 128 * 1024 * 1024
"""Maximum size of a record; a larger size counts as damage, because a record's bytes must fit a task's memory."""

ZEROS = "there are zeros instead of a record"
FILE_ENDS = "the file ends here"

_SIZE_AND_MAGIC = struct.Struct(">ii")
_DAMAGE_HELP = f"Restore the file from a backup, or {SKIP_HINT}"


@dataclass(frozen=True, slots=True)
class LogRange:
    """``[begin, end)`` of a file, in physical offsets.

    A record begins at ``begin``; at ``end`` a record begins, or the file or the log ends.
    """

    file: LogFile
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Block:
    """Complete records with a sound structure; ``verified``: their bodies' checksums are right too."""

    records: RecordBlock
    verified: bool

    def __len__(self) -> int:
        return len(self.records)


class LogScanner:
    """The records of a stretch from ``begin`` on, as blocks; iterate it once. A block is valid until the next one.

    The iteration ends at anything that is not a record, and ``damage`` describes it; its ``physical_offset`` is where
    the walk stopped. ``verify`` may be changed between blocks: whether to check bodies too in the same pass.
    Raises ``AmbiguousBoundary`` if the stretch's end is within a sound record.
    """

    def __init__(self, stretch: LogRange, fd: int, begin: int, *, verify: bool = False) -> None:
        self.verify = verify
        self.damage: CorruptLog | None = None
        self._stretch = stretch
        self._fd = fd
        self._at = begin
        self._buffer = bytearray()

    def __iter__(self) -> Iterator[Block]:
        end, window = self._stretch.end, WINDOW_BYTES
        while self._at < end:
            blob = self._read(min(window, end - self._at))
            starts, sizes = find_records(blob)
            count = 0
            for block in self._blocks(blob, starts, sizes):
                count += len(block)
                yield block
            if count:
                self._at += int(starts[count - 1] + sizes[count - 1])
            if count and count == len(starts):
                window = WINDOW_BYTES
                continue
            size = self._longer_record(len(blob))
            if not size:
                return
            window = size

    def _read(self, count: int) -> memoryview:
        """Read bytes at the walk's position into a reused buffer: the kernel would have to map and zero a new buffer of
        this size for every read."""
        if len(self._buffer) < count:
            self._buffer = bytearray(max(count, min(WINDOW_BYTES, self._stretch.end - self._at)))
        view = memoryview(self._buffer)[:count]
        return view[: self._stretch.file.read_into(self._fd, self._at, view)]

    def _blocks(self, blob: memoryview, starts: Ints, sizes: Ints) -> Iterator[Block]:
        """Yield the records up to the first unsound one."""
        for first in range(0, len(starts), BLOCK_ROWS_MAX):
            rows = slice(first, first + BLOCK_ROWS_MAX)
            count, verified = len(starts[rows]), self.verify
            try:
                block = RecordBlock(blob, starts[rows], sizes[rows], verify=verified)
            except CorruptMessage:
                count, verified = _count_sound(blob, starts[rows], self._at), False
                block = RecordBlock(blob, starts[first : first + count], sizes[first : first + count], verify=False)
            in_place = block.parts[Part.PHYSICAL_OFFSET] == self._at + block.starts
            if not in_place.all():
                count = int(in_place.argmin())
                block = block.select(np.arange(len(block)) < count)
            if count:
                yield Block(block, verified)
            if count < len(starts[rows]):
                return

    def _longer_record(self, looked_at: int) -> int:
        """Return the size of the record at the walk's position if it is longer than the ``looked_at`` bytes read;
        0 if the walk ends, after setting ``damage`` if it should not end here."""
        stretch, at = self._stretch, self._at
        size, reason = judge(stretch.file, self._fd, at)
        if reason is None:
            if size == 0:
                if stretch.end == stretch.file.end:
                    return 0
                reason = f"the file's records end here, before {stretch.end:,}"
            elif at + size > stretch.end:
                raise _ambiguous(stretch, at, size)
            elif size > looked_at:
                return size
            else:
                reason = "the record changed while it was read"
        self.damage = stretch.file.damaged(at, reason, _DAMAGE_HELP)
        return 0


def _count_sound(blob: memoryview, starts: Ints, physical_offset: int) -> int:
    """Return the number of sound records before the first unsound one; checks one by one, only after a failure."""
    for number, start in enumerate(starts.tolist()):
        size, _ = _SIZE_AND_MAGIC.unpack_from(blob, start)
        if why_unsound(blob[start : start + size], physical_offset + start) is not None:
            return number
    return len(starts)


def why_unsound(record: Buffer, physical_offset: int, *, check_crc: bool = False) -> str | None:
    """Return the defect of the record at the beginning of ``record`` and at ``physical_offset``, or None if sound."""
    try:
        says = decode_record(record, check_crc=check_crc).physical_offset
    except CorruptRecord as error:
        return str(error).replace("record at 0", "the record").replace(" at 0", "")
    if says != physical_offset:
        return f"the record claims offset {says:,}: the file was renamed, or it belongs to another log"
    return None


def judge(file: LogFile, fd: int, at: int, *, check_crc: bool = False) -> tuple[int, str | None]:
    """Judge the bytes at a position: ``(size, None)`` for a sound record, ``(0, None)`` for a blank at the file's end,
    and ``(0, defect)`` for anything else."""
    head = file.read(fd, at, RECORD_HEAD_BYTES)
    if len(head) < _SIZE_AND_MAGIC.size:
        return 0, FILE_ENDS if not head else "the file ends in the middle of a record"
    size, magic = _SIZE_AND_MAGIC.unpack_from(head)
    left = file.end - at
    if magic == MAGIC_BLANK and size == left:
        return 0, None
    if size == 0 and magic == 0:
        return 0, ZEROS
    if magic not in (MAGIC_V1, MAGIC_V2):
        return 0, f"this is not a record: its magic would be {magic & 0xFFFFFFFF:#010x}"
    if not RECORD_BYTES_MIN <= size <= min(left, RECORD_BYTES_MAX):
        return 0, f"the record claims {size:,} bytes, {left:,} are left in the file"
    reason = why_unsound(file.read(fd, at, size), at, check_crc=check_crc)
    return (size, None) if reason is None else (0, reason)


def _ambiguous(stretch: LogRange, at: int, size: int) -> AmbiguousBoundary:
    file_bytes = stretch.file.end - stretch.file.start
    return AmbiguousBoundary(
        stretch.file.path,
        at - stretch.file.start,
        at,
        f"a sound record of {size:,} bytes reaches beyond {stretch.end:,}, where one was expected to begin: its body "
        "contains bytes that look like records. The rows of this read are wrong and must not be used",
        f'With option("partitionBytes", "{file_bytes}") or more, partitions begin where files begin, which is certain',
    )
