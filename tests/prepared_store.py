"""Staged transactions over a store without a broker: the test drives every step, and the clock too."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from flintmq.broker.delivery.scheduled.delivery import Deliverer
from flintmq.broker.delivery.staged import STAGED_CONFIG, TOPICS, CommitResult, StagedTransactions, table_at_start
from flintmq.broker.delivery.writer import RecordWriter
from flintmq.broker.store import MessageStore, StoreSettings
from flintmq.broker.store.files.file_system import Files
from flintmq.protocol.storage.record import encode_properties
from tests.delay_tools import START_MS, ImmediateTopicChanges, InlineExecutor, InlineFlushService
from tests.store_tools import HOST, SMALL, Message, UnsyncedFiles, make_batch, make_topic, pull_all

TIMEOUT_MS = 60_000


class PreparedStore:
    """An open store and its staged transactions. ``now_ms``: the clock's time."""

    def __init__(self, path: Path, *, settings: StoreSettings = SMALL, files: Files | None = None) -> None:
        self.path = path
        self.now_ms = START_MS
        self.settings = settings
        self.open(files)

    def open(self, files: Files | None = None) -> None:
        """Open the store, for the first time or after a close."""
        self.store = store = MessageStore(self.path, self.settings, store_host=HOST, files=files or UnsyncedFiles())
        store.open()
        self.loop = asyncio.new_event_loop()
        flush, made = InlineFlushService(store), ImmediateTopicChanges(store, self.loop, lambda topic: None)
        sync = self.settings.flush_policy == "sync"
        writer = RecordWriter(store, flush, made, self.loop, lambda: None, sync=sync)
        deliverer = Deliverer(store, writer, self.loop, InlineExecutor(), lambda: None)
        self.staged = StagedTransactions(
            writer, deliverer, timeout_ms=TIMEOUT_MS, stages_max=100, now_ms=lambda: self.now_ms
        )
        self.staged.restore(table_at_start(store))

    def prepare(self, attempt: str, topic: str, bodies: Iterable[bytes], *, queue: int = 0) -> None:
        """Append messages as a PRODUCE frame would, without flush or dispatch."""
        for config in TOPICS:
            make_topic(self.store, config.name, 1)
        make_topic(self.store, topic)
        messages = [Message(body) for body in bodies]
        common = encode_properties({"REAL_TOPIC": topic, "REAL_QID": str(queue)})
        batch = make_batch(messages, common=common)
        self.staged.stage_messages(
            attempt, topic, queue, len(messages), lambda: self.store.append(STAGED_CONFIG, 0, batch).queue_offset
        )

    def commit(self, sequence: int, stages: Mapping[str, int], *, scope: str = "query", drop: str = "") -> CommitResult:
        """Begin a commit."""
        return self.staged.begin_commit(scope, sequence, list(stages.items()), drop)

    def dispatch(self) -> None:
        """Flush, and dispatch everything."""
        self.store.flush()
        while self.store.reput_offset < self.store.write_offset:
            self.store.dispatch(self.store.write_offset)

    def step(self) -> bool:
        """Do one step of copying or expiry; return whether there may be more work."""
        return self.loop.run_until_complete(self.staged.step(self.now_ms))

    def run(self) -> None:
        """Do all work."""
        self.dispatch()
        while self.step():
            self.dispatch()

    def save(self) -> None:
        """Save the state from which the next start continues."""
        self.staged.take_snapshot()
        self.staged.persist()

    def counted(self, topic: str, queues: int = 4) -> Counter[bytes]:
        """Return how often each body is in a topic."""
        self.dispatch()
        found: Counter[bytes] = Counter()
        for queue in range(queues):
            if self.store.topics.get(topic) is not None and self.store.queues.get(topic, queue) is not None:
                found.update(record.body for record in pull_all(self.store, topic, queue))
        return found

    def stop(self) -> None:
        """Stop cleanly."""
        self.store.flush()
        self.staged.close()
        self.store.close()
        self.loop.close()

    def restart(self) -> None:
        """Stop cleanly, and open again."""
        self.stop()
        self.open()
