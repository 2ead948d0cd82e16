"""What the log tells of prepared messages when the broker starts. All of it reads from disk."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np

from ....protocol.delivery import OP_PREPARED_TOPIC, PREPARED_TOPIC
from ....protocol.layout import SysFlag
from ....protocol.record import CorruptRecord, Record, decode_record
from ...kernels.gather import C_SIZE, CHOSEN_ROW
from ...store import MessageStore
from ...store.consume_queue import ConsumeQueue
from ..moving import RECORDS_A_STEP, UNITS, choose
from .notes import COMMIT, COPY, DONE, DROP, PREPARE, read_note
from .table import Commit, Table

log = logging.getLogger(__name__)


def table_at_start(store: MessageStore) -> Table:
    """The state as the log's end has it: notes are read from where the last snapshot says. Blocks."""
    table = Table()
    saved = store.prepared.saved
    for series, number in saved.committed.items():
        table.remember(series, number)
    copies: dict[str, tuple[int, Record]] = {}
    for record in _notes(store, saved.next_note):
        note = read_note(record)
        if note is None:
            continue
        kind, values = note[0], note[1:]
        if kind == PREPARE:
            name, first, count, topic, queue = values
            table.prepare(name, first, count, (topic, queue), record.queue_offset, record.store_timestamp)
        elif kind == DROP:
            table.drop(values[0])
        elif kind == COMMIT:
            series, number, names, dropped = values
            table.commit(series, number, names, record.queue_offset)
            table.drop(dropped)
        elif kind == COPY:
            copies[values[0]] = (values[2], record)
        elif kind == DONE:
            copies.pop(values[0], None)
            table.commits.pop(values[0], None)
    _settle(store, table, copies)
    return table


def _settle(store: MessageStore, table: Table, copies: dict[str, tuple[int, Record]]) -> None:
    """Bound what the notes say by what the queue holds, and find how far copying has come."""
    queue = store.queues.get(PREPARED_TOPIC, 0)
    table.ends_at(queue.max_offset if queue is not None else 0)
    begin = store.reads.first_offset(queue) if queue is not None else 0
    lost = [name for name, attempt in table.attempts.items() if attempt.ranges[0].first < begin]
    if lost:
        log.error("messages that %d attempts prepared are not in the log any more: they are dropped", len(lost))
        table.drop(lost)
    for series, commit in list(table.commits.items()):
        # Once more: the end of its last range is known only now.
        commit = table.commits[series] = Commit(series, commit.number, commit.attempts, commit.note_offset)
        if series in copies and queue is not None:
            commit.position = _copied(store, queue, commit, *copies[series])


def _copied(store: MessageStore, queue: ConsumeQueue, commit: Commit, position: int, note: Record) -> int:
    """How many messages of a transaction are copied: up to ``position``, and those behind its last note."""
    numbers: dict[int, int] = {}
    for part in commit.ranges_from(position, RECORDS_A_STEP):
        units = np.frombuffer(queue.read_units(part.first, part.end - part.first, hot=False), UNITS)
        for physical_offset in units["physical_offset"].tolist():
            numbers[physical_offset] = position + len(numbers)
    at = note.physical_offset + len(note.encode())
    while at < store.write_offset:
        if (hole := store.quarantine.find(at)) is not None:
            at = hole.end_offset
            continue
        record = store.reads.record_at(at, 0)
        if record is None:
            file = store.commitlog.queue.find(at)
            if file is None or file.start_offset == at:
                break
            at = file.end_offset  # the file was full
            continue
        number = numbers.get(record.prepared_transaction_offset)
        if number is None or record.sys_flag & SysFlag.TRANSACTION_MASK != SysFlag.TRANSACTION_COMMIT:
            break
        position = number + 1
        at += len(record.encode())
    return position


def _notes(store: MessageStore, first: int) -> Iterator[Record]:
    queue = store.queues.get(OP_PREPARED_TOPIC, 0)
    if queue is None:
        return
    at = max(first, store.reads.first_offset(queue))
    while at < queue.max_offset:
        blob = queue.read_units(at, min(RECORDS_A_STEP, queue.max_offset - at), hot=False)
        chosen, count = choose(np.frombuffer(blob, UNITS), at)
        body = store.reads.records(chosen, hot=False)
        position = 0
        for size in chosen[C_SIZE::CHOSEN_ROW].tolist():
            try:
                note = decode_record(body, position)
                if not store.quarantine.covers(note.physical_offset):
                    yield note
            except CorruptRecord as error:
                log.error("a note of %s is damaged and left out: %s", OP_PREPARED_TOPIC, error)
            position += size
        at += count
