"""``config/topics.json``: the topics, in RocketMQ's format. Entries that FlintMQ does not know are kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....protocol.commands.common import QUEUES_MAX
from ....protocol.errors import TopicNotExist
from ....protocol.fields import I64_MAX
from ....protocol.names import is_folder_name, name_fault
from ....protocol.storage.layout import TOPIC_BYTES_MAX
from ..files.journalled_table import JournalledTable
from ..files.json_table import integer_of

if TYPE_CHECKING:
    from ..files.file_system import Files
    from ..files.table_journal import Row

PERM_READ = 4
PERM_WRITE = 2
PERM_MAX = 15
"""With RocketMQ's bits for priority and inheritance."""
RETENTION_FOREVER = -1
RETENTION_HOURS = "flintmq.retention.hours"
RETENTION_BYTES = "flintmq.retention.bytes"


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

    def has_queue(self, queue_id: int) -> bool:
        """Return whether the topic has the queue now: what is delivered to another one is out of everybody's reach."""
        return 0 <= queue_id < self.queues

    @classmethod
    def from_json(cls, name: str, row: dict[str, Any]) -> TopicConfig:
        """Return the topic of one of RocketMQ's rows. Raises one of ``SHAPE_ERRORS`` for another shape."""
        known = {"topicName", "readQueueNums", "writeQueueNums", "perm", "order"}
        attributes = row.get("attributes")
        attributes = attributes if isinstance(attributes, dict) else {}
        return cls(
            name=name,
            read_queues=integer_of(row.get("readQueueNums", 4), 0, QUEUES_MAX, f"readQueueNums of {name[:255]}"),
            write_queues=integer_of(row.get("writeQueueNums", 4), 0, QUEUES_MAX, f"writeQueueNums of {name[:255]}"),
            perm=integer_of(row.get("perm", 6), 0, PERM_MAX, f"perm of {name[:255]}"),
            order=bool(row.get("order", False)),
            retention_hours=integer_of(attributes.get(RETENTION_HOURS, 0), -1, I64_MAX, RETENTION_HOURS),
            retention_bytes=integer_of(attributes.get(RETENTION_BYTES, 0), 0, I64_MAX, RETENTION_BYTES),
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


class TopicTable(JournalledTable):
    """``config/topics.json``, and the journal of the changes since it was written."""

    def __init__(self, files: Files, path: Path) -> None:
        super().__init__(
            files,
            path,
            "topics with messages are then restored from the log, without their permissions and empty queues",
            backed_up=True,
        )
        self.by_name: dict[str, TopicConfig] = {}
        """The topics; only for reading. Each change of a topic makes a new ``TopicConfig``."""
        self._leaving: dict[str, TopicConfig] = {}
        """Topics that were removed, until ``left``."""

    @property
    def dirty(self) -> bool:
        """Return whether ``topics.json`` alone differs from this table."""
        return bool(self._unsaved or self._whole_next or self._journal.bytes)

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
        """Return RocketMQ's rows by name, including removed topics whose deletion is not noted yet. Any thread."""
        topics = dict(self.by_name)
        return {name: config.to_json() for name, config in {**self._leaving, **topics}.items()}

    def replace(self, rows: dict[str, dict[str, Any]]) -> None:
        """Replace all topics by those of another broker, RocketMQ's rows by name; durable when it returns. Blocks."""
        topics, _ = self._read({"topicConfigTable": rows})
        if topics != self.by_name:
            self.by_name = topics
            self._whole_next = True
            self.persist()

    def __iter__(self) -> Iterator[TopicConfig]:
        return iter(list(self.by_name.values()))

    def __len__(self) -> int:
        return len(self.by_name)

    def _row(self, name: str) -> Row:
        config = self.by_name.get(name)
        return None if config is None else config.to_json()

    def to_json(self) -> dict[str, Any]:
        """Return the topics as in the file. Any thread may call it."""
        return {"topicConfigTable": {config.name: config.to_json() for config in self}}
