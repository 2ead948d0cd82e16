"""Copying of committed messages to their topics, in steps of about a millisecond, and expiry of attempts.

A step appends one note and, directly after it, the copies. If the broker is killed in between, the next start finds the
last copy, because each copy stores the offset of its prepared message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import numpy as np

from ....protocol.storage.delivery import PREPARED_TOPIC
from ...store.queue.consume_queue import ConsumeQueue
from ..scheduled.redelivery import RECORDS_A_STEP, choose
from ..scheduled.worker import LoopWorker, wall_ms
from .notes import COPY, DONE
from .service import Committing, PreparedMessages
from .table import Commit

log = logging.getLogger(__name__)


class PreparedWork:
    """The work of a ``LoopWorker`` for prepared messages: it copies one transaction after the other."""

    def __init__(self, prepared: PreparedMessages) -> None:
        self._prepared = prepared
        self._mover = prepared.mover
        self._store = prepared.mover.store

    def next_due_ms(self) -> int | None:
        """Return when the next attempt expires, or None."""
        oldest_ms = self._prepared.table.oldest_ms()
        return None if oldest_ms is None else oldest_ms + self._prepared.timeout_ms

    async def step(self, now_ms: int) -> bool:
        """Do one step; return whether there may be more to do now."""
        return await self._copy() or self._expire(now_ms)

    def _expire(self, now_ms: int) -> bool:
        names = self._prepared.table.idle_since(now_ms - self._prepared.timeout_ms)
        if names:
            log.warning(
                "attempts expired: %s%s; dropping their messages, which were not committed in time",
                ", ".join(names[:3]),
                f" and {len(names) - 3} more" if len(names) > 3 else "",
            )
            self._prepared.drop(names, "expire")
        return False

    async def _copy(self) -> bool:
        committing = next((each for each in self._prepared.committing.values() if each.decided), None)
        if committing is None:
            return False
        commit = committing.commit
        if commit.position < commit.messages:
            queue = self._store.queues.get(PREPARED_TOPIC, 0)
            if queue is None or queue.max_offset < commit.end:
                return False  # its last messages are not dispatched yet; the dispatch wakes this task
            await self._copy_part(commit, queue)
        else:
            self._finish(committing)
        return True

    async def _copy_part(self, commit: Commit, queue: ConsumeQueue) -> None:
        chosen, count = await self._choose(commit, queue)
        note = [COPY, commit.series, commit.number, commit.position]
        await self._mover.deliver(chosen, committed_by=lambda: self._prepared.note(note))
        commit.position += count

    async def _choose(self, commit: Commit, queue: ConsumeQueue) -> tuple[np.ndarray, int]:
        """Return (rows of the next step's messages, number of the transaction's messages that they cover)."""
        units = [
            await self._mover.units(queue, part.first, part.end - part.first)
            for part in commit.ranges_from(commit.position, RECORDS_A_STEP)
        ]
        return choose(np.concatenate(units), 0)

    def _finish(self, committing: Committing) -> None:
        commit = committing.commit
        end_offset = self._prepared.note([DONE, commit.series, commit.number])
        self._prepared.copied(committing, end_offset)


def run(
    prepared: PreparedMessages, loop: asyncio.AbstractEventLoop, fatal: Callable[[str, BaseException], None]
) -> LoopWorker:
    """Start a task that copies and expires prepared messages whenever necessary."""
    pump = LoopWorker("the copying of prepared messages", PreparedWork(prepared), loop, wall_ms, fatal)
    prepared.wake = pump.wake
    return pump
