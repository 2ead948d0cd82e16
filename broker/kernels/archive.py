"""CommitLog records for a fragment of the archive: the unit of each, and the 64-bit hash of each of its keys.

``derive`` differs from ``dispatch`` in three ways: no state of the queues stops it, since only what the records say
goes into a fragment; store times stay with the units; and keys are hashed by XXH64, as
``protocol.storage.archive.keys`` specifies. Words are signed: XXH64's unsigned arithmetic is that of the same bits, and
shifts to the right are masked.
"""

from __future__ import annotations

import numpy as np

from ...protocol.storage.archive.keys import PRIME_1, PRIME_2, PRIME_3, PRIME_4, PRIME_5
from ...protocol.storage.arrays.jit import (
    are_plain,
    bytes_array,
    i32_array,
    i64,
    i64_array,
    i64_table,
    inlined,
    kernel,
    results,
)
from ...protocol.storage.arrays.record_parts import (
    DONE,
    PARTS,
    R_PROPERTIES_AT,
    R_SIZE,
    R_STORE_MS,
    R_SYS_FLAG,
    R_TOPIC_AT,
    R_TOPIC_END,
    V_KEYS,
    V_UNIQ_KEY,
    find_properties,
    locate_parts,
)
from ...protocol.storage.arrays.words import copy_bytes, load_be32, load_be64, load_le32, load_le64, same_bytes
from ...protocol.storage.layout import PROPERTIES_BYTES_MAX
from .dispatch import (
    _AT_QUEUE_ID,
    _AT_QUEUE_OFFSET,
    _PREPARED,
    _ROLLBACK,
    _SPACE,
    _TRANSACTION_MASK,
    BAD_QUEUE_OFFSET,
    FULL,
    NEW_QUEUE,
    Q_KIND,
    Q_QUEUE_ID,
    Q_TOPIC_AT,
    Q_TOPIC_BYTES,
    QUEUE_OFFSET_MAX,
    _find_queue,
    _key_count,
    _tags_code,
)

# Columns of a unit.
D_QUEUE = 0
"""Row of the queue in the table."""
D_QUEUE_OFFSET = 1
D_PHYSICAL_OFFSET = 2
D_SIZE = 3
D_TAGS_CODE = 4
D_STORE_MS = 5
DERIVED_ROW = 6

# Columns of a key.
H_HASH = 0
H_PHYSICAL_OFFSET = 1
HASHED_ROW = 2

# Slots of ``state``.
T_RECORDS = 0
T_UNITS = 1
T_KEYS = 2
T_FIRST_MS = 3
"""Store time of the call's first record."""
T_LAST_MS = 4
TALLY = 5

TEXT_BYTES = 2 * PROPERTIES_BYTES_MAX + 1
"""Room for ``TOPIC#KEY``: both are shorter than the longest properties."""


def _signed(value: int) -> int:
    value = int(value) & 0xFFFFFFFFFFFFFFFF
    return value - (1 << 64) if value >> 63 else value


_P1, _P2, _P3, _P4, _P5 = map(_signed, (PRIME_1, PRIME_2, PRIME_3, PRIME_4, PRIME_5))
_P12, _MINUS_P1 = _signed(PRIME_1 + PRIME_2), _signed(-PRIME_1)

if are_plain():
    _word = _signed  # Python's integers do not wrap

    def _byte(text: np.ndarray, at: int) -> int:
        return int(text[at])
else:

    @inlined
    def _word(value: int) -> int:
        return value

    @inlined
    def _byte(text: np.ndarray, at: int) -> int:
        return np.int64(text[at])


@inlined
def _shifted(value: int, by: int) -> int:
    return value >> by & (1 << 64 - by) - 1


@inlined
def _rotated(value: int, by: int) -> int:
    return _word(value << by) | value >> 64 - by & (1 << by) - 1


@inlined
def _round(lane: int, word: int) -> int:
    return _word(_rotated(_word(lane + _word(word * _P2)), 31) * _P1)


@inlined
def _merged(value: int, lane: int) -> int:
    return _word(_word((value ^ _round(0, lane)) * _P1) + _P4)


@inlined
def _xxh64(text: np.ndarray, size: int) -> int:
    """Return XXH64 with seed 0 of ``text[:size]``, as a signed word."""
    size = _word(size)
    at = 0
    if size >= 32:
        first, second, third, fourth = _P12, _P2, 0, _MINUS_P1
        while at + 32 <= size:
            first = _round(first, load_le64(text, at))
            second = _round(second, load_le64(text, at + 8))
            third = _round(third, load_le64(text, at + 16))
            fourth = _round(fourth, load_le64(text, at + 24))
            at += 32
        value = _word(_rotated(first, 1) + _rotated(second, 7))
        value = _word(value + _word(_rotated(third, 12) + _rotated(fourth, 18)))
        value = _merged(_merged(_merged(_merged(value, first), second), third), fourth)
    else:
        value = _P5
    value = _word(value + size)
    while at + 8 <= size:
        value = _word(_word(_rotated(value ^ _round(0, load_le64(text, at)), 27) * _P1) + _P4)
        at += 8
    if at + 4 <= size:
        value = _word(_word(_rotated(value ^ _word(load_le32(text, at) * _P1), 23) * _P2) + _P3)
        at += 4
    while at < size:
        value = _word(_rotated(value ^ _word(_byte(text, at) * _P5), 11) * _P1)
        at += 1
    value = _word((value ^ _shifted(value, 33)) * _P2)
    value = _word((value ^ _shifted(value, 29)) * _P3)
    return value ^ _shifted(value, 32)


@kernel(i64, bytes_array, i64)
def xxh64(text: np.ndarray, size: int) -> int:
    """Return XXH64 with seed 0 of ``text[:size]``, as a signed word."""
    return _xxh64(text, size)


@inlined
def _put_hash(
    log: np.ndarray, at: int, end: int, prefix: int, physical_offset: int, text: np.ndarray, keys: np.ndarray, row: int
) -> None:
    """Put the hash of the key ``log[at:end]``. ``text[:prefix]``: ``TOPIC#``."""
    copy_bytes(log, at, text, prefix, end - at)
    keys[row + H_HASH] = _xxh64(text, prefix + end - at)
    keys[row + H_PHYSICAL_OFFSET] = physical_offset


@inlined
def _put_hashes(
    log: np.ndarray,
    found: np.ndarray,
    prefix: int,
    physical_offset: int,
    text: np.ndarray,
    keys: np.ndarray,
    state: np.ndarray,
) -> None:
    """Put the unique key, then each of KEYS, as ``dispatch`` does for the IndexFile."""
    if found[V_UNIQ_KEY + 1] > found[V_UNIQ_KEY]:
        row = state[T_KEYS] * HASHED_ROW
        _put_hash(log, found[V_UNIQ_KEY], found[V_UNIQ_KEY + 1], prefix, physical_offset, text, keys, row)
        state[T_KEYS] += 1
    at = found[V_KEYS]
    while at < found[V_KEYS + 1]:
        stop = at
        while stop < found[V_KEYS + 1] and log[stop] != _SPACE:
            stop += 1
        if stop > at:
            _put_hash(log, at, stop, prefix, physical_offset, text, keys, state[T_KEYS] * HASHED_ROW)
            state[T_KEYS] += 1
        at = stop + 1


@kernel(
    results(i64, i64),
    bytes_array,
    i64,
    i64,
    i64,
    i32_array,
    i64_table,
    bytes_array,
    i64_array,
    i64_array,
    bytes_array,
    i64_array,
    i64_array,
)
def derive(
    log: np.ndarray,
    at: int,
    end: int,
    base: int,
    slots: np.ndarray,
    queues: np.ndarray,
    topics: np.ndarray,
    units: np.ndarray,
    keys: np.ndarray,
    text: np.ndarray,
    scratch: np.ndarray,
    state: np.ndarray,
) -> tuple[int, int]:
    """Derive units and keys of the records of ``log[at:end]``.

    ``base``: physical offset of the array's first byte; ``slots``, ``queues``, ``topics``: the queues, as in
    ``ConsumeQueueTable``; ``text``: ``TEXT_BYTES`` of work space; ``scratch``: ``PARTS + VALUES`` integers. Out: rows
    of ``DERIVED_ROW`` and ``HASHED_ROW`` in the order of the log, and counts in ``state``.

    Returns (why it stopped, where), everything before that is complete: ``FULL``: go on with a new call; ``NEW_QUEUE``:
    add the queue of the record there; else as ``locate_parts``. A record that does not end below ``end`` has a
    ``BAD_LENGTH``.
    """
    found = scratch[PARTS:]
    unit_room = len(units) // DERIVED_ROW
    key_room = len(keys) // HASHED_ROW
    state[:] = 0
    status = DONE
    row, named = -1, -1
    prefix = 0
    while at < end:
        status = locate_parts(log, at, end, base + at, scratch)
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
        queue_offset = load_be64(log, at + _AT_QUEUE_OFFSET)
        if not 0 <= queue_offset <= QUEUE_OFFSET_MAX:
            status = BAD_QUEUE_OFFSET
            break
        record_end = at + scratch[R_SIZE]
        find_properties(log, scratch[R_PROPERTIES_AT], record_end, found)
        # An array without keys takes any record, because the count of keys is only an upper bound.
        if state[T_UNITS] == unit_room or (state[T_KEYS] > 0 and state[T_KEYS] + _key_count(log, found) > key_room):
            status = FULL
            break
        physical_offset = base + at
        transaction = scratch[R_SYS_FLAG] & _TRANSACTION_MASK
        if transaction not in (_PREPARED, _ROLLBACK):
            unit = state[T_UNITS] * DERIVED_ROW
            units[unit + D_QUEUE] = row
            units[unit + D_QUEUE_OFFSET] = queue_offset
            units[unit + D_PHYSICAL_OFFSET] = physical_offset
            units[unit + D_SIZE] = scratch[R_SIZE]
            units[unit + D_TAGS_CODE] = _tags_code(log, found, queues[row, Q_KIND], scratch[R_STORE_MS])
            units[unit + D_STORE_MS] = scratch[R_STORE_MS]
            state[T_UNITS] += 1
        if transaction != _ROLLBACK:
            if named != row:
                copy_bytes(topics, queues[row, Q_TOPIC_AT], text, 0, topic_bytes)
                text[topic_bytes] = 0x23  # #
                prefix = topic_bytes + 1
                named = row
            _put_hashes(log, found, prefix, physical_offset, text, keys, state)
        if state[T_RECORDS] == 0:
            state[T_FIRST_MS] = scratch[R_STORE_MS]
        state[T_LAST_MS] = scratch[R_STORE_MS]
        state[T_RECORDS] += 1
        at = record_end
    return status, at
