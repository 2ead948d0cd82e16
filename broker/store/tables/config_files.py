"""The JSON tables in ``config/``: topics, consumer offsets and delay offsets, in RocketMQ's format.

Entries of a table that FlintMQ does not know are kept.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....protocol.errors import TopicNotExist
from ....protocol.names import SYSTEM_GROUP_PREFIX, is_folder_name, name_fault
from ....protocol.storage.layout import TOPIC_BYTES_MAX
from ..files.json_table import ConfigFile
from ..files.table_journal import TableJournal

if TYPE_CHECKING:
    from ..files.file_system import Files

PERM_READ = 4
PERM_WRITE = 2
RETENTION_FOREVER = -1
RETENTION_HOURS = "flintmq.retention.hours"
RETENTION_BYTES = "flintmq.retention.bytes"
TOPIC_GROUP_SEPARATOR = "@"
JOURNAL_BYTES_MIN = 64 * 1024
"""A journal that is longer than this and than half of the table is merged into the table."""


def next_data_version(before: Any) -> dict[str, int]:
    """Return the ``dataVersion`` that follows ``before``."""
    counter = before.get("counter") if isinstance(before, dict) else None
    return {
        "counter": counter + 1 if isinstance(counter, int) else 1,
        "stateVersion": 0,
        "timestamp": int(time.time() * 1000),
    }


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """One topic. ``perm``: 4 read + 2 write; ``extra``: RocketMQ's other fields.

    ``retention_hours``: how long the topic's messages are kept; 0: as long as the log, ``RETENTION_FOREVER``: always.
    ``retention_bytes``: maximum bytes of its records; 0: no limit. Both are stored in RocketMQ's attributes of the
    topic.
    """

    name: str
    read_queues: int = 4
    write_queues: int = 4
    perm: int = PERM_READ | PERM_WRITE
    order: bool = False
    retention_hours: int = 0
    retention_bytes: int = 0
    extra: dict[str, Any] = field(default_factory=dict, compare=False, hash=False)

    @property
    def readable(self) -> bool:
        """Return whether consumers may read the topic."""
        return bool(self.perm & PERM_READ)

    @property
    def writable(self) -> bool:
        """Return whether producers may write to the topic."""
        return bool(self.perm & PERM_WRITE)

    @property
    def queues(self) -> int:
        """Number of queues, readable or writable."""
        return max(self.read_queues, self.write_queues)

    @classmethod
    def from_json(cls, name: str, row: dict[str, Any]) -> TopicConfig:
        """Return the topic of one of RocketMQ's rows."""
        known = {"topicName", "readQueueNums", "writeQueueNums", "perm", "order"}
        attributes = row.get("attributes")
        attributes = attributes if isinstance(attributes, dict) else {}
        return cls(
            name=name,
            read_queues=int(row.get("readQueueNums", 4)),
            write_queues=int(row.get("writeQueueNums", 4)),
            perm=int(row.get("perm", 6)),
            order=bool(row.get("order", False)),
            retention_hours=int(attributes.get(RETENTION_HOURS, 0)),
            retention_bytes=int(attributes.get(RETENTION_BYTES, 0)),
            extra={key: value for key, value in row.items() if key not in known},
        )

    def to_json(self) -> dict[str, Any]:
        """Return the topic as one of RocketMQ's rows."""
        row: dict[str, Any] = {"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "attributes": {}}
        row.update(self.extra)
        row.update(
            topicName=self.name,
            readQueueNums=self.read_queues,
            writeQueueNums=self.write_queues,
            perm=self.perm,
            order=self.order,
        )
        rules = {RETENTION_HOURS: self.retention_hours, RETENTION_BYTES: self.retention_bytes}
        attributes = {name: value for name, value in (row["attributes"] or {}).items() if name not in rules}
        row["attributes"] = attributes | {name: str(value) for name, value in rules.items() if value}
        return row


class TopicTable:
    """``config/topics.json``, and the journal of the changes since it was written.

    One thread changes the table; ``save`` and ``persist`` may run on others.
    """

    def __init__(self, files: Files, path: Path) -> None:
        self._file = ConfigFile(
            files,
            path,
            "topics with messages are then restored from the log, without their permissions and empty queues",
        )
        self._journal = TableJournal(files, path)
        self._lock = threading.Lock()
        """Held while table or journal are written."""
        self._noting = threading.Lock()
        """Held to read or change ``version`` and ``_unsaved``."""
        self.by_name: dict[str, TopicConfig] = {}
        """The topics; only for reading. Each change of a topic makes a new ``TopicConfig``."""
        self._rest: dict[str, Any] = {}
        self._leaving: dict[str, TopicConfig] = {}
        """Topics that were removed, until ``left``."""
        self._unsaved: dict[str, int] = {}
        """Topics with unsaved changes, and the version of each one's last change."""
        self._whole_next = False
        """The next ``save`` must write the whole table, because no journal can continue from what is on disk."""
        self.version = 0
        """Number of changes in memory."""

    @property
    def dirty(self) -> bool:
        """Return whether ``topics.json`` alone differs from this table."""
        return bool(self._unsaved or self._whole_next or self._journal.bytes)

    @property
    def problem(self) -> str:
        """Description of the unreadable part of the journal, or empty."""
        return self._journal.problem

    def load(self) -> None:
        """Read the table and its journal. Raises ``CorruptFile``."""
        self.by_name, self._rest = self._file.load(self._read)
        if (found := self._journal.read()) is not None:
            self._replay(*found)
            # ``begin`` would replace the journal, and with it the changes that the table on disk lacks.
            self._whole_next = True

    @staticmethod
    def _read(table: dict[str, Any]) -> tuple[dict[str, TopicConfig], dict[str, Any]]:
        rows = table.pop("topicConfigTable", {})
        for name in rows:
            if not is_folder_name(name):
                raise ValueError(f"{name[:300]!r} cannot be a topic: it would not be a folder within the store")
        return {name: TopicConfig.from_json(name, row) for name, row in rows.items()}, table

    def _replay(self, base: Any, rows: dict[str, dict[str, Any] | None]) -> None:
        """Apply a journal.

        If the table is not the one on which the journal is based (RocketMQ has written it since, or an older version
        replaced a damaged one), only topics that the table lacks are taken.
        """
        follows = base is not None and base == self._rest.get("dataVersion")
        for name, row in rows.items():
            if row is None:
                if follows:
                    self.by_name.pop(name, None)
            elif (follows or name not in self.by_name) and is_folder_name(name):
                self.by_name[name] = TopicConfig.from_json(name, row)  # its checksum is right: this class wrote it

    def get(self, name: str) -> TopicConfig | None:
        """Return the topic's configuration, or None."""
        return self.by_name.get(name)

    def existing(self, name: str) -> TopicConfig:
        """Return the topic. Raises ``TopicNotExist``, which says so if no topic can have that name."""
        config = self.by_name.get(name)
        if config is None:
            fault = name_fault("topic", name)
            advice = f"its name {fault}" if fault else "create it or produce to it first"
            raise TopicNotExist(f"topic {name[:TOPIC_BYTES_MAX]} does not exist; {advice}")
        return config

    def put(self, config: TopicConfig) -> None:
        """Add or replace a topic, in memory."""
        before = self.by_name.get(config.name)
        # A change through FlintMQ must not lose RocketMQ's other fields.
        if before is not None and not config.extra:
            config = replace(config, extra=before.extra)
        self.by_name[config.name] = config
        self._leaving.pop(config.name, None)
        self._note(config.name)

    def remove(self, name: str) -> None:
        """Remove a topic, in memory. Call ``left`` when its deletion is noted on disk."""
        if name in self.by_name:
            self._leaving[name] = self.by_name[name]  # first, for ``rows_with_leaving`` on another thread
            del self.by_name[name]
        self._note(name)

    def left(self, *names: str) -> None:
        """Forget removed topics: nothing can bring them back any more."""
        for name in names:
            self._leaving.pop(name, None)
        with self._noting:
            self.version += 1

    def rows_with_leaving(self) -> dict[str, dict[str, Any]]:
        """Return RocketMQ's rows by name, also of removed topics whose deletion is not noted yet. Any thread."""
        topics = dict(self.by_name)
        return {name: config.to_json() for name, config in {**self._leaving, **topics}.items()}

    def replace(self, rows: dict[str, dict[str, Any]]) -> None:
        """Replace all topics by those of another broker, RocketMQ's rows by name; durable when it returns. Blocks."""
        topics, _ = self._read({"topicConfigTable": rows})
        if topics != self.by_name:
            self.by_name = topics
            self._whole_next = True
            self.persist()

    def _note(self, name: str) -> None:
        with self._noting:
            self.version += 1
            self._unsaved[name] = self.version

    def __iter__(self) -> Iterator[TopicConfig]:
        return iter(list(self.by_name.values()))

    def __len__(self) -> int:
        return len(self.by_name)

    def save(self) -> None:
        """Write the changes to the journal, or the whole table if the journal has become long.

        Durable when it returns. Blocks; the time depends on the number of topics only when the whole table is written.
        """
        with self._lock, self._saving() as names:
            found = {name: self.by_name.get(name) for name in names}
            rows = {name: None if config is None else config.to_json() for name, config in found.items()}
            # A journal is only valid beside the version of the table that it continues.
            if self._whole_next or self._rest.get("dataVersion") is None or not self._file.path.exists():
                self._write_whole()
            elif not rows:
                return  # ``persist`` has written the changes meanwhile
            elif not self._journal.bytes:
                self._journal.begin(self._rest.get("dataVersion"), rows)
            elif self._journal.bytes > max(JOURNAL_BYTES_MIN, self._file.path.stat().st_size // 2):
                self._write_whole()
            else:
                self._journal.append(rows)

    def persist(self) -> None:
        """Write the whole table; durable when it returns. Blocks."""
        with self._lock, self._saving():
            self._write_whole()

    @contextlib.contextmanager
    def _saving(self) -> Iterator[list[str]]:
        """Yield the names of the changed topics; on exit mark them as saved, except those that changed meanwhile."""
        with self._noting:
            taken = dict(self._unsaved)
        try:
            yield list(taken)
        except BaseException:
            self._whole_next = True  # part of it may be on disk
            raise
        with self._noting:
            self._unsaved = {name: version for name, version in self._unsaved.items() if taken.get(name) != version}

    def _write_whole(self) -> None:
        rows = {config.name: config.to_json() for config in self}
        self._rest["dataVersion"] = next_data_version(self._rest.get("dataVersion"))
        # With ``backed_up`` the .bak is the same version, so the next journal is valid for it too: if the table is
        # damaged, no change is lost.
        self._file.save({**self._rest, "topicConfigTable": rows}, backed_up=True)
        self._journal.remove()
        self._whole_next = False


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
        return {key: {int(queue): int(offset) for queue, offset in row.items()} for key, row in rows.items()}, table

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
        return {int(level): int(next_offset) for level, next_offset in rows.items()}, table

    def delivered(self, level: int) -> int:
        """Return the queue offset of a delay level's first message that is not delivered."""
        return self._offsets.get(level, 0)

    def deliver(self, level: int, next_offset: int) -> None:
        """Note that the level is delivered up to ``next_offset``, in memory; ``persist`` makes it durable."""
        self._offsets[level] = next_offset
        self.dirty = True

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
