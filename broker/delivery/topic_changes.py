"""Changes of the topic table: made on the event loop, written by one thread, confirmed when they are on disk."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from ...protocol.commands import DELETE_TOPIC_IN_BROKER, UPDATE_AND_CREATE_TOPIC
from ...protocol.errors import (
    BrokerError,
    FlintError,
    InvalidParameter,
    NoPermission,
    ServiceNotAvailable,
    TopicExistsAlready,
)
from ...protocol.names import check_name, is_system_topic
from ...protocol.storage.delivery import RETRY_TOPIC_PREFIX, group_of_retries
from ..background.loop_work import called_back
from ..store import TopicConfig

if TYPE_CHECKING:
    from ...protocol.commands import UpdateAndCreateTopicRequest
    from ..background.held_pulls import PullRequestHoldService
    from ..store import MessageStore
    from .client_handle import Requester

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
        self.on_pending: Callable[[str], None] = lambda topic: None
        """Called with a topic after its change became pending."""
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
        self.on_pending(change.topic)
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


# ---- What clients may change of topics.

AS_IT_IS = -2
"""Value of ``retention_hours`` that keeps the topic's retention; a new topic then has none of its own."""


class TopicService:
    """Changes of topics by clients of both protocols. A change that has begun ends, even if its client is lost.

    ``holds``: held pulls, which look again after a change: they may not be allowed to read any more.
    """

    def __init__(self, store: MessageStore, changes: TopicChanges, holds: PullRequestHoldService) -> None:
        self._store = store
        self._changes = changes
        self._holds = holds

    async def change(
        self,
        caller: Requester,
        params: UpdateAndCreateTopicRequest,
        extra: Mapping[str, Any] | None = None,
        *,
        may_shrink: bool = False,
    ) -> None:
        """Create or change a topic; return once the table is on disk.

        ``extra``: new values of RocketMQ's other fields; an attribute that is None is removed. ``may_shrink``: the
        topic may get fewer queues. Those above the new number keep their messages, out of reach until it grows again.
        """
        name = check_name("topic", params.topic)
        _check_own(name)
        _check_retention(params)
        # The comparison comes after a pending change, which alters what this one is compared with.
        await self._settled(name)
        old = self._store.topics.get(name)
        if old is not None and not may_shrink:
            _check_not_fewer(params, old)
        new = dataclasses.replace(
            old or TopicConfig(name),
            read_queues=params.read_queues,
            write_queues=params.write_queues,
            perm=params.perm,
            order=params.order,
            extra=_merged(old.extra if old is not None else {}, extra or {}),
        )
        if params.retention_hours != AS_IT_IS:
            new = dataclasses.replace(new, retention_hours=params.retention_hours)
        if params.retention_bytes >= 0:
            new = dataclasses.replace(new, retention_bytes=params.retention_bytes)
        # No change is pending, so the table on disk says the same already.
        if old is None or new.to_json() != old.to_json():
            await called_back(partial(self._changes.put, new))
            caller.audit(UPDATE_AND_CREATE_TOPIC, f"topic {name}", topic_values(old), topic_values(new))
            self._holds.wake_topic(name)

    async def delete(self, caller: Requester, name: str) -> None:
        """Delete a topic; return when its files are gone.

        Its messages that are written are acknowledged and dispatched first: those that the deletion overtakes get no
        units, and its queues would end before the offset from which the topic continues.
        """
        _check_own(name)
        await caller.written()
        await self._settled(name)
        old = self._store.topics.existing(name)
        await called_back(partial(self._changes.delete, name))
        caller.audit(DELETE_TOPIC_IN_BROKER, f"topic {name}", topic_values(old), None)
        self._holds.wake_topic(name)

    async def _settled(self, topic: str) -> None:
        """Wait until no change of the topic is pending."""
        while topic in self._changes.pending:
            with contextlib.suppress(BrokerError):  # the error of that change, which its own client gets
                await called_back(partial(self._changes.when_done, topic))


def topic_values(config: TopicConfig | None) -> dict[str, Any] | None:
    """Return a topic's values for the audit log; None if it does not exist."""
    if config is None:
        return None
    attributes = config.extra.get("attributes")
    return {
        **({"attributes": attributes} if attributes else {}),
        "read_queues": config.read_queues,
        "write_queues": config.write_queues,
        "perm": config.perm,
        "order": config.order,
        "retention_hours": config.retention_hours,
        "retention_bytes": config.retention_bytes,
    }


def _check_not_fewer(params: UpdateAndCreateTopicRequest, old: TopicConfig) -> None:
    """Raise if the topic would lose queues: what its groups have not read of them would be out of reach, and messages
    of one key would change their queue."""
    if params.read_queues < old.read_queues or params.write_queues < old.write_queues:
        raise TopicExistsAlready(
            f"topic {old.name} has {old.read_queues} read queues and {old.write_queues} write queues; "
            "queues can be added, but not removed: their messages would be out of reach",
            read_queues=old.read_queues,
            write_queues=old.write_queues,
        )


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return RocketMQ's other fields of a topic after a change."""
    if not new:
        return dict(old)
    attributes = {**(old.get("attributes") or {}), **new.get("attributes", {})}
    kept = {name: value for name, value in attributes.items() if value is not None}
    return {**old, **new, "attributes": kept}


def _check_own(topic: str) -> None:
    if is_system_topic(topic):
        raise NoPermission(f"topic {topic} is a system topic of the broker; it cannot be created, changed or deleted")


def _check_retention(params: UpdateAndCreateTopicRequest) -> None:
    """Raise if a retention rule would delete messages that a group still has to receive again."""
    has_rule = params.retention_hours > 0 or params.retention_bytes > 0
    if has_rule and params.topic.startswith(RETRY_TOPIC_PREFIX):
        group = group_of_retries(params.topic)
        raise InvalidParameter(
            f"topic {params.topic} holds messages that group {group} still has to receive again; it cannot have a "
            "retention of its own"
        )
