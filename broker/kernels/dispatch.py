"""CommitLog records: check them, and turn them into ConsumeQueue units and index keys.

``scan`` finds the end of a log and its damage. ``dispatch`` is the core of reput: one pass over a range of the log
returns the units of each queue, grouped by queue, and the hash of every key. The kernel's view of the queues is in
``QueueTable``'s arrays: a row of integers per queue (``Q_``), the topics' names, and a hash table from (topic, queue
id) to the row. An unknown queue ends the call, so that the caller can add it and continue.
"""

from __future__ import annotations

import numpy as np

from ...protocol.storage.arrays.crc32 import crc32_of
from ...protocol.storage.arrays.jit import bytes_array, i32_array, i64, i64_array, i64_table, inlined, kernel, results

# ``as``: the callers of these kernels take the results and slots of ``record_parts`` from here too.
from ...protocol.storage.arrays.record_parts import BAD_LENGTH as BAD_LENGTH
from ...protocol.storage.arrays.record_parts import BAD_MAGIC as BAD_MAGIC
from ...protocol.storage.arrays.record_parts import BAD_PARTS as BAD_PARTS
from ...protocol.storage.arrays.record_parts import BAD_PHYSICAL_OFFSET as BAD_PHYSICAL_OFFSET
from ...protocol.storage.arrays.record_parts import BLANK as BLANK
from ...protocol.storage.arrays.record_parts import DONE as DONE
from ...protocol.storage.arrays.record_parts import NO_RECORD as NO_RECORD
from ...protocol.storage.arrays.record_parts import PARTS as PARTS
from ...protocol.storage.arrays.record_parts import R_BODY_AT as R_BODY_AT
from ...protocol.storage.arrays.record_parts import R_BODY_END as R_BODY_END
from ...protocol.storage.arrays.record_parts import R_PROPERTIES_AT as R_PROPERTIES_AT
from ...protocol.storage.arrays.record_parts import R_SIZE as R_SIZE
from ...protocol.storage.arrays.record_parts import R_STORE_MS as R_STORE_MS
from ...protocol.storage.arrays.record_parts import R_SYS_FLAG as R_SYS_FLAG
from ...protocol.storage.arrays.record_parts import R_TOPIC_AT as R_TOPIC_AT
from ...protocol.storage.arrays.record_parts import R_TOPIC_END as R_TOPIC_END
from ...protocol.storage.arrays.record_parts import (
    V_DELAY,
    V_KEYS,
    V_TAGS,
    V_UNIQ_KEY,
    body_sound,
    find_properties,
    locate_parts,
)
from ...protocol.storage.arrays.record_parts import VALUES as VALUES
from ...protocol.storage.arrays.words import copy_bytes, load_be32, load_be64, same_bytes, store_be32, store_be64
from ...protocol.storage.layout import RECORD, UNIT, UNIT_BYTES, SysFlag
from ...protocol.storage.record import KEY_SEPARATOR
from .record_crc import record_crc_sound
from .text import index_hash, java_hash_on, signed32

# Further reasons why a kernel stopped.
BAD_CRC = 7
BAD_TIME = 8
NEW_QUEUE = 9
"""A (topic, queue) without a row; its record begins at the returned position."""
GAP = 10
"""The queue offset of a record is beyond the queue's next one."""
FULL = 11
"""No room for more units or keys; continue with a new call."""
BAD_RECORD_CRC = 12
BAD_QUEUE_OFFSET = 13

BAD_NAMES = {
    NO_RECORD: "zeros where a record should begin",
    BAD_LENGTH: "an impossible record length",
    BAD_MAGIC: "a wrong magic number",
    BAD_PHYSICAL_OFFSET: "a record with the physical offset of another place",
    BAD_CRC: "a body with a wrong checksum",
    BAD_RECORD_CRC: "a record with a missing or wrong checksum over the whole record",
    BAD_PARTS: "a record whose parts do not add up to its length",
    BAD_QUEUE_OFFSET: "an impossible queue offset",
    BAD_TIME: "a store time earlier than that of the previous record",
}

# Columns of a queue's row.
Q_TOPIC_AT = 0
Q_TOPIC_BYTES = 1
Q_QUEUE_ID = 2
Q_TOPIC_HASH = 3
"""Java hash of ``topic#``, 0 to 2^32 - 1: the hash of an index key continues from it."""
Q_NEXT = 4
Q_KIND = 5
Q_PENDING = 6
Q_DELETED_BELOW = 7
"""Records of the topic below this physical offset belong to a deleted topic."""
QUEUE_ROW = 8

QUEUE_OFFSET_MAX = (2**63 - 1) // UNIT_BYTES - 1
"""Largest queue offset: the byte position after its unit still fits an i64."""

KIND_ORDINARY = 0
KIND_SCHEDULE = 1

# Columns of a key.
K_HASH = 0
K_PHYSICAL_OFFSET = 1
K_STORE_MS = 2
KEY_ROW = 3

# Slots of ``state``.
S_LAST_STORE_MS = 0
S_RECORDS = 1
S_UNITS = 2
S_KEYS = 3
S_TOUCHED = 4
S_GAP_QUEUE = 5
S_INDEX_FROM = 6
"""In: records below this physical offset are already in the index."""
S_CHECKSUMMED = 7
"""In: not 0 if every record must have a checksum over the whole record (``__CRC32#``)."""
STATE = 8

_AT_BODY_CRC = RECORD.at["body_crc"]
_AT_QUEUE_ID = RECORD.at["queue_id"]
_AT_QUEUE_OFFSET = RECORD.at["queue_offset"]
_UNIT_SIZE_AT = UNIT.at["size"]
_UNIT_TAGS_AT = UNIT.at["tags_code"]
_TRANSACTION_MASK = SysFlag.TRANSACTION_MASK
_PREPARED = SysFlag.TRANSACTION_PREPARED
_ROLLBACK = SysFlag.TRANSACTION_ROLLBACK
_SPACE = ord(KEY_SEPARATOR)


_SECOND, _MINUTE = 1_000, 60_000
DELAY_LEVELS_MS = np.array(
    [0, 1 * _SECOND, 5 * _SECOND, 10 * _SECOND, 30 * _SECOND]
    + [minutes * _MINUTE for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)],
    dtype=np.int64,
)
"""Delay of level n at index n (``messageDelayLevel``)."""


@inlined
def _check_sums(log: np.ndarray, at: int, parts: np.ndarray, is_checksummed: bool) -> int:
    """Return DONE, or which checksum of a record is wrong."""
    body_at, body_end = parts[R_BODY_AT], parts[R_BODY_END]
    body_crc = crc32_of(log, body_at, body_end)
    # RocketMQ does not compare the checksum of an empty body either, so whatever is stored there is valid.
    if body_at < body_end and body_crc & 0x7FFFFFFF != load_be32(log, at + _AT_BODY_CRC):
        return BAD_CRC
    record_end = at + parts[R_SIZE]
    if is_checksummed and not record_crc_sound(
        log, at, record_end, body_at, body_end, parts[R_PROPERTIES_AT], body_crc
    ):
        return BAD_RECORD_CRC
    return DONE


@kernel(results(i64, i64), bytes_array, i64, i64, i64, i64_array, i64_array)
def scan(log: np.ndarray, at: int, end: int, file_base: int, parts: np.ndarray, state: np.ndarray) -> tuple[int, int]:
    """Check the records of ``log[at:end]``, body checksums included, and ``__CRC32#`` with ``state[S_CHECKSUMMED]``.

    ``file_base``: physical offset of the array's first byte. Counts into ``state[S_RECORDS]`` and leaves the last store
    time in ``state[S_LAST_STORE_MS]``. Returns (why it stopped, where): DONE if the next record would begin at ``end``
    or after it.
    """
    while at < end:
        status = locate_parts(log, at, len(log), file_base + at, parts)
        if status == DONE:
            status = _check_sums(log, at, parts, state[S_CHECKSUMMED] != 0)
        if status != DONE:
            return status, at
        state[S_LAST_STORE_MS] = parts[R_STORE_MS]
        state[S_RECORDS] += 1
        at += parts[R_SIZE]
    return DONE, at


@kernel(i64, bytes_array, i64, i64, i64, i64_array)
def locate(log: np.ndarray, at: int, end: int, physical_offset: int, parts: np.ndarray) -> int:
    """Check one whole record, its body's checksum included; return DONE, with its parts in ``parts``, or the error."""
    status = locate_parts(log, at, end, physical_offset, parts)
    if status == DONE and not body_sound(log, at, parts):
        return BAD_CRC
    return status


@inlined
def _queue_hash(array: np.ndarray, at: int, end: int, queue_id: int) -> int:
    value = 0x811C9DC5 ^ queue_id
    while at < end:
        # FNV-1a. The mask keeps the product within 64 bits.
        value = (value ^ np.int64(array[at])) * 0x01000193 & 0xFFFFFFFF
        at += 1
    # The table masks the low bits only; this mixes the high ones into them.
    return value ^ value >> 15


@inlined
def _find_queue(
    array: np.ndarray, at: int, end: int, queue_id: int, slots: np.ndarray, queues: np.ndarray, topics: np.ndarray
) -> int:
    """Return the row of a queue, or -1. ``slots`` has a power of two of slots, at least one of them free."""
    mask = len(slots) - 1
    slot = _queue_hash(array, at, end, queue_id) & mask
    while True:
        row = np.int64(slots[slot]) - 1
        if row < 0:
            return -1
        if (
            queues[row, Q_QUEUE_ID] == queue_id
            and queues[row, Q_TOPIC_BYTES] == end - at
            and same_bytes(topics, queues[row, Q_TOPIC_AT], array, at, end - at)
        ):
            return row
        slot = (slot + 1) & mask


@kernel(i64, bytes_array, i64, i64, i64)
def queue_hash(array: np.ndarray, at: int, end: int, queue_id: int) -> int:
    """Return the hash of a (topic, queue) for ``slots``, before masking."""
    return _queue_hash(array, at, end, queue_id)


@inlined
def _delay_level(log: np.ndarray, at: int, end: int) -> int:
    """Return the level of a non-empty DELAY value as Java's ``parseInt`` reads it; 0: no level, or not an integer."""
    # parseInt accepts a plus sign. A minus sign would make the level negative, which means no delay: the loop returns 0
    # for it.
    if log[at] == 0x2B and end - at > 1:
        at += 1
    level = 0
    for k in range(at, end):
        digit = np.int64(log[k]) - 0x30
        if digit < 0 or digit > 9:
            return 0
        # Levels beyond the last one count as the last one, as in RocketMQ, so the number cannot overflow either.
        level = min(10 * level + digit, len(DELAY_LEVELS_MS) - 1)
    return level


@inlined
def _put_key(
    log: np.ndarray,
    at: int,
    end: int,
    topic_hash: int,
    physical_offset: int,
    store_ms: int,
    keys: np.ndarray,
    state: np.ndarray,
) -> None:
    row = state[S_KEYS] * KEY_ROW
    keys[row + K_HASH] = index_hash(java_hash_on(log, at, end, topic_hash))
    keys[row + K_PHYSICAL_OFFSET] = physical_offset
    keys[row + K_STORE_MS] = store_ms
    state[S_KEYS] += 1


@inlined
def _key_count(log: np.ndarray, found: np.ndarray) -> int:
    """Return an upper bound of the number of index entries of the record."""
    # Cheaper than to count the keys exactly. Consecutive spaces only make the estimate too high.
    count = 1 if found[V_UNIQ_KEY + 1] > found[V_UNIQ_KEY] else 0
    if found[V_KEYS + 1] > found[V_KEYS]:
        count += 1
        for k in range(found[V_KEYS], found[V_KEYS + 1]):
            if log[k] == _SPACE:
                count += 1
    return count


@inlined
def _put_keys(
    log: np.ndarray,
    found: np.ndarray,
    topic_hash: int,
    physical_offset: int,
    store_ms: int,
    keys: np.ndarray,
    state: np.ndarray,
) -> None:
    """Put the unique key first, then each of KEYS, as RocketMQ's IndexService does."""
    if found[V_UNIQ_KEY + 1] > found[V_UNIQ_KEY]:
        _put_key(log, found[V_UNIQ_KEY], found[V_UNIQ_KEY + 1], topic_hash, physical_offset, store_ms, keys, state)
    at = found[V_KEYS]
    while at < found[V_KEYS + 1]:
        stop = at
        while stop < found[V_KEYS + 1] and log[stop] != _SPACE:
            stop += 1
        if stop > at:
            _put_key(log, at, stop, topic_hash, physical_offset, store_ms, keys, state)
        at = stop + 1


@inlined
def _tags_code(log: np.ndarray, found: np.ndarray, kind: int, store_ms: int) -> int:
    # In a queue of delayed messages, RocketMQ's units have the time of delivery in place of the tag's hash.
    if kind == KIND_SCHEDULE and found[V_DELAY + 1] > found[V_DELAY]:
        level = _delay_level(log, found[V_DELAY], found[V_DELAY + 1])
        if level > 0:
            return store_ms + DELAY_LEVELS_MS[level]
    if found[V_TAGS + 1] > found[V_TAGS]:
        return signed32(java_hash_on(log, found[V_TAGS], found[V_TAGS + 1], 0))
    return 0


@inlined
def _group(
    units: np.ndarray,
    unit_rows: np.ndarray,
    count: int,
    queues: np.ndarray,
    touched: np.ndarray,
    touched_count: int,
    grouped: np.ndarray,
) -> None:
    """Sort the units by queue, keeping their order: ``touched`` holds (row, first unit, units) per queue."""
    first = 0
    for k in range(touched_count):
        row = touched[3 * k]
        # A counting sort. From here on the column holds the place of the queue's next unit, not the number of units.
        pending = queues[row, Q_PENDING]
        touched[3 * k + 1] = first
        touched[3 * k + 2] = pending
        queues[row, Q_PENDING] = first
        first += pending
    for k in range(count):
        row = unit_rows[k]
        copy_bytes(units, k * UNIT_BYTES, grouped, queues[row, Q_PENDING] * UNIT_BYTES, UNIT_BYTES)
        queues[row, Q_PENDING] += 1
    for k in range(touched_count):
        # Zero between calls: the next call finds untouched queues by it.
        queues[touched[3 * k], Q_PENDING] = 0


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
)
def dispatch(
    log: np.ndarray,
    at: int,
    end: int,
    file_base: int,
    slots: np.ndarray,
    queues: np.ndarray,
    topics: np.ndarray,
    units: np.ndarray,
    unit_rows: np.ndarray,
    grouped: np.ndarray,
    touched: np.ndarray,
    keys: np.ndarray,
    scratch: np.ndarray,
    state: np.ndarray,
) -> tuple[int, int]:
    """Turn the records of ``log[at:end]`` into units and keys.

    ``units``, ``unit_rows`` (one integer per unit) and ``scratch`` (``PARTS + VALUES`` integers) are work space. Out:
    ``grouped``, the units sorted by queue; ``touched``, (row, first unit, units) for each queue that got any; ``keys``;
    and counts in ``state``. A record whose queue offset is below its queue's next one already has its unit; one whose
    queue offset no queue can have ends the call. Returns (why it stopped, where); everything before that is complete.
    """
    found = scratch[PARTS:]
    unit_room = len(unit_rows)
    key_room = len(keys) // KEY_ROW
    state[S_RECORDS] = 0
    state[S_UNITS] = 0
    state[S_KEYS] = 0
    state[S_TOUCHED] = 0
    status = DONE
    # The row of the record before: consecutive records are mostly of one queue, so the hash table is rarely needed.
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
        physical_offset = file_base + at
        transaction = scratch[R_SYS_FLAG] & _TRANSACTION_MASK
        # A topic may have been deleted and created again under its name; records of the old one get no unit and no key.
        if physical_offset >= queues[row, Q_DELETED_BELOW]:
            find_properties(log, scratch[R_PROPERTIES_AT], at + scratch[R_SIZE], found)
            # As RocketMQ's dispatcher decides: consumers see plain messages and committed ones.
            wants_unit = transaction != _PREPARED and transaction != _ROLLBACK
            queue_offset = load_be64(log, at + _AT_QUEUE_OFFSET)
            if wants_unit and not 0 <= queue_offset <= QUEUE_OFFSET_MAX:
                status = BAD_QUEUE_OFFSET
                break
            if wants_unit and queue_offset > queues[row, Q_NEXT]:
                state[S_GAP_QUEUE] = row
                status = GAP
                break
            wants_index = transaction != _ROLLBACK and physical_offset >= state[S_INDEX_FROM]
            # Checked before anything is stored for this record, so that the call ends between two records. An array
            # without keys takes any record, because the count of keys is only an upper bound.
            if state[S_UNITS] == unit_room or (
                wants_index and state[S_KEYS] > 0 and state[S_KEYS] + _key_count(log, found) > key_room
            ):
                status = FULL
                break
            store_ms = scratch[R_STORE_MS]
            # A smaller queue offset is dispatched again after a crash, and has its unit already; its keys may be
            # missing.
            if wants_unit and queue_offset == queues[row, Q_NEXT]:
                unit = state[S_UNITS]
                store_be64(units, unit * UNIT_BYTES, physical_offset)
                store_be32(units, unit * UNIT_BYTES + _UNIT_SIZE_AT, scratch[R_SIZE])
                store_be64(
                    units, unit * UNIT_BYTES + _UNIT_TAGS_AT, _tags_code(log, found, queues[row, Q_KIND], store_ms)
                )
                unit_rows[unit] = row
                if queues[row, Q_PENDING] == 0:
                    touched[3 * state[S_TOUCHED]] = row
                    state[S_TOUCHED] += 1
                queues[row, Q_PENDING] += 1
                queues[row, Q_NEXT] += 1
                state[S_UNITS] = unit + 1
            if wants_index:
                _put_keys(log, found, queues[row, Q_TOPIC_HASH], physical_offset, store_ms, keys, state)
        state[S_LAST_STORE_MS] = scratch[R_STORE_MS]
        state[S_RECORDS] += 1
        at += scratch[R_SIZE]
    # Even after a stop in the middle, everything before ``at`` is complete, and the caller stores it.
    _group(units, unit_rows, state[S_UNITS], queues, touched, state[S_TOUCHED], grouped)
    return status, at
