"""``flintmq/state.json``: what FlintMQ must know of a store beyond RocketMQ's files.

ConsumeQueues are derived from the log, except their ends: once retention or a deletion took a queue's last record, only
this file knows where its offsets go on. It also names what was there, so that a missing folder or index file is noticed.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .config_files import ConfigFile
from .errors import CorruptFile
from .files import Files


@dataclass(slots=True)
class DeletedTopic:
    """A deleted topic: its records below ``physical_offset`` are gone; a new topic of the name goes on at ``next_offsets``."""

    physical_offset: int
    next_offsets: dict[int, int]


@dataclass(slots=True)
class Snapshot:
    """Queue ends and index files as they were when the log ended at ``physical_offset``."""

    physical_offset: int = 0
    next_offsets: dict[str, dict[int, int]] = field(default_factory=dict)
    index_files: list[str] = field(default_factory=list)


class StoreState:
    """The file. Safe from threads."""

    def __init__(self, files: Files, path: Path) -> None:
        self._file = ConfigFile(files, path)
        self._lock = threading.Lock()
        self.deleted: dict[str, DeletedTopic] = {}
        self.snapshot = Snapshot()

    def load(self) -> None:
        """Read the file. Raises ``CorruptFile``."""
        table = self._file.load()
        try:
            self.deleted = {
                topic: DeletedTopic(int(row["physicalOffset"]), _offsets(row["nextOffsets"]))
                for topic, row in table.get("deletedTopics", {}).items()
            }
            self.snapshot = Snapshot(
                int(table.get("physicalOffset", 0)),
                {topic: _offsets(row) for topic, row in table.get("nextOffsets", {}).items()},
                [str(name) for name in table.get("indexFiles", [])],
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CorruptFile(f"{self._file.path} has an unknown shape: {error!r}. Restore it from a backup") from error

    def deleted_below(self, topic: str) -> int:
        """At which physical offset the topic was deleted last; 0 if never."""
        deleted = self.deleted.get(topic)
        return deleted.physical_offset if deleted else 0

    def next_offset(self, topic: str, queue_id: int) -> int:
        """The least queue offset that the queue's next message may get."""
        deleted = self.deleted.get(topic)
        return max(
            deleted.next_offsets.get(queue_id, 0) if deleted else 0,
            self.snapshot.next_offsets.get(topic, {}).get(queue_id, 0),
        )

    def persist(self) -> None:
        """Write the file; durable when it returns. Blocks."""
        with self._lock:
            self._file.save({
                "physicalOffset": self.snapshot.physical_offset,
                "nextOffsets": {topic: _text_keys(row) for topic, row in self.snapshot.next_offsets.items()},
                "indexFiles": self.snapshot.index_files,
                "deletedTopics": {
                    topic: {"physicalOffset": row.physical_offset, "nextOffsets": _text_keys(row.next_offsets)}
                    for topic, row in self.deleted.items()
                },
            })  # fmt: skip


def _offsets(row: dict[str, Any]) -> dict[int, int]:
    return {int(queue): int(offset) for queue, offset in row.items()}


def _text_keys(row: dict[int, int]) -> dict[str, int]:
    return {str(queue): offset for queue, offset in sorted(row.items())}
