"""The JSON tables in ``config/``: topics and consumer offsets, in RocketMQ's shape.

What a table holds beside what FlintMQ knows is kept.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ....protocol.names import SYSTEM_GROUP_PREFIX, is_folder_name
from ..files.file_system import Files
from ..files.json_table import ConfigFile
from ..files.table_journal import TableJournal

PERM_READ = 4
PERM_WRITE = 2
RETENTION_FOREVER = -1
RETENTION_HOURS = "flintmq.retention.hours"
RETENTION_BYTES = "flintmq.retention.bytes"
TOPIC_GROUP_SEPARATOR = "@"
JOURNAL_BYTES_MIN = 64 * 1024
"""A journal of topics that is longer than this, and than half of the table, is folded into the table."""


def next_data_version(before: Any) -> dict[str, int]:
    """The ``dataVersion`` of a table that is written again."""
    counter = before.get("counter") if isinstance(before, dict) else None
    return {
        "counter": counter + 1 if isinstance(counter, int) else 1,
        "stateVersion": 0,
        "timestamp": int(time.time() * 1000),
    }


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """One topic. ``perm``: 4 read + 2 write; ``extra``: what RocketMQ keeps beside.

    ``retention_hours``: how long the topic's messages are kept; 0: as long as the log, ``RETENTION_FOREVER``: always.
    ``retention_bytes``: most bytes of its records; 0: no limit. Both are among RocketMQ's attributes of the topic.
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
        """Whether consumers may read it."""
        return bool(self.perm & PERM_READ)

    @property
    def writable(self) -> bool:
        """Whether producers may write it."""
        return bool(self.perm & PERM_WRITE)

    @property
    def queues(self) -> int:
        """How many queues it has, whether read or written."""
        return max(self.read_queues, self.write_queues)

    @classmethod
    def from_json(cls, name: str, row: dict[str, Any]) -> TopicConfig:
        """From RocketMQ's row."""
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
        """RocketMQ's row."""
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
    """``config/topics.json``, and beside it the journal of what changed since it was written.

    Changed on one thread; ``save`` and ``persist`` may run on others.
    """

    def __init__(self, files: Files, path: Path) -> None:
        self._file = ConfigFile(
            files, path, "topics with messages are then found in the log, without their permissions and empty queues"
        )
        self._journal = TableJournal(files, path)
        self._lock = threading.Lock()
        """Held while something is written."""
        self._noting = threading.Lock()
        self._topics: dict[str, TopicConfig] = {}
        self._rest: dict[str, Any] = {}
        self._unsaved: dict[str, int] = {}
        """Topics that were changed since they were put on disk, and in which version."""
        self._whole_next = False
        """Whether the table has to be written next: a journal cannot go on from what is on disk."""
        self.version = 0
        """Counts the changes in memory."""

    @property
    def dirty(self) -> bool:
        """Whether ``topics.json`` by itself says anything else than this table."""
        return bool(self._unsaved or self._whole_next or self._journal.bytes)

    @property
    def problem(self) -> str:
        """What of the journal could not be read."""
        return self._journal.problem

    def load(self) -> None:
        """Read the table, and what its journal adds. Raises ``CorruptFile``."""
        self._topics, self._rest = self._file.load(self._read)
        if (found := self._journal.read()) is not None:
            self._replay(*found)
            self._whole_next = True

    @staticmethod
    def _read(table: dict[str, Any]) -> tuple[dict[str, TopicConfig], dict[str, Any]]:
        rows = table.pop("topicConfigTable", {})
        for name in rows:
            if not is_folder_name(name):
                raise ValueError(f"{name[:300]!r} cannot be a topic: it would not be a folder within the store")
        return {name: TopicConfig.from_json(name, row) for name, row in rows.items()}, table

    def _replay(self, base: Any, rows: dict[str, dict[str, Any] | None]) -> None:
        """Take over what a journal says. If the table is not the one that it goes on from (RocketMQ wrote it since, or
        it was damaged and an older one is there), then only topics that the table does not have."""
        follows = base is not None and base == self._rest.get("dataVersion")
        for name, row in rows.items():
            if row is None:
                if follows:
                    self._topics.pop(name, None)
            elif (follows or name not in self._topics) and is_folder_name(name):
                self._topics[name] = TopicConfig.from_json(name, row)  # its checksum is right: this class wrote it

    def get(self, name: str) -> TopicConfig | None:
        """The topic's configuration, or None."""
        return self._topics.get(name)

    def put(self, config: TopicConfig) -> None:
        """Add or replace a topic, in memory."""
        before = self._topics.get(config.name)
        if before is not None and not config.extra:
            config = replace(config, extra=before.extra)
        self._topics[config.name] = config
        self._note(config.name)

    def remove(self, name: str) -> None:
        """Forget a topic, in memory."""
        self._topics.pop(name, None)
        self._note(name)

    def _note(self, name: str) -> None:
        with self._noting:
            self.version += 1
            self._unsaved[name] = self.version

    def __iter__(self) -> Iterator[TopicConfig]:
        return iter(list(self._topics.values()))

    def __len__(self) -> int:
        return len(self._topics)

    def save(self) -> None:
        """Put what changed on disk: into the journal, or where that has become long, the whole table. Durable when it
        returns. Blocks, for a time that does not grow with the number of topics but now and then."""
        with self._lock, self._saving() as names:
            found = {name: self._topics.get(name) for name in names}
            rows = {name: None if config is None else config.to_json() for name, config in found.items()}
            if self._whole_next or self._rest.get("dataVersion") is None or not self._file.path.exists():
                self._write_whole()
            elif not rows:
                return  # ``persist`` was quicker
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
        """The names of the topics that changed; they are saved at the end, but for those that changed meanwhile."""
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
        # The journal goes on from the .bak as well: if the table is damaged, no change is lost.
        self._file.save({**self._rest, "topicConfigTable": rows}, backed_up=True)
        self._journal.remove()
        self._whole_next = False


class ConsumerOffsetTable:
    """``config/consumerOffset.json``: what each group has committed per queue."""

    def __init__(self, files: Files, path: Path) -> None:
        self._file = ConfigFile(
            files, path, "every group then begins anew, where its first consumer says, until its offsets are reset"
        )
        self._lock = threading.Lock()
        self._offsets: dict[str, dict[int, int]] = {}
        self._count = 0
        self._rest: dict[str, Any] = {}
        self.dirty = False
        """Whether something was committed since the last ``persist``."""

    def load(self) -> None:
        """Read the table. Raises ``CorruptFile``."""
        self._offsets, self._rest = self._file.load(self._read)
        self._count = sum(map(len, self._offsets.values()))

    @property
    def is_missing(self) -> bool:
        """Whether neither the file nor its ``.bak`` is there."""
        return not self._file.is_there

    @staticmethod
    def _read(table: dict[str, Any]) -> tuple[dict[str, dict[int, int]], dict[str, Any]]:
        rows = table.pop("offsetTable", {})
        return {key: {int(queue): int(offset) for queue, offset in row.items()} for key, row in rows.items()}, table

    def __len__(self) -> int:
        """How many offsets are committed, one a queue, the broker's own included."""
        return self._count

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Next offset per queue of those queues that the group has committed."""
        return dict(self._offsets.get(f"{topic}{TOPIC_GROUP_SEPARATOR}{group}", {}))

    def committed_of(self, group: str, topic: str, queue: int) -> int | None:
        """The next offset of one queue, None where the group has not committed any."""
        row = self._offsets.get(f"{topic}{TOPIC_GROUP_SEPARATOR}{group}")
        return row.get(queue) if row is not None else None

    def all_committed(self, *, own: bool = False) -> list[tuple[str, str, int, int]]:
        """``(group, topic, queue, next offset)`` of everything that is committed, sorted; ``own``: with the broker's
        own. Any thread."""
        return sorted(
            (group, topic, queue, next_offset)
            for group, topic, row in self.rows(own=own)
            for queue, next_offset in row.items()
        )

    def rows(self, *, own: bool = False) -> Iterator[tuple[str, str, dict[int, int]]]:
        """``(group, topic, next offset by queue)``, in no order; ``own``: with the broker's own. Any thread."""
        for key, row in list(self._offsets.items()):
            topic, _, group = key.partition(TOPIC_GROUP_SEPARATOR)
            if own or not group.startswith(SYSTEM_GROUP_PREFIX):
                yield group, topic, row.copy()

    def commit(self, group: str, topic: str, queue: int, next_offset: int) -> None:
        """Note a group's progress, in memory; ``persist`` makes it durable."""
        row = self._offsets.setdefault(f"{topic}{TOPIC_GROUP_SEPARATOR}{group}", {})
        self._count += queue not in row
        row[queue] = next_offset
        self.dirty = True

    def forget(self, group: str, keep_topic: str = "") -> bool:
        """Drop all that a group has committed, in memory, but for one topic; whether there was anything."""
        own = [(key, *key.partition(TOPIC_GROUP_SEPARATOR)[::2]) for key in self._offsets]
        keys = [key for key, topic, name in own if name == group and topic != keep_topic]
        for key in keys:
            self._count -= len(self._offsets.pop(key))
        self.dirty = self.dirty or bool(keys)
        return bool(keys)

    def clamp(self, end_of: Callable[[str, int], int]) -> None:
        """After a crash: no group's progress lies beyond ``end_of(topic, queue)``, where the next message will be."""
        for key, row in self._offsets.items():
            topic = key.partition(TOPIC_GROUP_SEPARATOR)[0]
            for queue, next_offset in row.items():
                if next_offset > (end := end_of(topic, queue)):
                    row[queue] = end
                    self.dirty = True

    def persist(self) -> None:
        """Write the table; durable when it returns. Blocks."""
        with self._lock:
            self.dirty = False
            try:
                rows = {
                    key: {str(queue): next_offset for queue, next_offset in sorted(list(row.items()))}  # noqa: C414
                    for key, row in list(self._offsets.items())
                }
                self._rest["dataVersion"] = next_data_version(self._rest.get("dataVersion"))
                self._file.save({**self._rest, "offsetTable": rows})
            except BaseException:
                self.dirty = True
                raise


class DelayOffsetTable:
    """``config/delayOffset.json``: how far each delay level is delivered, by copies that are on disk."""

    def __init__(self, files: Files, path: Path) -> None:
        self._file = ConfigFile(files, path, "what the levels have in the log is then delivered once more")
        self._offsets: dict[int, int] = {}
        self._rest: dict[str, Any] = {}
        self.dirty = False
        """Whether something was delivered since the last ``persist``."""

    def load(self) -> None:
        """Read the table. Raises ``CorruptFile``."""
        self._offsets, self._rest = self._file.load(self._read)

    @staticmethod
    def _read(table: dict[str, Any]) -> tuple[dict[int, int], dict[str, Any]]:
        rows = table.pop("offsetTable", {})
        return {int(level): int(next_offset) for level, next_offset in rows.items()}, table

    def delivered(self, level: int) -> int:
        """The queue offset of the first message of a delay level that is not delivered."""
        return self._offsets.get(level, 0)

    def deliver(self, level: int, next_offset: int) -> None:
        """The level is delivered up to ``next_offset``, in memory; ``persist`` makes it durable."""
        self._offsets[level] = next_offset
        self.dirty = True

    def clamp(self, end_of: Callable[[int], int]) -> None:
        """After a crash: no level's progress lies beyond ``end_of(queue)``; written where it did. Blocks."""
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
