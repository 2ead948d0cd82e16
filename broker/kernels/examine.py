"""Record checks of the offline tools: find everything that is wrong with the records of a log, and derive the units and
index entries that should exist.

``dispatch`` stops at the first error; ``examine`` notes it as a flaw and continues as long as it can find the next
record. It returns the expected units in runs, units of one queue with consecutive queue offsets, so that a whole run is
compared with the files at once.
"""

from __future__ import annotations

import numpy as np

from ...protocol.storage.arrays.jit import bytes_array, i32_array, i64, i64_array, i64_table, inlined, kernel, results
from ...protocol.storage.arrays.record_parts import (
    DONE,
    PARTS,
    R_PROPERTIES_AT,
    R_SIZE,
    R_STORE_MS,
    R_SYS_FLAG,
    R_TOPIC_AT,
    R_TOPIC_END,
    find_properties,
    locate_parts,
)
from ...protocol.storage.arrays.words import (
    HIGH_BITS,
    copy_bytes,
    find_byte,
    load_be32,
    load_be64,
    load_le64,
    same_bytes,
    store_be32,
    store_be64,
)
from ...protocol.storage.layout import (
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD,
    RECORD_BYTES_MIN,
    UNIT,
    UNIT_BYTES,
    SysFlag,
)
from .dispatch import (
    BAD_CRC,
    BAD_RECORD_CRC,
    FULL,
    KEY_ROW,
    NEW_QUEUE,
    Q_DELETED_BELOW,
    Q_KIND,
    Q_NEXT,
    Q_PENDING,
    Q_QUEUE_ID,
    Q_TOPIC_AT,
    Q_TOPIC_BYTES,
    Q_TOPIC_HASH,
    QUEUE_OFFSET_MAX,
    QUEUE_ROW,
    S_CHECKSUMMED,
    S_KEYS,
    S_LAST_STORE_MS,
    S_RECORDS,
    S_TOUCHED,
    S_UNITS,
    STATE,
    _check_sums,
    _find_queue,
    _key_count,
    _put_keys,
    _tags_code,
)
from .text import _sequence

# Columns that ``examine`` adds to a queue's row.
Q_OTHER = QUEUE_ROW
"""Queue offset after the last unexpected record: a next record at this offset proves that the unexpected one was right;
-1: none."""
Q_FIRST = QUEUE_ROW + 1
"""Queue offset of the queue's first record in this stretch; -1: none yet."""
Q_FIRST_AT = QUEUE_ROW + 2
"""Physical offset of that record."""
Q_RECORDS = QUEUE_ROW + 3
"""Records of the queue that should have a unit."""
EXAMINED_ROW = QUEUE_ROW + 4

# Slots of ``state`` beside dispatch's: ``S_TOUCHED`` counts the runs.
S_FLAWS = STATE
S_OPTIONAL_KEYS = STATE + 1
S_CLOCK_MARGIN_MS = STATE + 2
"""In: tolerance by which a store time may be before the previous one."""
EXAMINED_STATE = STATE + 3

# Columns of a run.
U_ROW = 0
U_QUEUE_OFFSET = 1
U_FIRST = 2
"""The run's first unit in ``grouped``."""
U_COUNT = 3
RUN_ROW = 4

# Columns of a flaw, and its kinds.
F_KIND = 0
F_AT = 1
"""Position of the record in the array."""
F_DETAIL = 2
FLAW_ROW = 3

FLAW_CRC = 0
"""The body's checksum is wrong."""
FLAW_PROPERTIES = 1
"""The properties are not pairs of a name and a value, or not UTF-8."""
FLAW_TIME = 2
"""The store time is before that of the previous record, which is the detail."""
FLAW_QUEUE_OFFSET = 3
"""The queue offset is not the next one of its queue, which is the detail."""
FLAW_RECORD_CRC = 4
"""The checksum over the whole record is missing or wrong, although that of its body is right."""
FLAW_NO_QUEUE_OFFSET = 5
"""The queue offset is impossible. Such a record gets no unit."""
FLAWS_OF_ONE_RECORD = 4

_AT_MAGIC = RECORD.at["magic"]
_AT_QUEUE_ID = RECORD.at["queue_id"]
_AT_QUEUE_OFFSET = RECORD.at["queue_offset"]
_AT_PHYSICAL_OFFSET = RECORD.at["physical_offset"]
_UNIT_SIZE_AT = UNIT.at["size"]
_UNIT_TAGS_AT = UNIT.at["tags_code"]
_TIME_MIN = -(2**63)
_PREPARED, _ROLLBACK = SysFlag.TRANSACTION_PREPARED, SysFlag.TRANSACTION_ROLLBACK
_TRANSACTION_MASK = SysFlag.TRANSACTION_MASK


@inlined
def _properties_sound(log: np.ndarray, at: int, end: int) -> bool:
    """Return whether ``log[at:end]`` is UTF-8 and every pair has a name and a separator. A value may be empty: RocketMQ
    stores empty values and ignores them."""
    k = at
    while k < end:
        if k + 8 <= end and load_le64(log, k) & HIGH_BITS == 0:
            k += 8
        elif log[k] < 0x80:
            k += 1
        else:
            point, width = _sequence(log, k, end)
            if point < 0:
                return False
            k += width
    while at < end:
        stop = find_byte(log, at, end, 2)
        if stop > at:
            separator = find_byte(log, at, stop, 1)
            if separator in (at, stop):
                return False
        at = stop + 1
    return True


@inlined
def _flaw(kind: int, at: int, detail: int, flaws: np.ndarray, state: np.ndarray) -> None:
    row = state[S_FLAWS] * FLAW_ROW
    flaws[row + F_KIND] = kind
    flaws[row + F_AT] = at
    flaws[row + F_DETAIL] = detail
    state[S_FLAWS] += 1


@inlined
def _follow(queues: np.ndarray, row: int, queue_offset: int, physical_offset: int) -> int:
    """Track a record's queue offset; return -1 if it is the expected one, else the expected one.

    Either the record is wrong, or messages before it are missing. If the next record follows it, they are missing.
    """
    queues[row, Q_RECORDS] += 1
    expected = queues[row, Q_NEXT]
    if expected < 0:
        queues[row, Q_FIRST] = queue_offset
        queues[row, Q_FIRST_AT] = physical_offset
    elif queue_offset == queues[row, Q_OTHER]:
        expected = queue_offset
    if expected < 0 or queue_offset == expected:
        queues[row, Q_NEXT] = queue_offset + 1
        queues[row, Q_OTHER] = -1
        return -1
    queues[row, Q_OTHER] = queue_offset + 1
    queues[row, Q_NEXT] = expected + 1
    return expected


@inlined
def _pass_over(queues: np.ndarray, row: int) -> None:
    """Count a record with an impossible queue offset as the expected one."""
    if queues[row, Q_NEXT] >= 0:
        queues[row, Q_NEXT] += 1
    if queues[row, Q_OTHER] >= 0:
        queues[row, Q_OTHER] += 1


@inlined
def _put_unit(
    log: np.ndarray,
    row: int,
    queue_offset: int,
    physical_offset: int,
    found: np.ndarray,
    scratch: np.ndarray,
    queues: np.ndarray,
    units: np.ndarray,
    unit_runs: np.ndarray,
    runs: np.ndarray,
    state: np.ndarray,
) -> None:
    unit = state[S_UNITS]
    at = unit * UNIT_BYTES
    store_be64(units, at, physical_offset)
    store_be32(units, at + _UNIT_SIZE_AT, scratch[R_SIZE])
    store_be64(units, at + _UNIT_TAGS_AT, _tags_code(log, found, queues[row, Q_KIND], scratch[R_STORE_MS]))
    run = queues[row, Q_PENDING] - 1
    if run < 0 or queue_offset != runs[run * RUN_ROW + U_QUEUE_OFFSET] + runs[run * RUN_ROW + U_COUNT]:
        run = state[S_TOUCHED]
        runs[run * RUN_ROW + U_ROW] = row
        runs[run * RUN_ROW + U_QUEUE_OFFSET] = queue_offset
        runs[run * RUN_ROW + U_COUNT] = 0
        queues[row, Q_PENDING] = run + 1
        state[S_TOUCHED] += 1
    runs[run * RUN_ROW + U_COUNT] += 1
    unit_runs[unit] = run
    state[S_UNITS] = unit + 1


@inlined
def _group_runs(
    units: np.ndarray,
    unit_runs: np.ndarray,
    queues: np.ndarray,
    runs: np.ndarray,
    grouped: np.ndarray,
    state: np.ndarray,
) -> None:
    """Sort the units by run, keeping their order."""
    first = 0
    for run in range(state[S_TOUCHED]):
        runs[run * RUN_ROW + U_FIRST] = first
        first += runs[run * RUN_ROW + U_COUNT]
        queues[runs[run * RUN_ROW + U_ROW], Q_PENDING] = 0
    for unit in range(state[S_UNITS]):
        row = unit_runs[unit] * RUN_ROW
        copy_bytes(units, unit * UNIT_BYTES, grouped, runs[row + U_FIRST] * UNIT_BYTES, UNIT_BYTES)
        runs[row + U_FIRST] += 1
    for run in range(state[S_TOUCHED]):
        runs[run * RUN_ROW + U_FIRST] -= runs[run * RUN_ROW + U_COUNT]


@kernel(
    results(i64, i64),
    bytes_array,
    i64,
    i64,
    i64,
    i32_array,
    i64_table,
    bytes_array,
    bytes_array,
    i64_array,
    bytes_array,
    i64_array,
    i64_array,
    i64_array,
    i64_array,
    i64_array,
    i64_array,
    i64_array,
)
def examine(
    log: np.ndarray,
    at: int,
    end: int,
    file_base: int,
    slots: np.ndarray,
    queues: np.ndarray,
    topics: np.ndarray,
    units: np.ndarray,
    unit_runs: np.ndarray,
    grouped: np.ndarray,
    runs: np.ndarray,
    keys: np.ndarray,
    optional_keys: np.ndarray,
    flaws: np.ndarray,
    scratch: np.ndarray,
    state: np.ndarray,
    optional_state: np.ndarray,
) -> tuple[int, int]:
    """Check the records of ``log[at:end]``, and derive the units and index entries that should exist.

    ``queues`` has rows of ``EXAMINED_ROW``; if ``Q_NEXT`` is -1, the queue's first record is trusted. ``units``,
    ``unit_runs`` (one integer per unit), ``scratch`` (``PARTS`` + 8 integers) and ``optional_state`` (``STATE``
    integers) are work space; ``runs`` has room for as many runs as ``unit_runs`` for units. Out: ``runs``, with their
    units in ``grouped``; ``keys`` that the index must have, and ``optional_keys``, of deleted topics, that it may have;
    ``flaws``; counts in ``state``, where ``S_LAST_STORE_MS`` is carried from call to call (0: none yet) and
    ``S_CHECKSUMMED`` has the same meaning as for ``scan``.

    Returns (why it stopped, where): DONE, FULL (no room for more), NEW_QUEUE, BLANK, or the error that hides the next
    record. Everything before that is complete.
    """
    found = scratch[PARTS:]
    unit_room = len(unit_runs)
    key_room = min(len(keys), len(optional_keys)) // KEY_ROW
    flaw_room = len(flaws) // FLAW_ROW
    state[S_RECORDS] = 0
    state[S_UNITS] = 0
    state[S_KEYS] = 0
    state[S_TOUCHED] = 0
    state[S_FLAWS] = 0
    optional_state[S_KEYS] = 0
    status = DONE
    row = -1
    while at < end:
        status = locate_parts(log, at, len(log), file_base + at, scratch)
        if status != DONE:
            break
        queue_id = load_be32(log, at + _AT_QUEUE_ID)
        topic_at = scratch[R_TOPIC_AT]
        topic_bytes = scratch[R_TOPIC_END] - topic_at
        if row < 0 or not (
            queues[row, Q_QUEUE_ID] == queue_id
            and queues[row, Q_TOPIC_BYTES] == topic_bytes
            and same_bytes(topics, queues[row, Q_TOPIC_AT], log, topic_at, topic_bytes)
        ):
            row = _find_queue(log, topic_at, topic_at + topic_bytes, queue_id, slots, queues, topics)
            if row < 0:
                status = NEW_QUEUE
                break
        record_end = at + scratch[R_SIZE]
        find_properties(log, scratch[R_PROPERTIES_AT], record_end, found)
        key_count = _key_count(log, found)
        keys_held = max(state[S_KEYS], optional_state[S_KEYS])
        if (
            state[S_UNITS] == unit_room
            or state[S_FLAWS] + FLAWS_OF_ONE_RECORD > flaw_room
            or (keys_held > 0 and keys_held + key_count > key_room)
        ):
            status = FULL
            break
        store_ms = scratch[R_STORE_MS]
        sums = _check_sums(log, at, scratch, state[S_CHECKSUMMED] != 0)
        if sums == BAD_CRC:
            _flaw(FLAW_CRC, at, 0, flaws, state)
        elif sums == BAD_RECORD_CRC:
            _flaw(FLAW_RECORD_CRC, at, 0, flaws, state)
        if not _properties_sound(log, scratch[R_PROPERTIES_AT], record_end):
            _flaw(FLAW_PROPERTIES, at, 0, flaws, state)
        last_ms, margin_ms = state[S_LAST_STORE_MS], state[S_CLOCK_MARGIN_MS]
        if last_ms >= _TIME_MIN + margin_ms and store_ms < last_ms - margin_ms:
            _flaw(FLAW_TIME, at, last_ms, flaws, state)
        state[S_LAST_STORE_MS] = store_ms
        physical_offset = file_base + at
        transaction = scratch[R_SYS_FLAG] & _TRANSACTION_MASK
        is_deleted = physical_offset < queues[row, Q_DELETED_BELOW]
        if not is_deleted and transaction != _PREPARED and transaction != _ROLLBACK:
            queue_offset = load_be64(log, at + _AT_QUEUE_OFFSET)
            if 0 <= queue_offset <= QUEUE_OFFSET_MAX:
                expected = _follow(queues, row, queue_offset, physical_offset)
                if expected >= 0:
                    _flaw(FLAW_QUEUE_OFFSET, at, expected, flaws, state)
                _put_unit(
                    log, row, queue_offset, physical_offset, found, scratch, queues, units, unit_runs, runs, state
                )
            else:
                _pass_over(queues, row)
                _flaw(FLAW_NO_QUEUE_OFFSET, at, 0, flaws, state)
        if transaction != _ROLLBACK and key_count > 0:
            if is_deleted:
                _put_keys(
                    log, found, queues[row, Q_TOPIC_HASH], physical_offset, store_ms, optional_keys, optional_state
                )
            else:
                _put_keys(log, found, queues[row, Q_TOPIC_HASH], physical_offset, store_ms, keys, state)
        state[S_RECORDS] += 1
        at = record_end
    state[S_OPTIONAL_KEYS] = optional_state[S_KEYS]
    _group_runs(units, unit_runs, queues, runs, grouped, state)
    return status, at


@kernel(i64, bytes_array, i64, i64, i64, i64_array)
def next_record(log: np.ndarray, at: int, end: int, file_base: int, parts: np.ndarray) -> int:
    """Return the position of the next plausible record in ``log[at:end]``, with the right magic, physical offset and
    parts, or of a blank that ends the file. Return ``end`` if there is none.

    ``file_base``: physical offset of the array's first byte.
    """
    last = min(end, len(log) - 8 + 1)
    while at < last:
        magic = load_be32(log, at + _AT_MAGIC)
        if magic in (MAGIC_V1, MAGIC_V2):
            # Do not read beyond the array: a record has at least these bytes.
            if len(log) - at >= RECORD_BYTES_MIN and locate_parts(log, at, len(log), file_base + at, parts) == DONE:
                return at
        elif magic == MAGIC_BLANK and load_be32(log, at) == len(log) - at:
            return at
        at += 1
    return end
