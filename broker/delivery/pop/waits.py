"""Consumers that wait for messages of a topic (long polling), by topic and group. Belongs to the event loop.

A message that arrives wakes one waiting consumer of each group. That consumer takes what there is, and the next one is
woken only if it leaves some, so a thousand idle consumers cost no more than one.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from ....protocol.storage.delivery import old_pop_retry_topic, pop_retry_topic

ALL_QUEUES = -1


class Timer(Protocol):
    """A call that can be cancelled."""

    def cancel(self) -> object:
        """Cancel the call."""


class WaitEnd(enum.Enum):
    """Reason for the end of a wait."""

    WOKEN = "there may be messages"
    EXPIRED = "its time is over"
    STOPPED = "the broker stops"


class Wait:
    """One waiting consumer. ``ended`` gets the reason exactly once, or never after ``cancel``."""

    __slots__ = ("ended", "group", "queue", "timer", "topic", "waits")

    def __init__(self, waits: Waits, group: str, topic: str, queue: int, ended: Callable[[WaitEnd], None]) -> None:
        self.waits: Waits | None = waits
        self.group = group
        self.topic = topic
        self.queue = queue
        self.ended = ended
        self.timer: Timer | None = None

    def cancel(self) -> None:
        """Stop waiting; may be called at any time and more than once."""
        # The timer, a message and the loss of the connection may each end the wait: only the first one finds it.
        waits, self.waits = self.waits, None
        if waits is not None:
            waits.forget(self)

    def end(self, reason: WaitEnd) -> None:
        """End the wait, unless it has ended."""
        if self.waits is not None:
            # Before the call, which may let the consumer wait again at once.
            self.cancel()
            self.ended(reason)


class Waits:
    """All waiting consumers. ``call_at``: calls a function at a time of the loop's clock.

    ``every``: wake all consumers of a group instead of one, because they take nothing.
    """

    def __init__(self, call_at: Callable[[float, Callable[[], None]], Timer], *, every: bool = False) -> None:
        self._call_at = call_at
        self._every = every
        self._groups: dict[tuple[str, str], dict[Wait, None]] = {}
        """By topic and group: the waiting consumers, in the order in which they came."""
        self.by_topic: dict[str, dict[tuple[str, str], None]] = {}
        """By topic, including retry topics: the (topic, group) pairs that wait for it. Read by other modules too."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def count(self, group: str, topic: str) -> int:
        """Return how many consumers of a group wait for messages of a topic."""
        return len(self._groups.get((topic, group), ()))

    def count_of(self, group: str) -> int:
        """Return how many consumers of a group wait, for whatever topic."""
        return sum(len(waiting) for (_, name), waiting in self._groups.items() if name == group)

    def hold(self, group: str, topic: str, queue: int, deadline: float, ended: Callable[[WaitEnd], None]) -> Wait:
        """Let a consumer wait for a queue, or for ``ALL_QUEUES``, and for retries, until ``deadline`` in seconds."""
        wait = Wait(self, group, topic, queue, ended)
        key = (topic, group)
        waiting = self._groups.get(key)
        if waiting is None:
            waiting = self._groups[key] = {}
            # A retried message is in a topic of its own, but is popped together with those of this one.
            for name in _watched(group, topic):
                self.by_topic.setdefault(name, {})[key] = None
        waiting[wait] = None
        self._count += 1
        wait.timer = self._call_at(deadline, lambda: wait.end(WaitEnd.EXPIRED))
        return wait

    def forget(self, wait: Wait) -> None:
        """Remove a wait that ends."""
        key = (wait.topic, wait.group)
        waiting = self._groups[key]
        del waiting[wait]
        self._count -= 1
        if wait.timer is not None:
            wait.timer.cancel()
        if waiting:
            return
        del self._groups[key]
        for name in _watched(wait.group, wait.topic):
            del self.by_topic[name][key]
            if not self.by_topic[name]:
                del self.by_topic[name]

    def arrived(self, topic: str, queue: int) -> None:
        """Wake consumers: there is a message in a queue of a topic, which may be a retry topic."""
        # A copy, because a wait that ends may be the last of its topic.
        for waited_for, group in list(self.by_topic.get(topic, ())):
            # A retry may come from any queue of the topic.
            self.wake(group, waited_for, queue if waited_for == topic else ALL_QUEUES)

    def wake(self, group: str, topic: str, queue: int) -> None:
        """Wake one consumer of a group (or all, if ``every``) that can take a message of a queue.

        ``ALL_QUEUES``: of any queue, or a retry.
        """
        for wait in list(self._takers(group, topic, queue)) if self._every else self._first(group, topic, queue):
            wait.end(WaitEnd.WOKEN)

    def _takers(self, group: str, topic: str, queue: int) -> Iterator[Wait]:
        for wait in self._groups.get((topic, group), ()):
            if queue == ALL_QUEUES or wait.queue in (ALL_QUEUES, queue):
                yield wait

    def _first(self, group: str, topic: str, queue: int) -> Iterable[Wait]:
        wait = next(self._takers(group, topic, queue), None)
        return () if wait is None else (wait,)

    def wake_all(self) -> None:
        """Wake every consumer, after a change of topics or permissions, so that it checks again."""
        self._end_all(WaitEnd.WOKEN)

    def answer_all(self) -> None:
        """End every wait because the broker stops."""
        self._end_all(WaitEnd.STOPPED)

    def _end_all(self, reason: WaitEnd) -> None:
        # Copies, because every end removes the wait from the dicts.
        for waiting in list(self._groups.values()):
            for wait in list(waiting):
                wait.end(reason)


def _watched(group: str, topic: str) -> tuple[str, str, str]:
    return topic, pop_retry_topic(group, topic), old_pop_retry_topic(group, topic)
