"""Restoring of the staged transactions from the log when the broker starts. Everything here reads from disk."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np

from ....protocol.storage.delivery import OP_PREPARED_TOPIC, PREPARED_TOPIC
from ....protocol.storage.layout import SysFlag
from ...store.queue.queue_check import UNIT_DTYPE
from ..scheduled.redelivery import RECORDS_A_STEP
from ..topic_scan import records_from
from .lost_notes import LostNotes
from .notes import COMMIT, COPY, DONE, DROP, STAGE, read_note
from .table import Commit, Stage, StageTable

if TYPE_CHECKING:
    from ....protocol.storage.record import Record
    from ...store import MessageStore
    from ...store.damage.tombstones import LostRange
    from ...store.queue.consume_queue import ConsumeQueue
    from .notes import Note
    from .table import Range

log = logging.getLogger(__name__)


def table_at_start(store: MessageStore) -> StageTable:
    """Return the state at the end of the log, from the last snapshot and the notes after it. Blocks."""
    table = StageTable()
    saved = store.staged_state.saved
    for scope, sequence in saved.sequences.items():
        table.remember_sequence(scope, sequence)
    copies: dict[str, tuple[int, Record]] = {}
    lost_notes = LostNotes(saved.next_message)
    for record in records_from(store, OP_PREPARED_TOPIC, saved.next_note):
        note = read_note(record)
        if note is not None:
            _take(table, copies, lost_notes, note, record)
    _settle(store, table, copies, lost_notes)
    return table


def _take(
    table: StageTable, copies: dict[str, tuple[int, Record]], lost_notes: LostNotes, note: Note, record: Record
) -> None:
    """Apply a note to the table. ``copies``: by scope, the position in its last "copy" note, and its record."""
    kind, values = note[0], note[1:]
    if kind == STAGE:
        name, first, count, topic, queue = values
        table.add_messages(name, first, count, (topic, queue), record.queue_offset, record.store_timestamp)
        lost_notes.take_stage(first, count)
    elif kind == DROP:
        table.drop_stages(values[0])
    elif kind == COMMIT:
        scope, sequence, names, dropped, counts = values
        lost_notes.take_commit(zip(names, counts, strict=True))
        for name in names:
            table.stages.setdefault(name, Stage(name, record.queue_offset))  # its notes may be lost
        table.commit_stages(scope, sequence, names, record.queue_offset)
        table.drop_stages(dropped)
    elif kind == COPY:
        scope, sequence, position = values
        copies[scope] = (position, record)
        # Only committed messages are copied, so the commit note is lost.
        if not table.is_committed(scope, sequence):
            table.torn[scope] = sequence
    elif kind == DONE:
        scope, sequence = values
        copies.pop(scope, None)
        table.commits.pop(scope, None)
        table.torn.pop(scope, None)
        table.remember_sequence(scope, sequence)  # its commit note may be lost


def _settle(
    store: MessageStore, table: StageTable, copies: dict[str, tuple[int, Record]], lost_notes: LostNotes
) -> None:
    """Limit the restored ranges to messages that exist in the queue, and find how far copying has come."""
    queue = store.queues.get(PREPARED_TOPIC, 0)
    end = queue.max_offset if queue is not None else 0
    # The last note may promise more messages than were stored before the crash.
    table.cut_last_range(end)
    lost_notes.recover_gap([each for commit in table.commits.values() for each in commit.stages], end)

    # A stage that has lost messages must never be committed.
    begin = store.queue_reads.first_offset(queue) if queue is not None else 0
    lost = [
        name for name, stage in table.stages.items() if stage.ranges[0].first < begin or _lost_of(store, stage.ranges)
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
        missing = _lost_of(store, [each for stage in stages for each in stage.ranges])
        if missing:
            log.error(
                "transaction %d of %s is committed, but %d of its messages are lost to damage of the log",
                commit.sequence,
                scope,
                missing,
            )
        if queue is not None:
            commit.position = _copied(store, queue, commit, copies.get(scope))


def _lost_of(store: MessageStore, ranges: Iterable[Range]) -> int:
    """Return how many of these messages are lost to damage."""
    return sum(
        end - first
        for each in ranges
        for first, end in store.quarantine.lost_between(PREPARED_TOPIC, 0, each.first, each.end)
    )


def _copied(store: MessageStore, queue: ConsumeQueue, commit: Commit, last: tuple[int, Record] | None) -> int:
    """Return how many messages of a transaction are copied.

    These are the messages up to the position in its ``last`` copy note, and the copies after that note. If copy
    notes may be in holes of the log, the copies after each such hole count too.
    """
    position, note_offset, begins = 0, commit.note_offset, []
    if last is not None:
        position, note = last
        note_offset, begins = note.queue_offset, [note.physical_offset + len(note.encode())]
    holes = [hole for hole in store.quarantine if any(_has_later_notes(each, note_offset) for each in hole.lost)]
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

    return max([position, *(_copied_after(store, begin, index_of) for begin in begins)])


def _has_later_notes(lost: LostRange, queue_offset: int) -> bool:
    return lost.topic == OP_PREPARED_TOPIC and lost.first + lost.messages > queue_offset


def _copied_after(store: MessageStore, at: int, index_of: Callable[[int], int]) -> int:
    """Return how many messages of a transaction are copied according to the copies from ``at`` on; 0 for no copies."""
    position = 0
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
