"""Calls of the dispatch kernel, every array fenced."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

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


@dataclass
class Work:
    """The kernel's work space and outputs, with room for so many units."""

    unit_room: int
    key_room: int = KEYS_OF_ONE_RECORD_MAX
    sentinel: int = 0xA5
    units: Fenced = field(init=False)
    unit_rows: Fenced = field(init=False)
    grouped: Fenced = field(init=False)
    touched: Fenced = field(init=False)
    keys: Fenced = field(init=False)
    scratch: Fenced = field(init=False)
    state: Fenced = field(init=False)

    def __post_init__(self) -> None:
        self.units = room(self.unit_room * UNIT_BYTES, sentinel=self.sentinel)
        self.grouped = room(self.unit_room * UNIT_BYTES, sentinel=self.sentinel)
        self.unit_rows = room(self.unit_room, np.int64, self.sentinel)
        self.touched = room(3 * self.unit_room, np.int64, self.sentinel)
        self.keys = room(self.key_room * kernel.KEY_ROW, np.int64, self.sentinel)
        self.scratch = room(kernel.PARTS + kernel.VALUES, np.int64, self.sentinel)
        self.state = room(kernel.STATE, np.int64, self.sentinel)

    @property
    def intact(self) -> bool:
        """Return whether nothing was written beside its arrays."""
        arrays = (self.units, self.grouped, self.unit_rows, self.touched, self.keys, self.scratch, self.state)
        return all(array.intact for array in arrays)


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
    work = work or Work(unit_room=64)
    state = work.state.array
    state[kernel.S_INDEX_FROM] = index_from
    before = log.bytes()
    status, stopped_at = kernel.dispatch(
        log.array,
        at,
        end,
        file_base,
        table.slots.array,
        table.rows.array,
        table.topics.array,
        work.units.array,
        work.unit_rows.array,
        work.grouped.array,
        work.touched.array,
        work.keys.array,
        work.scratch.array,
        state,
    )
    assert log.intact
    assert table.intact
    assert work.intact
    assert log.bytes() == before
    assert not np.asarray(table.rows.array)[:, kernel.Q_PENDING].any()
    grouped = work.grouped.bytes()
    units: dict[QueueName, list[bytes]] = {}
    first_expected = 0
    for row, first, count in np.asarray(work.touched.array)[: 3 * int(state[kernel.S_TOUCHED])].reshape(-1, 3).tolist():
        assert first == first_expected
        assert count > 0
        first_expected += count
        units[table.names[row]] = [grouped[UNIT_BYTES * k : UNIT_BYTES * (k + 1)] for k in range(first, first + count)]
    assert first_expected == state[kernel.S_UNITS]
    rows = (
        np.asarray(work.keys.array)[: kernel.KEY_ROW * int(state[kernel.S_KEYS])].reshape(-1, kernel.KEY_ROW).tolist()
    )
    keys = [(row[kernel.K_HASH], row[kernel.K_PHYSICAL_OFFSET], row[kernel.K_STORE_MS]) for row in rows]
    records = int(state[kernel.S_RECORDS])
    gap = table.names[int(state[kernel.S_GAP_QUEUE])] if status == kernel.GAP else None
    last_store_ms = int(state[kernel.S_LAST_STORE_MS]) if records else 0
    return Answer(int(status), int(stopped_at), units, keys, records, last_store_ms, gap)


def next_offsets(table: Table) -> dict[QueueName, int]:
    """Return the next offset of each queue, as the kernel left it."""
    return {name: int(table.rows.array[row, kernel.Q_NEXT]) for row, name in enumerate(table.names)}


def copy_of(queues: Queues) -> Queues:
    """Return a copy of the queues that the twin may change."""
    return {name: Queue(queue.next, queue.deleted_below) for name, queue in queues.items()}
