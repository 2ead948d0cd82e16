"""``config/subscriptionGroup.json``: the settings of each consumer group, in RocketMQ's format."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....protocol.storage.delivery import RETRY_TIMES_MAX
from ..files.json_table import ConfigFile, integer_of, next_data_version

if TYPE_CHECKING:
    from ..files.file_system import Files

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
        """Return whether the group is in the table."""
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
        """Remove a group, in memory; return whether it was in the table."""
        if self._groups.pop(group, None) is None:
            return False
        self._changed()
        self._asked = self.changes
        return True

    def _changed(self) -> None:
        self.dirty = True
        self.changes += 1

    def retry_times_max(self, group: str) -> int:
        """Return how often a message of the group is redelivered before it becomes a dead letter."""
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
