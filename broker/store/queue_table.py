"""All ConsumeQueues of a store, and what the dispatch kernel needs to know of them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from ...protocol.javahash import java_hash
from ..kernels.dispatch import (
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
from .consume_queue import ConsumeQueue, DamagedQueue
from .files import Files

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"


class ConsumeQueueTable:
    """The queues by topic and queue id, and by the row that the kernel knows them by.

    Rows are added, never taken away: a deleted topic's rows stay and skip what lies below its deletion.
    """

    def __init__(self, files: Files, folder: Path, aside_folder: Path, file_bytes: int) -> None:
        self._files = files
        self.folder = folder
        self._aside = aside_folder
        self._file_bytes = file_bytes
        self.deleted_below: Callable[[str], int] = lambda topic: 0
        """At which physical offset a topic was deleted last, 0 if never."""
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
        """The queue, or None."""
        queues = self.by_topic.get(topic)
        return queues.get(queue_id) if queues is not None else None

    def load(self) -> list[str]:
        """Open every queue on disk. Damaged ones are moved aside; returns what was wrong with each."""
        self._files.make_folder(self.folder)
        damaged = []
        for topic_folder in sorted(path for path in self.folder.iterdir() if path.is_dir()):
            for folder in sorted(path for path in topic_folder.iterdir() if path.is_dir() and path.name.isdigit()):
                queue = self.add(topic_folder.name, int(folder.name))
                try:
                    queue.load()
                except DamagedQueue as damage:
                    damaged.append(str(damage))
                    self.move_aside(queue)
        return damaged

    def add(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, made empty in memory if it is new. Only the owner of reput, or before it runs."""
        queue = self.get(topic, queue_id)
        if queue is not None:
            return queue
        row = len(self.rows)
        queue = ConsumeQueue(
            self._files, self.folder / topic / str(queue_id), topic, queue_id, self._file_bytes, row
        )
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
        self.slots[slot] = row + 1

    def sync_row(self, queue: ConsumeQueue) -> None:
        """Tell the kernel the queue's next offset, after it was set otherwise than by the kernel."""
        self.kernel_rows[queue.row, Q_NEXT] = queue.max_offset

    def topic_deleted(self, topic: str) -> None:
        """Tell the kernel that records of the topic below its deletion are dispatched no more. The owner of reput."""
        for queue in self.by_topic.get(topic, {}).values():
            self.kernel_rows[queue.row, Q_DELETED_BELOW] = self.deleted_below(topic)

    def move_aside(self, queue: ConsumeQueue) -> None:
        """Take the queue's folder out of the store, into ``flintmq/``, and begin it anew."""
        queue.close()
        if queue.folder.exists():
            self._files.make_folder(self._aside)
            target = self._aside / f"consumequeue-{queue.topic}-{queue.queue_id}-{time.time_ns()}"
            shutil.move(queue.folder, target)
        queue.max_offset = queue.start_offset = queue.min_hint = 0
        self.sync_row(queue)

    def sync(self) -> None:
        """Put every queue that was written on disk."""
        folders = set()
        for queue in self:
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
