"""Delayed delivery over a store without a broker: the test drives every step, and the clock too."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from flintmq.broker.background.flush import FlushService
from flintmq.broker.delivery.routing import delay_of, route, route_recall
from flintmq.broker.delivery.scheduled.worker import Delays
from flintmq.broker.delivery.topic_changes import TopicChanges
from flintmq.broker.delivery.writer import RecordWriter
from flintmq.broker.store import MessageStore, StoreSettings, TopicConfig, common_properties
from flintmq.broker.store.files.file_system import Files
from flintmq.broker.store.timers import HOUR_SECONDS
from flintmq.protocol.storage.record import Record, encode_properties
from tests.store_tools import HOST, SMALL, Message, UnsyncedFiles, make_batch, make_topic, pull_all

START_MS = 1_795_300_000_000
HOUR_MS = 1000 * HOUR_SECONDS
DAY_MS = 24 * HOUR_MS
MAX_DAYS = 40


class InlineExecutor(Executor):
    """Executor that runs each function in the caller's thread, so that every run is the same."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run the function now."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - set on the future
            future.set_exception(error)
        return future


class InlineFlushService(FlushService):
    """Flush service that flushes in the thread of the waiting caller."""

    def __init__(self, store: MessageStore) -> None:
        super().__init__(store, lambda *call: None, lambda name, error: None)

    def wait_for(self, end_offset: int, callback: Any) -> None:
        """Flush, then call back."""
        self._store.flush()
        callback(None)


class ImmediateTopicChanges(TopicChanges):
    """Topic change queue whose changes are on disk when ``put`` returns."""

    def put(self, config: TopicConfig, done: Any) -> None:
        """Create the topic."""
        self._store.topics.put(config)
        self._store.topics.persist()
        done(None)


class DelayedStore:
    """An open store and its delayed delivery. ``now_ms``: the clock's time."""

    def __init__(
        self, path: Path, *, settings: StoreSettings = SMALL, files: Files | None = None, now_ms: int = START_MS
    ) -> None:
        self.path = path
        self.now_ms = now_ms
        self._settings = settings
        self._files = files
        self.open()

    def open(self, files: Files | None = None) -> None:
        """Open the store, for the first time or after a close."""
        self.store = MessageStore(
            self.path, self._settings, store_host=HOST, files=files or self._files or UnsyncedFiles()
        )
        self.store.open()
        self.loop = asyncio.new_event_loop()
        flusher, pool = InlineFlushService(self.store), InlineExecutor()
        changes = ImmediateTopicChanges(self.store, self.loop, lambda topic: None)
        writer = RecordWriter(self.store, flusher, changes, self.loop, lambda: None, sync=True)

        def now_ms() -> int:
            return self.now_ms

        self.delays = Delays(self.store, writer, self.loop, pool, lambda: None, _raise, now_ms=now_ms)
        self.store.expiry.oldest_timed = self.delays.oldest_timed

    def send(self, topic: str, bodies: Iterable[bytes], *, queue: int = 0, **common: object) -> int:
        """Append messages as a PRODUCE frame would, without flush or dispatch; return the queue offset of the first."""
        config = make_topic(self.store, topic)
        properties = encode_properties({name: str(value) for name, value in common.items()}).decode()
        messages = [Message(body, keys=(body[:20].decode(),)) for body in bodies]
        delay = delay_of(properties)
        to = route(delay, topic, queue, self.now_ms, MAX_DAYS) if delay is not None else None
        if to is None:
            rest = delay.others if delay is not None else properties
            return self.store.append(config, queue, make_batch(messages, common=common_properties(rest))).queue_offset
        waiting = make_topic(self.store, to.config.name, to.config.write_queues)
        return self.store.append(waiting, to.queue, make_batch(messages, common=to.common)).queue_offset

    def recall(self, topic: str, unique_key: str, deliver_ms: int) -> None:
        """Append the recall of a timed message."""
        to = route_recall(topic, unique_key, deliver_ms)
        waiting = make_topic(self.store, to.config.name, to.config.write_queues)
        self.store.append(waiting, to.queue, make_batch([Message(b"0")], common=to.common))

    def append(self, records: Sequence[Record]) -> None:
        """Append complete records, as another broker may have left them."""
        for record in records:
            make_topic(self.store, record.topic.decode(), 18)
        self.store.append_records(records)

    def dispatch(self) -> None:
        """Flush, and dispatch everything."""
        self.store.flush()
        while self.store.reput_offset < self.store.write_offset:
            self.store.dispatch(self.store.write_offset)

    def step(self) -> bool:
        """Do one step of each kind; return whether there was work."""
        levels = self.loop.run_until_complete(self.delays.levels.step(self.now_ms))
        timers = self.loop.run_until_complete(self.delays.timers.step(self.now_ms))
        return levels or timers

    def run(self, now_ms: int | None = None) -> None:
        """Do all the work that is due at the given time."""
        self.now_ms = now_ms if now_ms is not None else self.now_ms
        self.dispatch()
        while self.step():
            self.dispatch()

    def bodies(self, topic: str, queue: int = 0) -> list[bytes]:
        """Return the bodies in the queue."""
        self.dispatch()
        return [record.body for record in self.records(topic, queue)]

    def records(self, topic: str, queue: int = 0) -> list[Record]:
        """Return the queue's records; none if it never had a message."""
        known = self.store.topics.get(topic) is not None and self.store.queues.get(topic, queue) is not None
        return list(pull_all(self.store, topic, queue)) if known else []

    def counted(self, topic: str, queues: int = 4) -> Counter[bytes]:
        """Return how often each body is in the topic."""
        return Counter(body for queue in range(queues) for body in self.bodies(topic, queue))

    def stop(self) -> None:
        """Stop cleanly."""
        self.store.flush()
        self.delays.persist(last=True)
        self.store.close()
        self.loop.close()

    def restart(self) -> None:
        """Stop cleanly, and open again."""
        self.stop()
        self.open()


def _raise(what: str, error: BaseException) -> None:
    raise error
