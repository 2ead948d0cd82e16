"""StagedTransactions: stores the messages of stages, commits them, and drops those that no client commits.

As in RocketMQ's transactions, messages wait in a system topic and are appended to their own topics after the commit.
Here one commit covers many messages of many producers. Scope and sequence identify it, so a repeated commit does
nothing.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ....protocol.errors import PreparedIncomplete, QueueNotExist, SystemBusy, TopicNotExist
from ....protocol.storage.delivery import OP_PREPARED_TOPIC, PREPARED_TOPIC
from ...store import StagedSnapshot
from .notes import COMMIT, STAGE, drop_notes, note_record
from .table import Stage, StageTable

if TYPE_CHECKING:
    from ....protocol.errors import BrokerError
    from ..scheduled.redelivery import Redeliverer
    from ..writer import Done, RecordWriter
    from .notes import Note
    from .table import Commit

log = logging.getLogger(__name__)

RANGES_MAX = 1_000_000
"""Maximum number of ranges of waiting messages. Consecutive frames of one stage share a range."""
BUSY_RETRY_MS = 1_000
SAVE_AFTER_S = 1.0
"""Delay of a snapshot, which covers everything that ends in the meantime."""

MayDrop = Callable[[Stage], bool]
"""Predicate: may the caller drop this stage? None instead of a predicate allows all."""


class PendingCommit:
    """A commit in progress. ``decided``: its commit note is acknowledged; ``sync``: with it on disk, whatever the flush
    policy."""

    def __init__(self, commit: Commit, *, decided: bool = False, sync: bool = False) -> None:
        self.commit = commit
        self.decided = decided
        self.sync = sync
        self._finished = False
        self._error: BrokerError | None = None
        self._waiting: list[Done] = []

    def when_finished(self, done: Done) -> None:
        """Call ``done`` when all messages are copied and acknowledged, or with the error that prevents it."""
        if self._finished:
            done(self._error)
        else:
            self._waiting.append(done)

    def report(self, error: BrokerError | None) -> None:
        """Report success (None) or the error to all callers that wait."""
        self._finished, self._error = True, error
        for done in self._waiting:
            done(error)


class CommitResult(NamedTuple):
    """Result of a commit request: ``already`` committed, number of ``messages`` that this request commits, and the
    ``pending`` commit (None if finished)."""

    already: bool
    messages: int
    pending: PendingCommit | None


class StagedTransactions:
    """The staged transactions of one broker. Runs on the event loop, except ``persist``.

    ``now_ms``: wall clock; ``wake`` is called when there are messages to copy, or a new expiry to wait for.
    """

    def __init__(
        self,
        writer: RecordWriter,
        redeliverer: Redeliverer,
        *,
        timeout_ms: int,
        stages_max: int,
        now_ms: Callable[[], int],
    ) -> None:
        self.table = StageTable()
        self.wake: Callable[[], None] = lambda: None
        self.pending: dict[str, PendingCommit] = {}
        """By scope, in the order of their commits."""
        self.outcomes = {"commit": 0, "abort": 0, "expire": 0}
        """Number of stages that ended since the start, by outcome."""
        self.timeout_ms = timeout_ms
        self.redeliverer = redeliverer
        self.writer = writer
        self._store = writer.store
        self._loop: asyncio.AbstractEventLoop = writer.loop
        self.stages_max = stages_max
        self._now_ms = now_ms
        self._save_due = False

    def restore(self, table: StageTable) -> None:
        """Take over the state restored from the log."""
        self.table = table
        for scope, commit in table.commits.items():
            self.pending[scope] = PendingCommit(commit, decided=True)
        if table.stages or table.commits:
            log.info(
                "%d stages have messages; %d transactions are committed and not copied yet",
                len(table.stages),
                len(table.commits),
            )
        self.wake()

    # ---- staging

    def check_new(self, name: str) -> None:
        """Raise ``SystemBusy`` if this stage cannot take more messages at the moment."""
        table = self.table
        if name not in table.stages and len(table.stages) >= self.stages_max:
            raise SystemBusy(
                f"{len(table.stages)} stages have messages and transactions.prepared_attempts_max is "
                f"{self.stages_max}; commit or abort some, or try again later",
                retry_after_ms=BUSY_RETRY_MS,
                prepared_attempts_max=self.stages_max,
            )
        if table.ranges >= RANGES_MAX:
            raise SystemBusy(
                f"{table.ranges} frames of staged messages are waiting; commit or abort some, or send larger frames",
                retry_after_ms=BUSY_RETRY_MS,
            )

    def stage_messages(self, name: str, topic: str, queue: int, count: int, append: Callable[[], int]) -> None:
        """Store messages of a stage.

        ``append`` appends them to PREPARED_TOPIC and returns the queue offset of the first. If it raises, nothing is
        staged.
        """
        # The note goes first, so that no stored message is ever without one.
        first = self._store.append_offsets.next_offset(PREPARED_TOPIC, 0)
        note_offset = self._store.append_offsets.next_offset(OP_PREPARED_TOPIC, 0)
        self.append_note([STAGE, name, first, count, topic, queue])
        appended_at = append()
        assert appended_at == first, "only this service appends to the topic"
        was_idle = not self.table.stages
        self.table.add_messages(name, first, count, (topic, queue), note_offset, self._now_ms())
        if was_idle:
            self.wake()

    def append_note(self, note: Note) -> int:
        """Append a note; return the end of the log after it."""
        return self.writer.append_records([note_record(note, self._now_ms(), self._store.commitlog.store_host)])

    # ---- ending

    def begin_commit(
        self,
        scope: str,
        sequence: int,
        wanted: Sequence[tuple[str, int]],
        drop: str,
        *,
        sync: bool = False,
        may_drop: MayDrop | None = None,
    ) -> CommitResult:
        """Commit the messages of stages.

        ``wanted``: the stages, with the number of messages of each; ``drop``: prefix of other stages to drop,
        except those that ``may_drop`` forbids; ``sync``: report success only when everything is on disk.

        If it raises, nothing was changed.
        """
        pending = self.pending.get(scope)
        # A repeated commit waits for the end of the first one, if that is still being copied.
        if self.table.is_committed(scope, sequence):
            lost = self._to_drop(drop, may_drop) if drop else []
            self.drop_stages(lost, "abort")
            return CommitResult(True, 0, pending)
        if pending is not None:
            raise SystemBusy(
                f"transaction {pending.commit.sequence} of {scope} is being committed; try again later",
                retry_after_ms=BUSY_RETRY_MS,
            )
        if self.table.torn.get(scope) == sequence:
            raise PreparedIncomplete(
                f"transaction {sequence} of {scope} is committed and was being copied when the broker ended, but its "
                "commit note is lost to damage of the log. The broker copies no more of it: check which of its "
                "messages are in their topics, and continue with another scope"
            )
        # All reasons to refuse the commit are checked before the note is written.
        names = [name for name, _ in wanted]
        for name, messages in wanted:
            self._check(name, messages)
        # The prefix may cover the stages of this very commit.
        chosen = set(names)
        dropped = [name for name in self._to_drop(drop, may_drop) if name not in chosen] if drop else []
        note_offset = self._store.append_offsets.next_offset(OP_PREPARED_TOPIC, 0)
        # This note commits the transaction, so every reason to refuse it was checked before.
        end_offset = self.append_note([COMMIT, scope, sequence, names, dropped, [messages for _, messages in wanted]])
        commit = self.table.commit_stages(scope, sequence, names, note_offset)
        self.table.drop_stages(dropped)
        self.outcomes["commit"] += len(names)
        self.outcomes["abort"] += len(dropped)
        pending = self.pending[scope] = PendingCommit(commit, sync=sync)
        self._when_safe(pending, end_offset, lambda error: self._decided(pending, error))
        return CommitResult(False, commit.messages, pending)

    def _check(self, name: str, messages: int) -> None:
        stage = self.table.stages.get(name)
        staged = stage.messages if stage is not None else 0
        if stage is None or staged != messages:
            has = f"has {staged} messages" if stage is not None else "does not exist"
            raise PreparedIncomplete(
                f"stage {name} {has}, but the commit expects {messages}; nothing was committed. The stage may have "
                f"been dropped, or have expired (transactions.prepared_timeout_ms is {self.timeout_ms}): stage all "
                "of its messages again, under another name",
                # The fields keep the words of the wire.
                attempt=name,
                prepared=staged,
            )
        self._check_targets(stage)

    def _check_targets(self, stage: Stage) -> None:
        for topic, queue in stage.targets:
            config = self._store.topics.get(topic)
            if config is None:
                raise TopicNotExist(
                    f"stage {stage.name} has messages for topic {topic}, which was deleted; nothing was "
                    "committed. Create the topic again and commit again, or abort"
                )
            if not config.has_queue(queue):
                raise QueueNotExist(
                    f"stage {stage.name} has messages for queue {queue} of topic {topic}, which now has only "
                    f"{config.queues} queues; nothing was committed. Add queues and commit again, or abort",
                    queues=config.queues,
                )

    def _decided(self, pending: PendingCommit, error: BrokerError | None) -> None:
        if error is not None:  # the disk failed, and the broker is about to end
            pending.report(error)
            return
        pending.decided = True
        self.wake()

    def _when_safe(self, pending: PendingCommit, end_offset: int, done: Done) -> None:
        when = self.writer.when_on_disk if pending.sync else self.writer.when_acknowledged
        when(end_offset, done)

    def finish_commit(self, pending: PendingCommit, end_offset: int) -> None:
        """Finish a transaction whose copies and final note are in the log below ``end_offset``."""
        self.table.remove_commit(pending.commit)
        del self.pending[pending.commit.scope]
        self._when_safe(pending, end_offset, pending.report)
        self.schedule_snapshot()

    def _to_drop(self, prefix: str, may_drop: MayDrop | None) -> list[str]:
        names = self.table.names_with_prefix(prefix)
        if may_drop is None:
            return names
        return [name for name in names if may_drop(self.table.stages[name])]

    def abort_stages(self, prefix: str, may_drop: MayDrop | None = None) -> tuple[int, int]:
        """Drop the stages whose names begin with ``prefix``, except those that ``may_drop`` forbids.

        Return (number of dropped stages, end of the log after the notes).
        """
        names = self._to_drop(prefix, may_drop)
        return len(names), self.drop_stages(names, "abort")

    def drop_stages(self, names: Sequence[str], outcome: str) -> int:
        """Drop these stages; return the end of the log after the notes."""
        end_offset = self._store.write_offset
        if names:
            for note in drop_notes(names):
                end_offset = self.append_note(note)
            self.table.drop_stages(names)
            self.outcomes[outcome] += len(names)
            self.schedule_snapshot()
        return end_offset

    # ---- progress

    def schedule_snapshot(self) -> None:
        """Schedule a snapshot, from which the next start reads on."""
        if not self._save_due:
            self._save_due = True
            self._loop.call_later(SAVE_AFTER_S, self.take_snapshot)

    def take_snapshot(self) -> None:
        """Take a snapshot of the needed offsets and the committed sequences, for ``persist``."""
        self._save_due = False
        store = self._store
        next_note = store.append_offsets.next_offset(OP_PREPARED_TOPIC, 0)
        next_message = store.append_offsets.next_offset(PREPARED_TOPIC, 0)
        needed = self.table.needed_offsets(next_note, next_message)
        # It counts the notes in the log so far, so it is persisted only after these are on disk.
        store.staged_state.offer(store.write_offset, StagedSnapshot(*needed, dict(self.table.sequences)))

    def persist(self) -> None:
        """Persist the newest snapshot that the log on disk covers. For one thread at a time; blocks."""
        store = self._store
        if store.failed is not None:
            return
        try:
            store.staged_state.persist(store.acknowledged_offset)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            log.error("cannot write %s, the disk is full: %s; retrying", store.staged_state.path, error)

    def close(self) -> None:
        """Persist everything when the broker stops. All of the log must be on disk, and no other call may run."""
        if self._save_due:
            self.take_snapshot()
        self.persist()
