"""Damage that is contained: the quarantine and the records that fill holes.

Reads need these to say which messages are lost; finding and filling holes belongs in ``recovery``.
"""

from __future__ import annotations

import bisect
import logging
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...protocol.storage.layout import BLANK_BYTES_MIN, MAGIC_BLANK, RECORD_BYTES_MIN, SysFlag
from ...protocol.storage.record import RECORD_CRC_BYTES, Record, record_size
from ...protocol.store_files import QUARANTINE_INDEX
from .errors import CorruptFile
from .files.file_system import make_durable_folder
from .files.json_table import ConfigFile

if TYPE_CHECKING:
    from .files.file_system import Files


# ---- Tombstones: records that replace lost ones, so that every reader of the log, RocketMQ included, can read
# past a hole.
#
# Each lost message gets one, with its topic, queue and queue offset, no properties, and a body of zeros with
# a correct checksum. The body of the last one takes up the remaining bytes. If these are more than a message
# may have, or if no message is known to be lost, they go into records that look rolled back (sys_flag 0xC),
# which have no place in a queue; at the end of a file they go into its blank. The layout depends only on the
# arguments, so an interrupted fill can be repeated byte for byte.

SURPLUS_TOPIC = b"rmq_sys_flintmq_lost"
"""Topic of the records that only fill space; it never has a queue."""
HOLE_BYTES_MIN = RECORD_BYTES_MIN + 1
"""Minimum size of a record whose topic name is not empty."""
SURPLUS_BYTES_MAX = 4 * 1024 * 1024
"""Maximum size of a tombstone: RocketMQ's limit for a message."""


class LostRange(NamedTuple):
    """A number of ``messages`` of a queue, from queue offset ``first`` on."""

    topic: str
    queue: int
    first: int
    messages: int


class Tombstone(NamedTuple):
    """One record that fills a hole, not encoded yet; ``physical_offset`` and ``size`` are its place in the log."""

    topic: bytes
    queue: int
    queue_offset: int
    sys_flag: int
    physical_offset: int
    size: int

    @property
    def has_unit(self) -> bool:
        """Return whether it replaces a lost message, which has a unit, and does not only fill space."""
        return self.sys_flag == 0

    def encode(self, store_ms: int, *, checksum: bool) -> bytes:
        """Return the record's bytes. ``checksum``: with a ``__CRC32#``, if there is space for it."""
        checksum = checksum and _bytes_min(len(self.topic), checksum=True) <= self.size
        body = bytes(self.size - _bytes_min(len(self.topic), checksum=checksum))
        record = Record(
            topic=self.topic,
            body=body,
            queue_id=self.queue,
            queue_offset=self.queue_offset,
            sys_flag=self.sys_flag,
            physical_offset=self.physical_offset,
            born_timestamp=store_ms,
            store_timestamp=store_ms,
        )
        return record.encode(checksum=checksum)


def _bytes_min(topic_bytes: int, *, checksum: bool) -> int:
    return record_size(0, topic_bytes, RECORD_CRC_BYTES if checksum else 0)


def that_fit(lost: Iterable[LostRange], room_bytes: int, *, ends_file: bool, checksum: bool) -> list[LostRange]:
    """Return the lost messages whose tombstones fit in ``room_bytes``, by queue; earlier ranges have priority."""
    room_bytes -= BLANK_BYTES_MIN if ends_file else 0
    fitting = []
    for each in lost:
        size = _bytes_min(len(each.topic.encode()), checksum=checksum)
        count = min(each.messages, room_bytes // size)
        if count > 0:
            fitting.append(each._replace(messages=count))
            room_bytes -= count * size
    return sorted(fitting)


def plan(
    physical_offset: int, size: int, lost: Sequence[LostRange], *, ends_file: bool, checksum: bool
) -> Iterator[Tombstone]:
    """Yield the records that replace the ``size`` bytes at ``physical_offset``, in their order in the log.

    ``lost``: a result of ``that_fit``. With ``ends_file`` they leave enough space for the blank that ends the file (see
    ``blank``).
    """
    needed = sum(each.messages * _bytes_min(len(each.topic.encode()), checksum=checksum) for each in lost)
    left_over = size - needed
    into_last = left_over if lost and not ends_file and left_over <= SURPLUS_BYTES_MAX else 0
    at = physical_offset
    for number, (topic, queue, first, count) in enumerate(lost, 1):
        name = topic.encode()
        bytes_min = _bytes_min(len(name), checksum=checksum)
        for queue_offset in range(first, first + count):
            is_last = number == len(lost) and queue_offset == first + count - 1
            record_bytes = bytes_min + (into_last if is_last else 0)
            yield Tombstone(name, queue, queue_offset, 0, at, record_bytes)
            at += record_bytes
    if not ends_file:
        yield from _surplus(at, physical_offset + size, checksum=checksum)


def _surplus(at: int, end: int, *, checksum: bool) -> Iterator[Tombstone]:
    """Yield records without a message that fill ``[at, end)``."""
    if at == end:
        return
    # Records of about equal size: full ones and a rest would not do, because the rest could be too small for a record.
    count = -((at - end) // SURPLUS_BYTES_MAX)
    for number in range(count, 0, -1):
        size = (end - at) // number
        room = size - _bytes_min(0, checksum=checksum)
        # If no room is left beside a checksum, ``encode`` leaves the checksum out, and the name may fill its room.
        topic = SURPLUS_TOPIC[: room if room > 0 else size - RECORD_BYTES_MIN]
        yield Tombstone(topic, 0, 0, SysFlag.TRANSACTION_ROLLBACK, at, size)
        at += size


def blank(size: int) -> bytes:
    """Return the head of a blank, which marks the ``size`` bytes up to the end of the file as unused."""
    return struct.pack(">ii", size, MAGIC_BLANK)


# ---- ``flintmq/quarantine/``: copies of the damaged ranges of the CommitLog, and an index of the messages
# lost in them.
#
# A file ``<physical offset>-<bytes>.bin`` has the bytes as they were found and never changes; ``index.json``
# describes each of them. The log itself now has tombstones there, which are never delivered.

_COPY_NAME = re.compile(r"(\d{20})-(\d{1,19})(-\d{1,9})?\.bin\Z", re.ASCII)
COPY_CHUNK_BYTES = 1 << 20

log = logging.getLogger(__name__)

ReadLog = Callable[[int, memoryview], None]
"""Function that fills a buffer with the log's bytes at a physical offset."""


@dataclass(frozen=True, slots=True)
class QuarantinedRange:
    """A damaged range of the log.

    ``reason``: what was wrong at its beginning; ``found_ms``: when it was found; ``store_ms``: store time of its
    tombstones; ``lost``: the messages that are known to have been in it; ``file``: name of the copy; ``filled``: the
    log has the tombstones, and queues and index agree with them. ``ends_file``: the range ends with a blank and with
    its file; ``checksum``: its tombstones have a ``__CRC32#``.
    """

    physical_offset: int
    bytes: int
    reason: str
    found_ms: int
    store_ms: int
    lost: tuple[LostRange, ...]
    ends_file: bool = False
    checksum: bool = False
    file: str = ""
    filled: bool = False

    @property
    def end_offset(self) -> int:
        """Physical offset of the first byte after the range."""
        return self.physical_offset + self.bytes

    def to_json(self) -> dict[str, Any]:
        """Return the range's row of ``index.json``."""
        return {
            "physicalOffset": self.physical_offset,
            "bytes": self.bytes,
            "file": self.file,
            "reason": self.reason,
            "foundAt": self.found_ms,
            "storeTimestamp": self.store_ms,
            "endsFile": self.ends_file,
            "checksum": self.checksum,
            "filled": self.filled,
            "lost": [
                {"topic": each.topic, "queue": each.queue, "queueOffset": each.first, "count": each.messages}
                for each in self.lost
            ],
        }

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> QuarantinedRange:
        """Parse a row of ``index.json``. Raises one of ``SHAPE_ERRORS``."""
        if not _COPY_NAME.match(row["file"]):
            raise ValueError(f"{row['file']!r} is not the name of a copy")
        return cls(
            physical_offset=int(row["physicalOffset"]),
            bytes=int(row["bytes"]),
            reason=str(row["reason"]),
            found_ms=int(row["foundAt"]),
            store_ms=int(row["storeTimestamp"]),
            lost=tuple(
                LostRange(str(each["topic"]), int(each["queue"]), int(each["queueOffset"]), int(each["count"]))
                for each in row["lost"]
            ),
            ends_file=bool(row["endsFile"]),
            checksum=bool(row["checksum"]),
            file=str(row["file"]),
            filled=bool(row["filled"]),
        )


class Quarantine:
    """The quarantine folder and its index. Only recovery changes it; any thread may read it."""

    def __init__(self, files: Files, folder: Path) -> None:
        self._files = files
        self.folder = folder
        self.path = folder / QUARANTINE_INDEX
        self._file = ConfigFile(files, self.path)
        self.ranges: list[QuarantinedRange] = []
        """By physical offset, then by the time at which they were found."""
        self._begins: list[int] = []
        self._ends: list[int] = []
        self._bounds = np.zeros(0, np.int64)
        self._lost: dict[tuple[str, int], list[tuple[int, int]]] = {}
        self.lost_messages = 0
        """Number of messages that are known to have been in the ranges."""

    def load(self) -> None:
        """Read the index. An unreadable one counts as empty: ``unlisted`` then yields the copies that it lacks."""
        try:
            ranges = self._file.load(lambda table: [QuarantinedRange.from_json(row) for row in table.get("holes", [])])
        except CorruptFile as error:
            log.error("%s. It is rebuilt from the copies beside it and from the log", error)
            ranges = []
        self._take(ranges)

    def unlisted(self) -> Iterator[tuple[str, int, int, int]]:
        """Yield (name, physical offset, bytes, time found in ms) of copies that are not in the index."""
        known = {each.file for each in self.ranges}
        for path in sorted(self.folder.glob("*.bin")) if self.folder.is_dir() else ():
            match = _COPY_NAME.match(path.name)
            if match is not None and path.name not in known:
                yield path.name, int(match[1]), int(match[2]), int(path.stat().st_mtime * 1000)

    def _take(self, ranges: list[QuarantinedRange]) -> None:
        self.ranges = _by_place(ranges)
        begins: list[int] = []
        ends: list[int] = []
        for each in self.ranges:
            if ends and each.physical_offset <= ends[-1]:
                ends[-1] = max(ends[-1], each.end_offset)
            else:
                begins.append(each.physical_offset)
                ends.append(each.end_offset)
        self._bounds = np.array([bound for pair in zip(begins, ends, strict=True) for bound in pair], np.int64)
        self._begins, self._ends = begins, ends
        self._lost = self._lost_by_queue()
        self.lost_messages = sum(end - first for ranges in self._lost.values() for first, end in ranges)

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __iter__(self) -> Iterator[QuarantinedRange]:
        return iter(self.ranges)

    # Queries.

    def find(self, physical_offset: int) -> QuarantinedRange | None:
        """Return the range that contains the physical offset, the newest if several do; None if none does."""
        if not self.covers(physical_offset):
            return None
        return max(
            (each for each in self.ranges if each.physical_offset <= physical_offset < each.end_offset),
            key=lambda each: each.found_ms,
        )

    def covers(self, physical_offset: int) -> bool:
        """Return whether the physical offset is in a quarantined range, so that the record there is a tombstone."""
        number = bisect.bisect_right(self._begins, physical_offset) - 1
        return number >= 0 and physical_offset < self._ends[number]

    def mask(self, physical_offsets: np.ndarray) -> np.ndarray:
        """Return an array with the result of ``covers`` for each of the physical offsets."""
        # The joined ranges alternate between begin and end, so an odd position is inside one.
        inside: np.ndarray = np.searchsorted(self._bounds, physical_offsets, side="right") % 2 == 1
        return inside

    @property
    def bytes(self) -> int:
        """Number of bytes of the log that are in quarantine."""
        return sum(end - begin for begin, end in zip(self._begins, self._ends, strict=True))

    def page(self, after: int, after_found_ms: int, max_count: int) -> list[QuarantinedRange]:
        """Return at most ``max_count`` ranges, in the order of ``ranges``, that follow the one at the physical offset
        ``after`` that was found at ``after_found_ms``."""
        ranges = self.ranges
        first = bisect.bisect_right(ranges, (after, after_found_ms), key=_place)
        return ranges[first : first + max_count]

    def lost_between(self, topic: str, queue: int, begin: int, end: int) -> list[tuple[int, int]]:
        """Return the lost messages of a queue with queue offsets in ``[begin, end)``.

        They are half-open ranges (first queue offset, end), in ascending order.
        """
        ranges = self._lost.get((topic, queue), ())
        return [(max(first, begin), min(stop, end)) for first, stop in ranges if first < end and stop > begin]

    def _lost_by_queue(self) -> dict[tuple[str, int], list[tuple[int, int]]]:
        """Return the lost messages by queue: ascending ranges that neither touch nor overlap."""
        joined: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for topic, queue, first, count in sorted(each for hole in self.ranges for each in hole.lost):
            row = joined.setdefault((topic, queue), [])
            if row and first <= row[-1][1]:
                row[-1] = (row[-1][0], max(row[-1][1], first + count))
            else:
                row.append((first, first + count))
        return joined

    # Changes: each is durable when the call returns.

    def add(self, holes: list[QuarantinedRange], read: ReadLog) -> list[QuarantinedRange]:
        """Copy the bytes of the holes and add the holes to the index, as not filled yet.

        Returns them with the names of their copies.
        """
        make_durable_folder(self._files, self.folder)
        added = [replace(hole, file=self._copy(hole, read)) for hole in holes]
        # Names before the index: a row of the index always has its copy, even after a crash.
        self._files.sync_folder(self.folder)
        self._save([*self.ranges, *added])
        return added

    def set_filled(self) -> None:
        """Mark all ranges as filled."""
        if not all(each.filled for each in self.ranges):
            self._save([replace(each, filled=True) for each in self.ranges])

    def enter(self, ranges: list[QuarantinedRange]) -> None:
        """Add ranges to the index whose copies and tombstones exist already."""
        self._save([*self.ranges, *ranges])

    def drop(self, ranges: list[QuarantinedRange]) -> None:
        """Remove ranges from the index; their copies stay."""
        self._save([each for each in self.ranges if each not in ranges])

    def forget(self, ranges: list[QuarantinedRange]) -> None:
        """Remove ranges from the index, and their copies too: retention has deleted that part of the log."""
        # The index first: after a stop in between, no row refers to a copy that is gone.
        self.drop(ranges)
        for each in ranges:
            path = self.folder / each.file
            if path.is_file():
                self._files.unlink(path)

    def _save(self, ranges: list[QuarantinedRange]) -> None:
        self._file.save({"holes": [each.to_json() for each in _by_place(ranges)]})
        self._take(ranges)

    def _copy(self, hole: QuarantinedRange, read: ReadLog) -> str:
        """Copy the bytes of a hole to a file and return its name. Never overwrites an existing copy."""
        stem = f"{hole.physical_offset:020d}-{hole.bytes}"
        name, number = f"{stem}.bin", 1
        while (self.folder / name).exists():
            # A start that was interrupted has made this copy already.
            if self.holds(name, hole, read):
                return name
            number += 1
            name = f"{stem}-{number}.bin"
        # Under another name until it is complete: ``unlisted`` would take half a copy for a whole one.
        scratch = self.folder / "new.tmp"
        with self._files.opened(scratch, create=True) as fd:
            self._files.resize(fd, 0)
            for at, size in _chunks(hole.bytes):
                chunk = bytearray(size)
                read(hole.physical_offset + at, memoryview(chunk))
                if np.frombuffer(chunk, np.uint8).any():  # zeros, as of a lost file, stay sparse
                    self._files.write(fd, bytes(chunk), at)
            self._files.resize(fd, hole.bytes)
            self._files.sync_data(fd)
        self._files.rename(scratch, self.folder / name)
        return name

    def holds(self, name: str, hole: QuarantinedRange, read: ReadLog) -> bool:
        """Return whether the copy ``name`` has exactly the bytes that ``read`` returns."""
        with self._files.opened(self.folder / name) as fd:
            if self._files.size(fd) != hole.bytes:
                return False
            for at, size in _chunks(hole.bytes):
                held, wanted = bytearray(size), bytearray(size)
                self._files.read(fd, memoryview(held), at, wait=True)
                read(hole.physical_offset + at, memoryview(wanted))
                if held != wanted:
                    return False
            return True


def _by_place(ranges: Iterable[QuarantinedRange]) -> list[QuarantinedRange]:
    return sorted(ranges, key=_place)


def _place(each: QuarantinedRange) -> tuple[int, int]:
    """Return the key of the order: later damage may have the same physical offset."""
    return each.physical_offset, each.found_ms


def _chunks(size: int) -> Iterator[tuple[int, int]]:
    """Yield (position, bytes) of the chunks of ``size`` bytes."""
    for at in range(0, size, COPY_CHUNK_BYTES):
        yield at, min(COPY_CHUNK_BYTES, size - at)
