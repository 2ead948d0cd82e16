"""The positions of records according to a store's ConsumeQueues."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ....protocol.storage.layout import PRE_BLANK_SIZE, UNIT, UNIT_BYTES
from ....protocol.storage.record import Record
from ....protocol.store_files import OFFSET_NAME, file_name

_QUEUE_ID = re.compile(r"\d{1,10}\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class LastUnit:
    """The unit that points furthest into the log: its file, and its record's beginning and end."""

    path: Path
    physical_offset: int
    end: int


class Queues:
    """The ConsumeQueues in ``folder``, None if a log came without them; each queue is read on demand."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._begins: dict[Path, list[int]] = {}

    @property
    def there(self) -> bool:
        """True if the store has any ConsumeQueues."""
        return self._folder is not None and self._folder.is_dir()

    def confirm(self, record: Record, size: int) -> bool:
        """Return whether the unit of the record's own queue offset points at exactly this record."""
        if self._folder is None or record.queue_offset < 0 or b"/" in record.topic or b"\0" in record.topic:
            return False  # no topic has such a name, so this is not a record
        queue = self._folder / record.topic.decode("utf-8", "replace") / str(record.queue_id)
        wanted = record.queue_offset * UNIT_BYTES
        begin = max((begin for begin in self._file_begins(queue) if begin <= wanted), default=None)
        if begin is None:
            return False
        return _read_unit(queue / file_name(begin), wanted - begin) == (record.physical_offset, size)

    def topics(self) -> set[str] | None:
        """Return the topics that have ever had a message, or None if that is unknown."""
        if self._folder is None or not self.there:
            return None
        return {topic.name for topic in self._folder.iterdir() if topic.is_dir()}

    def last_unit(self) -> LastUnit | None:
        """Return the unit that points furthest into the log."""
        found = None
        for queue in self._queues():
            unit = self._last_of(queue)
            if unit is not None and (found is None or unit.end > found.end):
                found = unit
        return found

    def _queues(self) -> Iterator[Path]:
        for topic in sorted(self.topics() or ()):
            assert self._folder is not None
            yield from sorted(path for path in (self._folder / topic).iterdir() if _QUEUE_ID.match(path.name))

    def _last_of(self, queue: Path) -> LastUnit | None:
        """Return the last unit of a queue by bisection: its files contain only zeros after it."""
        for begin in reversed(self._file_begins(queue)):
            path = queue / file_name(begin)
            low, high = 0, path.stat().st_size // UNIT_BYTES
            while low < high:
                middle = (low + high) // 2
                if _read_unit(path, middle * UNIT_BYTES, fillers=True) is None:
                    high = middle
                else:
                    low = middle + 1
            unit = _read_unit(path, (low - 1) * UNIT_BYTES) if low else None
            if unit is not None:
                return LastUnit(path, unit[0], unit[0] + unit[1])
        return None

    def _file_begins(self, queue: Path) -> list[int]:
        begins = self._begins.get(queue)
        if begins is None:
            files = queue.iterdir() if queue.is_dir() else ()
            begins = self._begins[queue] = sorted(int(file.name) for file in files if OFFSET_NAME.match(file.name))
        return begins


def _read_unit(path: Path, at: int, *, fillers: bool = False) -> tuple[int, int] | None:
    """Return physical offset and size of the record that a unit points at, or None if there is no unit.

    ``fillers``: also return units that only fill a queue up to its first message.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # retention deleted it meanwhile
        return None
    try:
        blob = os.pread(fd, UNIT_BYTES, at)
    finally:
        os.close(fd)
    if len(blob) < UNIT_BYTES:
        return None
    physical_offset, size, _ = UNIT.unpack(blob)
    if size <= 0 or (size == PRE_BLANK_SIZE and not fillers):
        return None
    return physical_offset, size
