"""Staged transactions, which the protocol calls prepared messages: committed at once, and once only.

Notes in a topic of their own say what happened; ``StageTable`` is the state that follows from them, without I/O, and a
start replays them. ``StagedTransactions`` writes a note of each change, and copies committed messages to their topics.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgpack
import numpy as np

from ...protocol.errors import PreparedIncomplete, QueueNotExist, SystemBusy, TopicNotExist
from ...protocol.storage.delivery import OP_PREPARED_TOPIC, PREPARED_TOPIC
from ...protocol.storage.layout import SysFlag
from ...protocol.storage.record import PROPERTY_TAGS, Record, encode_properties
from ..background.loop_work import LoopWorker
from ..store import StagedSnapshot, TopicConfig
from ..store.queues import UNIT_DTYPE
from .scheduled.delivery import RECORDS_A_STEP, choose
from .writer import records_from

if TYPE_CHECKING:
    from ...protocol.errors import BrokerError
    from ..background.loop_work import OnFatal
    from ..store import MessageStore
    from ..store.queues import ConsumeQueue
    from .scheduled.delivery import Deliverer
    from .writer import Done, RecordWriter


# ---- Notes on staged transactions: the records of OP_PREPARED_TOPIC, from which a start restores the state.
#
# Each note is one msgpack array that begins with its kind. The kinds on disk use the words of the wire
# (``prepare``); their names here are those of the code.

log = logging.getLogger(__name__)

STAGED_CONFIG = TopicConfig(PREPARED_TOPIC, read_queues=1, write_queues=1)
STAGED_NOTES_CONFIG = TopicConfig(OP_PREPARED_TOPIC, read_queues=1, write_queues=1)
TOPICS = (STAGED_CONFIG, STAGED_NOTES_CONFIG)

STAGE = "prepare"
"""[stage, queue offset of the first message, messages, topic, queue]: these messages follow. If the frame was refused
or the broker killed, fewer follow: they end where the next such note begins, or at the end of the queue."""
DROP = "drop"
"""[stages]: these stages were aborted or have expired."""
COMMIT = "commit"
"""[scope, sequence, stages, dropped stages, messages of each stage]: the transaction is committed as soon as this
note is stored."""
COPY = "copy"
"""[scope, sequence, position]: copies of its messages, from this position on, follow directly after the note."""
DONE = "done"
"""[scope, sequence]: all messages are copied."""

Note: TypeAlias = list[Any]

_LENGTHS = {STAGE: 6, DROP: 2, COMMIT: 6, COPY: 4, DONE: 3}
_NAMES_A_NOTE = 1_000


def note_record(note: Note, now_ms: int, host: bytes) -> Record:
    properties = encode_properties({PROPERTY_TAGS: note[0]})
    return Record(OP_PREPARED_TOPIC.encode(), msgpack.packb(note), properties, born_timestamp=now_ms, born_host=host)


def drop_notes(stages: Sequence[str]) -> list[Note]:
    """Return notes that drop these stages, with at most ``_NAMES_A_NOTE`` names each."""
    return [[DROP, stages[at : at + _NAMES_A_NOTE]] for at in range(0, len(stages), _NAMES_A_NOTE)]


def read_note(record: Record) -> Note | None:
    """Return the note in a record. If it is malformed, log an error and return None."""
    try:
        note = msgpack.unpackb(record.body)
        if type(note) is list and note and _LENGTHS.get(note[0]) == len(note):
            return note
    except (ValueError, TypeError, msgpack.UnpackException):
        pass
    log.error("the record at physical offset %d of %s is not a note", record.physical_offset, OP_PREPARED_TOPIC)
    return None


# ---- State of the stages and of the committed transactions: a state machine without I/O.
#
# The broker calls it for each event; a start replays the stored notes through it.

SCOPES_MAX = 10_000
"""Maximum number of scopes whose last sequence is remembered (LRU by commit)."""

Target = tuple[str, int]
"""A topic and a queue of it."""


class Range:
    """Consecutive staged messages: queue offsets in PREPARED_TOPIC, from ``first`` to before ``end``."""

    __slots__ = ("end", "first")

    def __init__(self, first: int, end: int) -> None:
        self.first = first
        self.end = end


class Stage:
    """The messages that one producer contributes to a staged transaction.

    ``note_offset``: queue offset of its first note; ``active_ms``: when its last messages arrived; ``targets``: topics
    and queues that its messages are for.
    """

    __slots__ = ("active_ms", "name", "note_offset", "ranges", "targets")

    def __init__(self, name: str, note_offset: int) -> None:
        self.name = name
        self.note_offset = note_offset
        self.active_ms = 0
        self.ranges: list[Range] = []
        self.targets: set[Target] = set()

    @property
    def messages(self) -> int:
        return sum(each.end - each.first for each in self.ranges)


class Commit:
    """A committed transaction whose messages are being copied to their topics.

    ``note_offset``: queue offset of its commit note; ``position``: number of messages copied so far.
    """

    def __init__(self, scope: str, sequence: int, stages: Sequence[Stage], note_offset: int) -> None:
        self.scope = scope
        self.sequence = sequence
        self.stages = stages
        self.note_offset = note_offset
        self.position = 0
        ranges = [each for stage in stages for each in stage.ranges if each.end > each.first]
        self._ranges = ranges
        self._starts = list(accumulate((each.end - each.first for each in ranges), initial=0))
        self.messages = self._starts[-1]
        self.end = max((each.end for each in ranges), default=0)
        """Queue offset in PREPARED_TOPIC after its last message."""

    def ranges_from(self, position: int, count: int) -> list[Range]:
        """Return the ranges of up to ``count`` messages from ``position`` on."""
        found = []
        # Beyond the last message this is the index after the last range: ``_starts`` ends with the number of messages.
        at = bisect_right(self._starts, position) - 1
        while count > 0 and at < len(self._ranges):
            mine = self._ranges[at]
            first = mine.first + position - self._starts[at]
            end = min(mine.end, first + count)
            found.append(Range(first, end))
            count -= end - first
            at += 1
            position = self._starts[at]
        return found


class StageTable:
    """All stages, in the order of their last messages, and all commits."""

    def __init__(self) -> None:
        self.stages: OrderedDict[str, Stage] = OrderedDict()
        self.commits: dict[str, Commit] = {}
        """By scope: the transaction whose messages are being copied."""
        self.sequences: OrderedDict[str, int] = OrderedDict()
        """By scope: the sequence of its last committed transaction."""
        self.torn: dict[str, int] = {}
        """By scope: the sequence of a transaction that was being copied when the broker ended and whose commit note was
        lost to damage: its remaining messages are unknown."""
        self.ranges = 0
        """Number of ranges of all stages together."""
        self._last = Range(0, 0)

    @property
    def messages(self) -> int:
        """Number of staged messages that wait, committed or not. For metrics: goes through all stages."""
        waiting = sum(stage.messages for stage in list(self.stages.values()))
        return waiting + sum(commit.messages - commit.position for commit in list(self.commits.values()))

    def is_committed(self, scope: str, sequence: int) -> bool:
        return self.sequences.get(scope, -1) >= sequence

    # ---- events

    def add_messages(self, name: str, first: int, count: int, target: Target, note_offset: int, now_ms: int) -> None:
        """Enter ``count`` messages of a new or known stage, from queue offset ``first`` on."""
        # If the range before reaches past ``first``, its frame was refused or cut short: its messages end here.
        self._last.end = min(self._last.end, first)
        stage = self.stages.get(name)
        if stage is None:
            stage = self.stages[name] = Stage(name, note_offset)
        else:
            self.stages.move_to_end(name)
        stage.active_ms = now_ms
        stage.targets.add(target)
        if stage.ranges and stage.ranges[-1].end == first:
            self._last = stage.ranges[-1]
            self._last.end = first + count
        else:
            self._last = Range(first, first + count)
            stage.ranges.append(self._last)
            self.ranges += 1

    def drop_stages(self, names: Iterable[str]) -> None:
        """Remove these stages; ignore unknown ones."""
        for name in names:
            stage = self.stages.pop(name, None)
            if stage is not None:
                self.ranges -= len(stage.ranges)

    def commit_stages(self, scope: str, sequence: int, names: Sequence[str], note_offset: int) -> Commit:
        """Enter a committed transaction of these stages; ignore unknown ones."""
        stages = [self.stages[name] for name in names if name in self.stages]
        self.drop_stages(names)
        commit = self.commits[scope] = Commit(scope, sequence, stages, note_offset)
        self.remember_sequence(scope, sequence)
        return commit

    def remember_sequence(self, scope: str, sequence: int) -> None:
        """Remember the last committed transaction of a scope."""
        self.sequences[scope] = max(self.sequences.get(scope, -1), sequence)
        self.sequences.move_to_end(scope)
        if len(self.sequences) > SCOPES_MAX:
            self.sequences.popitem(last=False)

    def remove_commit(self, commit: Commit) -> None:
        """Remove a transaction whose messages are all copied."""
        if self.commits.get(commit.scope) is commit:
            del self.commits[commit.scope]

    def cut_last_range(self, end: int) -> None:
        """Cut the last range at the end of the queue, when the broker starts."""
        self._last.end = min(self._last.end, end)

    # ---- queries

    def names_with_prefix(self, prefix: str) -> list[str]:
        return [name for name in self.stages if name.startswith(prefix)]

    def idle_since(self, moment_ms: int) -> list[str]:
        """Return the stages that got no messages after that time."""
        names = []
        for stage in self.stages.values():
            # In the order of activity, so the first active one ends the search.
            if stage.active_ms > moment_ms:
                break
            names.append(stage.name)
        return names

    def oldest_active_ms(self) -> int | None:
        """Return the time of the last messages of the longest inactive stage; None if there is no stage."""
        return next((stage.active_ms for stage in self.stages.values()), None)

    def needed_offsets(self, next_note: int, next_message: int) -> tuple[int, int]:
        """Return the queue offsets from which on notes and messages are still needed.

        ``next_note``, ``next_message``: next offsets of both topics, which are returned if none is needed.
        """
        stages = [*self.stages.values(), *(each for commit in self.commits.values() for each in commit.stages)]
        notes = [stage.note_offset for stage in stages] + [each.note_offset for each in self.commits.values()]
        # Each has a range: a start leaves out the stages of a commit that have lost theirs.
        messages = [stage.ranges[0].first for stage in stages]
        return min(notes, default=next_note), min(messages, default=next_message)


# ---- The state when the broker starts: from the last snapshot, and the notes after it.


def table_at_start(store: MessageStore) -> StageTable:
    """Return the state at the end of the log. Blocks."""
    return _Start(store).table


class _Start:
    """The reading of the log at a start. ``table``: the state at its end."""

    def __init__(self, store: MessageStore) -> None:
        self.table = StageTable()
        self._store = store
        self._copies: dict[str, tuple[int, Record]] = {}
        """By scope: the position in its last "copy" note, and the note's record."""
        saved = store.staged_state.saved
        self._end = saved.next_message
        """Queue offset in PREPARED_TOPIC after the messages that the notes mention so far."""
        self._gaps: list[Range] = []
        """Messages that no note mentions, because theirs was lost to damage."""
        self._committed: dict[str, int] = {}
        """Number of messages of each committed stage."""
        for scope, sequence in saved.sequences.items():
            self.table.remember_sequence(scope, sequence)
        for record in records_from(store, OP_PREPARED_TOPIC, saved.next_note):
            note = read_note(record)
            if note is not None:
                self._take(note, record)
        self._settle()

    def _take(self, note: Note, record: Record) -> None:
        table, kind, values = self.table, note[0], note[1:]
        if kind == STAGE:
            name, first, count, topic, queue = values
            table.add_messages(name, first, count, (topic, queue), record.queue_offset, record.store_timestamp)
            self._mentioned(first, first + count)
        elif kind == DROP:
            table.drop_stages(values[0])
        elif kind == COMMIT:
            scope, sequence, names, dropped, counts = values
            self._committed.update(zip(names, counts, strict=True))
            for name in names:
                table.stages.setdefault(name, Stage(name, record.queue_offset))  # its notes may be lost
            table.commit_stages(scope, sequence, names, record.queue_offset)
            table.drop_stages(dropped)
        elif kind == COPY:
            scope, sequence, position = values
            self._copies[scope] = (position, record)
            # Only committed messages are copied, so the commit note is lost.
            if not table.is_committed(scope, sequence):
                table.torn[scope] = sequence
        elif kind == DONE:
            scope, sequence = values
            self._copies.pop(scope, None)
            table.commits.pop(scope, None)
            table.torn.pop(scope, None)
            table.remember_sequence(scope, sequence)  # its commit note may be lost

    def _mentioned(self, first: int, end: int) -> None:
        if first > self._end:
            self._gaps.append(Range(self._end, first))
        self._end = end

    def _settle(self) -> None:
        """Limit the restored ranges to messages that exist in the queue, and find how far copying has come."""
        store, table = self._store, self.table
        queue = store.queues.get(PREPARED_TOPIC, 0)
        end = queue.max_offset if queue is not None else 0
        # The last note may promise more messages than were stored before the crash.
        table.cut_last_range(end)
        self._mentioned(end, end)
        self._recover_gap()

        # A stage that has lost messages must never be committed.
        begin = store.queue_reads.first_offset(queue) if queue is not None else 0
        lost = [
            name for name, stage in table.stages.items() if stage.ranges[0].first < begin or self._lost_of(stage.ranges)
        ]
        if lost:
            log.error("dropping %d stages: some of their messages are no longer in the log", len(lost))
            table.drop_stages(lost)
        for scope, sequence in table.torn.items():
            log.error(
                "transaction %d of %s was being copied, but its commit note is lost: the broker copies no more of it",
                sequence,
                scope,
            )

        # The copying of a commit continues where its copies in the log end.
        for scope, commit in list(table.commits.items()):
            # Create it again: the end of its last range is known only now.
            stages = [each for each in commit.stages if each.ranges]
            commit = table.commits[scope] = Commit(scope, commit.sequence, stages, commit.note_offset)
            missing = self._lost_of([each for stage in stages for each in stage.ranges])
            if missing:
                log.error(
                    "transaction %d of %s is committed, but %d of its messages are lost to damage of the log",
                    commit.sequence,
                    scope,
                    missing,
                )
            if queue is not None:
                commit.position = self._copied(queue, commit)

    def _recover_gap(self) -> None:
        """Give the messages that no note mentions to the stage that lacks them, if there is only one gap and one such
        stage: the commit note says how many each stage has."""
        stages = [each for commit in self.table.commits.values() for each in commit.stages]
        lacking = [each for each in stages if each.messages < self._committed.get(each.name, 0)]
        if not lacking:
            return
        stage, gap = lacking[0], self._gaps[0] if self._gaps else Range(0, 0)
        missing = self._committed[stage.name] - stage.messages
        if len(lacking) == len(self._gaps) == 1 and gap.end - gap.first == missing:
            stage.ranges = sorted([*stage.ranges, gap], key=lambda each: each.first)
            log.warning("recovered %d messages of a lost note: stage %s lacks exactly these", missing, stage.name)
        else:
            log.error(
                "notes are lost to damage of the log, and it is unknown which messages they were about: %d "
                "stages are committed without some of their messages",
                len(lacking),
            )

    def _lost_of(self, ranges: Iterable[Range]) -> int:
        """Return how many of these messages are lost to damage."""
        lost_between = self._store.quarantine.lost_between
        return sum(
            end - first for each in ranges for first, end in lost_between(PREPARED_TOPIC, 0, each.first, each.end)
        )

    def _copied(self, queue: ConsumeQueue, commit: Commit) -> int:
        """Return how many messages of a transaction are copied.

        These are the messages up to the position in its last copy note, and the copies after that note. If copy
        notes may be in holes of the log, the copies after each such hole count too.
        """
        position, note_offset, begins = 0, commit.note_offset, []
        if commit.scope in self._copies:
            position, note = self._copies[commit.scope]
            note_offset, begins = note.queue_offset, [note.physical_offset + len(note.encode())]
        holes = [
            hole
            for hole in self._store.quarantine
            if any(each.topic == OP_PREPARED_TOPIC and each.first + each.messages > note_offset for each in hole.lost)
        ]
        begins += [hole.end_offset for hole in holes]
        if not begins:
            return position
        # At most a step's copies follow a note, but any number may follow a hole that swallowed notes.
        ranges = commit.ranges_from(position, commit.messages if holes else RECORDS_A_STEP)
        units = [
            np.frombuffer(queue.read_units(each.first, each.end - each.first, hot=False), UNIT_DTYPE) for each in ranges
        ]
        # The empty array, because numpy does not concatenate an empty list.
        places = np.concatenate([np.zeros(0, np.int64), *(each["physical_offset"].astype(np.int64) for each in units)])
        order = np.argsort(places)
        places = places[order]

        def index_of(staged_at: int) -> int:
            """Return the index in the transaction of the message at this physical offset, or -1."""
            at = int(np.searchsorted(places, staged_at))
            return position + int(order[at]) if at < len(places) and places[at] == staged_at else -1

        return max([position, *(self._copied_after(begin, index_of) for begin in begins)])

    def _copied_after(self, at: int, index_of: Callable[[int], int]) -> int:
        """Return how many messages of a transaction are copied by the copies from ``at`` on; 0 for no copies."""
        store, position = self._store, 0
        while at < store.write_offset:
            if (hole := store.quarantine.find(at)) is not None:
                at = hole.end_offset
                continue
            record = store.log_reads.record_at(at, 0)
            if record is None:
                file = store.commitlog.queue.find(at)
                # Nothing at the very beginning of a file: the log ends here.
                if file is None or file.start_offset == at:
                    break
                at = file.end_offset  # the file was full
                continue
            index = index_of(record.prepared_transaction_offset)
            if index < 0 or record.sys_flag & SysFlag.TRANSACTION_MASK != SysFlag.TRANSACTION_COMMIT:
                break
            position = index + 1
            at += len(record.encode())
        return position


# ---- StagedTransactions: stores the messages of stages, commits them, and drops those that no client commits.
#
# As in RocketMQ's transactions, messages wait in a system topic and are appended to their own topics after
# the commit. Here one commit covers many messages of many producers. Scope and sequence identify it, so a
# repeated commit does nothing.

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
    """The staged transactions of one broker. Runs on the event loop, except ``persist``. ``now_ms``: the broker's
    clock."""

    def __init__(
        self, writer: RecordWriter, deliverer: Deliverer, *, timeout_ms: int, stages_max: int, now_ms: Callable[[], int]
    ) -> None:
        self.table = StageTable()
        self.pending: dict[str, PendingCommit] = {}
        """By scope, in the order of their commits."""
        self.outcomes = {"commit": 0, "abort": 0, "expire": 0}
        """Number of stages that ended since the start, by outcome."""
        self.timeout_ms = timeout_ms
        self._deliverer = deliverer
        self._writer = writer
        self._store = writer.store
        self._loop: asyncio.AbstractEventLoop = writer.loop
        self.stages_max = stages_max
        self._now_ms = now_ms
        self._save_due = False
        self._worker: LoopWorker | None = None

    def restore(self, table: StageTable) -> None:
        self.table = table
        for scope, commit in table.commits.items():
            self.pending[scope] = PendingCommit(commit, decided=True)
        if table.stages or table.commits:
            log.info(
                "%d stages have messages; %d transactions are committed and not copied yet",
                len(table.stages),
                len(table.commits),
            )

    def start(self, on_fatal: OnFatal) -> None:
        """From now on, copy committed messages and drop stages that expire."""
        self._worker = LoopWorker("the copying of committed transactions", self, self._loop, self._now_ms, on_fatal)
        self._worker.start()

    async def stop(self) -> None:
        if self._worker is not None:
            await self._worker.stop()

    def wake(self) -> None:
        """Announce messages to copy, or a new expiry to wait for."""
        if self._worker is not None:
            self._worker.wake()

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
        return self._writer.append_records([note_record(note, self._now_ms(), self._store.commitlog.store_host)])

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
        when = self._writer.when_on_disk if pending.sync else self._writer.when_acknowledged
        when(end_offset, done)

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

    # ---- the job of a ``LoopWorker``: copying, in steps of about a millisecond, and expiry
    #
    # A step appends one note and, directly after it, the copies. If the broker is killed in between, the next start
    # finds the last copy, because each copy stores the offset of its staged message.

    def next_due_ms(self) -> int | None:
        oldest_ms = self.table.oldest_active_ms()
        return None if oldest_ms is None else oldest_ms + self.timeout_ms

    def backlog(self) -> int:
        return sum(each.commit.messages - each.commit.position for each in self.pending.values())

    async def step(self, now_ms: int) -> bool:
        """Do one step; return whether there may be more to do now."""
        if await self._copy():
            return True
        self._expire(now_ms)
        return False

    async def _copy(self) -> bool:
        # A commit whose note is not acknowledged yet can still fail, and then no consumer may see its messages.
        pending = next((each for each in self.pending.values() if each.decided), None)
        if pending is None:
            return False
        commit = pending.commit
        if commit.position < commit.messages:
            queue = self._store.queues.get(PREPARED_TOPIC, 0)
            if queue is None or queue.max_offset < commit.end:
                return False  # its last messages are not dispatched yet; the dispatch wakes this task
            await self._copy_part(commit, queue)
        else:
            end_offset = self.append_note([DONE, commit.scope, commit.sequence])
            self.table.remove_commit(commit)
            del self.pending[commit.scope]
            self._when_safe(pending, end_offset, pending.report)
            self.schedule_snapshot()
        return True

    async def _copy_part(self, commit: Commit, queue: ConsumeQueue) -> None:
        units = [
            await self._deliverer.read_units(queue, part.first, part.end - part.first)
            for part in commit.ranges_from(commit.position, RECORDS_A_STEP)
        ]
        chosen, count = choose(np.concatenate(units), 0)
        note = [COPY, commit.scope, commit.sequence, commit.position]
        await self._deliverer.deliver(chosen, committed_by=lambda: self.append_note(note))
        # After the append: if that is refused, the next step copies the same messages.
        commit.position += count

    def _expire(self, now_ms: int) -> None:
        names = self.table.idle_since(now_ms - self.timeout_ms)
        if names:
            log.warning(
                "stages expired: %s%s; dropping their messages, which were not committed in time",
                ", ".join(names[:3]),
                f" and {len(names) - 3} more" if len(names) > 3 else "",
            )
            self.drop_stages(names, "expire")

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
