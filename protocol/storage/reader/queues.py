"""The positions of records according to a store's ConsumeQueues."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...store_files import OFFSET_NAME, QUEUE_NAME, file_name
from ..layout import PRE_BLANK_SIZE, UNIT, UNIT_BYTES
from ..record import Record
from .files import LOCAL, LocalFiles


@dataclass(frozen=True, slots=True)
class LastUnit:
    """The unit that points furthest into the log: its file, and its record's beginning and end."""

    path: Path
    physical_offset: int
    end: int


class Queues:
    """The ConsumeQueues in ``folder``, None if a log came without them; each queue is read on demand."""

    def __init__(self, folder: Path | None, files: LocalFiles = LOCAL) -> None:
        self._folder = folder
        self._files = files
        self._held: dict[Path, list[tuple[int, int]]] = {}
        """The files of each queue: position in the queue, and size."""

    @property
    def there(self) -> bool:
        """True if the store has any ConsumeQueues."""
        return self._folder is not None and self._folder.name in self._files.folders_in(self._folder.parent)

    def confirm(self, record: Record, size: int) -> bool:
        """Return whether the unit of the record's own queue offset points at exactly this record."""
        if self._folder is None or record.queue_offset < 0 or b"/" in record.topic or b"\0" in record.topic:
            return False  # no topic has such a name, so this is not a record
        queue = self._folder / record.topic.decode("utf-8", "replace") / str(record.queue_id)
        wanted = record.queue_offset * UNIT_BYTES
        begin = max((begin for begin, _ in self._files_of(queue) if begin <= wanted), default=None)
        if begin is None:
            return False
        return self._read_unit(queue / file_name(begin), wanted - begin) == (record.physical_offset, size)

    def topics(self) -> set[str] | None:
        """Return the topics that have ever had a message, or None if that is unknown."""
        return set(self._files.folders_in(self._folder)) if self._folder is not None and self.there else None

    def last_unit(self) -> LastUnit | None:
        """Return the unit that points furthest into the log."""
        units = (self._last_of(queue) for queue in self._queues())
        return max((unit for unit in units if unit is not None), key=lambda unit: unit.end, default=None)

    def _queues(self) -> Iterator[Path]:
        for topic in sorted(self.topics() or ()):
            assert self._folder is not None
            yield from (
                self._folder / topic / name
                for name in self._files.folders_in(self._folder / topic)
                if QUEUE_NAME.match(name)
            )

    def _last_of(self, queue: Path) -> LastUnit | None:
        """Return the last unit of a queue by bisection: its files contain only zeros after it."""
        for begin, size in reversed(self._files_of(queue)):
            path = queue / file_name(begin)
            low, high = 0, size // UNIT_BYTES
            while low < high:
                middle = (low + high) // 2
                if self._read_unit(path, middle * UNIT_BYTES, fillers=True) is None:
                    high = middle
                else:
                    low = middle + 1
            unit = self._read_unit(path, (low - 1) * UNIT_BYTES) if low else None
            if unit is not None:
                return LastUnit(path, unit[0], unit[0] + unit[1])
        return None

    def _files_of(self, queue: Path) -> list[tuple[int, int]]:
        held = self._held.get(queue)
        if held is None:
            held = self._held[queue] = [
                (int(name), size) for name, size in self._files.files_in(queue) if OFFSET_NAME.match(name)
            ]
        return held

    def _read_unit(self, path: Path, at: int, *, fillers: bool = False) -> tuple[int, int] | None:
        """Return physical offset and size of the record that a unit points at, or None if there is no unit.

        ``fillers``: also return units that only fill a queue up to its first message.
        """
        blob = bytearray(UNIT_BYTES)
        try:
            handle = self._files.open(path)
        except FileNotFoundError:  # retention deleted it meanwhile
            return None
        try:
            if self._files.read_into(handle, memoryview(blob), at) < UNIT_BYTES:
                return None
        finally:
            self._files.close(handle)
        physical_offset, size, _ = UNIT.unpack(blob)
        if size <= 0 or (size == PRE_BLANK_SIZE and not fillers):
            return None
        return physical_offset, size
