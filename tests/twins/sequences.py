"""Runs of producers' messages in a range of the CommitLog: the sequences kernel's twin, and calls of the kernel."""

from __future__ import annotations

import re
from dataclasses import dataclass

from flintmq.broker.kernels import dispatch, sequences
from flintmq.protocol.storage.layout import SysFlag
from flintmq.protocol.storage.record import Record

from .arrays import fenced, room
from .log import Stopped, read_record, size_at

WAITING_TOPICS = (
    b"SCHEDULE_TOPIC_XXXX",
    b"rmq_sys_wheel_timer",
    b"RMQ_SYS_TRANS_HALF_TOPIC",
    b"rmq_sys_flintmq_prepared",
)
KEY = re.compile(rb"([0-9A-Fa-f]{20})([0-9A-F]{12})")


@dataclass
class Run:
    """Consecutive messages of one producer, by counter and queue offset. ``at``: place of the first record."""

    at: int
    prefix: bytes
    first: int
    count: int
    asked: bytes
    topic: bytes
    queue_id: int
    queue_offset: int

    def is_continued_by(self, other: Run) -> bool:
        """Return whether ``other`` continues where this one ends."""
        mine, its = (self.prefix, self.asked, self.topic), (other.prefix, other.asked, other.topic)
        ends = (self.first + self.count, self.queue_id, self.queue_offset + self.count)
        return mine == its and ends == (other.first, other.queue_id, other.queue_offset)


def values_of(properties: bytes) -> dict[bytes, bytes]:
    """Return the properties as bytes: the value begins after the first separator, the last of a name wins."""
    pairs = (pair.partition(b"\x01") for pair in properties.split(b"\x02"))
    return {name: value for name, _, value in pairs if name and value}


def run_of(record: Record, at: int) -> Run | None:
    """Return the record as a run of one message; None if it is not a producer's message as it was first stored."""
    values = values_of(record.properties)
    key = KEY.fullmatch(values.get(b"UNIQ_KEY", b""))
    waits = record.topic in WAITING_TOPICS
    if (
        key is None
        or record.sys_flag & SysFlag.TRANSACTION_COMMIT
        or record.reconsume_times
        or b"RETRY_TOPIC" in values
        or waits != (b"REAL_TOPIC" in values)
    ):
        return None
    asked = values[b"REAL_TOPIC"] if waits else record.topic
    return Run(at, key[1], int(key[2], 16), 1, asked, record.topic, record.queue_id, record.queue_offset)


def stored_runs(log: bytes, at: int, end: int, file_base: int, run_room: int) -> tuple[int, int, list[Run]]:
    """Return (reason of the stop, its position, the runs)."""
    runs: list[Run] = []
    while at < end:
        try:
            record = read_record(log, at, file_base + at, check_body=False)
        except Stopped as stopped:
            return stopped.status, at, runs
        run = run_of(record, at)
        if run is not None:
            if runs and runs[-1].is_continued_by(run):
                runs[-1].count += 1
            elif len(runs) == run_room:
                return dispatch.FULL, at, runs
            else:
                runs.append(run)
        at += size_at(log, at)
    return dispatch.DONE, at, runs


def call(
    log: bytes, at: int, end: int, file_base: int, run_room: int = 64, sentinel: int = 0xA5
) -> tuple[int, int, list[Run]]:
    """Return the kernel's result, every array fenced."""
    array = fenced(log, sentinel=sentinel)
    rows = room(run_room * sequences.RUN_ROW, int, sentinel)
    scratch = room(sequences.SCRATCH, int, sentinel)
    status, stopped_at, count = sequences.stored_runs(array.array, at, end, file_base, rows.array, scratch.array)
    assert array.intact
    assert rows.intact
    assert scratch.intact
    assert array.bytes() == bytes(log)
    values = rows.values()
    found = []
    for start in range(0, count * sequences.RUN_ROW, sequences.RUN_ROW):
        begin, prefix_at, first, messages, asked_at, asked, topic_at, topic, queue_id, queue_offset = values[
            start : start + sequences.RUN_ROW
        ]
        found.append(
            Run(
                begin,
                log[prefix_at : prefix_at + sequences.PREFIX_DIGITS],
                first,
                messages,
                log[asked_at : asked_at + asked],
                log[topic_at : topic_at + topic],
                queue_id,
                queue_offset,
            )
        )
    return int(status), int(stopped_at), found
