"""Reads stretches of the log, and turns the selected records into record batches."""

from __future__ import annotations

import difflib
import errno
import json
import logging
import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from ....protocol.names import is_system_topic, name_fault
from ....protocol.storage.layout import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RECORD, RECORD_BYTES_MIN, RECORD_HEAD_BYTES
from ....protocol.storage.record import Buffer, CorruptRecord, Record, decode_record
from ...errors import CorruptMessage
from ..decoder import Decoder
from ..errors import InvalidOption
from ..records import RecordBlock
from ..scan import Ints, Part, Rows
from .errors import SKIP_HINT, AmbiguousBoundary, CorruptLog
from .log_files import LogFile, LogFiles
from .options import ArchiveOptions
from .queues import Queues

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
        from ..scan_numba import find_records  # on first use, as in ``records``

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


# ---- Finds the records of selected topics in a block, without a Python object for each record.

_WORD_BYTES = 8
_MASKS = np.array([(1 << 8 * count) - 1 for count in range(_WORD_BYTES + 1)], np.uint64)
"""Masks that keep the given number of bytes of a little-endian word."""
_KNOWN_MAX = 65_536
_SHOWN = 10


class TopicFilter:
    """Selects topics: ``names``: these, system topics too; ``pattern``: those whose whole name matches; neither: all.
    System topics are selected only by ``names``."""

    def __init__(self, names: tuple[str, ...] | None = None, pattern: re.Pattern[str] | None = None) -> None:
        self._names = None if names is None else frozenset(names)
        self._pattern = pattern
        self._known: dict[bytes, bool] = {}

    def wants(self, topic: str) -> bool:
        """Return whether the topic's messages are selected."""
        if self._names is not None:
            return topic in self._names
        if is_system_topic(topic):
            return False
        return self._pattern is None or self._pattern.fullmatch(topic) is not None

    def rows(self, block: RecordBlock) -> Rows:
        """Return which records are of selected topics. Looks at the topic once per run of records with the same one."""
        begins = _runs(block)
        at, end = block.parts[Part.TOPIC_AT, begins].tolist(), block.parts[Part.TOPIC_END, begins].tolist()
        wanted = [self._wants(bytes(block.blob[start:stop])) for start, stop in zip(at, end, strict=True)]
        return np.repeat(np.array(wanted, np.bool_), np.diff(begins, append=len(block)))

    def _wants(self, topic: bytes) -> bool:
        wanted = self._known.get(topic)
        if wanted is None:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            wanted = self._known[topic] = self.wants(topic.decode("utf-8", "replace"))
        return wanted


def check_topics(names: Iterable[str], log: LogFiles) -> None:
    """Raise ``InvalidOption`` for a topic that the store does not know; without a store nothing is checked."""
    known = log.queues().topics()
    if known is None or log.store is None:
        return
    known |= _configured(log.store / "config" / "topics.json")
    for name in names:
        if name not in known:
            if fault := name_fault("topic", name):
                raise InvalidOption(f"topic {name!r} is not in {log.store}; its name {fault}")
            own = [topic for topic in known if not is_system_topic(topic)]
            own.sort(key=lambda topic: (topic.startswith("%"), topic))  # retry topics and dead letters come last
            near = difflib.get_close_matches(name, own, 1)
            meant = f" (did you mean {near[0]!r}?)" if near else ""
            more = f" and {len(own) - _SHOWN} more" if len(own) > _SHOWN else ""
            raise InvalidOption(
                f"topic {name!r} is not in {log.store}{meant}; it has {', '.join(own[:_SHOWN]) or 'none'}{more}. "
                "With Spark, option('subscribePattern', …) reads the rest of a deleted topic"
            )


def _configured(path: Path) -> set[str]:
    """Return the topics in the table, including those that never had a message."""
    try:
        return set(json.loads(path.read_bytes())["topicConfigTable"])
    except (OSError, ValueError, KeyError, TypeError):  # the queues list every topic that has had a message
        return set()


def _runs(block: RecordBlock) -> Ints:
    """Return the first record, and each record whose topic differs from that of the record before it."""
    at = block.parts[Part.TOPIC_AT]
    length = block.parts[Part.TOPIC_END] - at
    shortest, longest = int(length.min()), int(length.max())
    differs = np.ones(len(block), np.bool_)
    np.not_equal(length[1:], length[:-1], out=differs[1:])
    # The little-endian word at every byte position of the buffer.
    words = np.ndarray((max(0, len(block.blob) - _WORD_BYTES + 1),), "<u8", block.blob, strides=(1,))
    for offset in range(0, longest, _WORD_BYTES):
        place = at + offset
        # A word at the end of the buffer cannot be read whole: its record counts as a separate run. Positions ascend.
        beyond = int(np.searchsorted(place, len(words)))
        word = words[np.minimum(place, len(words) - 1)]
        if shortest < offset + _WORD_BYTES:
            word &= _MASKS[longest - offset if shortest == longest else np.clip(length - offset, 0, _WORD_BYTES)]
        differs[1:] |= word[1:] != word[:-1]
        differs[beyond:] = True
    return np.flatnonzero(differs)


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


BATCH_ROWS_MIN = 16_384
BATCH_BYTES_MIN = 4 * 1024 * 1024
"""Smaller blocks are collected into a batch of this size: a small batch costs Spark as much as a large one."""
_LOGGED_MAX = 20
_HELP = f"Restore the file from a backup, or {SKIP_HINT}"
logger = logging.getLogger(__name__)


class PartitionReader:
    """Reads one partition; iterate ``batches()`` once. ``on_skip`` is called with each damage that is skipped.

    Afterwards ``skipped`` and ``skipped_bytes`` count the damage that was skipped (``failOnCorruption=false``).
    """

    def __init__(
        self,
        stretches: Sequence[LogRange],
        decoder: Decoder,
        options: ArchiveOptions,
        on_skip: Callable[[CorruptLog], None] | None = None,
    ) -> None:
        self.skipped = 0
        self.skipped_bytes = 0
        self._stretches = stretches
        self._options = options
        self._decoder = decoder
        self._on_skip = on_skip
        self._topics = TopicFilter(options.topics, options.pattern)
        self._logged = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield record batches, in the log's order. Raises ``CorruptLog`` and ``DataLoss``."""
        collected = _Collected()
        for stretch in self._stretches:
            for block in self._blocks(stretch):
                if len(block) < BATCH_ROWS_MIN and int(block.sizes.sum()) < BATCH_BYTES_MIN:
                    collected.add(block)
                    if collected.count < BATCH_ROWS_MIN and collected.size < BATCH_BYTES_MIN:
                        continue
                    block = collected.take()
                elif collected.count:
                    yield from self._decode(collected.take())
                yield from self._decode(block)
        if collected.count:
            yield from self._decode(collected.take())
        if self.skipped_bytes:
            logger.warning("skipped %d damaged places, %d bytes", self.skipped, self.skipped_bytes)

    # ---- which records

    def _blocks(self, stretch: LogRange) -> Iterator[RecordBlock]:
        """Yield the selected records of a stretch, verified if the options ask for it."""
        options = self._options
        with stretch.file.open() as fd:
            at: int | None = stretch.begin
            while at is not None and at < stretch.end:
                walk = LogScanner(stretch, fd, at, verify=options.verify_checksums)
                for block in walk:
                    wanted = block.records.select(self._wanted(block.records, stretch))
                    # Checking bodies in the walk's own pass is cheaper, unless most of them belong to other topics.
                    walk.verify = options.verify_checksums and 2 * len(wanted) > len(block)
                    if len(wanted):
                        yield self._verified(stretch, Block(wanted, block.verified))
                if walk.damage is None:
                    return
                at = self._behind(walk.damage, stretch, fd)

    def _wanted(self, block: RecordBlock, stretch: LogRange) -> Rows:
        options, stored_ms = self._options, block.parts[Part.STORED_MS]
        rows = self._topics.rows(block)
        for begin, end in stretch.file.quarantined:
            rows &= (block.parts[Part.PHYSICAL_OFFSET] < begin) | (block.parts[Part.PHYSICAL_OFFSET] >= end)
        if options.starting_ms is not None:
            rows &= stored_ms >= options.starting_ms
        if options.ending_ms is not None:
            rows &= stored_ms < options.ending_ms
        if options.starting_physical_offset is not None:
            rows &= block.parts[Part.PHYSICAL_OFFSET] >= options.starting_physical_offset
        if options.ending_physical_offset is not None:
            rows &= block.parts[Part.PHYSICAL_OFFSET] < options.ending_physical_offset
        return rows

    # ---- damage

    def _verified(self, stretch: LogRange, block: Block) -> RecordBlock:
        """Return the block without records whose bodies are damaged."""
        records = block.records
        if block.verified or not self._options.verify_checksums:
            return records
        try:
            return RecordBlock(records.blob, records.starts, records.sizes)
        except CorruptMessage:
            sound = np.ones(len(records), np.bool_)
            for row, physical_offset in enumerate(records.parts[Part.PHYSICAL_OFFSET].tolist()):
                reason = why_unsound(records.record(row), physical_offset, check_crc=True)
                if reason is not None:
                    sound[row] = False
                    self._skip(stretch.file.damaged(physical_offset, reason, _HELP), int(records.sizes[row]))
            return records.select(sound)

    def _behind(self, damage: CorruptLog, stretch: LogRange, fd: int) -> int | None:
        """Return the beginning of the stretch's next sound record, or None without one."""
        if self._options.fail_on_corruption:
            raise damage
        at = next_record(stretch.file, fd, damage.physical_offset + 1, stretch.end)
        self._skip(damage, (stretch.end if at is None else at) - damage.physical_offset)
        return at

    def _skip(self, damage: CorruptLog, size: int) -> None:
        if self._options.fail_on_corruption:
            raise damage
        if self._on_skip is not None:
            self._on_skip(damage)
        self.skipped += 1
        self.skipped_bytes += size
        self._logged += 1
        if self._logged <= _LOGGED_MAX:
            logger.warning("skipped %d bytes: %s", size, damage)

    # ---- batches

    def _decode(self, block: RecordBlock) -> Iterator[pa.RecordBatch]:
        def damaged(error: CorruptMessage) -> None:
            file = next(each.file for each in self._stretches if each.begin <= error.physical_offset < each.end)
            size = int(block.sizes[block.parts[Part.PHYSICAL_OFFSET] == error.physical_offset].sum())
            self._skip(file.damaged(error.physical_offset, error.reason, _HELP), size)

        return self._decoder.batches(block, None, damaged)


class _Collected:
    """Copies of the records of several blocks."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._sizes: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
        self.count = 0
        self.size = 0

    def add(self, block: RecordBlock) -> None:
        blob = block.blob
        ends = (block.starts + block.sizes).tolist()
        self._pieces += [bytes(blob[start:end]) for start, end in zip(block.starts.tolist(), ends, strict=True)]
        self._sizes.append(block.sizes)
        self.count += len(block)
        self.size += int(block.sizes.sum())

    def take(self) -> RecordBlock:
        """Return all added records as one block, and start again empty."""
        sizes = np.concatenate(self._sizes)
        starts = np.cumsum(sizes) - sizes
        block = RecordBlock(b"".join(self._pieces), starts, sizes, verify=False)
        self.__init__()  # type: ignore[misc]  # resets the block
        return block
