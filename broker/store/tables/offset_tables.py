"""The tables of committed offsets and of the progress of delay levels in ``config/``, in RocketMQ's format.

Entries of a table that FlintMQ does not know are kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....protocol.fields import I64_MAX
from ....protocol.names import SYSTEM_GROUP_PREFIX
from ..files.json_table import ConfigFile, integer_of, next_data_version

if TYPE_CHECKING:
    from ..files.file_system import Files

TOPIC_GROUP_SEPARATOR = "@"
QUEUE_ID_MAX = 2**31 - 1


def _offsets_by(row: dict[str, Any], what: str) -> dict[int, int]:
    return {
        integer_of(key, 0, QUEUE_ID_MAX, what): integer_of(offset, -1, I64_MAX, f"the offset of {what} {key[:20]}")
        for key, offset in row.items()
    }


class ConsumerOffsetTable:
    """``config/consumerOffset.json``: the committed offset of each group and queue."""

    def __init__(self, files: Files, path: Path) -> None:
        self._file = ConfigFile(
            files, path, "every group then begins at the offset of its first consumer's start rule, or of a reset"
        )
        self._lock = threading.Lock()
        self._offsets: dict[str, dict[int, int]] = {}
        self._count = 0
        self._rest: dict[str, Any] = {}
        self.dirty = False
        """A group committed an offset since the last ``persist``."""
        self.changes = 0
        """Number of changes in memory."""

    def load(self) -> None:
        """Read the table. Raises ``CorruptFile``."""
        self._offsets, self._rest = self._file.load(self._read)
        self._count = sum(map(len, self._offsets.values()))

    @property
    def is_missing(self) -> bool:
        """Return whether both the file and its ``.bak`` are missing."""
        return not self._file.is_there

    @staticmethod
    def _read(table: dict[str, Any]) -> tuple[dict[str, dict[int, int]], dict[str, Any]]:
        rows = table.pop("offsetTable", {})
        return {key: _offsets_by(row, "queue") for key, row in rows.items()}, table

    def __len__(self) -> int:
        """Return the number of committed offsets, including those of the broker's own groups."""
        return self._count

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Return the group's committed offsets of a topic by queue."""
        return dict(self._offsets.get(f"{topic}{TOPIC_GROUP_SEPARATOR}{group}", {}))

    def committed_of(self, group: str, topic: str, queue: int) -> int | None:
        """Return the group's committed offset of one queue, or None."""
        row = self._offsets.get(f"{topic}{TOPIC_GROUP_SEPARATOR}{group}")
        return row.get(queue) if row is not None else None

    def all_committed(self, *, own: bool = False) -> list[tuple[str, str, int, int]]:
        """Return ``(group, topic, queue, next offset)`` of all committed offsets, sorted. Any thread may call it.

        ``own``: include the broker's own groups.
        """
        return sorted(
            (group, topic, queue, next_offset)
            for group, topic, row in self.rows(own=own)
            for queue, next_offset in row.items()
        )

    def rows(self, *, own: bool = False) -> Iterator[tuple[str, str, dict[int, int]]]:
        """Yield ``(group, topic, next offset by queue)`` in no particular order. Any thread may call it.

        ``own``: include the broker's own groups.
        """
        for key, row in list(self._offsets.items()):
            topic, _, group = key.partition(TOPIC_GROUP_SEPARATOR)
            if own or not group.startswith(SYSTEM_GROUP_PREFIX):
                yield group, topic, row.copy()

    def commit(self, group: str, topic: str, queue: int, next_offset: int) -> None:
        """Set a group's committed offset, in memory; ``persist`` makes it durable."""
        row = self._offsets.setdefault(f"{topic}{TOPIC_GROUP_SEPARATOR}{group}", {})
        self._count += queue not in row
        row[queue] = next_offset
        self.changes += 1
        self.dirty = True

    def replace(self, table: dict[str, Any]) -> None:
        """Take the offsets of another broker's table, in memory. Raises one of ``SHAPE_ERRORS`` for another shape."""
        offsets, _ = self._read(dict(table))
        if offsets != self._offsets:
            self._offsets = offsets
            self._count = sum(map(len, offsets.values()))
            self.changes += 1
            self.dirty = True

    def forget(self, group: str, keep_topic: str = "") -> bool:
        """Remove a group's committed offsets, in memory, except those of ``keep_topic``; return whether it had any."""
        own = [(key, *key.partition(TOPIC_GROUP_SEPARATOR)[::2]) for key in self._offsets]
        keys = [key for key, topic, name in own if name == group and topic != keep_topic]
        for key in keys:
            self._count -= len(self._offsets.pop(key))
            self.changes += 1
        self.dirty = self.dirty or bool(keys)
        return bool(keys)

    def clamp(self, end_of: Callable[[str, int], int]) -> None:
        """Reduce offsets beyond ``end_of(topic, queue)``, the next message's offset. For the start after a crash."""
        for key, row in self._offsets.items():
            topic = key.partition(TOPIC_GROUP_SEPARATOR)[0]
            for queue, next_offset in row.items():
                if next_offset > (end := end_of(topic, queue)):
                    row[queue] = end
                    self.changes += 1
                    self.dirty = True

    def to_json(self) -> dict[str, Any]:
        """Return all offsets as in the file. Any thread may call it."""
        # ``list`` copies a row in one step while the event loop commits; iterating over the row itself could fail.
        rows = {
            key: {str(queue): next_offset for queue, next_offset in sorted(list(row.items()))}  # noqa: C414
            for key, row in list(self._offsets.items())
        }
        return {"offsetTable": rows}

    def persist(self) -> None:
        """Write the table; durable when it returns. Blocks."""
        with self._lock:
            # Cleared first: a commit during the write makes the table dirty again.
            self.dirty = False
            try:
                self._rest["dataVersion"] = next_data_version(self._rest.get("dataVersion"))
                self._file.save({**self._rest, **self.to_json()})
            except BaseException:
                self.dirty = True
                raise


class DelayOffsetTable:
    """``config/delayOffset.json``: how far each delay level is delivered, counting only copies that are on disk."""

    def __init__(self, files: Files, path: Path) -> None:
        self._file = ConfigFile(files, path, "delayed messages in the log are then delivered once more")
        self._offsets: dict[int, int] = {}
        self._rest: dict[str, Any] = {}
        self.dirty = False
        """A level's offset changed since the last ``persist``."""

    def load(self) -> None:
        """Read the table. Raises ``CorruptFile``."""
        self._offsets, self._rest = self._file.load(self._read)

    @staticmethod
    def _read(table: dict[str, Any]) -> tuple[dict[int, int], dict[str, Any]]:
        rows = table.pop("offsetTable", {})
        return _offsets_by(rows, "level"), table

    def delivered(self, level: int) -> int:
        """Return the queue offset of a delay level's first message that is not delivered."""
        return self._offsets.get(level, 0)

    def deliver(self, level: int, next_offset: int) -> None:
        """Note that the level is delivered up to ``next_offset``, in memory; ``persist`` makes it durable."""
        self._offsets[level] = next_offset
        self.dirty = True

    def take(self, table: dict[str, Any]) -> None:
        """Take the offsets of another broker's table, in memory. Raises one of ``SHAPE_ERRORS`` for another shape."""
        offsets, _ = self._read(dict(table))
        for level, next_offset in offsets.items():
            if self.delivered(level) != next_offset:
                self.deliver(level, next_offset)

    def clamp(self, end_of: Callable[[int], int]) -> None:
        """Reduce offsets beyond ``end_of(queue)`` and persist them. For the start after a crash. Blocks."""
        beyond = {level: end for level, offset in self._offsets.items() if offset > (end := end_of(level - 1))}
        if beyond:
            self._offsets.update(beyond)
            self.persist()

    def persist(self) -> None:
        """Write the table; durable when it returns. For one thread at a time; blocks."""
        self.dirty = False
        try:
            rows = {str(level): next_offset for level, next_offset in sorted(self._offsets.items())}
            self._rest["dataVersion"] = next_data_version(self._rest.get("dataVersion"))
            self._file.save({**self._rest, "offsetTable": rows})
        except BaseException:
            self.dirty = True
            raise
