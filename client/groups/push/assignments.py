"""All queues that a member holds: the assignment, the bounds of what is pulled, and what is to be committed.

No sockets, threads or clock. Nothing here is thread-safe: the engine calls it under its lock. All times are monotonic
seconds that the engine passes in.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from ....protocol.errors import FlintError
from ...core.consume.batch import Batch, StoredMessage
from .options import Options

# ---- One queue that a member holds: its pulled messages, the works with a listener, and its progress.
#
# No sockets, threads or clock, and nothing is thread-safe: the engine calls it under its lock.

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


_CHUNK_MAX = 32
"""Maximum number of messages handed to a worker at a time, if there are many."""
_PULL_BYTES_MAX = 1 << 20
CHUNK_SECONDS = 0.1
"""How long a listener should be busy with messages that are handed out together: a member that leaves, or gives up a
queue, first finishes what it has begun."""
Row = tuple[str, int, int, int]
"""A row of an assignment: topic, queue, next offset, and the epoch since which the member has the queue."""


class Claims:
    """All queues of a member. The bounds, in messages and bytes, apply to all of them together; ``orderly``: one work
    of a queue at a time; ``chunk_max``: maximum number of messages of a work, None: a batch stays whole, 1: each
    message has its own bytes; ``uncommitted_max``: maximum number of messages of a queue from its oldest open one on.
    """

    def __init__(
        self,
        *,
        messages_max: int,
        bytes_max: int,
        batch_max: int,
        orderly: bool,
        chunk_max: int | None,
        workers: int,
        uncommitted_max: int = sys.maxsize,
    ) -> None:
        self._uncommitted_max = uncommitted_max
        self._resumed: list[WorkItem] = []
        """Works that begin again, because their queue is assigned again before it went to another member."""
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._batch_max = batch_max
        self._orderly = orderly
        self._chunk_max = chunk_max
        self._workers = workers
        self._message_seconds = inf
        self._by_key: dict[QueueKey, Claim] = {}
        self._closing = False
        self.recalls = False
        """True if works of a revoked or lost queue may wait for a listener: they must be given back now."""
        self.taken = 0
        """Number of queues that were taken from this member before it had finished with them."""

    def __iter__(self) -> Iterator[Claim]:
        return iter(list(self._by_key.values()))

    def __len__(self) -> int:
        return len(self._by_key)

    @property
    def messages(self) -> int:
        """Number of messages that were pulled and are not done."""
        return sum(claim.messages for claim in self._by_key.values())

    @property
    def bytes(self) -> int:
        """Total bytes of their records."""
        return sum(claim.bytes for claim in self._by_key.values())

    @property
    def handling(self) -> bool:
        """True if a listener is busy with a work whose result is needed."""
        return any(
            claim.running and any(work.begun_at != inf and not work.done for work in claim.works) for claim in self
        )

    def owned(self) -> list[list[str | int]]:
        """Return the queues to name in a heartbeat, because messages of them may still be here."""
        return [[claim.topic, claim.queue] for claim in self._by_key.values()]

    # ---- the assignment

    def assign(self, rows: Iterable[Row], *, rejoined: bool, forgetful: bool = True, alone: bool = False) -> None:
        """Apply the assignment of a heartbeat's response.

        ``rejoined``: the member joined again and named the queues it holds; a queue in which no other member has made
        progress meanwhile continues unchanged. ``forgetful``: the broker has restarted and may have forgotten commits.
        If it has not restarted and still knows less than it did, the group's offsets were reset. ``alone``: no other
        member reads for this one, so a queue that the broker would have begin later continues too.
        """
        present = {(topic, queue): (next_offset, granted) for topic, queue, next_offset, granted in rows}
        for key, claim in list(self._by_key.items()):
            if key not in present:
                self.recalls |= not (claim.revoked or claim.drained)
                claim.revoked = True
                claim.stop()
                continue
            next_offset, granted = present[key]
            if claim.granted == granted and not claim.lost:
                continue  # if it was revoked and is assigned again, ``_begin`` continues it
            known = 0 if forgetful else claim.committed
            if rejoined and not claim.lost and known <= next_offset and (alone or next_offset <= claim.commit_offset):
                claim.granted = granted
                claim.committed = min(next_offset, claim.commit_offset)
                continue
            self.taken += 1
            self.lose(claim)
        if not self._closing:
            for key, (next_offset, granted) in present.items():
                self._begin(key, next_offset, granted)

    def _begin(self, key: QueueKey, next_offset: int, granted: int) -> None:
        """Take a queue that is not held, or that is assigned again before this member released it."""
        held = self._by_key.get(key)
        position = next_offset
        if held is not None:
            if not held.revoked:
                return
            if not self._orderly:
                self._resume(held)
                return
            if not held.drained or held.asked:
                return
            # Restart where no more works were begun; progress that the broker does not know yet remains to be
            # committed.
            position = max(next_offset, held.commit_offset)
        self._by_key[key] = Claim(*key, granted, position, position, next_offset)

    def take_resumed(self) -> list[WorkItem]:
        """Return and remove the works that begin again."""
        resumed, self._resumed = self._resumed, []
        return resumed

    def _resume(self, claim: Claim) -> None:
        """Continue a revoked queue, of which works may still be open: no other member has had it."""
        claim.revoked = False
        for work in claim.works:
            if work.dropped:
                work.dropped = False
                claim.running += 1
                self._resumed.append(work)

    def refuse(self, topic: str, epoch: int, queues: Iterable[int] | None = None) -> list[int]:
        """Drop queues of a topic (None: all) that, according to the broker, this member does not hold in ``epoch``.

        A queue granted later than that stays. Returns the dropped queues.
        """
        wanted = None if queues is None else set(queues)
        dropped = [
            claim
            for claim in self
            if claim.topic == topic and claim.granted <= epoch and (wanted is None or claim.queue in wanted)
        ]
        for claim in dropped:
            self.taken += 1
            self.lose(claim)
        return sorted(claim.queue for claim in dropped)

    def lose(self, claim: Claim) -> None:
        """Ignore the running works of a queue that belongs to another member or whose offset was reset."""
        self.recalls |= not claim.drained
        claim.lost = True
        claim.stop()
        if self._by_key.get(claim.key) is claim:
            del self._by_key[claim.key]

    def lose_all(self) -> None:
        """Lose all queues, because the member is no longer in the group."""
        for claim in self:
            self.lose(claim)

    def revoke_all(self) -> None:
        """Prepare to leave: begin no more works, and accept no more queues."""
        self._closing = True
        for claim in self:
            claim.revoked = True
            claim.stop()

    def release(self, *, commit_first: bool) -> bool:
        """Release the revoked queues without running works; returns whether there were any. ``commit_first``: keep
        those whose progress is not committed yet."""
        free = [
            claim
            for claim in self
            if claim.revoked and claim.drained and not (commit_first and claim.committed < claim.commit_offset)
        ]
        for claim in free:
            self.lose(claim)
        return bool(free)

    # ---- pulling

    def to_pull(self, now: float, paused: frozenset[str]) -> list[Claim]:
        """Return the queues to pull now.

        Each has an equal share of the bounds and is pulled when half of it is free. So all together stay within the
        bounds, except for a message that is larger than a share.
        """
        return [
            claim
            for claim in self._by_key.values()
            if not (claim.asked or claim.stopped or claim.retry_at > now or claim.topic in paused)
            and self.has_room(claim)
        ]

    def has_room(self, claim: Claim) -> bool:
        """Return whether the next messages of a queue fit the bounds."""
        messages_max, bytes_max = self._share()
        return (
            claim.messages <= self._uncommitted_max - self.pull_count
            and claim.messages - claim.handed_messages <= messages_max - self.pull_count
            and claim.bytes - claim.handed_bytes <= bytes_max - min(self.pull_bytes, bytes_max)
        )

    def newly_blocked(self) -> list[Claim]:
        """Return the queues that have begun to wait for their oldest open message, each once."""
        most = self._uncommitted_max - self.pull_count
        found = []
        for claim in self._by_key.values():
            if claim.messages > most and not claim.blocked:
                found.append(claim)
            claim.blocked = claim.messages > most
        return found

    def _share(self) -> tuple[int, int]:
        """Return how many messages and bytes of one queue may be here."""
        queues = max(len(self._by_key), 1)
        return max(self._messages_max // queues, 1), max(self._bytes_max // queues, 1)

    @property
    def pull_count(self) -> int:
        """Number of messages to request at a time."""
        return min(self._batch_max, max(min(self._share()[0], self._uncommitted_max) // 2, 1))

    @property
    def pull_bytes(self) -> int:
        """Number of bytes to request at a time."""
        return min(_PULL_BYTES_MAX, max(self._share()[1] // 2, 1))

    def arrived(self, claim: Claim, batch: Batch, messages: Sequence[StoredMessage]) -> list[WorkItem]:
        """Take the response to a pull and return the works that may begin. ``messages``: the batch's, as the listener
        sees them."""
        claim.asked = False
        if claim.stopped:
            return []  # the queue's next member pulls them again
        claim.position = max(claim.position, batch.next_offset)
        works = self._cut(claim, batch, messages)
        if not works:
            if not claim.works:
                claim.commit_offset = batch.next_offset  # messages that do not match the filter count as done
            else:
                claim.works[-1].next_offset = batch.next_offset
            return []
        claim.works.extend(works)
        claim.messages += len(messages)
        claim.bytes += sum(work.size for work in works)
        if not self._orderly:
            claim.running += len(works)
            return works
        claim.waiting.extend(works)
        return self.next_in_order(claim)

    def next_in_order(self, claim: Claim) -> list[WorkItem]:
        """Return the next work of a queue in orderly mode, if none of it is running; none or one."""
        if claim.running or claim.stopped or not claim.waiting:
            return []
        claim.running = 1
        return [claim.waiting.popleft()]

    def _cut(self, claim: Claim, batch: Batch, messages: Sequence[StoredMessage]) -> list[WorkItem]:
        if not messages:
            return []
        size = len(batch.raw)
        if self._chunk_max is None:
            return [WorkItem(claim, messages, batch, batch.next_offset, size)]
        if self._chunk_max == 1:
            # An open message may stay for hours. The others of its batch must not stay with it.
            ends = [*(message.queue_offset for message in messages[1:]), batch.next_offset]
            return [
                WorkItem(claim, [message.detached()], None, end, message.size)
                for message, end in zip(messages, ends, strict=True)
            ]
        # Spread few messages over all workers. Put many into chunks, which cost less, unless the listener is slow.
        chunk = len(messages) if self._orderly else -(-len(messages) // (4 * self._workers))
        chunk = max(1, min(chunk, self._chunk_max, int(CHUNK_SECONDS / self._message_seconds)))
        works = []
        for start in range(0, len(messages), chunk):
            end = start + chunk
            next_offset = messages[end].queue_offset if end < len(messages) else batch.next_offset
            part = messages[start:end]
            works.append(WorkItem(claim, part, batch, next_offset, size * len(part) // len(messages)))
        return works

    def took(self, seconds: float, messages: int) -> None:
        """Record a listener's time for a number of messages, from which the size of later chunks is derived."""
        each = max(seconds, 1e-9) / messages
        known = self._message_seconds
        self._message_seconds = each if known == inf else known + (each - known) / 8

    # ---- committing

    def commits(self) -> dict[str, dict[int, int]]:
        """Return the offsets that the broker does not know yet, by topic and queue."""
        found: dict[str, dict[int, int]] = {}
        for claim in self._by_key.values():
            if not claim.lost and claim.commit_offset > claim.committed:
                found.setdefault(claim.topic, {})[claim.queue] = claim.commit_offset
        return found

    def cut_off(self, topic: str, queue: int, max_offset: int, epoch: int) -> bool:
        """Move progress back to ``max_offset``, where the broker's queue now ends because messages were lost in a crash
        or the topic was recreated. Returns whether that changes what is to be committed."""
        claim = self._by_key.get((topic, queue))
        if claim is None or claim.granted > epoch or claim.commit_offset <= max_offset:
            return False
        claim.commit_offset = max_offset
        return True

    def committed(self, topic: str, offsets: dict[int, int]) -> None:
        """Record the offsets that the broker now knows."""
        for queue, offset in offsets.items():
            claim = self._by_key.get((topic, queue))
            if claim is not None:
                claim.committed = max(claim.committed, offset)


def claims_for(options: Options) -> Claims:
    """Return the claims of a member with these options."""
    return Claims(
        messages_max=options.prefetch_messages,
        bytes_max=options.prefetch_bytes,
        batch_max=options.batch_max,
        orderly=options.orderly,
        chunk_max=1 if options.receives else None if options.whole_batches else _CHUNK_MAX,
        workers=options.workers,
        uncommitted_max=options.max_uncommitted,
    )
