"""PreparedMessages: stores the messages of attempts, commits them, and drops those that no client commits.

As in RocketMQ's transactions, messages wait in a system topic and are appended to their own topics after the commit.
Here one commit covers many messages of many producers. Series and number identify it, so a repeated commit does
nothing.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ....protocol.errors import BrokerError, PreparedIncomplete, QueueNotExist, SystemBusy, TopicNotExist
from ....protocol.storage.delivery import OP_PREPARED_TOPIC, PREPARED_TOPIC
from ...store import PreparedSnapshot
from ..scheduled.redelivery import Redeliverer
from ..writer import RecordWriter
from .notes import COMMIT, PREPARE, Note, drop_notes, note_record
from .table import Attempt, Commit, StagedBatches

log = logging.getLogger(__name__)

RANGES_MAX = 1_000_000
"""Maximum number of ranges of waiting messages. Consecutive frames of one attempt share a range."""
BUSY_RETRY_MS = 1_000
SAVE_AFTER_S = 1.0

Done = Callable[[BrokerError | None], None]
MayDrop = Callable[[Attempt], bool]
"""Predicate: may the caller drop this attempt? None instead of a predicate allows all."""


class Committing:
    """A commit in progress. ``decided``: its commit note is acknowledged; ``sync``: with it on disk, whatever the flush
    policy."""

    def __init__(self, commit: Commit, *, decided: bool = False, sync: bool = False) -> None:
        self.commit = commit
        self.decided = decided
        self.sync = sync
        self._over = False
        self._error: BrokerError | None = None
        self._waiting: list[Done] = []

    def when_over(self, done: Done) -> None:
        """Call ``done`` when all messages are copied and acknowledged, or with the error that prevents it."""
        if self._over:
            done(self._error)
        else:
            self._waiting.append(done)

    def over(self, error: BrokerError | None) -> None:
        """Finish: report success (None) or the error to all that wait."""
        self._over, self._error = True, error
        for done in self._waiting:
            done(error)


class Begun(NamedTuple):
    """Result of a commit request: ``already`` committed, number of ``messages`` that this request commits, and the
    commit in progress (None if finished)."""

    already: bool
    messages: int
    committing: Committing | None


class PreparedMessages:
    """The prepared messages of one broker. Runs on the event loop, except ``persist``.

    ``now_ms``: wall clock; ``wake`` is called when there are messages to copy, or a new expiry to wait for.
    """

    def __init__(
        self, writer: RecordWriter, mover: Redeliverer, *, timeout_ms: int, attempts_max: int, now_ms: Callable[[], int]
    ) -> None:
        self.table = StagedBatches()
        self.wake: Callable[[], None] = lambda: None
        self.committing: dict[str, Committing] = {}
        """By series, in the order of their commits."""
        self.outcomes = {"commit": 0, "abort": 0, "expire": 0}
        """Number of attempts that ended since the start, by outcome."""
        self.timeout_ms = timeout_ms
        self.mover = mover
        self.writer = writer
        self._store = writer.store
        self._loop: asyncio.AbstractEventLoop = writer.loop
        self.attempts_max = attempts_max
        self._now_ms = now_ms
        self._save_due = False

    def start(self, table: StagedBatches) -> None:
        """Take over the state restored from the log."""
        self.table = table
        for series, commit in table.commits.items():
            self.committing[series] = Committing(commit, decided=True)
        if table.attempts or table.commits:
            log.info(
                "%d attempts have prepared messages; %d transactions are committed and not copied yet",
                len(table.attempts),
                len(table.commits),
            )
        self.wake()

    # ---- preparing

    def check_new(self, name: str) -> None:
        """Raise ``SystemBusy`` if this attempt cannot prepare more messages at the moment."""
        table = self.table
        if name not in table.attempts and len(table.attempts) >= self.attempts_max:
            raise SystemBusy(
                f"{len(table.attempts)} attempts have prepared messages and transactions.prepared_attempts_max is "
                f"{self.attempts_max}; commit or abort some, or try again later",
                retry_after_ms=BUSY_RETRY_MS,
                prepared_attempts_max=self.attempts_max,
            )
        if table.ranges >= RANGES_MAX:
            raise SystemBusy(
                f"{table.ranges} frames of prepared messages are waiting; commit or abort some, or send larger frames",
                retry_after_ms=BUSY_RETRY_MS,
            )

    def prepare(self, name: str, topic: str, queue: int, count: int, append: Callable[[], int]) -> None:
        """Store messages of an attempt.

        ``append`` appends them to PREPARED_TOPIC and returns the queue offset of the first. If it raises, nothing is
        prepared.
        """
        # The note goes first, so that no stored message is ever without one.
        first = self._store.next_append_offset(PREPARED_TOPIC, 0)
        note_offset = self._store.next_append_offset(OP_PREPARED_TOPIC, 0)
        self.note([PREPARE, name, first, count, topic, queue])
        appended_at = append()
        assert appended_at == first, "only this service appends to the topic"
        was_idle = not self.table.attempts
        self.table.prepare(name, first, count, (topic, queue), note_offset, self._now_ms())
        if was_idle:
            self.wake()

    def note(self, note: Note) -> int:
        """Append a note; return the end of the log after it."""
        return self.writer.append([note_record(note, self._now_ms(), self._store.store_host)])

    # ---- ending

    def commit(
        self,
        series: str,
        number: int,
        wanted: Sequence[tuple[str, int]],
        drop: str,
        *,
        sync: bool = False,
        may_drop: MayDrop | None = None,
    ) -> Begun:
        """Commit the messages of attempts.

        ``wanted``: the attempts, with the number of messages of each; ``drop``: prefix of other attempts to drop,
        except those that ``may_drop`` forbids; ``sync``: report success only when everything is on disk.

        If it raises, nothing was changed.
        """
        committing = self.committing.get(series)
        if self.table.is_committed(series, number):
            lost = self._to_drop(drop, may_drop) if drop else []
            self.drop(lost, "abort")
            return Begun(True, 0, committing)
        if committing is not None:
            raise SystemBusy(
                f"transaction {committing.commit.number} of {series} is being committed; try again later",
                retry_after_ms=BUSY_RETRY_MS,
            )
        if self.table.torn.get(series) == number:
            raise PreparedIncomplete(
                f"transaction {number} of {series} is committed and was being copied when the broker ended, but its "
                "commit note is lost to damage of the log. The broker copies no more of it: check which of its "
                "messages are in their topics, and continue with another series"
            )
        names = [name for name, _ in wanted]
        for name, messages in wanted:
            self._check(name, messages)
        chosen = set(names)
        dropped = [name for name in self._to_drop(drop, may_drop) if name not in chosen] if drop else []
        note_offset = self._store.next_append_offset(OP_PREPARED_TOPIC, 0)
        end_offset = self.note([COMMIT, series, number, names, dropped, [messages for _, messages in wanted]])
        commit = self.table.commit(series, number, names, note_offset)
        self.table.drop(dropped)
        self.outcomes["commit"] += len(names)
        self.outcomes["abort"] += len(dropped)
        committing = self.committing[series] = Committing(commit, sync=sync)
        self._when_safe(committing, end_offset, lambda error: self._decided(committing, error))
        return Begun(False, commit.messages, committing)

    def _check(self, name: str, messages: int) -> None:
        attempt = self.table.attempts.get(name)
        prepared = attempt.messages if attempt is not None else 0
        if attempt is None or prepared != messages:
            has = f"has prepared {prepared} messages" if attempt is not None else "does not exist"
            raise PreparedIncomplete(
                f"attempt {name} {has}, but the commit expects {messages}; nothing was committed. The attempt may have "
                f"been dropped, or have expired (transactions.prepared_timeout_ms is {self.timeout_ms}): prepare all "
                "of its messages again, under another name",
                attempt=name,
                prepared=prepared,
            )
        self._check_targets(attempt)

    def _check_targets(self, attempt: Attempt) -> None:
        for topic, queue in attempt.targets:
            config = self._store.topics.get(topic)
            if config is None:
                raise TopicNotExist(
                    f"attempt {attempt.name} has messages for topic {topic}, which was deleted; nothing was "
                    "committed. Create the topic again and commit again, or abort"
                )
            if queue >= config.queues:
                raise QueueNotExist(
                    f"attempt {attempt.name} has messages for queue {queue} of topic {topic}, which now has only "
                    f"{config.queues} queues; nothing was committed. Add queues and commit again, or abort",
                    queues=config.queues,
                )

    def _decided(self, committing: Committing, error: BrokerError | None) -> None:
        if error is not None:  # the disk failed, and the broker is about to end
            committing.over(error)
            return
        committing.decided = True
        self.wake()

    def _when_safe(self, committing: Committing, end_offset: int, done: Done) -> None:
        when = self.writer.when_on_disk if committing.sync else self.writer.when_acknowledged
        when(end_offset, done)

    def copied(self, committing: Committing, end_offset: int) -> None:
        """Finish a transaction whose copies and "done" note are in the log below ``end_offset``."""
        self.table.done(committing.commit)
        del self.committing[committing.commit.series]
        self._when_safe(committing, end_offset, committing.over)
        self.save()

    def _to_drop(self, prefix: str, may_drop: MayDrop | None) -> list[str]:
        names = self.table.beginning_with(prefix)
        if may_drop is None:
            return names
        return [name for name in names if may_drop(self.table.attempts[name])]

    def abort(self, prefix: str, may_drop: MayDrop | None = None) -> tuple[int, int]:
        """Drop the attempts whose names begin with ``prefix``, except those that ``may_drop`` forbids.

        Return (number of dropped attempts, end of the log after the notes).
        """
        names = self._to_drop(prefix, may_drop)
        return len(names), self.drop(names, "abort")

    def drop(self, names: Sequence[str], outcome: str) -> int:
        """Drop these attempts; return the end of the log after the notes."""
        end_offset = self._store.write_offset
        if names:
            for note in drop_notes(names):
                end_offset = self.note(note)
            self.table.drop(names)
            self.outcomes[outcome] += len(names)
            self.save()
        return end_offset

    # ---- progress

    def save(self) -> None:
        """Schedule a snapshot, from which the next start reads on."""
        if not self._save_due:
            self._save_due = True
            self._loop.call_later(SAVE_AFTER_S, self.snapshot)

    def snapshot(self) -> None:
        """Take a snapshot of the needed offsets and the committed numbers, for ``persist``."""
        self._save_due = False
        store = self._store
        next_note = store.next_append_offset(OP_PREPARED_TOPIC, 0)
        next_message = store.next_append_offset(PREPARED_TOPIC, 0)
        needed = self.table.needed(next_note, next_message)
        store.prepared.offer(store.write_offset, PreparedSnapshot(*needed, dict(self.table.committed)))

    def persist(self) -> None:
        """Persist the newest snapshot that the log on disk covers. For one thread at a time; blocks."""
        store = self._store
        if store.failed is not None:
            return
        try:
            store.prepared.persist(store.flushed_offset)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            log.error("cannot write %s, the disk is full: %s; retrying", store.prepared.path, error)

    def close(self) -> None:
        """Persist everything when the broker stops. All of the log must be on disk, and no other call may run."""
        if self._save_due:
            self.snapshot()
        self.persist()
