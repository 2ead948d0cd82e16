"""Calls of the dispatch kernel, every array fenced."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from flintmq.broker.kernels import dispatch as kernel
from flintmq.protocol.storage.javahash import java_hash
from flintmq.protocol.storage.layout import UNIT_BYTES
from flintmq.protocol.storage.record import Record

from .arrays import Fenced, fenced, room
from .log import SCHEDULE_TOPIC, Queue, QueueName, Queues

KEYS_OF_ONE_RECORD_MAX = 16_400
"""A record's 32,767 bytes of properties hold at most so many keys; the kernel's array has room for those of one
record."""


class Table:
    """The queues in the kernel's form: rows, the topics' names, and a hash table with at least one free slot."""

    def __init__(self, queues: Iterable[tuple[QueueName, Queue]], slots: int = 0, sentinel: int = 0xA5) -> None:
        self.names: list[QueueName] = []
        names = b""
        rows = []
        for (topic, queue_id), queue in queues:
            row = [0] * kernel.QUEUE_ROW
            row[kernel.Q_TOPIC_AT] = len(names)
            row[kernel.Q_TOPIC_BYTES] = len(topic)
            row[kernel.Q_QUEUE_ID] = queue_id
            row[kernel.Q_TOPIC_HASH] = java_hash(topic.decode() + "#") & 0xFFFFFFFF
            row[kernel.Q_NEXT] = queue.next
            row[kernel.Q_KIND] = kernel.KIND_SCHEDULE if topic == SCHEDULE_TOPIC else kernel.KIND_ORDINARY
            row[kernel.Q_DELETED_BELOW] = queue.deleted_below
            self.names.append((topic, queue_id))
            names += topic
            rows.append(row)
        while slots <= len(rows):
            slots = max(2 * slots, 2)
        self.topics = fenced(names, sentinel=sentinel)
        self.rows = fenced(np.array(rows, np.int64).reshape(-1, kernel.QUEUE_ROW), np.int64, sentinel)
        self.slots = fenced(self._fill(slots), np.int32, sentinel)

    def _fill(self, count: int) -> list[int]:
        slots = [0] * count
        at = 0
        for number, (topic, queue_id) in enumerate(self.names):
            slot = kernel.queue_hash(self.topics.array, at, at + len(topic), queue_id) % count
            while slots[slot]:
                slot = (slot + 1) % count
            slots[slot] = number + 1
            at += len(topic)
        return slots

    @property
    def intact(self) -> bool:
        """Return whether nothing was written beside its arrays."""
        return self.topics.intact and self.rows.intact and self.slots.intact

    def find(self, name: QueueName) -> int:
        """Return the row at which the kernel finds a queue whose next offset is 0, or -1."""
        log = Record(name[0], b"", b"", name[1], queue_offset=1).encode()
        answer = dispatch(fenced(log), 0, len(log), 0, self)
        assert answer.status == (kernel.GAP if answer.gap else kernel.NEW_QUEUE)
        return self.names.index(answer.gap) if answer.gap else -1


class Work:
    """The kernel's work space and outputs; its state is kept between calls."""

    def __init__(
        self,
        unit_room: int = 64,
        key_room: int = KEYS_OF_ONE_RECORD_MAX,
        flaw_room: int = 256,
        *,
        mode: int = kernel.DISPATCH,
        sentinel: int = 0xA5,
    ) -> None:
        notes_flaws = mode != kernel.DISPATCH
        self.units = room(unit_room * UNIT_BYTES, sentinel=sentinel)
        self.unit_runs = room(unit_room, np.int64, sentinel)
        self.grouped = room(unit_room * UNIT_BYTES, sentinel=sentinel)
        self.runs = room(unit_room * kernel.RUN_ROW, np.int64, sentinel)
        self.keys = room(key_room * kernel.KEY_ROW, np.int64, sentinel)
        self.optional_keys = room(key_room * kernel.KEY_ROW * notes_flaws, np.int64, sentinel)
        self.flaws = room(flaw_room * kernel.FLAW_ROW * notes_flaws, np.int64, sentinel)
        self.scratch = room(kernel.PARTS + kernel.VALUES, np.int64, sentinel)
        self.state = fenced([0] * kernel.STATE, np.int64, sentinel)
        self.state.array[kernel.S_MODE] = mode

    def arrays(self) -> list[Fenced]:
        """Return all arrays, in the order of the kernel's parameters."""
        return list(vars(self).values())


def rows_of(array: Fenced, count: int, width: int) -> list[tuple[int, ...]]:
    """Return the first ``count`` rows."""
    return [tuple(row) for row in np.asarray(array.array)[: count * width].reshape(-1, width).tolist()]


def keys_in(array: Fenced, count: int) -> list[tuple[int, int, int]]:
    """Return the first ``count`` keys."""
    return [(key_hash, offset, ms) for key_hash, offset, ms in rows_of(array, count, kernel.KEY_ROW)]


def call(log: Fenced, at: int, end: int, file_base: int, table: Table, work: Work) -> tuple[int, int]:
    """Call the kernel once; check that it wrote only where it may."""
    before = log.bytes()
    stopped = kernel.dispatch(
        log.array,
        at,
        end,
        file_base,
        table.slots.array,
        table.rows.array,
        table.topics.array,
        *(array.array for array in work.arrays()),
    )
    assert all(array.intact for array in [log, *work.arrays()])
    assert table.intact
    assert log.bytes() == before
    assert not np.asarray(table.rows.array)[:, kernel.Q_PENDING].any()
    return stopped


def runs_of(table: Table, work: Work) -> Iterator[tuple[QueueName, int, list[bytes]]]:
    """Yield (queue, queue offset, units) of each run; check that together they have all units."""
    grouped = work.grouped.bytes()
    reached = 0
    state = work.state.values()
    for row, queue_offset, first, count in rows_of(work.runs, state[kernel.S_RUNS], kernel.RUN_ROW):
        assert first == reached
        assert count > 0
        reached += count
        yield (
            table.names[row],
            queue_offset,
            [grouped[UNIT_BYTES * k : UNIT_BYTES * (k + 1)] for k in range(first, reached)],
        )
    assert reached == state[kernel.S_UNITS]


@dataclass
class Answer:
    """Result of one call of the kernel."""

    status: int
    at: int
    units: dict[QueueName, list[bytes]]
    keys: list[tuple[int, int, int]]
    records: int
    last_store_ms: int
    gap: QueueName | None


def dispatch(
    log: Fenced, at: int, end: int, file_base: int, table: Table, index_from: int = 0, work: Work | None = None
) -> Answer:
    """Call the kernel once; check the invariants of its outputs."""
    work = work or Work()
    work.state.array[kernel.S_INDEX_FROM] = index_from
    status, stopped_at = call(log, at, end, file_base, table, work)
    state = work.state.values()
    runs = list(runs_of(table, work))
    units = {name: units for name, _, units in runs}
    assert len(units) == len(runs), "a queue has one run"
    assert state[kernel.S_FLAWS] == state[kernel.S_OPTIONAL_KEYS] == 0
    gap = table.names[state[kernel.S_GAP_QUEUE]] if status == kernel.GAP else None
    last_store_ms = state[kernel.S_LAST_STORE_MS] if state[kernel.S_RECORDS] else 0
    keys = keys_in(work.keys, state[kernel.S_KEYS])
    return Answer(int(status), int(stopped_at), units, keys, state[kernel.S_RECORDS], last_store_ms, gap)


def next_offsets(table: Table) -> dict[QueueName, int]:
    """Return the next offset of each queue, as the kernel left it."""
    return {name: int(table.rows.array[row, kernel.Q_NEXT]) for row, name in enumerate(table.names)}


def copy_of(queues: Queues) -> Queues:
    """Return a copy of the queues that the twin may change."""
    return {name: Queue(queue.next, queue.deleted_below) for name, queue in queues.items()}
