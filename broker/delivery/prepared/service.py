"""PreparedMessages: takes what attempts prepare, commits it, and drops what nobody commits.

As in RocketMQ's transactions, messages wait in a topic of the broker's and are written anew at their commit. Here one
commit is of many messages of many producers, and it is known by series and number: asked for again, it is done.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ....protocol.delivery import OP_PREPARED_TOPIC, PREPARED_TOPIC
from ....protocol.errors import BrokerError, PreparedIncomplete, QueueNotExist, SystemBusy, TopicNotExist
from ...store import PreparedSnapshot
from ..moving import Mover
from ..writer import RecordWriter
from .notes import COMMIT, PREPARE, Note, drop_notes, note_record
from .table import Attempt, Commit, Table

log = logging.getLogger(__name__)

RANGES_MAX = 1_000_000
"""Frames to be prepared that may wait, as far as they do not lie behind each other."""
BUSY_RETRY_MS = 1_000
SAVE_AFTER_S = 1.0

Done = Callable[[BrokerError | None], None]
MayDrop = Callable[[Attempt], bool]
"""Whether who asks may drop that attempt; None in its place: every one."""


class Committing:
    """A commit on its way. ``decided``: that it is committed is as safe as an acknowledgement; ``sync``: that means on
    disk, whatever the flush policy."""

    def __init__(self, commit: Commit, *, decided: bool = False, sync: bool = False) -> None:
        self.commit = commit
        self.decided = decided
        self.sync = sync
        self._over = False
        self._error: BrokerError | None = None
        self._waiting: list[Done] = []

    def when_over(self, done: Done) -> None:
        """Call when all of it is copied and acknowledged, or with what prevents it."""
        if self._over:
            done(self._error)
        else:
            self._waiting.append(done)

    def over(self, error: BrokerError | None) -> None:
        """It is, or cannot be."""
        self._over, self._error = True, error
        for done in self._waiting:
            done(error)


class Begun(NamedTuple):
    """What became of the request to commit: whether that was done before, how many messages this request commits, and
    the commit that goes on (None: it is over)."""

    already: bool
    messages: int
    committing: Committing | None


class PreparedMessages:
    """Belongs to the event loop but for ``persist``. ``now_ms``: wall clock; ``wake`` is called when there is something
    to copy, or to wait for."""

    def __init__(
        self, writer: RecordWriter, mover: Mover, *, timeout_ms: int, attempts_max: int, now_ms: Callable[[], int]
    ) -> None:
        self.table = Table()
        self.wake: Callable[[], None] = lambda: None
        self.committing: dict[str, Committing] = {}
        """By series, in the order of their commits."""
        self.outcomes = {"commit": 0, "abort": 0, "expire": 0}
        """Attempts since the start, by what became of them."""
        self.timeout_ms = timeout_ms
        self.mover = mover
        self.writer = writer
        self._store = writer.store
        self._loop: asyncio.AbstractEventLoop = writer.loop
        self.attempts_max = attempts_max
        self._now_ms = now_ms
        self._save_due = False

    def start(self, table: Table) -> None:
        """Take over what the log holds."""
        self.table = table
        for series, commit in table.commits.items():
            self.committing[series] = Committing(commit, decided=True)
        if table.attempts or table.commits:
            log.info("%d attempts have prepared messages; %d transactions are committed and not copied yet",
                     len(table.attempts), len(table.commits))  # fmt: skip
        self.wake()

    # ---- preparing

    def check_new(self, name: str) -> None:
        """Raise ``SystemBusy`` where this attempt may prepare nothing more at the moment."""
        table = self.table
        if name not in table.attempts and len(table.attempts) >= self.attempts_max:
            raise SystemBusy(
                f"{len(table.attempts)} attempts have prepared messages; transactions.prepared_attempts_max is "
                f"{self.attempts_max}: commit or abort some, or try again later",
                retry_after_ms=BUSY_RETRY_MS,
                prepared_attempts_max=self.attempts_max,
            )
        if table.ranges >= RANGES_MAX:
            raise SystemBusy(
                f"{table.ranges} frames of messages are prepared and wait: commit or abort some, or send larger ones",
                retry_after_ms=BUSY_RETRY_MS,
            )

    def prepare(self, name: str, topic: str, queue: int, count: int, append: Callable[[], int]) -> None:
        """Store messages of an attempt. ``append`` appends them to PREPARED_TOPIC and returns the queue offset of the
        first; what it raises is raised, and nothing is prepared then.

        The note goes in front, so that what is stored is never without one.
        """
        first = self._store.next_append_offset(PREPARED_TOPIC, 0)
        note_offset = self._store.next_append_offset(OP_PREPARED_TOPIC, 0)
        self.note([PREPARE, name, first, count, topic, queue])
        appended_at = append()
        assert appended_at == first, "nobody else appends to it"
        was_idle = not self.table.attempts
        self.table.prepare(name, first, count, (topic, queue), note_offset, self._now_ms())
        if was_idle:
            self.wake()

    def note(self, note: Note) -> int:
        """Append a note; the log's end behind it."""
        return self.writer.append([note_record(note, self._now_ms(), self._store.store_host)])

    # ---- ending

    def commit(
        self, series: str, number: int, wanted: Sequence[tuple[str, int]], drop: str, *, sync: bool = False,
        may_drop: MayDrop | None = None,
    ) -> Begun:  # fmt: skip
        """Commit what attempts prepared. ``wanted``: the attempts and how many messages each has; ``drop``: other
        attempts that begin so are dropped, but for those that ``may_drop`` says no to; ``sync``: nothing is said before
        it is on disk.

        Raises where it cannot be, with nothing done.
        """
        committing = self.committing.get(series)
        if self.table.is_committed(series, number):
            lost = self._to_drop(drop, may_drop) if drop else []
            self.drop(lost, "abort")
            return Begun(True, 0, committing)
        if committing is not None:
            raise SystemBusy(
                f"transaction {committing.commit.number} of {series} is being committed", retry_after_ms=BUSY_RETRY_MS
            )
        if self.table.torn.get(series) == number:
            raise PreparedIncomplete(
                f"transaction {number} of {series} is committed, and was being copied when the broker ended; the note "
                "of what it committed is lost to damage of the log. Nothing more of it is copied: compare what its "
                "topics have, and go on with another series"
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
            has = f"has prepared {prepared} messages" if attempt is not None else "is not there"
            raise PreparedIncomplete(
                f"attempt {name} {has}, and {messages} are to be committed; nothing was committed. It may have been "
                f"dropped, or have expired (transactions.prepared_timeout_ms is {self.timeout_ms}): prepare all of it "
                "again, under another name",
                attempt=name,
                prepared=prepared,
            )
        self._check_targets(attempt)

    def _check_targets(self, attempt: Attempt) -> None:
        for topic, queue in attempt.targets:
            config = self._store.topics.get(topic)
            if config is None:
                raise TopicNotExist(
                    f"attempt {attempt.name} prepared messages for topic {topic}, which was deleted; nothing was "
                    "committed: create it again and commit again, or abort"
                )
            if queue >= config.queues:
                raise QueueNotExist(
                    f"attempt {attempt.name} prepared messages for queue {queue} of topic {topic}, which has "
                    f"{config.queues} now; nothing was committed",
                    queues=config.queues,
                )

    def _decided(self, committing: Committing, error: BrokerError | None) -> None:
        if error is not None:  # the disk failed, and the broker ends
            committing.over(error)
            return
        committing.decided = True
        self.wake()

    def _when_safe(self, committing: Committing, end_offset: int, done: Done) -> None:
        when = self.writer.when_on_disk if committing.sync else self.writer.when_acknowledged
        when(end_offset, done)

    def copied(self, committing: Committing, end_offset: int) -> None:
        """All of a transaction is copied and noted, below ``end_offset`` of the log."""
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
        """Drop the attempts that begin so, but for those that ``may_drop`` says no to: how many they are, and the log's
        end behind the note of it."""
        names = self._to_drop(prefix, may_drop)
        return len(names), self.drop(names, "abort")

    def drop(self, names: Sequence[str], outcome: str) -> int:
        """Drop these attempts; the log's end behind the note of it."""
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
        """Let a start begin with what is needed now, as soon as that may be."""
        if not self._save_due:
            self._save_due = True
            self._loop.call_later(SAVE_AFTER_S, self.snapshot)

    def snapshot(self) -> None:
        """Take down what is needed now, for ``persist``."""
        self._save_due = False
        store = self._store
        next_note = store.next_append_offset(OP_PREPARED_TOPIC, 0)
        next_message = store.next_append_offset(PREPARED_TOPIC, 0)
        needed = self.table.needed(next_note, next_message)
        store.prepared.offer(store.write_offset, PreparedSnapshot(*needed, dict(self.table.committed)))

    def persist(self) -> None:
        """Put on disk from where a start has to read. For one thread at a time; blocks."""
        store = self._store
        if store.failed is not None:
            return
        try:
            store.prepared.persist(store.flushed_offset)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            log.error("no room for %s: %s; trying again", store.prepared.path, error)

    def close(self) -> None:
        """The broker stops, and all of the log is on disk. Nobody else calls anything meanwhile."""
        if self._save_due:
            self.snapshot()
        self.persist()
