"""``flintmq/quarantine/``: what was damaged in the CommitLog, kept aside, and which messages it was.

``<physical offset>-<bytes>.bin`` are the bytes as they were found, never changed afterwards; ``index.json`` says of
each what it was. Where they were found the log now has tombstones (``tombstones``), which nobody is given.
"""

from __future__ import annotations

import bisect
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CorruptFile
from ..files.file_system import Files, make_durable_folder
from ..files.json_table import ConfigFile
from .tombstones import LostRange

_COPY_NAME = re.compile(r"(\d{20})-(\d{1,19})(-\d{1,9})?\.bin\Z", re.ASCII)
COPY_CHUNK_BYTES = 1 << 20

log = logging.getLogger(__name__)

ReadLog = Callable[[int, memoryview], None]
"""Fills a buffer with the bytes of the log at a physical offset."""


@dataclass(frozen=True, slots=True)
class QuarantinedRange:
    """A stretch of the log that was damaged. ``reason``: what was wrong at its beginning; ``found_ms``: when that was
    found; ``store_ms``: the store time of its tombstones; ``lost``: the messages that are known to have been there;
    ``file``: the name of the copy; ``filled``: whether the log has the tombstones, and queues and index know it.
    ``ends_file``: a blank record ends it and its file; ``checksum``: its tombstones have a ``__CRC32#``."""

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
        """The physical offset behind it."""
        return self.physical_offset + self.bytes

    def to_json(self) -> dict[str, Any]:
        """Its row in ``index.json``."""
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
        """From such a row. Raises one of ``SHAPE_ERRORS``."""
        if not _COPY_NAME.match(row["file"]):
            raise ValueError(f"{row['file']!r} is no copy's name")
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
    """The folder. Changed by recovery alone; any thread may ask."""

    def __init__(self, files: Files, folder: Path) -> None:
        self._files = files
        self.folder = folder
        self.path = folder / "index.json"
        self._file = ConfigFile(files, self.path)
        self.ranges: list[QuarantinedRange] = []
        """By physical offset."""
        self._begins: list[int] = []
        self._ends: list[int] = []
        self._bounds = np.zeros(0, np.int64)
        self._lost: dict[tuple[str, int], list[tuple[int, int]]] = {}
        self.lost_messages = 0
        """How many messages are known to have been in them."""

    def load(self) -> None:
        """Read the index. One that cannot be read counts as empty: ``unlisted`` says what it may lack."""
        try:
            ranges = self._file.load(lambda table: [QuarantinedRange.from_json(row) for row in table.get("holes", [])])
        except CorruptFile as error:
            log.error("%s. It is made anew from the copies beside it and from the log", error)
            ranges = []
        self._take(ranges)

    def unlisted(self) -> Iterator[tuple[str, int, int, int]]:
        """(name, physical offset, bytes, found at ms) of copies that the index does not know."""
        known = {each.file for each in self.ranges}
        for path in sorted(self.folder.glob("*.bin")) if self.folder.is_dir() else ():
            match = _COPY_NAME.match(path.name)
            if match is not None and path.name not in known:
                yield path.name, int(match[1]), int(match[2]), int(path.stat().st_mtime * 1000)

    def _take(self, ranges: list[QuarantinedRange]) -> None:
        self.ranges = sorted(ranges, key=lambda each: (each.physical_offset, each.found_ms))
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

    # What is in it?

    def find(self, physical_offset: int) -> QuarantinedRange | None:
        """The range that holds the physical offset, the newest where several do."""
        if not self.covers(physical_offset):
            return None
        return max(
            (each for each in self.ranges if each.physical_offset <= physical_offset < each.end_offset),
            key=lambda each: each.found_ms,
        )

    def covers(self, physical_offset: int) -> bool:
        """Whether what lies there is a tombstone."""
        number = bisect.bisect_right(self._begins, physical_offset) - 1
        return number >= 0 and physical_offset < self._ends[number]

    def mask(self, physical_offsets: np.ndarray) -> np.ndarray:
        """Which of the physical offsets ``covers`` is true of."""
        inside: np.ndarray = np.searchsorted(self._bounds, physical_offsets, side="right") % 2 == 1
        return inside

    @property
    def bytes(self) -> int:
        """Bytes of the log that are in quarantine."""
        return sum(end - begin for begin, end in zip(self._begins, self._ends, strict=True))

    def lost_between(self, topic: str, queue: int, begin: int, end: int) -> list[tuple[int, int]]:
        """The messages of a queue in ``[begin, end)`` that are known to be lost: (first queue offset, the one behind
        the last), in their order."""
        ranges = self._lost.get((topic, queue), ())
        return [(max(first, begin), min(stop, end)) for first, stop in ranges if first < end and stop > begin]

    def _lost_by_queue(self) -> dict[tuple[str, int], list[tuple[int, int]]]:
        """The lost messages by queue: ranges that neither touch nor overlap, in their order."""
        joined: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for topic, queue, first, count in sorted(each for hole in self.ranges for each in hole.lost):
            row = joined.setdefault((topic, queue), [])
            if row and first <= row[-1][1]:
                row[-1] = (row[-1][0], max(row[-1][1], first + count))
            else:
                row.append((first, first + count))
        return joined

    # Changes, each durable when it returns.

    def add(self, holes: list[QuarantinedRange], read: ReadLog) -> list[QuarantinedRange]:
        """Copy what is in the holes and enter them, not filled yet. Returns them with the names of their copies."""
        make_durable_folder(self._files, self.folder)
        added = [replace(hole, file=self._copy(hole, read)) for hole in holes]
        self._files.sync_folder(self.folder)
        self._save([*self.ranges, *added])
        return added

    def set_filled(self) -> None:
        """All of them are filled."""
        if not all(each.filled for each in self.ranges):
            self._save([replace(each, filled=True) for each in self.ranges])

    def enter(self, ranges: list[QuarantinedRange]) -> None:
        """Enter ranges whose copies and tombstones are there already."""
        self._save([*self.ranges, *ranges])

    def drop(self, ranges: list[QuarantinedRange]) -> None:
        """Take ranges out of the index; the copies stay."""
        self._save([each for each in self.ranges if each not in ranges])

    def forget(self, ranges: list[QuarantinedRange]) -> None:
        """Take ranges out of the index, and remove the copies: retention has taken the messages around them."""
        self.drop(ranges)
        for each in ranges:
            path = self.folder / each.file
            if path.is_file():
                self._files.unlink(path)

    def _save(self, ranges: list[QuarantinedRange]) -> None:
        self._file.save({"holes": [each.to_json() for each in ranges]})
        self._take(ranges)

    def _copy(self, hole: QuarantinedRange, read: ReadLog) -> str:
        """Keep the bytes of a hole; the name of the file. One that is there already is not written over."""
        stem = f"{hole.physical_offset:020d}-{hole.bytes}"
        name, number = f"{stem}.bin", 1
        while (self.folder / name).exists():
            if self.holds(name, hole, read):
                return name
            number += 1
            name = f"{stem}-{number}.bin"
        scratch = self.folder / "new.tmp"
        fd = self._files.open(scratch, create=True)
        try:
            self._files.resize(fd, 0)
            for at, size in _chunks(hole.bytes):
                chunk = bytearray(size)
                read(hole.physical_offset + at, memoryview(chunk))
                if np.frombuffer(chunk, np.uint8).any():  # of a lost file nothing is there: that need not take room
                    self._files.write(fd, bytes(chunk), at)
            self._files.resize(fd, hole.bytes)
            self._files.sync_data(fd)
        finally:
            self._files.close(fd)
        self._files.rename(scratch, self.folder / name)
        return name

    def holds(self, name: str, hole: QuarantinedRange, read: ReadLog) -> bool:
        """Whether the copy ``name`` has exactly the bytes that ``read`` gives."""
        fd = self._files.open(self.folder / name)
        try:
            if self._files.size(fd) != hole.bytes:
                return False
            for at, size in _chunks(hole.bytes):
                held, wanted = bytearray(size), bytearray(size)
                self._files.read(fd, memoryview(held), at, wait=True)
                read(hole.physical_offset + at, memoryview(wanted))
                if held != wanted:
                    return False
            return True
        finally:
            self._files.close(fd)


def _chunks(size: int) -> Iterator[tuple[int, int]]:
    """(position, bytes) of pieces of so many bytes."""
    for at in range(0, size, COPY_CHUNK_BYTES):
        yield at, min(COPY_CHUNK_BYTES, size - at)
