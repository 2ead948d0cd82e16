"""Locks on queues, for RocketMQ's clients that consume in order: only the holder of the lock may read the queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .assignment import Queue

LOCK_S = 60.0
"""Life of a lock that is not renewed (RocketMQ's ``rebalance.lockMaxLiveTime``); clients renew it each 20 s."""
UNUSED_S = 30.0
"""Time without a renewal after which a client itself stops using a lock (``REBALANCE_LOCK_MAX_LIVE_TIME``)."""


@dataclass(slots=True)
class _Lock:
    holder: str
    renewed_at: float
    until: float


class QueueLocks:
    """The locks by group and queue; at most one for each queue that a group may read. ``clock``: seconds, monotonic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._groups: dict[str, dict[Queue, _Lock]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def lock(self, group: str, client_id: str, queues: Iterable[Queue]) -> list[Queue]:
        """Lock the queues that no other client holds; return those that the client holds now."""
        now = self._clock()
        locks = self._groups.setdefault(group, {})
        held = []
        for queue in queues:
            lock = locks.get(queue)
            # A client renews its own lock by locking again. One that expired is free: its holder stopped using it
            # before.
            if lock is None or lock.holder == client_id or lock.until <= now:
                locks[queue] = _Lock(client_id, now, now + LOCK_S)
                held.append(queue)
        if not locks:
            del self._groups[group]
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[Queue]) -> None:
        """Release those of the queues that the client holds."""
        locks = self._groups.get(group, {})
        for queue in queues:
            if (lock := locks.get(queue)) is not None and lock.holder == client_id:
                del locks[queue]
        if not locks:
            self._groups.pop(group, None)

    def holds_any(self, group: str, client_id: str) -> bool:
        """Return whether the client holds a queue of the group."""
        now = self._clock()
        return any(lock.holder == client_id and lock.until > now for lock in list(self._groups.get(group, {}).values()))

    def release_all(self, group: str, client_id: str) -> None:
        """Release every queue that the client holds: it said that it has stopped."""
        self.unlock(group, client_id, list(self._groups.get(group, {})))

    def lost(self, group: str, client_id: str) -> None:
        """Shorten the locks of a client whose connection is lost. It may still be processing messages of the queues, so
        another client gets them only after the lost client has stopped using its locks by itself."""
        for lock in self._groups.get(group, {}).values():
            if lock.holder == client_id:
                lock.until = lock.renewed_at + UNUSED_S

    def forget_expired(self) -> None:
        """Drop the locks that have expired."""
        now = self._clock()
        for group, locks in list(self._groups.items()):
            for queue in [queue for queue, lock in locks.items() if lock.until <= now]:
                del locks[queue]
            if not locks:
                del self._groups[group]
