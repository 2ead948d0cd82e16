"""Calls of the kernel ``dispatch``, every array fenced, and the twin of its modes ``DERIVE`` and ``EXAMINE``.

The twin of the mode ``DISPATCH`` is in ``log``, which reads the records.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from flintmq.broker.kernels import dispatch as kernel
from flintmq.protocol.storage.javahash import java_hash
from flintmq.protocol.storage.layout import UNIT_BYTES, SysFlag
from flintmq.protocol.storage.record import Record, body_crc

from .arrays import Fenced, fenced, room
from .log import (
    SCHEDULE_TOPIC,
    Queue,
    QueueName,
    Queues,
    Stopped,
    has_record_crc,
    keys_of,
    read_record,
    size_at,
    unit_of,
)

KEYS_OF_ONE_RECORD_MAX = 16_400
"""A record's 32,767 bytes of properties hold at most so many keys; the kernel's array has room for those of one
record."""


class Table:
    """The queues in the kernel's form: rows, the topics' names, and a hash table with at least one free slot."""

    def __init__(self, queues: Iterable[tuple[QueueName, Queue]], sentinel: int = 0xA5) -> None:
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
        slots = 2
        while slots <= len(rows):
            slots *= 2
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
    return [tuple(row) for row in np.asarray(array.array)[: count * width].reshape(-1, width).tolist()]


def keys_in(array: Fenced, count: int) -> list[tuple[int, int, int]]:
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


PAIR = re.compile(rb"[^\x01\x02]+\x01[^\x02]*")
Key = tuple[int, int, int]
Flaw = tuple[int, int, int]


@dataclass
class Run:
    """Units of one queue with consecutive queue offsets."""

    name: QueueName
    queue_offset: int
    units: list[bytes] = field(default_factory=list)


@dataclass
class Examined:
    """Result of a range of the log. ``first``: queue offset and place of each queue's first record; ``wanted``: number
    of records of each queue that should have a unit."""

    status: int = kernel.DONE
    at: int = 0
    records: int = 0
    runs: list[Run] = field(default_factory=list)
    keys: list[Key] = field(default_factory=list)
    optional_keys: list[Key] = field(default_factory=list)
    flaws: list[Flaw] = field(default_factory=list)
    last_store_ms: int = 0
    next: dict[QueueName, int] = field(default_factory=dict)
    first: dict[QueueName, tuple[int, int]] = field(default_factory=dict)
    wanted: dict[QueueName, int] = field(default_factory=dict)


class Examination:
    """Examination of consecutive ranges of a log; keeps its state between them."""

    def __init__(self, queues: Queues, margin_ms: int, *, checksummed: bool = False) -> None:
        self._queues = queues
        self._checksummed = checksummed
        self._margin_ms = margin_ms
        self._other: dict[QueueName, int] = {}

    def examine(self, log: bytes, at: int, end: int, file_base: int) -> Examined:
        result = Examined(at=at)
        open_runs: dict[QueueName, Run] = {}
        while result.at < end:
            try:
                record = read_record(log, result.at, file_base + result.at, check_body=False)
            except Stopped as stopped:
                result.status = stopped.status
                break
            queue = self._queues.get((record.topic, record.queue_id))
            if queue is None:
                result.status = kernel.NEW_QUEUE
                break
            size = size_at(log, result.at)
            if record.body and body_crc(record.body) != record.body_crc:
                result.flaws.append((kernel.FLAW_CRC, result.at, 0))
            elif self._checksummed and not has_record_crc(log, result.at):
                result.flaws.append((kernel.FLAW_RECORD_CRC, result.at, 0))
            self._look_at(record, size, queue, result, open_runs)
            result.records += 1
            result.at += size
        return result

    def _look_at(
        self, record: Record, size: int, queue: Queue, result: Examined, open_runs: dict[QueueName, Run]
    ) -> None:
        at, name = result.at, (record.topic, record.queue_id)
        if not properties_sound(record.properties):
            result.flaws.append((kernel.FLAW_PROPERTIES, at, 0))
        if record.store_timestamp < result.last_store_ms - self._margin_ms:
            result.flaws.append((kernel.FLAW_TIME, at, result.last_store_ms))
        result.last_store_ms = record.store_timestamp
        transaction = record.sys_flag & SysFlag.TRANSACTION_MASK
        is_deleted = record.physical_offset < queue.deleted_below
        if not is_deleted and transaction not in (SysFlag.TRANSACTION_PREPARED, SysFlag.TRANSACTION_ROLLBACK):
            if 0 <= record.queue_offset <= kernel.QUEUE_OFFSET_MAX:
                self._follow(name, record, result)
                run = open_runs.get(name)
                if run is None or run.queue_offset + len(run.units) != record.queue_offset:
                    run = open_runs[name] = Run(name, record.queue_offset)
                    result.runs.append(run)
                run.units.append(unit_of(record, size))
            else:
                self._pass_over(name, result)
                result.flaws.append((kernel.FLAW_NO_QUEUE_OFFSET, at, 0))
        if transaction != SysFlag.TRANSACTION_ROLLBACK:
            (result.optional_keys if is_deleted else result.keys).extend(keys_of(record))

    def _follow(self, name: QueueName, record: Record, result: Examined) -> None:
        queue_offset = record.queue_offset
        result.wanted[name] = result.wanted.get(name, 0) + 1
        expected = result.next.get(name)
        if expected is None:
            result.first[name] = (queue_offset, record.physical_offset)
        if expected is None or queue_offset in (expected, self._other.get(name)):
            result.next[name] = queue_offset + 1
            self._other.pop(name, None)
            return
        result.flaws.append((kernel.FLAW_QUEUE_OFFSET, result.at, expected))
        result.next[name] = expected + 1
        self._other[name] = queue_offset + 1

    def _pass_over(self, name: QueueName, result: Examined) -> None:
        """Treat an impossible queue offset as the next expected one."""
        for expected in (result.next, self._other):
            if name in expected:
                expected[name] += 1


def properties_sound(blob: bytes) -> bool:
    """Return whether the bytes are UTF-8, and pairs of a name and a value."""
    try:
        blob.decode()
    except UnicodeDecodeError:
        return False
    return all(PAIR.fullmatch(pair) for pair in blob.split(b"\x02") if pair)


class ExaminedTable(Table):
    """The queues in the form of ``examine``, with the columns that it adds."""

    def __init__(self, queues: Queues, sentinel: int = 0xA5) -> None:
        super().__init__(queues.items(), sentinel=sentinel)
        rows = np.zeros((len(self.names), kernel.EXAMINED_ROW), np.int64)
        rows[:, : kernel.QUEUE_ROW] = self.rows.array
        for column in (kernel.Q_NEXT, kernel.Q_OTHER, kernel.Q_FIRST):
            rows[:, column] = -1
        self.rows = fenced(rows, np.int64, sentinel)

    def column(self, number: int) -> dict[QueueName, int]:
        """Return a column by queue, of the queues that had a record."""
        rows = np.asarray(self.rows.array)
        seen = rows[:, kernel.Q_NEXT] >= 0
        return {self.names[row]: int(rows[row, number]) for row in np.flatnonzero(seen)}


def work_for(margin_ms: int, *, checksummed: bool = False, mode: int = kernel.EXAMINE, **rooms: int) -> Work:
    """Return the kernel's work space for an examination. ``rooms``: as for ``Work``."""
    work = Work(mode=mode, **rooms)
    work.state.array[kernel.S_CLOCK_MARGIN_MS] = margin_ms
    work.state.array[kernel.S_CHECKSUMMED] = checksummed
    return work


def examine(log: Fenced, at: int, end: int, file_base: int, table: ExaminedTable, work: Work) -> Examined:
    """Call the kernel once; check the invariants of its outputs."""
    status, stopped_at = call(log, at, end, file_base, table, work)
    state = work.state.values()
    firsts, first_at = table.column(kernel.Q_FIRST), table.column(kernel.Q_FIRST_AT)
    return Examined(
        int(status),
        int(stopped_at),
        state[kernel.S_RECORDS],
        [Run(*run) for run in runs_of(table, work)],
        keys_in(work.keys, state[kernel.S_KEYS]),
        keys_in(work.optional_keys, state[kernel.S_OPTIONAL_KEYS]),
        [(kind, at, detail) for kind, at, detail in rows_of(work.flaws, state[kernel.S_FLAWS], kernel.FLAW_ROW)],
        state[kernel.S_LAST_STORE_MS],
        table.column(kernel.Q_NEXT),
        {name: (firsts[name], first_at[name]) for name in firsts},
        table.column(kernel.Q_RECORDS),
    )
