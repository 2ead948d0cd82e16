"""CommitLog records: check them, and turn them into ConsumeQueue units and index keys.

``scan`` finds the end of a log and its damage. ``dispatch`` is the core of reput: one pass over a range of the log
returns the units of each queue, grouped by queue, and the hash of every key. A check of a store calls it in another
mode, in which it notes what is wrong with a record and continues. The kernel's view of the queues is in
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
from ...protocol.storage.layout import RECORD, UNIT, UNIT_BYTES, SysFlag
from ...protocol.storage.record import KEY_SEPARATOR
from .record_crc import record_crc_sound
from .text import _sequence, index_hash, java_hash_on, signed32

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

# Columns of a queue's row that only ``DERIVE`` and ``EXAMINE`` have.
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
S_RUNS = 4
S_GAP_QUEUE = 5
S_INDEX_FROM = 6
"""In: records below this physical offset are already in the index."""
S_CHECKSUMMED = 7
"""In: not 0 if every record must have a checksum over the whole record (``__CRC32#``)."""
S_MODE = 8
"""In: ``DISPATCH``, ``DERIVE`` or ``EXAMINE``."""
S_OPTIONAL_KEYS = 9
S_FLAWS = 10
S_CLOCK_MARGIN_MS = 11
"""In: tolerance by which a store time may be before the previous one."""
S_HEADS_ONLY = 12
"""In: not 0 if ``scan`` computes no checksums, because another check of the same bytes does."""
STATE = 13

# Modes.
DISPATCH = 0
"""Stop at a record that its queue cannot take next."""
DERIVE = 1
"""Note a wrong queue offset as a flaw, and continue."""
EXAMINE = 2
"""As ``DERIVE``, and note flaws of bodies, checksums, properties and store times too."""

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


_AT_BODY_CRC = RECORD.at["body_crc"]
_AT_QUEUE_ID = RECORD.at["queue_id"]
_AT_QUEUE_OFFSET = RECORD.at["queue_offset"]
_UNIT_SIZE_AT = UNIT.at["size"]
_UNIT_TAGS_AT = UNIT.at["tags_code"]
_TRANSACTION_MASK = SysFlag.TRANSACTION_MASK
_PREPARED = SysFlag.TRANSACTION_PREPARED
_ROLLBACK = SysFlag.TRANSACTION_ROLLBACK
_SPACE = ord(KEY_SEPARATOR)
_TIME_MIN = -(2**63)


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
    """Check the records of ``log[at:end]``: their parts, and unless ``state[S_HEADS_ONLY]`` the checksums of their
    bodies, and ``__CRC32#`` with ``state[S_CHECKSUMMED]``.

    ``file_base``: physical offset of the array's first byte. Counts into ``state[S_RECORDS]`` and leaves the last store
    time in ``state[S_LAST_STORE_MS]``. Returns (why it stopped, where): DONE if the next record would begin at ``end``
    or after it.
    """
    while at < end:
        status = locate_parts(log, at, len(log), file_base + at, parts)
        if status == DONE and state[S_HEADS_ONLY] == 0:
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
    counter: int,
) -> None:
    row = state[counter] * KEY_ROW
    keys[row + K_HASH] = index_hash(java_hash_on(log, at, end, topic_hash))
    keys[row + K_PHYSICAL_OFFSET] = physical_offset
    keys[row + K_STORE_MS] = store_ms
    state[counter] += 1


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
    counter: int,
) -> None:
    """Put the unique key first, then each of KEYS, as RocketMQ's IndexService does. ``counter``: slot of their
    number."""
    if found[V_UNIQ_KEY + 1] > found[V_UNIQ_KEY]:
        begin, end = found[V_UNIQ_KEY], found[V_UNIQ_KEY + 1]
        _put_key(log, begin, end, topic_hash, physical_offset, store_ms, keys, state, counter)
    at = found[V_KEYS]
    while at < found[V_KEYS + 1]:
        stop = at
        while stop < found[V_KEYS + 1] and log[stop] != _SPACE:
            stop += 1
        if stop > at:
            _put_key(log, at, stop, topic_hash, physical_offset, store_ms, keys, state, counter)
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
def _judge_content(
    log: np.ndarray, at: int, record_end: int, scratch: np.ndarray, flaws: np.ndarray, state: np.ndarray
) -> None:
    """Note what is wrong with a record's checksums, properties and store time."""
    sums = _check_sums(log, at, scratch, state[S_CHECKSUMMED] != 0)
    if sums == BAD_CRC:
        _flaw(FLAW_CRC, at, 0, flaws, state)
    elif sums == BAD_RECORD_CRC:
        _flaw(FLAW_RECORD_CRC, at, 0, flaws, state)
    if not _properties_sound(log, scratch[R_PROPERTIES_AT], record_end):
        _flaw(FLAW_PROPERTIES, at, 0, flaws, state)
    last_ms, margin_ms = state[S_LAST_STORE_MS], state[S_CLOCK_MARGIN_MS]
    if last_ms >= _TIME_MIN + margin_ms and scratch[R_STORE_MS] < last_ms - margin_ms:
        _flaw(FLAW_TIME, at, last_ms, flaws, state)


@inlined
def _judge_queue_offset(
    queues: np.ndarray, row: int, at: int, queue_offset: int, physical_offset: int, flaws: np.ndarray, state: np.ndarray
) -> bool:
    """Note a wrong queue offset; return whether a queue can have a unit of it."""
    if not 0 <= queue_offset <= QUEUE_OFFSET_MAX:
        _pass_over(queues, row)
        _flaw(FLAW_NO_QUEUE_OFFSET, at, 0, flaws, state)
        return False
    expected = _follow(queues, row, queue_offset, physical_offset)
    if expected >= 0:
        _flaw(FLAW_QUEUE_OFFSET, at, expected, flaws, state)
    return True


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
        run = state[S_RUNS]
        runs[run * RUN_ROW + U_ROW] = row
        runs[run * RUN_ROW + U_QUEUE_OFFSET] = queue_offset
        runs[run * RUN_ROW + U_COUNT] = 0
        queues[row, Q_PENDING] = run + 1
        state[S_RUNS] += 1
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
    for run in range(state[S_RUNS]):
        runs[run * RUN_ROW + U_FIRST] = first
        first += runs[run * RUN_ROW + U_COUNT]
        queues[runs[run * RUN_ROW + U_ROW], Q_PENDING] = 0
    for unit in range(state[S_UNITS]):
        row = unit_runs[unit] * RUN_ROW
        copy_bytes(units, unit * UNIT_BYTES, grouped, runs[row + U_FIRST] * UNIT_BYTES, UNIT_BYTES)
        runs[row + U_FIRST] += 1
    for run in range(state[S_RUNS]):
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
    unit_runs: np.ndarray,
    grouped: np.ndarray,
    runs: np.ndarray,
    keys: np.ndarray,
    optional_keys: np.ndarray,
    flaws: np.ndarray,
    scratch: np.ndarray,
    state: np.ndarray,
) -> tuple[int, int]:
    """Turn the records of ``log[at:end]`` into units and keys.

    ``units``, ``unit_runs`` (one integer per unit) and ``scratch`` (``PARTS + VALUES`` integers) are work space;
    ``runs`` has room for as many runs as ``unit_runs`` for units. Out: ``runs``, units of one queue with consecutive
    queue offsets, with their units in ``grouped``; ``keys``; and counts in ``state``, where ``S_RUNS`` counts the
    runs and ``S_LAST_STORE_MS`` is carried from call to call (0: none yet).

    ``DISPATCH``: a record whose queue offset is below its queue's next one already has its unit; one whose queue offset
    is beyond it, or that no queue can have, ends the call. Each queue has one run at most. ``optional_keys`` and
    ``flaws`` stay unused.

    ``DERIVE`` and ``EXAMINE``: ``queues`` has rows of ``EXAMINED_ROW``; if ``Q_NEXT`` is -1, the queue's first record
    is trusted. Out, too: ``flaws``; and ``optional_keys``, those of deleted topics, that the index may have.

    Returns (why it stopped, where); everything before that is complete.
    """
    found = scratch[PARTS:]
    unit_room = len(unit_runs)
    key_room = len(keys) // KEY_ROW
    flaw_room = len(flaws) // FLAW_ROW
    mode = state[S_MODE]
    state[S_RECORDS] = 0
    state[S_UNITS] = 0
    state[S_KEYS] = 0
    state[S_RUNS] = 0
    state[S_OPTIONAL_KEYS] = 0
    state[S_FLAWS] = 0
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
        record_end = at + scratch[R_SIZE]
        # A topic may have been deleted and created again under its name; records of the old one get no unit and no key.
        is_deleted = physical_offset < queues[row, Q_DELETED_BELOW]
        if mode != DISPATCH or not is_deleted:
            find_properties(log, scratch[R_PROPERTIES_AT], record_end, found)
            # As RocketMQ's dispatcher decides: consumers see plain messages and committed ones.
            wants_unit = not is_deleted and transaction != _PREPARED and transaction != _ROLLBACK
            wants_index = transaction != _ROLLBACK and physical_offset >= state[S_INDEX_FROM]
            queue_offset = load_be64(log, at + _AT_QUEUE_OFFSET)
            if wants_unit and mode == DISPATCH:
                if not 0 <= queue_offset <= QUEUE_OFFSET_MAX:
                    status = BAD_QUEUE_OFFSET
                    break
                if queue_offset > queues[row, Q_NEXT]:
                    state[S_GAP_QUEUE] = row
                    status = GAP
                    break
            keys_held = max(state[S_KEYS], state[S_OPTIONAL_KEYS])
            # Checked before anything is stored for this record, so that the call ends between two records. An array
            # without keys takes any record, because the count of keys is only an upper bound.
            if (
                state[S_UNITS] == unit_room
                or (wants_index and keys_held > 0 and keys_held + _key_count(log, found) > key_room)
                or (mode != DISPATCH and state[S_FLAWS] + FLAWS_OF_ONE_RECORD > flaw_room)
            ):
                status = FULL
                break
            if mode == EXAMINE:
                _judge_content(log, at, record_end, scratch, flaws, state)
            if wants_unit and mode != DISPATCH:
                wants_unit = _judge_queue_offset(queues, row, at, queue_offset, physical_offset, flaws, state)
            elif wants_unit:
                # A smaller queue offset is dispatched again after a crash, and has its unit already; its keys may be
                # missing.
                wants_unit = queue_offset == queues[row, Q_NEXT]
                queues[row, Q_NEXT] += wants_unit
            if wants_unit:
                _put_unit(
                    log, row, queue_offset, physical_offset, found, scratch, queues, units, unit_runs, runs, state
                )
            if wants_index:
                topic_hash, store_ms = queues[row, Q_TOPIC_HASH], scratch[R_STORE_MS]
                if is_deleted:
                    _put_keys(log, found, topic_hash, physical_offset, store_ms, optional_keys, state, S_OPTIONAL_KEYS)
                else:
                    _put_keys(log, found, topic_hash, physical_offset, store_ms, keys, state, S_KEYS)
        state[S_LAST_STORE_MS] = scratch[R_STORE_MS]
        state[S_RECORDS] += 1
        at = record_end
    # Even after a stop in the middle, everything before ``at`` is complete, and the caller stores it.
    _group_runs(units, unit_runs, queues, runs, grouped, state)
    return status, at
