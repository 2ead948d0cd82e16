"""Changes of the topic table: made on the event loop, written by one thread, confirmed when they are on disk."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...protocol.errors import BrokerError, FlintError, ServiceNotAvailable

if TYPE_CHECKING:
    from ..store import MessageStore, TopicConfig

log = logging.getLogger(__name__)

Done = Callable[[BrokerError | None], None]


@dataclass(slots=True)
class _Change:
    """A change that is not on disk yet: the topic, its previous settings, and the callbacks that wait for it."""

    topic: str
    previous: TopicConfig | None
    delete: bool
    waiting: list[Done] = field(default_factory=list)


class TopicChanges:
    """Creation, change and deletion of topics.

    All changes requested during one write of the table share the next write (group commit). A topic is pending from its
    change until that is on disk; until then the broker acknowledges no message of it. ``on_deleted`` is called on the
    loop with each deleted topic after its files are gone.
    """

    def __init__(self, store: MessageStore, loop: asyncio.AbstractEventLoop, on_deleted: Callable[[str], None]) -> None:
        self._store = store
        self._on_deleted = on_deleted
        self._loop = loop
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="topics")
        self.pending: dict[str, _Change] = {}
        """By topic: the change that is not on disk yet."""
        self.replicate: Callable[[Callable[[], None]], object] = lambda done: done()
        """Called after a change is on disk; calls its argument when other brokers that must have it do, too."""
        self.on_changed: Callable[[], None] = lambda: None
        """Called on the loop after changes have been made."""
        self._queue: deque[_Change] = deque()
        self._running = False
        self._given_up: BrokerError | None = None

    def when_done(self, topic: str, done: Done) -> None:
        """Call ``done`` on the loop, with the error or None, when the pending change of ``topic`` is finished."""
        self.pending[topic].waiting.append(done)

    def put(self, config: TopicConfig, done: Done) -> None:
        """Create or replace a topic without a pending change; call ``done`` when it is on disk."""
        if self._may_change(done):
            self._start(_Change(config.name, self._store.topics.get(config.name), delete=False), done)
            self._store.topics.put(config)

    def delete(self, topic: str, done: Done) -> None:
        """Delete a topic without a pending change; call ``done`` when its files are gone."""
        if self._may_change(done):
            self._start(_Change(topic, self._store.topics.get(topic), delete=True), done)
            self._store.topics.remove(topic)

    def give_up(self, error: BrokerError) -> None:
        """Call all waiting callbacks, and every later one, with ``error``: no change is confirmed any more.

        A change that other brokers must have would otherwise wait for ever, and with it the task that needs the topic.
        """
        self._given_up = error
        given_up = list(self.pending.values())
        self._queue.clear()
        self.pending.clear()  # before the callbacks, which may ask for the change again
        for change in given_up:
            for done in change.waiting:
                done(error)

    def close(self) -> None:
        """Wait for the change that is being written. Blocking."""
        self._thread.shutdown()

    def _may_change(self, done: Done) -> bool:
        if self._given_up is not None:
            # Not within the caller's own call: every other answer comes later, too.
            self._loop.call_soon(done, self._given_up)
        return self._given_up is None

    def _start(self, change: _Change, done: Done) -> None:
        assert change.topic not in self.pending, "wait for the pending change first"
        change.waiting.append(done)
        self.pending[change.topic] = change
        self._queue.append(change)
        if not self._running:
            # Not before the next turn of the loop: `put` changes the table after this call, and other changes of this
            # turn can share the write.
            self._running = True
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        if not self._queue:
            self._running = False
            return
        batch = [self._queue.popleft()]
        # Deletions are written differently. Only neighbours share a write, so that the changes keep their order.
        while self._queue and self._queue[0].delete == batch[0].delete:
            batch.append(self._queue.popleft())
        work = self._loop.run_in_executor(self._thread, self._write, batch)
        work.add_done_callback(lambda work: self._on_disk(batch, work.exception()))

    def _write(self, batch: list[_Change]) -> None:
        if batch[0].delete:
            self._store.delete_topic(*(change.topic for change in batch))
        else:
            self._store.topics.save()

    def _on_disk(self, batch: list[_Change], failure: BaseException | None) -> None:
        if failure is None:
            self.replicate(lambda: self._written(batch, None))
        else:
            self._written(batch, failure)

    def _written(self, batch: list[_Change], failure: BaseException | None) -> None:
        if self._given_up is not None:
            if failure is not None:
                log.error("could not write the topic table", exc_info=failure)
            return  # its callbacks have been called
        for change in batch:
            # Before the callbacks, which may change the topic again.
            del self.pending[change.topic]
            error = self._undo(change, failure) if failure is not None else None
            # Before the callbacks: a client that hears of the deletion may create the topic again at once.
            if change.delete and error is None:
                self._on_deleted(change.topic)
            for done in change.waiting:
                done(error)
        self.on_changed()
        self._next()

    def _undo(self, change: _Change, failure: BaseException) -> BrokerError:
        """Undo a change that could not be written, log it, and return the error for the client."""
        log.error("could not write the topic table for a change of topic %s", change.topic, exc_info=failure)
        if change.previous is None:
            self._store.topics.remove(change.topic)
            self._store.topics.left(change.topic)
        else:
            self._store.topics.put(change.previous)
        reason = str(failure) if isinstance(failure, FlintError | OSError) else type(failure).__name__
        verb = "deleted" if change.delete else "created or changed"
        return ServiceNotAvailable(f"topic {change.topic} could not be {verb}: {reason}; see the broker's log")
