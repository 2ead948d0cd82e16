"""One queue that a member holds: its pulled messages, the works with a listener, and its progress.

No sockets, threads or clock, and nothing is thread-safe: the engine calls it under its lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from ....protocol.errors import FlintError
from ...core.consume.batch import Batch
from ...core.consume.stored import StoredMessage

MERGE_WORKS_MIN = 64
"""Minimum number of settled works of a queue to merge at a time."""
QueueKey = tuple[str, int]
"""A topic and the number of one of its queues."""


@dataclass(slots=True, eq=False)
class WorkItem:
    """Messages of one queue that are handled together, in order.

    ``next_offset``: what can be committed when they and all before them are done; ``tries``: number of failed
    attempts of the first message, which stays in its place; ``taken_at``: when a listener got the work; ``begun_at``:
    when the listener got its current message.
    """

    claim: Claim
    messages: Sequence[StoredMessage]
    batch: Batch | None
    """Their batch, for a listener of batches and of several messages; None: the message has its own bytes."""
    next_offset: int
    size: int
    tries: int = 0
    taken_at: float = inf
    begun_at: float = inf
    done: bool = False
    given_up: bool = False
    """True if it took too long: its messages were sent back, and the result of its listener is ignored."""
    handed_out: bool = False
    """True if an application received it: it no longer counts against the window."""
    dropped: bool = False
    """True if it was returned without a result, because its queue is to go to another member."""
    done_count: int = 0
    """Once it is done: the number of messages that it stands for."""

    @property
    def whole(self) -> Batch:
        """The batch for a listener of batches: the messages that are still to be handled."""
        assert self.batch is not None
        return self.batch if len(self.messages) == len(self.batch) else self.batch.part(self.messages)


@dataclass(slots=True, eq=False)
class Claim:
    """One queue that this member holds. ``position``: offset of the next pull.

    ``revoked``: it is to go to another member, so no more of its works begin; ``lost``: it already belongs to another
    member, and the results of running works are ignored.
    """

    topic: str
    queue: int
    granted: int
    position: int
    commit_offset: int = 0
    """All messages below this offset are done."""
    committed: int = 0
    """The commit offset that the broker knows."""
    asked: bool = False
    revoked: bool = False
    lost: bool = False
    retry_at: float = 0.0
    """When to pull again after the broker refused a pull."""
    refused: FlintError | None = None
    """The refusal, until a pull succeeds."""
    works: deque[WorkItem] = field(default_factory=deque)
    """All works that are not committed yet, in the order of the queue."""
    waiting: deque[WorkItem] = field(default_factory=deque)
    """In orderly mode: the works after the one that runs."""
    running: int = 0
    """Number of ``works`` that are with a listener, or sent back without confirmation."""
    messages: int = 0
    """Number of messages that were pulled and are not below the commit offset."""
    bytes: int = 0
    handed_messages: int = 0
    """Number of those ``messages`` that an application received: open ones, and settled ones behind an open one."""
    handed_bytes: int = 0
    blocked: bool = False
    """True while the queue waits because too many messages are not below the commit offset."""
    _unmerged: int = 0
    """Number of works that were done since the settled ones were merged."""

    @property
    def key(self) -> QueueKey:
        """Topic and queue."""
        return self.topic, self.queue

    @property
    def stopped(self) -> bool:
        """True if no more works begin."""
        return self.revoked or self.lost

    def complete(self, work: WorkItem) -> None:
        """Mark ``work`` as done: its messages are handled, sent back, or no longer wanted."""
        work.done = True
        work.done_count = len(work.messages)
        if work.handed_out:  # the work may stay here for long, but its message is not needed any more
            self.bytes -= work.size
            self.handed_bytes -= work.size
            work.messages, work.size = (), 0
        # An offset covers all messages below it, so a work that is done early waits for the ones before it.
        while self.works and self.works[0].done:
            first = self.works.popleft()
            self.commit_offset = first.next_offset
            self.messages -= first.done_count
            self.bytes -= first.size
            if first.handed_out:
                self.handed_messages -= first.done_count
        if work.handed_out:
            self._unmerged += 1
            if self._unmerged >= MERGE_WORKS_MIN + len(self.works) // 2:
                self._merge()

    def _merge(self) -> None:
        """Merge adjacent settled works, so that the memory for them depends on the number of open ones only."""
        merged: deque[WorkItem] = deque()
        for work in self.works:
            last = merged[-1] if merged else None
            if last is not None and last.done and last.handed_out and work.done and work.handed_out:
                last.next_offset = work.next_offset
                last.done_count += work.done_count
            else:
                merged.append(work)
        self.works = merged
        self._unmerged = 0

    def hand_out(self, work: WorkItem) -> None:
        """Note that an application received the message of ``work``."""
        if not work.handed_out:
            work.handed_out = True
            self.handed_messages += len(work.messages)
            self.handed_bytes += work.size

    @property
    def ahead(self) -> int:
        """Number of messages that are done behind one that is not."""
        return sum(work.done_count for work in self.works if work.done)

    def stop(self) -> None:
        """Begin no more works; the waiting ones will be another member's."""
        self.waiting.clear()

    @property
    def drained(self) -> bool:
        """True if no work is running."""
        return not self.running
