"""The mode ``EXAMINE`` of the kernel ``dispatch`` in plain Python (flaws, runs of units, keys), and its calls.

The twin of the mode ``DISPATCH`` reads the records.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from flintmq.broker.kernels import dispatch
from flintmq.protocol.storage.layout import SysFlag
from flintmq.protocol.storage.record import Record, body_crc

from .arrays import Fenced, fenced
from .dispatch_call import Table, Work, keys_in, rows_of, runs_of
from .dispatch_call import call as call_kernel
from .log import Queue, QueueName, Queues, Stopped, has_record_crc, keys_of, read_record, size_at, unit_of

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

    status: int = dispatch.DONE
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
        """Examine one range."""
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
                result.status = dispatch.NEW_QUEUE
                break
            size = size_at(log, result.at)
            if record.body and body_crc(record.body) != record.body_crc:
                result.flaws.append((dispatch.FLAW_CRC, result.at, 0))
            elif self._checksummed and not has_record_crc(log, result.at):
                result.flaws.append((dispatch.FLAW_RECORD_CRC, result.at, 0))
            self._look_at(record, size, queue, result, open_runs)
            result.records += 1
            result.at += size
        return result

    def _look_at(
        self, record: Record, size: int, queue: Queue, result: Examined, open_runs: dict[QueueName, Run]
    ) -> None:
        at, name = result.at, (record.topic, record.queue_id)
        if not properties_sound(record.properties):
            result.flaws.append((dispatch.FLAW_PROPERTIES, at, 0))
        if record.store_timestamp < result.last_store_ms - self._margin_ms:
            result.flaws.append((dispatch.FLAW_TIME, at, result.last_store_ms))
        result.last_store_ms = record.store_timestamp
        transaction = record.sys_flag & SysFlag.TRANSACTION_MASK
        is_deleted = record.physical_offset < queue.deleted_below
        if not is_deleted and transaction not in (SysFlag.TRANSACTION_PREPARED, SysFlag.TRANSACTION_ROLLBACK):
            if 0 <= record.queue_offset <= dispatch.QUEUE_OFFSET_MAX:
                self._follow(name, record, result)
                run = open_runs.get(name)
                if run is None or run.queue_offset + len(run.units) != record.queue_offset:
                    run = open_runs[name] = Run(name, record.queue_offset)
                    result.runs.append(run)
                run.units.append(unit_of(record, size))
            else:
                self._pass_over(name, result)
                result.flaws.append((dispatch.FLAW_NO_QUEUE_OFFSET, at, 0))
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
        result.flaws.append((dispatch.FLAW_QUEUE_OFFSET, result.at, expected))
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
        rows = np.zeros((len(self.names), dispatch.EXAMINED_ROW), np.int64)
        rows[:, : dispatch.QUEUE_ROW] = self.rows.array
        for column in (dispatch.Q_NEXT, dispatch.Q_OTHER, dispatch.Q_FIRST):
            rows[:, column] = -1
        self.rows = fenced(rows, np.int64, sentinel)

    def column(self, number: int) -> dict[QueueName, int]:
        """Return a column by queue, of the queues that had a record."""
        rows = np.asarray(self.rows.array)
        seen = rows[:, dispatch.Q_NEXT] >= 0
        return {self.names[row]: int(rows[row, number]) for row in np.flatnonzero(seen)}


def work_for(margin_ms: int, *, checksummed: bool = False, mode: int = dispatch.EXAMINE, **rooms: int) -> Work:
    """Return the kernel's work space for an examination. ``rooms``: as for ``Work``."""
    work = Work(mode=mode, **rooms)
    work.state.array[dispatch.S_CLOCK_MARGIN_MS] = margin_ms
    work.state.array[dispatch.S_CHECKSUMMED] = checksummed
    return work


def call(log: Fenced, at: int, end: int, file_base: int, table: ExaminedTable, work: Work) -> Examined:
    """Call the kernel once; check the invariants of its outputs."""
    status, stopped_at = call_kernel(log, at, end, file_base, table, work)
    state = work.state.values()
    firsts, first_at = table.column(dispatch.Q_FIRST), table.column(dispatch.Q_FIRST_AT)
    return Examined(
        int(status),
        int(stopped_at),
        state[dispatch.S_RECORDS],
        [Run(*run) for run in runs_of(table, work)],
        keys_in(work.keys, state[dispatch.S_KEYS]),
        keys_in(work.optional_keys, state[dispatch.S_OPTIONAL_KEYS]),
        [(kind, at, detail) for kind, at, detail in rows_of(work.flaws, state[dispatch.S_FLAWS], dispatch.FLAW_ROW)],
        state[dispatch.S_LAST_STORE_MS],
        table.column(dispatch.Q_NEXT),
        {name: (firsts[name], first_at[name]) for name in firsts},
        table.column(dispatch.Q_RECORDS),
    )
