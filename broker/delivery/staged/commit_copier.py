"""Copying of committed messages to their topics, in steps of about a millisecond, and expiry of stages.

A step appends one note and, directly after it, the copies. If the broker is killed in between, the next start finds the
last copy, because each copy stores the offset of its staged message.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import numpy as np

from ....protocol.storage.delivery import PREPARED_TOPIC
from ...background.loop_worker import LoopWorker, wall_ms
from ..scheduled.redelivery import RECORDS_A_STEP, choose
from .notes import COPY, DONE

if TYPE_CHECKING:
    from ...background.service import OnFatal
    from ...store.queue.consume_queue import ConsumeQueue
    from .service import PendingCommit, StagedTransactions
    from .table import Commit

log = logging.getLogger(__name__)


class CommitCopier:
    """The job of a ``LoopWorker``: it copies one committed transaction after the other, and expires idle stages."""

    def __init__(self, staged: StagedTransactions) -> None:
        self._staged = staged
        self._redeliverer = staged.redeliverer
        self._store = staged.redeliverer.store

    def next_due_ms(self) -> int | None:
        """Return when the next stage expires, or None."""
        oldest_ms = self._staged.table.oldest_active_ms()
        return None if oldest_ms is None else oldest_ms + self._staged.timeout_ms

    def backlog(self) -> int:
        """Return the number of committed messages that are not copied yet."""
        return sum(each.commit.messages - each.commit.position for each in self._staged.pending.values())

    async def step(self, now_ms: int) -> bool:
        """Do one step; return whether there may be more to do now."""
        return await self._copy() or self._expire(now_ms)

    def _expire(self, now_ms: int) -> bool:
        names = self._staged.table.idle_since(now_ms - self._staged.timeout_ms)
        if names:
            log.warning(
                "stages expired: %s%s; dropping their messages, which were not committed in time",
                ", ".join(names[:3]),
                f" and {len(names) - 3} more" if len(names) > 3 else "",
            )
            self._staged.drop_stages(names, "expire")
        return False

    async def _copy(self) -> bool:
        # A commit whose note is not acknowledged yet can still fail, and then no consumer may see its messages.
        pending = next((each for each in self._staged.pending.values() if each.decided), None)
        if pending is None:
            return False
        commit = pending.commit
        if commit.position < commit.messages:
            queue = self._store.queues.get(PREPARED_TOPIC, 0)
            if queue is None or queue.max_offset < commit.end:
                return False  # its last messages are not dispatched yet; the dispatch wakes this task
            await self._copy_part(commit, queue)
        else:
            self._finish(pending)
        return True

    async def _copy_part(self, commit: Commit, queue: ConsumeQueue) -> None:
        chosen, count = await self._choose(commit, queue)
        note = [COPY, commit.scope, commit.sequence, commit.position]
        await self._redeliverer.deliver(chosen, committed_by=lambda: self._staged.append_note(note))
        # After the append: if that is refused, the next step copies the same messages.
        commit.position += count

    async def _choose(self, commit: Commit, queue: ConsumeQueue) -> tuple[np.ndarray, int]:
        """Return (rows of the next step's messages, number of the transaction's messages that they cover)."""
        units = [
            await self._redeliverer.read_units(queue, part.first, part.end - part.first)
            for part in commit.ranges_from(commit.position, RECORDS_A_STEP)
        ]
        return choose(np.concatenate(units), 0)

    def _finish(self, pending: PendingCommit) -> None:
        end_offset = self._staged.append_note([DONE, pending.commit.scope, pending.commit.sequence])
        self._staged.finish_commit(pending, end_offset)


def commit_worker(staged: StagedTransactions, loop: asyncio.AbstractEventLoop, on_fatal: OnFatal) -> LoopWorker:
    """Return the worker that copies committed transactions and expires stages whenever necessary."""
    worker = LoopWorker("the copying of committed transactions", CommitCopier(staged), loop, wall_ms, on_fatal)
    staged.wake = worker.wake
    return worker
