"""The tables of committed offsets and of the progress of delay levels in ``config/``, in RocketMQ's format.

Entries of a table that FlintMQ does not know are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....protocol.fields import I64_MAX
from ....protocol.names import SYSTEM_GROUP_PREFIX
from ..files.json_table import ConfigFile, JournalledTable, integer_of, next_data_version

if TYPE_CHECKING:
    from ..files.file_system import Files
    from ..files.json_table import Row

TOPIC_GROUP_SEPARATOR = "@"
QUEUE_ID_MAX = 2**31 - 1


def _offsets_by(row: dict[str, Any], what: str) -> dict[int, int]:
    return {
        integer_of(key, -1, QUEUE_ID_MAX, what): integer_of(offset, -1, I64_MAX, f"the offset of {what} {key[:20]}")
        for key, offset in row.items()
    }


class ConsumerOffsetTable(JournalledTable):
    """``config/consumerOffset.json``: the committed offset of each group and queue, and the journal of the changes that
    must not be forgotten.

    The progress of a group that consumes may be forgotten in a crash, since its messages only come again. Anything else
    is noted for ``save``: where a group begins with a queue, an offset that moves back, and offsets that are removed.
    """

    def __init__(self, files: Files, path: Path) -> None:
        super().__init__(
            files, path, "every group then begins at the offset of its first consumer's start rule, or of a reset"
        )
        self._offsets: dict[str, dict[int, int]] = {}
        self._count = 0
        self.dirty = False
        """The table changed since the last ``persist``."""
        self.changes = 0
        """Number of changes in memory."""

    def load(self) -> None:
        """Read the table and its journal. Raises ``CorruptFile``."""
        self._offsets, self._rest = self._file.load(self._read)
        base, rows = self._journal.read() or (None, {})
        # RocketMQ may change offsets and keep the version, but it leaves out FlintMQ's checksum.
        if rows and base is not None and base == self._rest.get("dataVersion") and self._file.is_own:
            for key, row in rows.items():
                if row is None:
                    self._offsets.pop(key, None)
                else:
                    self._offsets[key] = self._decode_row(row)
            # ``begin`` would replace the journal, and with it the changes that the table on disk lacks.
            self._whole_next = self.dirty = True
        self._count = sum(map(_places, self._offsets.values()))

    @property
    def is_missing(self) -> bool:
        """Return whether both the file and its ``.bak`` are missing."""
        return not self._file.is_there

    @staticmethod
    def _read(table: dict[str, Any]) -> tuple[dict[str, dict[int, int]], dict[str, Any]]:
        rows = table.pop("offsetTable", {})
        return {key: ConsumerOffsetTable._decode_row(row) for key, row in rows.items()}, table

    @staticmethod
    def _decode_row(row: dict[str, Any]) -> dict[int, int]:
        return _offsets_by(row, "queue")

    def __len__(self) -> int:
        """Return the number of committed offsets, including those of the broker's own groups; a topic that a group has
        begun to read without committing any counts as one."""
        return self._count

    def has_begun(self, group: str, topic: str) -> bool:
        return f"{topic}{TOPIC_GROUP_SEPARATOR}{group}" in self._offsets

    def begin(self, group: str, topic: str) -> None:
        """Note, in memory, that the group has begun to read the topic, which may not exist yet."""
        key = f"{topic}{TOPIC_GROUP_SEPARATOR}{group}"
        if key not in self._offsets:
            self._offsets[key] = {}
            self._count += 1
            self._change(key)

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Return the group's committed offsets of a topic by queue."""
        return dict(self._offsets.get(f"{topic}{TOPIC_GROUP_SEPARATOR}{group}", {}))

    def committed_of(self, group: str, topic: str, queue: int) -> int | None:
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
        """Set a group's committed offset, in memory; ``persist`` makes it durable, and ``save`` unless it only moves
        on."""
        key = f"{topic}{TOPIC_GROUP_SEPARATOR}{group}"
        row = self._offsets.get(key)
        if row is None:
            row = self._offsets[key] = {}
            self._count += 1
        elif row and queue not in row:
            self._count += 1
        before = row.get(queue)
        row[queue] = next_offset
        self.changes += 1
        self.dirty = True
        if before is None or next_offset < before:
            self._note(key)

    def is_unsaved(self, group: str, topic: str) -> bool:
        """Return whether offsets of the group in the topic are noted and not on disk yet."""
        return f"{topic}{TOPIC_GROUP_SEPARATOR}{group}" in self._unsaved

    def keep(self, group: str, topic: str) -> None:
        """Note the group's offsets of a topic for ``save``, although they only moved on."""
        self._change(f"{topic}{TOPIC_GROUP_SEPARATOR}{group}")

    def _change(self, key: str) -> None:
        self.changes += 1
        self.dirty = True
        self._note(key)

    def replace(self, table: dict[str, Any]) -> None:
        """Take the offsets of another broker's table, in memory. Raises one of ``SHAPE_ERRORS`` for another shape."""
        offsets, _ = self._read(dict(table))
        if offsets != self._offsets:
            self._offsets = offsets
            self._count = sum(map(_places, offsets.values()))
            self.changes += 1
            self.dirty = True

    def forget(self, group: str, keep_topic: str = "") -> bool:
        """Remove a group's committed offsets, in memory, except those of ``keep_topic``; return whether it had any."""
        own = [(key, *key.partition(TOPIC_GROUP_SEPARATOR)[::2]) for key in self._offsets]
        keys = [key for key, topic, name in own if name == group and topic != keep_topic]
        for key in keys:
            self._count -= _places(self._offsets.pop(key))
            self._change(key)
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

    def _row(self, name: str) -> Row:
        row = self._offsets.get(name)
        return None if row is None else _encode_row(row)

    def to_json(self) -> dict[str, Any]:
        """Return all offsets as in the file. Any thread may call it."""
        return {"offsetTable": {key: _encode_row(row) for key, row in list(self._offsets.items())}}

    def persist(self) -> None:
        """Write the table; durable when it returns. Blocks."""
        # Cleared first: a commit during the write makes the table dirty again.
        self.dirty = False
        try:
            super().persist()
        except BaseException:
            self.dirty = True
            raise


def _places(row: dict[int, int]) -> int:
    return max(len(row), 1)


def _encode_row(row: dict[int, int]) -> dict[str, int]:
    # ``list`` copies the row in one step while the event loop commits; iterating over the row itself could fail.
    return {str(queue): next_offset for queue, next_offset in sorted(list(row.items()))}  # noqa: C414


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
