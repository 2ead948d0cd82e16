"""Producer runs, read back from the log after a restart.

A unique key that the broker wrote identifies the producer and the message: 20 hex digits of prefix, 12 of counter.
Consecutive records whose counters and queue offsets are both consecutive form one run. Only the first occurrence of a
message counts, because a delivered, committed or retried copy carries the same key.
"""

from __future__ import annotations

import numpy as np

from ...protocol.storage.arrays.jit import bytes_array, i64, i64_array, inlined, kernel, results
from ...protocol.storage.arrays.record_parts import (
    DONE,
    PARTS,
    R_BODY_AT,
    R_PROPERTIES_AT,
    R_SIZE,
    R_SYS_FLAG,
    R_TOPIC_AT,
    R_TOPIC_END,
    locate_parts,
)
from ...protocol.storage.arrays.words import find_byte, is_name, load_be32, load_be64, same_bytes, text_array
from ...protocol.storage.delivery import (
    HALF_TOPIC,
    PREPARED_TOPIC,
    PROPERTY_REAL_TOPIC,
    PROPERTY_RETRY_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
)
from ...protocol.storage.layout import RECORD, SysFlag
from ...protocol.storage.record import PROPERTY_UNIQ_KEY
from .dispatch import FULL

# Columns of a run; positions are indexes into the log's array.
U_AT = 0
"""Position of the run's first record."""
U_PREFIX_AT = 1
U_FIRST = 2
"""Counter of the run's first message."""
U_COUNT = 3
U_ASKED_AT = 4
"""Topic that the messages were sent to."""
U_ASKED_BYTES = 5
U_TOPIC_AT = 6
"""Topic that they are stored in."""
U_TOPIC_BYTES = 7
U_QUEUE_ID = 8
U_QUEUE_OFFSET = 9
RUN_ROW = 10

SCRATCH = PARTS + 6

_UNIQUE = PARTS
_REAL_TOPIC = PARTS + 2
_RETRY_TOPIC = PARTS + 4

PREFIX_DIGITS = 20
KEY_DIGITS = 32
"""Number of digits of a unique key, the prefix included."""
_AT_QUEUE_ID = RECORD.at["queue_id"]
_AT_QUEUE_OFFSET = RECORD.at["queue_offset"]
_RECONSUME_BEFORE_BODY = RECORD.size - RECORD.at["reconsume_times"]
_COMMIT = SysFlag.TRANSACTION_COMMIT

_NAME_UNIQUE = text_array(PROPERTY_UNIQ_KEY)
_NAME_REAL_TOPIC = text_array(PROPERTY_REAL_TOPIC)
_NAME_RETRY_TOPIC = text_array(PROPERTY_RETRY_TOPIC)

WAITING_TOPICS = (SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, PREPARED_TOPIC)
"""Topics in which delayed, timed and half messages are stored first; REAL_TOPIC is the topic they were sent to."""
_SCHEDULE, _TIMER, _HALF, _PREPARED = map(text_array, WAITING_TOPICS)


@inlined
def _digit(byte: int) -> int:
    """Return the value of an upper-case hex digit, or -1."""
    if 0x30 <= byte <= 0x39:
        return byte - 0x30
    if 0x41 <= byte <= 0x46:
        return byte - 0x37
    return -1


@inlined
def _counter(log: np.ndarray, at: int) -> int:
    """Return the counter of the unique key at ``at``; -1 if it is not a producer's prefix and counter."""
    for k in range(PREFIX_DIGITS):
        byte = np.int64(log[at + k])
        # A producer may write its prefix in lower case.
        if _digit(byte) < 0 and not 0x61 <= byte <= 0x66:
            return -1
    counter = 0
    for k in range(PREFIX_DIGITS, KEY_DIGITS):
        digit = _digit(np.int64(log[at + k]))
        if digit < 0:
            return -1
        counter = counter << 4 | digit
    return counter


@inlined
def _find_values(log: np.ndarray, at: int, end: int, found: np.ndarray) -> None:
    """Find the values of UNIQ_KEY, REAL_TOPIC and RETRY_TOPIC: (begin, end) each, begin = end: none.

    The rules are those of dispatch: the value begins after the first 0x01, pairs without a name or a value are ignored,
    the last value of a name wins.
    """
    for k in range(_UNIQUE, SCRATCH):
        found[k] = 0
    while at < end:
        stop = find_byte(log, at, end, 2)
        separator = at
        while separator < stop and log[separator] != 1:
            separator += 1
        name_bytes = separator - at
        if name_bytes > 0 and separator + 1 < stop:
            slot = -1
            if is_name(log, at, name_bytes, _NAME_UNIQUE):
                slot = _UNIQUE
            elif is_name(log, at, name_bytes, _NAME_REAL_TOPIC):
                slot = _REAL_TOPIC
            elif is_name(log, at, name_bytes, _NAME_RETRY_TOPIC):
                slot = _RETRY_TOPIC
            if slot >= 0:
                found[slot] = separator + 1
                found[slot + 1] = stop
        at = stop + 1


@inlined
def _first_occurrence(log: np.ndarray, parts: np.ndarray) -> bool:
    """Return whether the record is the first stored copy of a producer's message; its ``parts`` and values are
    known."""
    if parts[_UNIQUE + 1] - parts[_UNIQUE] != KEY_DIGITS or parts[R_SYS_FLAG] & _COMMIT:
        return False
    if parts[_RETRY_TOPIC + 1] > parts[_RETRY_TOPIC]:
        return False
    if load_be32(log, parts[R_BODY_AT] - _RECONSUME_BEFORE_BODY) != 0:
        return False
    at, length = parts[R_TOPIC_AT], parts[R_TOPIC_END] - parts[R_TOPIC_AT]
    waits = (
        is_name(log, at, length, _SCHEDULE)
        or is_name(log, at, length, _TIMER)
        or is_name(log, at, length, _HALF)
        or is_name(log, at, length, _PREPARED)
    )
    return waits == (parts[_REAL_TOPIC + 1] > parts[_REAL_TOPIC])


@inlined
def _continues(
    log: np.ndarray,
    run: int,
    row: np.ndarray,
    asked: int,
    counter: int,
    queue_id: int,
    queue_offset: int,
    parts: np.ndarray,
) -> bool:
    """Return whether a record continues the run at ``run``. ``asked``: slot of ``parts`` with the start of the topic
    that the message was sent to (its end is in the next slot)."""
    count = row[run + U_COUNT]
    topic_at, topic_bytes = parts[R_TOPIC_AT], parts[R_TOPIC_END] - parts[R_TOPIC_AT]
    asked_at, asked_bytes = parts[asked], parts[asked + 1] - parts[asked]
    return (
        row[run + U_FIRST] + count == counter
        and row[run + U_QUEUE_OFFSET] < queue_offset  # the sum could wrap
        and row[run + U_QUEUE_OFFSET] + count == queue_offset
        and row[run + U_QUEUE_ID] == queue_id
        and row[run + U_TOPIC_BYTES] == topic_bytes
        and row[run + U_ASKED_BYTES] == asked_bytes
        and same_bytes(log, row[run + U_PREFIX_AT], log, parts[_UNIQUE], PREFIX_DIGITS)
        and same_bytes(log, row[run + U_TOPIC_AT], log, topic_at, topic_bytes)
        and same_bytes(log, row[run + U_ASKED_AT], log, asked_at, asked_bytes)
    )


@kernel(results(i64, i64, i64), bytes_array, i64, i64, i64, i64_array, i64_array)
def stored_runs(
    log: np.ndarray, at: int, end: int, file_base: int, runs: np.ndarray, scratch: np.ndarray
) -> tuple[int, int, int]:
    """Find the runs in ``log[at:end]``, in the order of their first records.

    ``file_base``: physical offset of the array's first byte; ``runs``: room for ``RUN_ROW`` integers a run;
    ``scratch``: ``SCRATCH`` integers. Records that are not a producer's message are skipped. Returns (why it stopped,
    where, how many runs): dispatch's DONE, FULL if there is no room for another run, or why there is no record.
    """
    room = len(runs) // RUN_ROW
    count = 0
    status = DONE
    while at < end:
        status = locate_parts(log, at, len(log), file_base + at, scratch)
        if status != DONE:
            break
        _find_values(log, scratch[R_PROPERTIES_AT], at + scratch[R_SIZE], scratch)
        counter = _counter(log, scratch[_UNIQUE]) if _first_occurrence(log, scratch) else -1
        if counter >= 0:
            asked = _REAL_TOPIC if scratch[_REAL_TOPIC + 1] > scratch[_REAL_TOPIC] else R_TOPIC_AT
            queue_id = load_be32(log, at + _AT_QUEUE_ID)
            queue_offset = load_be64(log, at + _AT_QUEUE_OFFSET)
            run = (count - 1) * RUN_ROW
            if count > 0 and _continues(log, run, runs, asked, counter, queue_id, queue_offset, scratch):
                runs[run + U_COUNT] += 1
            else:
                if count == room:
                    status = FULL
                    break
                run += RUN_ROW
                runs[run + U_AT] = at
                runs[run + U_PREFIX_AT] = scratch[_UNIQUE]
                runs[run + U_FIRST] = counter
                runs[run + U_COUNT] = 1
                runs[run + U_ASKED_AT] = scratch[asked]
                runs[run + U_ASKED_BYTES] = scratch[asked + 1] - scratch[asked]
                runs[run + U_TOPIC_AT] = scratch[R_TOPIC_AT]
                runs[run + U_TOPIC_BYTES] = scratch[R_TOPIC_END] - scratch[R_TOPIC_AT]
                runs[run + U_QUEUE_ID] = queue_id
                runs[run + U_QUEUE_OFFSET] = queue_offset
                count += 1
        at += scratch[R_SIZE]
    return status, at, count
