"""Going through a stretch of a log file record by record, in large reads.

Nothing is trusted: every record's magic, size, parts and physical offset are checked, and the stretch must end where it
was said to end. The bodies' checksums are the decoder's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ....protocol.layout import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN, RECORD_HEAD_BYTES
from ....protocol.record import Buffer, CorruptRecord, decode_record
from ...errors import CorruptMessage
from ..records import RecordBlock
from ..scan import Ints, Part
from .errors import SKIP_HINT, AmbiguousBoundary, CorruptLog
from .log_files import LogFile
from .starts import find_records

WINDOW_BYTES = 8 * 1024 * 1024
"""What is read at a time: few system calls, and some 30,000 small records for one batch."""
BLOCK_ROWS_MAX = 65_536
RECORD_BYTES_MAX = 128 * 1024 * 1024
"""A record that says it is longer is taken for damaged: its bytes have to fit the memory of a task."""

ZEROS = "there are zeros instead of a record"
FILE_ENDS = "the file ends here"

_SIZE_AND_MAGIC = struct.Struct(">ii")
_DAMAGE_HELP = f"Restore the file from a backup, or {SKIP_HINT}"


@dataclass(frozen=True, slots=True)
class Stretch:
    """``[begin, end)`` of a file, in physical offsets.

    ``begin`` is a record's beginning; ``end`` is one, or the end of the file or of the log.
    """

    file: LogFile
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Block:
    """Whole records whose structure is sound; ``verified``: their bodies' checksums hold too."""

    records: RecordBlock
    verified: bool

    def __len__(self) -> int:
        return len(self.records)


class Walk:
    """The records of a stretch from ``begin`` on, as blocks; iterate it once. A block lives until the next one.

    Where something else than a record stands, the iteration ends and ``damage`` says what; its ``physical_offset`` is
    how far the walk came. ``verify`` may be changed between blocks: whether to check bodies too in the same pass.
    Raises ``AmbiguousBoundary`` where the stretch's end lies within a sound record.
    """

    def __init__(self, stretch: Stretch, fd: int, begin: int, *, verify: bool = False) -> None:
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
        """The bytes where the walk stands, in a buffer that is used again: a new one of this size would have to be
        mapped and zeroed by the kernel for every read."""
        if len(self._buffer) < count:
            self._buffer = bytearray(max(count, min(WINDOW_BYTES, self._stretch.end - self._at)))
        view = memoryview(self._buffer)[:count]
        return view[: self._stretch.file.read_into(self._fd, self._at, view)]

    def _blocks(self, blob: memoryview, starts: Ints, sizes: Ints) -> Iterator[Block]:
        """The records up to the first one that is not sound."""
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
        """The size of the record where the walk stands, longer than the ``looked_at`` bytes from there on; 0 where the
        walk ends, with ``damage`` where it must not."""
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
    """How many records are sound before the first that is not: one by one, for where not all are."""
    for number, start in enumerate(starts.tolist()):
        size, _ = _SIZE_AND_MAGIC.unpack_from(blob, start)
        if why_unsound(blob[start : start + size], physical_offset + start) is not None:
            return number
    return len(starts)


def why_unsound(record: Buffer, physical_offset: int, *, check_crc: bool = False) -> str | None:
    """What does not hold of the record that begins ``record`` and lies at ``physical_offset``; None where all holds."""
    try:
        says = decode_record(record, check_crc=check_crc).physical_offset
    except CorruptRecord as error:
        return str(error).replace("record at 0", "the record").replace(" at 0", "")
    if says != physical_offset:
        return f"the record says that it lies at {says:,}: the file was renamed, or it belongs to another log"
    return None


def judge(file: LogFile, fd: int, at: int, *, check_crc: bool = False) -> tuple[int, str | None]:
    """What stands at a place: ``(size, None)`` for a sound record, ``(0, None)`` where a blank ends the file, and
    ``(0, what does not hold)`` for anything else."""
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
        return 0, f"there is no record: its magic would be {magic & 0xFFFFFFFF:#010x}"
    if not RECORD_BYTES_MIN <= size <= min(left, RECORD_BYTES_MAX):
        return 0, f"the record claims {size:,} bytes, {left:,} are left in the file"
    reason = why_unsound(file.read(fd, at, size), at, check_crc=check_crc)
    return (size, None) if reason is None else (0, reason)


def _ambiguous(stretch: Stretch, at: int, size: int) -> AmbiguousBoundary:
    file_bytes = stretch.file.end - stretch.file.start
    return AmbiguousBoundary(
        stretch.file.path, at - stretch.file.start, at,
        f"a sound record of {size:,} bytes reaches beyond {stretch.end:,}, where one was taken to begin: its body "
        "holds what looks like records. Rows of this read are wrong and must not be used",
        f'With option("partitionBytes", "{file_bytes}") or more, partitions begin where files begin, which is certain',
    )  # fmt: skip
