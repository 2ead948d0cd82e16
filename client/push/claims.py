"""What a member knows of each queue that it holds: what was pulled, what runs, and how far it is done.

No sockets, threads or clock. Nothing here is safe for two threads at once: the engine's lock sees to that. All times
are monotonic seconds that it passes in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from ...protocol.errors import FlintError
from ..core.batch import Batch
from ..core.stored import StoredMessage
from .options import Options

_CHUNK_MAX = 32
"""Messages that are handed to a worker at a time, where there are many."""
_PULL_BYTES_MAX = 1 << 20
CHUNK_SECONDS = 0.1
"""How long a listener is to be busy with messages that are handed out together: a member that leaves, or gives a queue
up, finishes what it has begun."""
QueueKey = tuple[str, int]
"""A topic and the number of one of its queues."""
Row = tuple[str, int, int, int]
"""Of an assignment: topic, queue, next offset, and the epoch since which the member has it."""


@dataclass(slots=True, eq=False)
class Work:
    """Messages of one queue that are handled together, in their order.

    ``next_offset``: what can be committed once they, and all before them, are done; ``tries``: how often the first of
    them failed and was kept in its place; ``taken_at``: when a listener got it; ``begun_at``: since when the listener
    has the message that it has now.
    """

    claim: Claim
    messages: Sequence[StoredMessage]
    batch: Batch
    next_offset: int
    size: int
    tries: int = 0
    taken_at: float = inf
    begun_at: float = inf
    done: bool = False
    given_up: bool = False
    """It took too long: its messages were sent back, and what its listener does is of no interest any more."""

    @property
    def whole(self) -> Batch:
        """What a listener of batches gets: the messages that are still to be handled."""
        return self.batch if len(self.messages) == len(self.batch) else self.batch.part(self.messages)


@dataclass(slots=True, eq=False)
class Claim:
    """One queue that this member holds. ``position``: the offset of the next pull.

    ``revoked``: it is meant for another member, nothing more of it is begun; ``lost``: it is another member's already,
    and nothing that still runs counts.
    """

    topic: str
    queue: int
    granted: int
    position: int
    commit_offset: int = 0
    """All messages below are done."""
    committed: int = 0
    """The broker knows so."""
    asked: bool = False
    revoked: bool = False
    lost: bool = False
    retry_at: float = 0.0
    """When it is pulled again after the broker refused."""
    refused: FlintError | None = None
    """Why it did, where nothing was pulled since."""
    works: deque[Work] = field(default_factory=deque)
    """All that is not committed yet, in the order of the queue."""
    waiting: deque[Work] = field(default_factory=deque)
    """In orderly mode: what is behind the one that runs."""
    running: int = 0
    """Of ``works``: how many are with a listener, or sent back and not confirmed."""
    messages: int = 0
    bytes: int = 0

    @property
    def key(self) -> QueueKey:
        """Topic and queue."""
        return self.topic, self.queue

    @property
    def stopped(self) -> bool:
        """Whether nothing more of it is begun."""
        return self.revoked or self.lost

    def complete(self, work: Work) -> None:
        """All messages of ``work`` are handled, sent back, or of no interest."""
        work.done = True
        while self.works and self.works[0].done:
            first = self.works.popleft()
            self.commit_offset = first.next_offset
            self.messages -= len(first.messages)
            self.bytes -= first.size

    def stop(self) -> None:
        """Nothing more of it is begun; what waits will be somebody else's."""
        self.waiting.clear()

    @property
    def drained(self) -> bool:
        """Whether nothing of it runs."""
        return not self.running


class Claims:
    """All queues of a member. Bounds, in messages and bytes, are over all of them; ``orderly``: one work of a queue at
    a time; ``chunk_max``: into works of how many messages a batch is cut at most, None: it stays whole."""

    def __init__(
        self, *, messages_max: int, bytes_max: int, batch_max: int, orderly: bool, chunk_max: int | None, workers: int
    ) -> None:
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
        """Whether a queue was revoked of which works wait for a listener: they are to be given back now."""
        self.taken = 0
        """How many queues were taken from this member before it had finished with them."""

    def __iter__(self) -> Iterator[Claim]:
        return iter(list(self._by_key.values()))

    def __len__(self) -> int:
        return len(self._by_key)

    @property
    def messages(self) -> int:
        """Messages that were pulled and are not done."""
        return sum(claim.messages for claim in self._by_key.values())

    @property
    def bytes(self) -> int:
        """Bytes of their records."""
        return sum(claim.bytes for claim in self._by_key.values())

    @property
    def handling(self) -> bool:
        """Whether a listener has something that is waited for."""
        return any(
            claim.running and any(work.begun_at != inf and not work.done for work in claim.works) for claim in self
        )

    def owned(self) -> list[list[str | int]]:
        """The queues that a heartbeat names: messages of them may be here."""
        return [[claim.topic, claim.queue] for claim in self._by_key.values()]

    # ---- the assignment

    def assign(self, rows: Iterable[Row], *, rejoined: bool, forgetful: bool = True) -> None:
        """What a heartbeat was answered.

        ``rejoined``: the member joined anew and said what it holds; where nobody has gone on with a queue meanwhile, it
        goes on as if nothing had been. ``forgetful``: the broker was started again, and may have forgotten commits; one
        that was not, and says less than it knew, was told so: the group was reset.
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
                continue  # one that was to be given up and is not after all begins anew: see ``_begin``
            known = 0 if forgetful else claim.committed
            if rejoined and not claim.lost and known <= next_offset <= claim.commit_offset:
                claim.granted = granted
                claim.committed = next_offset
                continue
            self.taken += 1
            self.lose(claim)
        if not self._closing:
            for key, (next_offset, granted) in present.items():
                self._begin(key, next_offset, granted)

    def _begin(self, key: QueueKey, next_offset: int, granted: int) -> None:
        """Take a queue that is not held, or that is meant for this member again before it let go."""
        held = self._by_key.get(key)
        position = next_offset
        if held is not None:
            if not held.revoked or not held.drained or held.asked:
                return
            # It begins anew where it stopped beginning; what the broker does not know yet is still to be committed.
            position = max(next_offset, held.commit_offset)
        self._by_key[key] = Claim(*key, granted, position, position, next_offset)

    def refuse(self, topic: str, epoch: int, queues: Iterable[int] | None = None) -> list[int]:
        """Drop queues of a topic (None: all) that the broker says this member does not hold in ``epoch``.

        One that was granted after that is another matter and stays. Return those that were dropped.
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
        """It is another member's, or its offset was reset: nothing that runs of it counts any more."""
        claim.lost = True
        claim.stop()
        if self._by_key.get(claim.key) is claim:
            del self._by_key[claim.key]

    def lose_all(self) -> None:
        """The member is out of the group."""
        for claim in self:
            self.lose(claim)

    def revoke_all(self) -> None:
        """The member is about to leave: nothing more is begun, and no queue is taken any more."""
        self._closing = True
        for claim in self:
            claim.revoked = True
            claim.stop()

    def release(self, *, commit_first: bool) -> bool:
        """Let go of the queues to be given up of which nothing runs; whether there were any. ``commit_first``: of
        those alone of which the broker knows how far they are done."""
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
        """The queues that should be pulled now and are not.

        Each has its share of the bounds and is pulled when half of it is free, so all together stay within them, but
        for a message that is larger than a share.
        """
        messages_max, bytes_max = self._share()
        return [
            claim
            for claim in self._by_key.values()
            if not (claim.asked or claim.stopped or claim.retry_at > now or claim.topic in paused)
            and claim.messages <= messages_max - self.pull_count
            and claim.bytes <= bytes_max - min(self.pull_bytes, bytes_max)
        ]

    def _share(self) -> tuple[int, int]:
        """How many messages and bytes of one queue may be here."""
        queues = max(len(self._by_key), 1)
        return max(self._messages_max // queues, 1), max(self._bytes_max // queues, 1)

    @property
    def pull_count(self) -> int:
        """How many messages are asked for at a time."""
        return min(self._batch_max, max(self._share()[0] // 2, 1))

    @property
    def pull_bytes(self) -> int:
        """How many bytes are asked for at a time."""
        return min(_PULL_BYTES_MAX, max(self._share()[1] // 2, 1))

    def arrived(self, claim: Claim, batch: Batch, messages: Sequence[StoredMessage]) -> list[Work]:
        """A pull's answer: the works that may begin. ``messages``: those of the batch, as a listener sees them."""
        claim.asked = False
        if claim.stopped:
            return []
        claim.position = max(claim.position, batch.next_offset)
        works = self._cut(claim, batch, messages)
        if not works:
            if not claim.works:
                claim.commit_offset = batch.next_offset  # what the filter passed over is done
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

    def next_in_order(self, claim: Claim) -> list[Work]:
        """In orderly mode: the work that may begin now that nothing of its queue runs; none or one."""
        if claim.running or claim.stopped or not claim.waiting:
            return []
        claim.running = 1
        return [claim.waiting.popleft()]

    def _cut(self, claim: Claim, batch: Batch, messages: Sequence[StoredMessage]) -> list[Work]:
        if not messages:
            return []
        size = len(batch.raw)
        if self._chunk_max is None:
            return [Work(claim, messages, batch, batch.next_offset, size)]
        # Few messages are spread over all workers; many go in chunks, which cost less, if the listener is quick.
        chunk = len(messages) if self._orderly else -(-len(messages) // (4 * self._workers))
        chunk = max(1, min(chunk, self._chunk_max, int(CHUNK_SECONDS / self._message_seconds)))
        works = []
        for start in range(0, len(messages), chunk):
            end = start + chunk
            next_offset = messages[end].queue_offset if end < len(messages) else batch.next_offset
            part = messages[start:end]
            works.append(Work(claim, part, batch, next_offset, size * len(part) // len(messages)))
        return works

    def took(self, seconds: float, messages: int) -> None:
        """So long a listener took for so many messages: what is cut from now on goes by it."""
        each = max(seconds, 1e-9) / messages
        known = self._message_seconds
        self._message_seconds = each if known == inf else known + (each - known) / 8

    # ---- committing

    def commits(self) -> dict[str, dict[int, int]]:
        """By topic and queue: offsets that the broker does not know yet."""
        found: dict[str, dict[int, int]] = {}
        for claim in self._by_key.values():
            if not claim.lost and claim.commit_offset > claim.committed:
                found.setdefault(claim.topic, {})[claim.queue] = claim.commit_offset
        return found

    def cut_off(self, topic: str, queue: int, max_offset: int, epoch: int) -> bool:
        """The broker has nothing from ``max_offset`` on: a crash or a topic made anew took what was done beyond that.
        Return whether that changes what is to be committed."""
        claim = self._by_key.get((topic, queue))
        if claim is None or claim.granted > epoch or claim.commit_offset <= max_offset:
            return False
        claim.commit_offset = max_offset
        return True

    def committed(self, topic: str, offsets: dict[int, int]) -> None:
        """The broker knows these by now."""
        for queue, offset in offsets.items():
            claim = self._by_key.get((topic, queue))
            if claim is not None:
                claim.committed = max(claim.committed, offset)


def claims_for(options: Options) -> Claims:
    """The claims of a member with these options."""
    return Claims(
        messages_max=options.prefetch_messages,
        bytes_max=options.prefetch_bytes,
        batch_max=options.batch_max,
        orderly=options.orderly,
        chunk_max=None if options.whole_batches else _CHUNK_MAX,
        workers=options.workers,
    )
