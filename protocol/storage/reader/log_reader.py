"""Walks through a log's files: checks each record, finds places where records begin, and the log's end."""

from __future__ import annotations

import logging
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ...store_files import file_name
from ..layout import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RECORD, RECORD_BYTES_MIN, RECORD_HEAD_BYTES
from ..record import Buffer, CorruptRecord, Record, decode_record
from .errors import SKIP_HINT, AmbiguousBoundary, CorruptLog, OnDamage, raise_damage
from .log_files import LogFile, LogFiles
from .parts import SOUND, Ints, Part
from .queues import LastUnit, Queues
from .records import ScannedRecords, scan

_SIZE_AND_MAGIC = struct.Struct(">ii")

# ---- Walks through a stretch of a log file record by record, in large reads.
#
# It trusts nothing: it checks every record's magic, size, parts and physical offset, and that the stretch
# ends at its planned end. The decoder checks the bodies' checksums.

WINDOW_BYTES = 8 * 1024 * 1024
"""Bytes of one read: large for few system calls, and enough for some 30,000 small records in a batch."""
BLOCK_ROWS_MAX = 65_536
RECORD_BYTES_MAX = 128 * 1024 * 1024
"""Maximum size of a record; a larger size counts as damage, because a record's bytes must fit a task's memory."""

ZEROS = "there are zeros instead of a record"
FILE_ENDS = "the file ends here"

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

    records: ScannedRecords
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
        from .scan import find_records  # on first use, as in ``records``

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
            parts, damaged = scan(blob, starts[rows], sizes[rows], verify=verified)
            if damaged != SOUND:
                count, verified = _count_sound(blob, starts[rows], self._at), False
                rows = slice(first, first + count)
                parts, _ = scan(blob, starts[rows], sizes[rows], verify=False)
            block = ScannedRecords(blob, starts[rows], sizes[rows], parts)
            in_place = block.parts[Part.PHYSICAL_OFFSET] == self._at + block.starts
            if not in_place.all():
                count = int(in_place.argmin())
                block = block.select(np.arange(len(block)) < count)
            if count:
                yield Block(block, verified)
            if count < len(starts[first : first + BLOCK_ROWS_MAX]):
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


# ---- Finds positions in the middle of a log file where a record begins, without reading the file from its
# beginning.

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


def next_record(file: LogFile, fd: int, begin: int, end: int, *, chain: int = 1, check_crc: bool = True) -> int | None:
    """Return the first position in ``[begin, end)`` at which ``chain`` sound records, or fewer up to ``end``, follow
    each other; None if there is no such position. ``check_crc``: their bodies must be sound too."""
    at = begin
    while at < end:
        at = file.next_data(fd, at)
        # A head that crosses the end of a piece is complete in the next piece.
        blob = file.read(fd, at, min(_SCAN_BYTES + RECORD_HEAD_BYTES, end - at))
        for match in _MAGIC.finditer(blob):
            start = match.start() - _MAGIC_AT
            if (
                0 <= start < _SCAN_BYTES
                and _says(blob, start) == at + start
                and _chains(file, fd, at + start, end, chain, check_crc=check_crc)
            ):
                return at + start
        at += _SCAN_BYTES
    return None


def _says(blob: Buffer, start: int) -> int:
    """Return the physical offset in the head of a record at ``start``."""
    return int.from_bytes(blob[start + _PHYSICAL_OFFSET_AT : start + _PHYSICAL_OFFSET_AT + 8], "big", signed=True)


def _chains(file: LogFile, fd: int, at: int, end: int, count: int, *, check_crc: bool) -> bool:
    for number in range(count):
        if at >= end:
            return at == end
        size, reason = judge(file, fd, at, check_crc=check_crc)
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


def find_end(log: LogFiles, on_damage: OnDamage = raise_damage) -> ReadableLog:
    """Return the log up to FlintMQ's mark, below which nothing changes any more.

    Without a mark (in RocketMQ's store, or for files alone), the log ends after the last sound record; to find it, the
    last file that contains records is scanned; ``on_damage`` is called for damage before that record.
    """
    if log.flushed_offset is not None:
        end = min(log.flushed_offset, log.files[-1].end) if log.files else log.start
        return ReadableLog(log, end)
    # The queues are read first: a record that a queue points at was already in the log.
    last_unit = log.queues().last_unit() if log.stopped_in_order else None
    found = _last_with_records(log, on_damage)
    if last_unit is not None and last_unit.end > found.end:
        on_damage(_lost_end(log, found, last_unit))
    return found


def _last_with_records(log: LogFiles, on_damage: OnDamage) -> ReadableLog:
    files = list(log.files)
    while files:
        end = _end_of_records(files[-1], on_damage)
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


def _end_of_records(file: LogFile, on_damage: OnDamage) -> int | None:
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
                on_damage(walk.damage)
        if not places:
            _check_own(file, fd, on_damage)
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


def _check_own(file: LogFile, fd: int, on_damage: OnDamage) -> None:
    """Check that a file without own records is not another log's; it may be preallocated, or its first record torn."""
    try:
        other = decode_record(file.read(fd, file.start, WINDOW_BYTES))
    except CorruptRecord:
        return
    reason = f"its first record claims offset {other.physical_offset:,}: it was renamed, or is another log's"
    on_damage(file.damaged(file.start, reason, f"Correct its name or move it away, or {SKIP_HINT}"))
