"""``config/topics.json``: the topics, in RocketMQ's format. Entries that FlintMQ does not know are kept."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....protocol.commands.common import QUEUES_MAX
from ....protocol.errors import NoPermission, TopicNotExist
from ....protocol.fields import I64_MAX
from ....protocol.names import is_folder_name, name_fault
from ....protocol.storage.delivery import RETRY_TIMES_MAX, UNREADABLE_TOPICS
from ....protocol.storage.layout import TOPIC_BYTES_MAX
from ..files.json_table import ConfigFile, JournalledTable, integer_of, next_data_version

if TYPE_CHECKING:
    from ..files.file_system import Files
    from ..files.json_table import Row

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
        self.on_change: Callable[[str], None] = lambda name: None
        """Called with the name of each topic that was changed or removed by this process."""

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

    def check_readable(self, name: str) -> None:
        """Raise if the topic does not exist or must not be read."""
        config = self.existing(name)
        if name in UNREADABLE_TOPICS:
            raise _not_delivered(name)
        if not config.readable:
            raise NoPermission(f"topic {name} is not readable (perm {config.perm}); add 4 to its perm to allow reading")

    def check_has_messages(self, name: str) -> None:
        """Raise if no client may read messages of the topic."""
        if name in UNREADABLE_TOPICS:  # checked first: the error must not depend on whether the topic exists yet
            raise _not_delivered(name)
        self.check_readable(name)

    def put(self, config: TopicConfig) -> None:
        """Add or replace a topic, in memory."""
        before = self.by_name.get(config.name)
        # A change through FlintMQ must not lose RocketMQ's other fields.
        if before is not None and not config.extra:
            config = replace(config, extra=before.extra)
        self.by_name[config.name] = config
        self._leaving.pop(config.name, None)
        self._note(config.name)
        self.on_change(config.name)

    def remove(self, name: str) -> None:
        """Remove a topic, in memory. Call ``left`` when its deletion is noted on disk."""
        if name in self.by_name:
            self._leaving[name] = self.by_name[name]  # first, for ``rows_with_leaving`` on another thread
            del self.by_name[name]
        self._note(name)
        self.on_change(name)

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
            changed = {*self.by_name, *topics}
            self.by_name = topics
            for name in changed:
                self.on_change(name)
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


def _not_delivered(name: str) -> NoPermission:
    return NoPermission(f"topic {name} is a system topic of the broker; its messages are not delivered yet")


# ---- ``config/subscriptionGroup.json``: the settings of each consumer group, in RocketMQ's format.

log = logging.getLogger(__name__)

POP_ATTRIBUTE_PREFIX = "flintmq.pop."
"""Attribute of a group: its push consumers pop the topic that follows. The value is RocketMQ's ``popShareQueueNum``."""
_DEFAULTS: dict[str, Any] = {
    "consumeEnable": True,
    "consumeFromMinEnable": True,
    "consumeBroadcastEnable": True,
    "consumeMessageOrderly": False,
    "retryQueueNums": 1,
    "retryMaxTimes": RETRY_TIMES_MAX,
    "groupRetryPolicy": {"type": "CUSTOMIZED"},
    "brokerId": 0,
    "whichBrokerWhenConsumeSlowly": 1,
    "notifyConsumerIdsChangedEnable": True,
    "groupSysFlag": 0,
    "consumeTimeoutMinute": 15,
    "attributes": {},
}


class SubscriptionGroupTable:
    """All consumer groups that ever connected. One thread changes the table; ``persist`` may run on another."""

    def __init__(self, files: Files, path: Path) -> None:
        self._file = ConfigFile(files, path)
        self._lock = threading.Lock()
        self._groups: dict[str, dict[str, Any]] = {}
        self._rest: dict[str, Any] = {}
        self.dirty = False
        """The table changed since the last ``persist``."""
        self.changes = 0
        """Number of changes since the start."""
        self._asked = 0
        """Value of ``changes`` after the last change other than ``ensure``."""
        self._saved = 0
        """Changes that are on disk."""

    def load(self) -> None:
        """Read the table. Raises ``CorruptFile``."""
        self._groups, self._rest = self._file.load(self._read)

    @staticmethod
    def _read(table: dict[str, Any]) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
        rows = table.pop("subscriptionGroupTable", {})
        for row in rows.values():
            # A wrong value raises here, where the ``.bak`` can still replace the table, not when a message is retried.
            integer_of(row.get("retryMaxTimes", RETRY_TIMES_MAX), -(2**31), 2**31 - 1, "retryMaxTimes")
            SubscriptionGroupTable._pop_shares(row)
        return {name: dict(row) for name, row in rows.items()}, table

    def warn_of_lost_offsets(self, store: Path) -> None:
        """Log a warning, if there are groups: the table of their committed offsets does not exist."""
        if self._groups:
            log.warning(
                "%s has %d consumer groups, but there is no config/consumerOffset.json: nothing is committed. If the "
                "file was lost, stop the broker and restore it from a backup, or reset the groups' offsets",
                store,
                len(self._groups),
            )

    @property
    def unsaved(self) -> bool:
        """Return whether a change other than ``ensure`` is not on disk yet."""
        return self._asked > self._saved

    def has(self, group: str) -> bool:
        return group in self._groups

    def __len__(self) -> int:
        return len(self._groups)

    def ensure(self, group: str) -> None:
        """Add the group with default settings, unless it is in the table."""
        if group not in self._groups:
            self._groups[group] = {"groupName": group, **_DEFAULTS}
            self._changed()

    def put(self, row: Mapping[str, Any]) -> None:
        """Take new settings of the group that ``row`` names, in memory; settings without a new value stay."""
        group = row["groupName"]
        self._groups[group] = {**_DEFAULTS, **self._groups.get(group, {}), **row}
        self._changed()
        self._asked = self.changes

    def settings_of(self, group: str) -> dict[str, Any]:
        """Return the settings of a group in RocketMQ's format; the default ones if it is not in the table."""
        return {"groupName": group, **_DEFAULTS, **self._groups.get(group, {})}

    def replace(self, table: dict[str, Any]) -> None:
        """Take the groups of another broker's table, in memory. Raises one of ``SHAPE_ERRORS`` for another shape."""
        groups, _ = self._read(dict(table))
        if groups != self._groups:
            self._groups = groups
            self._changed()

    def remove(self, group: str) -> bool:
        if self._groups.pop(group, None) is None:
            return False
        self._changed()
        self._asked = self.changes
        return True

    def _changed(self) -> None:
        self.dirty = True
        self.changes += 1

    def retry_times_max(self, group: str, asked: int = -1) -> int:
        """Return how often a message of the group is redelivered before it becomes a dead letter. ``asked``: by the
        request, which decides unless it is negative."""
        if asked >= 0:
            return asked
        return int(self._groups.get(group, _DEFAULTS).get("retryMaxTimes", RETRY_TIMES_MAX))

    def has_retries(self, group: str) -> bool:
        """Return whether a message that the group sends back is delivered again; otherwise it is dropped."""
        return int(self._groups.get(group, _DEFAULTS).get("retryQueueNums", 1)) > 0

    def pop_share(self, group: str, topic: str) -> int | None:
        """Return with how many others each push consumer of the group shares its queues of a topic that it pops; None
        if it pulls them."""
        return self._pop_shares(self._groups.get(group, {})).get(topic)

    def pop_shares(self) -> list[tuple[str, str, int]]:
        """Return (group, topic, share) of all topics that push consumers pop."""
        rows = [(name, self._pop_shares(row)) for name, row in self._groups.items()]
        return [(name, topic, share) for name, shares in rows for topic, share in shares.items()]

    def set_pop_share(self, group: str, topic: str, share: int | None) -> None:
        """Set what ``pop_share`` returns, for an existing group."""
        attributes = dict(self._groups[group].get("attributes") or {})
        attributes.pop(POP_ATTRIBUTE_PREFIX + topic, None)
        if share is not None:
            attributes[POP_ATTRIBUTE_PREFIX + topic] = str(share)
        self._groups[group] = {**self._groups[group], "attributes": attributes}
        self._changed()
        self._asked = self.changes

    @staticmethod
    def _pop_shares(row: dict[str, Any]) -> dict[str, int]:
        return {
            name.removeprefix(POP_ATTRIBUTE_PREFIX): int(value)
            for name, value in (row.get("attributes") or {}).items()
            if name.startswith(POP_ATTRIBUTE_PREFIX)
        }

    def may_consume(self, group: str) -> bool:
        """Return whether the group may consume, that is, whether it is not switched off."""
        return bool(self._groups.get(group, _DEFAULTS).get("consumeEnable", True))

    def names(self) -> list[str]:
        """Return the names of all groups, sorted."""
        return sorted(self._groups)

    def to_json(self) -> dict[str, Any]:
        """Return the groups in the form that ``replace`` takes. Any thread."""
        return {"subscriptionGroupTable": {name: dict(row) for name, row in list(self._groups.items())}}

    def persist(self) -> None:
        """Write the table; durable when it returns. Blocks."""
        with self._lock:
            self.dirty = False
            changes = self.changes
            try:
                self._rest["dataVersion"] = next_data_version(self._rest.get("dataVersion"))
                self._file.save({"forbiddenTable": {}, **self._rest, **self.to_json()})
                self._saved = changes
            except BaseException:
                self.dirty = True
                raise
