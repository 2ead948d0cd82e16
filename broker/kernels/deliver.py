"""Redelivery: messages that wait in one of the broker's topics become messages of their target topic.

``find_targets`` examines many stored records: it finds the target of each, grouped by topic and queue, the time at
which a timed one is due, its unique key, and the message that it recalls. The caller gives each group the queue offset
of its first message; ``deliver`` then makes the new records for the CommitLog. A new record has another topic, queue,
queue offset, physical offset, store time and store host; body, flag, compression, born time and host, reconsume times
and properties stay. ``__CRC32#`` is left out because it covers the old record. With ``N_CHECKSUM_BYTES`` the new record
gets its own, if its properties leave room for it.
"""

from __future__ import annotations

import numpy as np

from ...protocol.storage.arrays.crc32 import crc32_of
from ...protocol.storage.arrays.jit import bytes_array, i32_array, i64, i64_array, inlined, kernel, results
from ...protocol.storage.arrays.record_parts import (
    DONE,
    PARTS,
    R_BODY_AT,
    R_BODY_END,
    R_PROPERTIES_AT,
    R_SIZE,
    locate_parts,
)
from ...protocol.storage.arrays.words import (
    copy_bytes,
    find_byte,
    is_name,
    load_be32,
    load_be64,
    same_bytes,
    store_be16,
    store_be32,
    store_be64,
    text_array,
)
from ...protocol.storage.delivery import (
    PROPERTY_REAL_QUEUE,
    PROPERTY_REAL_TOPIC,
    PROPERTY_RECORD_CRC,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_TIMER_RECALLED,
)
from ...protocol.storage.layout import (
    BLANK_BYTES_MIN,
    HOST_BYTES,
    HOST_V6_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_LENGTH_BYTES,
    RECORD,
    RECORD_HEAD_BYTES,
    TOPIC_BYTES_MAX,
    TOPIC_LENGTH_BYTES_V1,
    TOPIC_LENGTH_BYTES_V2,
    SysFlag,
)
from ...protocol.storage.record import PROPERTIES_WITH_CRC_MAX, PROPERTY_UNIQ_KEY
from .dispatch import _queue_hash
from .gather import C_PHYSICAL_OFFSET, C_SIZE, CHOSEN_ROW
from .record_crc import record_crc_sound, store_record_crc

# Columns of the plan, one row per record.
P_AT = 0
P_GROUP = 1
"""Group of the record; UNSOUND if the bytes are not the requested record."""
P_DUE_MS = 2
"""TIMER_OUT_MS, or -1."""
P_BODY_AT = 3
P_BODY_END = 4
P_PROPERTIES_AT = 5
P_END = 6
P_DROPPED_BYTES = 7
"""Bytes of its properties that are left out."""
P_UNENDED = 8
"""1 if the remaining properties do not end with a separator; else 0."""
P_BODY_CRC = 9
"""CRC-32 of the body, all 32 bits."""
P_KEY_AT = 10
"""Position of the unique key, of which the next column has the end; equal: it has none."""
P_KEY_END = 11
P_RECALLED_AT = 12
"""Position of TIMER_DEL_UNIQKEY, of which the next column has the end; equal: the record is not a recall."""
P_RECALLED_END = 13
PLAN_ROW = 14

# Columns of a group.
G_TOPIC_AT = 0
"""Position of the topic's name in the records."""
G_TOPIC_BYTES = 1
G_QUEUE_ID = 2
G_COUNT = 3
G_NAME_AT = 4
"""The caller fills this and the following columns. Position of the target topic's name in ``texts``."""
G_NAME_END = 5
G_TO_QUEUE_ID = 6
G_NEXT = 7
"""Queue offset of the group's next message; -1: its messages are not written."""
GROUP_ROW = 8

UNSOUND = -1
NOWHERE = 0
"""The first group: records that do not name their target."""

# Slots of ``numbers``.
N_LIMIT = 0
N_BASE = 1
"""Physical offset of the first byte of ``log``."""
N_STORE_MS = 2
N_STORE_HOST_END = 3
"""Length of the store host, which is at the beginning of ``texts``."""
N_COMMITTED = 4
"""Not 0: these are prepared messages of a transaction that commits now. Like those of committed half messages, the new
records are marked as committed and hold the physical offset of the prepared ones."""
N_CHECKSUM_BYTES = 5
"""Size of a checksum over the whole record: 20, or 0 if none is written."""
N_LENGTH = 6

# Slots of ``found``: begin and end of each value; begin = end: none.
_TOPIC = 0
_QUEUE = 2
_DUE = 4
_KEY = 6
_RECALLED = 8
_DROPPED = 10
_UNENDED = 11
FOUND = 12

_REAL_TOPIC = text_array(PROPERTY_REAL_TOPIC)
_REAL_QUEUE = text_array(PROPERTY_REAL_QUEUE)
_TIMER_OUT = text_array(PROPERTY_TIMER_OUT_MS)
_UNIQUE_KEY = text_array(PROPERTY_UNIQ_KEY)
_TIMER_RECALLED = text_array(PROPERTY_TIMER_RECALLED)
_RECORD_CRC = text_array(PROPERTY_RECORD_CRC)
_RECORD_CRC_BYTES = len(_RECORD_CRC)
_QUEUE_DIGITS_MAX = 9
_MS_DIGITS_MAX = 15

_AT_BODY_CRC = RECORD.at["body_crc"]
_AT_QUEUE_ID = RECORD.at["queue_id"]
_AT_QUEUE_OFFSET = RECORD.at["queue_offset"]
_AT_PHYSICAL_OFFSET = RECORD.at["physical_offset"]
_AT_SYS_FLAG = RECORD.at["sys_flag"]
_AT_BORN_TIMESTAMP = RECORD.at["born_timestamp"]
_AT_BORN_HOST = RECORD.at["born_host"]
_BORN_V6 = SysFlag.BORN_HOST_V6
_STORE_V6 = SysFlag.STORE_HOST_V6
_TRANSACTION_MASK = SysFlag.TRANSACTION_MASK
_COMMITTED = SysFlag.TRANSACTION_COMMIT
_WITHOUT_HOSTS_BYTES = RECORD_HEAD_BYTES - 2 * HOST_BYTES
_BLANK_ROOM = BLANK_BYTES_MIN


@inlined
def _is_checksum(records: np.ndarray, at: int, stop: int) -> bool:
    """Return whether the property ``records[at:stop]`` is a whole-record checksum."""
    if stop - at < _RECORD_CRC_BYTES or not same_bytes(records, at, _RECORD_CRC, 0, _RECORD_CRC_BYTES):
        return False
    return stop - at == _RECORD_CRC_BYTES or records[at + _RECORD_CRC_BYTES] == 1


@inlined
def _find_values(records: np.ndarray, at: int, end: int, found: np.ndarray) -> None:
    """Find the last value of each property needed here, by the rules of ``_find_properties`` in ``dispatch``."""
    for k in range(FOUND):
        found[k] = 0
    while at < end:
        stop = find_byte(records, at, end, 2)
        separator = at
        while separator < stop and records[separator] != 1:
            separator += 1
        name_bytes = separator - at
        slot = -1
        if is_name(records, at, name_bytes, _REAL_TOPIC):
            slot = _TOPIC
        elif is_name(records, at, name_bytes, _REAL_QUEUE):
            slot = _QUEUE
        elif is_name(records, at, name_bytes, _TIMER_OUT):
            slot = _DUE
        elif is_name(records, at, name_bytes, _UNIQUE_KEY):
            slot = _KEY
        elif is_name(records, at, name_bytes, _TIMER_RECALLED):
            slot = _RECALLED
        is_dropped = slot < 0 and _is_checksum(records, at, stop)
        if is_dropped:
            found[_DROPPED] += min(stop + 1, end) - at
        elif stop == end:
            found[_UNENDED] = 1
        if slot >= 0 and separator + 1 < stop:
            found[slot] = separator + 1
            found[slot + 1] = stop
        at = stop + 1


@inlined
def _read_digits(records: np.ndarray, at: int, end: int, digits_max: int) -> int:
    """Return a number of decimal digits only; -1 if there are none, too many, or other characters."""
    if at == end or end - at > digits_max:
        return -1
    value = 0
    for k in range(at, end):
        digit = np.int64(records[k]) - 0x30
        if digit < 0 or digit > 9:
            return -1
        value = 10 * value + digit
    return value


@inlined
def _group_of(
    records: np.ndarray, at: int, end: int, queue_id: int, slots: np.ndarray, groups: np.ndarray, group_count: int
) -> int:
    """Return the group of a topic and queue; add it, and return ``group_count``, if it is new."""
    mask = len(slots) - 1
    slot = _queue_hash(records, at, end, queue_id) & mask
    while slots[slot] != 0:
        group = np.int64(slots[slot])
        row = group * GROUP_ROW
        if (
            groups[row + G_QUEUE_ID] == queue_id
            and groups[row + G_TOPIC_BYTES] == end - at
            and same_bytes(records, groups[row + G_TOPIC_AT], records, at, end - at)
        ):
            return group
        slot = (slot + 1) & mask
    slots[slot] = group_count
    row = group_count * GROUP_ROW
    groups[row + G_TOPIC_AT] = at
    groups[row + G_TOPIC_BYTES] = end - at
    groups[row + G_QUEUE_ID] = queue_id
    groups[row + G_COUNT] = 0
    return group_count


@inlined
def _plan_body(
    records: np.ndarray, at: int, parts: np.ndarray, plan: np.ndarray, row: int, is_checksummed: bool
) -> bool:
    """Sum the body; return whether it matches the record's checksum, and any required ``__CRC32#`` matches too."""
    body_crc = crc32_of(records, parts[R_BODY_AT], parts[R_BODY_END])
    plan[row + P_BODY_CRC] = body_crc
    if parts[R_BODY_AT] < parts[R_BODY_END] and body_crc & 0x7FFFFFFF != load_be32(records, at + _AT_BODY_CRC):
        return False
    return not is_checksummed or record_crc_sound(
        records, at, at + parts[R_SIZE], parts[R_BODY_AT], parts[R_BODY_END], parts[R_PROPERTIES_AT], body_crc
    )


@kernel(i64, bytes_array, i64_array, i64, i32_array, i64_array, i64_array, i64_array, i64, i64)
def find_targets(
    records: np.ndarray,
    chosen: np.ndarray,
    count: int,
    slots: np.ndarray,
    plan: np.ndarray,
    groups: np.ndarray,
    scratch: np.ndarray,
    checksummed_from: int,
    checksummed_to: int,
) -> int:
    """Plan ``count`` consecutive records in ``records``; return the number of groups.

    ``chosen``: (physical offset, size, anything) of each, as in ``gather``. ``slots``: zeros, a power of two of them,
    more than twice the number of records; ``plan`` has a row for each record, ``groups`` one more; ``scratch``:
    ``PARTS`` + ``FOUND`` integers. Records in ``[checksummed_from, checksummed_to)``, physical offsets, must have a
    checksum over the whole record.
    """
    found = scratch[PARTS:]
    for k in range(GROUP_ROW):
        groups[k] = 0
    group_count = 1
    last_group = NOWHERE
    at = 0
    for k in range(count):
        row = k * PLAN_ROW
        size = chosen[k * CHOSEN_ROW + C_SIZE]
        physical_offset = chosen[k * CHOSEN_ROW + C_PHYSICAL_OFFSET]
        is_checksummed = checksummed_from <= physical_offset < checksummed_to
        status = locate_parts(records, at, at + size, physical_offset, scratch)
        plan[row + P_AT] = at
        plan[row + P_GROUP] = UNSOUND
        plan[row + P_DUE_MS] = -1
        plan[row + P_RECALLED_AT] = plan[row + P_RECALLED_END] = 0
        if status == DONE and scratch[R_SIZE] == size and _plan_body(records, at, scratch, plan, row, is_checksummed):
            plan[row + P_BODY_AT] = scratch[R_BODY_AT]
            plan[row + P_BODY_END] = scratch[R_BODY_END]
            plan[row + P_PROPERTIES_AT] = scratch[R_PROPERTIES_AT]
            plan[row + P_END] = at + size
            _find_values(records, scratch[R_PROPERTIES_AT], at + size, found)
            plan[row + P_DROPPED_BYTES] = found[_DROPPED]
            plan[row + P_UNENDED] = found[_UNENDED]
            plan[row + P_DUE_MS] = _read_digits(records, found[_DUE], found[_DUE + 1], _MS_DIGITS_MAX)
            for part in range(2):
                plan[row + P_KEY_AT + part] = found[_KEY + part]
                plan[row + P_RECALLED_AT + part] = found[_RECALLED + part]
            queue_id = _read_digits(records, found[_QUEUE], found[_QUEUE + 1], _QUEUE_DIGITS_MAX)
            topic_at = found[_TOPIC]
            topic_bytes = found[_TOPIC + 1] - topic_at
            if topic_bytes == 0 or queue_id < 0:
                last_group = NOWHERE
            elif (
                last_group == NOWHERE
                or groups[last_group * GROUP_ROW + G_QUEUE_ID] != queue_id
                or groups[last_group * GROUP_ROW + G_TOPIC_BYTES] != topic_bytes
                or not same_bytes(records, groups[last_group * GROUP_ROW + G_TOPIC_AT], records, topic_at, topic_bytes)
            ):
                last_group = _group_of(records, topic_at, topic_at + topic_bytes, queue_id, slots, groups, group_count)
                group_count = max(group_count, last_group + 1)
            plan[row + P_GROUP] = last_group
            groups[last_group * GROUP_ROW + G_COUNT] += 1
        at += size
    return group_count


@inlined
def _copy(source: np.ndarray, at: int, end: int, target: np.ndarray, target_at: int) -> int:
    copy_bytes(source, at, target, target_at, end - at)
    return target_at + end - at


@inlined
def _copy_properties(records: np.ndarray, at: int, end: int, log: np.ndarray, to: int) -> int:
    """Copy all properties except checksums."""
    while at < end:
        stop = find_byte(records, at, end, 2)
        following = min(stop + 1, end)
        if not _is_checksum(records, at, stop):
            to = _copy(records, at, following, log, to)
        at = following
    return to


@inlined
def _properties_bytes(plan: np.ndarray, row: int) -> int:
    """Return the size of the properties that a planned record keeps."""
    return plan[row + P_END] - plan[row + P_PROPERTIES_AT] - plan[row + P_DROPPED_BYTES]


@inlined
def _checksum_bytes(plan: np.ndarray, row: int, numbers: np.ndarray) -> int:
    """Return the bytes that a checksum adds, with a missing separator before it; 0 if there is no checksum."""
    if numbers[N_CHECKSUM_BYTES] == 0 or _properties_bytes(plan, row) + plan[row + P_UNENDED] > PROPERTIES_WITH_CRC_MAX:
        return 0
    return plan[row + P_UNENDED] + numbers[N_CHECKSUM_BYTES]


@inlined
def _write_record(
    records: np.ndarray,
    plan: np.ndarray,
    row: int,
    groups: np.ndarray,
    group: int,
    texts: np.ndarray,
    numbers: np.ndarray,
    log: np.ndarray,
    position: int,
    size: int,
) -> None:
    source = plan[row + P_AT]
    properties_at = plan[row + P_PROPERTIES_AT]
    properties_end = plan[row + P_END]
    checksum_bytes = _checksum_bytes(plan, row, numbers)
    topic_bytes = groups[group + G_NAME_END] - groups[group + G_NAME_AT]
    sys_flag = load_be32(records, source + _AT_SYS_FLAG)
    born_host_bytes = HOST_V6_BYTES if sys_flag & _BORN_V6 else HOST_BYTES
    old_store_host_bytes = HOST_V6_BYTES if sys_flag & _STORE_V6 else HOST_BYTES
    sys_flag = sys_flag & ~_STORE_V6 | (_STORE_V6 if numbers[N_STORE_HOST_END] == HOST_V6_BYTES else 0)
    prepared_at = 0
    if numbers[N_COMMITTED] != 0:
        sys_flag = sys_flag & ~_TRANSACTION_MASK | _COMMITTED
        prepared_at = load_be64(records, source + _AT_PHYSICAL_OFFSET)
    elif sys_flag & _TRANSACTION_MASK != _COMMITTED:
        sys_flag &= ~_TRANSACTION_MASK  # dispatch makes no unit of a record that is prepared or rolled back
    copy_bytes(records, source + 8, log, position + 8, 12)  # body_crc, queue_id, flag
    store_be32(log, position + _AT_QUEUE_ID, groups[group + G_TO_QUEUE_ID])
    store_be64(log, position + _AT_QUEUE_OFFSET, groups[group + G_NEXT])
    store_be64(log, position + _AT_PHYSICAL_OFFSET, numbers[N_BASE] + position)
    store_be32(log, position + _AT_SYS_FLAG, sys_flag)
    at = source + _AT_BORN_TIMESTAMP
    to = _copy(records, at, at + 8 + born_host_bytes, log, position + _AT_BORN_TIMESTAMP)
    store_be64(log, to, numbers[N_STORE_MS])
    to = _copy(texts, 0, numbers[N_STORE_HOST_END], log, to + 8)
    at = source + _AT_BORN_HOST + born_host_bytes + 8 + old_store_host_bytes
    store_be32(log, to, load_be32(records, at))  # reconsume_times
    store_be64(log, to + 4, prepared_at)
    to = _copy(records, plan[row + P_BODY_AT] - 4, plan[row + P_BODY_END], log, to + 12)
    body_end = to
    if topic_bytes > TOPIC_BYTES_MAX:
        store_be16(log, to, topic_bytes)
        to += 2
    else:
        log[to] = topic_bytes
        to += 1
    to = _copy(texts, groups[group + G_NAME_AT], groups[group + G_NAME_END], log, to)
    store_be16(log, to, _properties_bytes(plan, row) + checksum_bytes)
    if plan[row + P_DROPPED_BYTES] == 0:
        to = _copy(records, properties_at, properties_end, log, to + 2)
    else:
        to = _copy_properties(records, properties_at, properties_end, log, to + 2)
    magic = MAGIC_V2 if topic_bytes > TOPIC_BYTES_MAX else MAGIC_V1
    if checksum_bytes != 0:
        if plan[row + P_UNENDED] != 0:
            log[to] = 2
        body_at = body_end - (plan[row + P_BODY_END] - plan[row + P_BODY_AT])
        store_record_crc(log, position, size, magic, body_at, body_end, plan[row + P_BODY_CRC])
    store_be32(log, position + 4, magic)
    store_be32(log, position, size)


@kernel(results(i64, i64), bytes_array, i64_array, i64, i64, i64_array, bytes_array, i64_array, bytes_array)
def deliver(
    records: np.ndarray,
    plan: np.ndarray,
    first: int,
    count: int,
    groups: np.ndarray,
    texts: np.ndarray,
    numbers: np.ndarray,
    log: np.ndarray,
) -> tuple[int, int]:
    """Write the planned records, starting with ``first``, for their groups' queues into ``log``, a buffer for the
    CommitLog.

    Increments ``G_NEXT`` of each group. Records take up to ``numbers[N_LIMIT]`` bytes, and each leaves room for a blank
    record after it. Returns (records done, bytes of the new ones): fewer than ``count`` if there is no room for more.
    """
    position = 0
    for k in range(first, count):
        row = k * PLAN_ROW
        if plan[row + P_GROUP] == UNSOUND:
            continue
        group = plan[row + P_GROUP] * GROUP_ROW
        if groups[group + G_NEXT] < 0:
            continue
        sys_flag = load_be32(records, plan[row + P_AT] + _AT_SYS_FLAG)
        topic_bytes = groups[group + G_NAME_END] - groups[group + G_NAME_AT]
        size = (
            _WITHOUT_HOSTS_BYTES
            + (HOST_V6_BYTES if sys_flag & _BORN_V6 else HOST_BYTES)
            + numbers[N_STORE_HOST_END]
            + plan[row + P_BODY_END]
            - plan[row + P_BODY_AT]
            + (TOPIC_LENGTH_BYTES_V2 if topic_bytes > TOPIC_BYTES_MAX else TOPIC_LENGTH_BYTES_V1)
            + topic_bytes
            + PROPERTIES_LENGTH_BYTES
            + _properties_bytes(plan, row)
            + _checksum_bytes(plan, row, numbers)
        )
        if position + size + _BLANK_ROOM > numbers[N_LIMIT]:
            return k, position
        _write_record(records, plan, row, groups, group, texts, numbers, log, position, size)
        groups[group + G_NEXT] += 1
        position += size
    return count, position
