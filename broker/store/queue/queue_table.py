"""All ConsumeQueues of a store, and the arrays by which the dispatch kernel finds them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ....protocol.storage.javahash import java_hash
from ...kernels.dispatch import (
    KIND_ORDINARY,
    KIND_SCHEDULE,
    Q_DELETED_BELOW,
    Q_KIND,
    Q_NEXT,
    Q_QUEUE_ID,
    Q_TOPIC_AT,
    Q_TOPIC_BYTES,
    Q_TOPIC_HASH,
    QUEUE_ROW,
    queue_hash,
)
from ..errors import SettingMismatch
from ..files.file_system import move_aside
from ..files.open_files import OpenFiles
from .consume_queue import ConsumeQueue

if TYPE_CHECKING:
    from ..files.file_system import Files

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
LIGHT_QUEUE_PREFIX = "%LMQ%"
"""Prefix of RocketMQ's light queues, whose units point at other topics' records. FlintMQ leaves them alone."""

_QUEUE_ID = re.compile(r"(0|[1-9]\d{0,9})\Z", re.ASCII)


class ConsumeQueueTable:
    """The queues by topic and queue id, and by their row in the kernel's arrays.

    Rows are only added. The rows of a deleted topic stay, and make dispatch skip the records below its deletion.
    """

    def __init__(
        self, files: Files, folder: Path, aside_folder: Path, file_bytes: int, open_files_max: int | None = None
    ) -> None:
        self._files = files
        self.open_files = OpenFiles(open_files_max)
        self.folder = folder
        self._aside = aside_folder
        self._file_bytes = file_bytes
        self.deleted_below: Callable[[str], int] = lambda topic: 0
        """Function: physical offset at which a topic was last deleted, 0 if never."""
        self.by_topic: dict[str, dict[int, ConsumeQueue]] = {}
        self.rows: list[ConsumeQueue] = []
        self.slots = np.zeros(64, np.int32)
        self.kernel_rows = np.zeros((16, QUEUE_ROW), np.int64)
        self.topics = np.zeros(1024, np.uint8)
        self._topics_end = 0
        self._topic_at: dict[str, int] = {}

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(list(self.rows))

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue, or None."""
        queues = self.by_topic.get(topic)
        return queues.get(queue_id) if queues is not None else None

    def load(self, recorded_file_bytes: int | None) -> dict[int, str]:
        """Open every queue on disk, without changing anything. Returns the reasons why queues cannot be used, by row.

        ``recorded_file_bytes``: file size that the store is known to have been created with; None if it is unknown. A
        file of another size is damage if the setting equals the recorded size, or if other files have the size of the
        setting; otherwise raises ``SettingMismatch``.
        """
        problems: dict[int, str] = {}
        wrong_size: Path | None = None
        for topic, queue_id in self._folders():
            queue = self.add(topic, queue_id)
            problem, wrong = queue.load()
            wrong_size = wrong_size or wrong
            if problem:
                problems[queue.row] = problem
        if wrong_size is not None and not (
            recorded_file_bytes == self._file_bytes
            or (recorded_file_bytes is None and any(queue.has_whole_file() for queue in self))
        ):
            size = recorded_file_bytes or wrong_size.stat().st_size
            raise SettingMismatch(
                f"{wrong_size} has {wrong_size.stat().st_size:,} bytes, the setting store.consumequeue_file_bytes says "
                f"{self._file_bytes:,}. Start with the size that the store was created with (--set "
                f"store.consumequeue_file_bytes={size}), or, if this file was cut short, move its folder away: queues "
                "are filled again from the log. Nothing was changed"
            )
        return problems

    def _folders(self) -> Iterator[tuple[str, int]]:
        if not self.folder.is_dir():
            return
        for topic_folder in sorted(path for path in self.folder.iterdir() if path.is_dir()):
            name = topic_folder.name
            if name.startswith(LIGHT_QUEUE_PREFIX) or name.encode(errors="replace").decode() != name:
                continue
            for folder in sorted(path for path in topic_folder.iterdir() if path.is_dir()):
                if _QUEUE_ID.match(folder.name):
                    yield name, int(folder.name)

    def add(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue, creating it in memory if it is new. Only for the owner of reput, or before it runs."""
        queue = self.get(topic, queue_id)
        if queue is not None:
            return queue
        row = len(self.rows)
        folder = self.folder / topic / str(queue_id)
        queue = ConsumeQueue(self._files, self.open_files, folder, topic, queue_id, self._file_bytes, row)
        if row == len(self.kernel_rows):
            self.kernel_rows = np.concatenate((self.kernel_rows, np.zeros_like(self.kernel_rows)))
        entry = self.kernel_rows[row]
        entry[:] = 0
        entry[Q_TOPIC_AT] = self._topic_name_at(topic)
        entry[Q_TOPIC_BYTES] = len(topic.encode())
        entry[Q_QUEUE_ID] = queue_id
        entry[Q_TOPIC_HASH] = java_hash(f"{topic}#") & 0xFFFFFFFF
        entry[Q_DELETED_BELOW] = self.deleted_below(topic)
        entry[Q_KIND] = KIND_SCHEDULE if topic == SCHEDULE_TOPIC else KIND_ORDINARY
        self.rows.append(queue)
        if 2 * len(self.rows) > len(self.slots):
            self.slots = np.zeros(2 * len(self.slots), np.int32)
            for each in range(row):
                self._enter(each)
        self._enter(row)
        self.by_topic.setdefault(topic, {})[queue_id] = queue
        return queue

    def _topic_name_at(self, topic: str) -> int:
        at = self._topic_at.get(topic)
        if at is None:
            name = np.frombuffer(topic.encode(), np.uint8)
            while self._topics_end + len(name) > len(self.topics):
                self.topics = np.concatenate((self.topics, np.zeros_like(self.topics)))
            at = self._topic_at[topic] = self._topics_end
            self.topics[at : at + len(name)] = name
            self._topics_end += len(name)
        return at

    def _enter(self, row: int) -> None:
        entry = self.kernel_rows[row]
        at = int(entry[Q_TOPIC_AT])
        mask = len(self.slots) - 1
        slot = queue_hash(self.topics, at, at + int(entry[Q_TOPIC_BYTES]), int(entry[Q_QUEUE_ID])) & mask
        while self.slots[slot]:
            slot = (slot + 1) & mask
        self.slots[slot] = row + 1  # 0 marks an empty slot

    def sync_row(self, queue: ConsumeQueue) -> None:
        """Tell the kernel the queue's next offset after other code than the kernel changed it."""
        self.kernel_rows[queue.row, Q_NEXT] = queue.max_offset

    def topic_deleted(self, topic: str) -> None:
        """Make the kernel skip the topic's records below its deletion. Only for the owner of reput."""
        for queue in self.by_topic.get(topic, {}).values():
            self.kernel_rows[queue.row, Q_DELETED_BELOW] = self.deleted_below(topic)

    def move_aside(self, queue: ConsumeQueue) -> None:
        """Move the queue's folder into ``flintmq/``, durably, and reset the queue to empty."""
        queue.close()
        if queue.folder.exists():
            move_aside(self._files, queue.folder, self._aside, f"consumequeue-{queue.topic[:127]}-{queue.queue_id}")
        queue.max_offset = queue.start_offset = queue.min_hint = 0
        self.sync_row(queue)

    def sync(self) -> None:
        """Put every changed queue on disk."""
        folders = set()
        for queue in self:
            # Read before ``queue.sync`` clears it: the entries of a new queue's parent folders must be on disk too.
            if queue.folder_dirty:
                folders.add(queue.folder.parent)
            if queue.dirty:
                queue.sync()
        for folder in folders:
            self._files.sync_folder(folder)
        if folders:
            self._files.sync_folder(self.folder)

    def close(self) -> None:
        """Close all files."""
        for queue in self.rows:
            queue.close()
