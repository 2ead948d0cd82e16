"""The messages of a PRODUCE frame: validate all of them, then make records of them for the CommitLog.

``produce`` makes a record only if the plan of the whole frame is valid, so that a refused frame leaves no bytes after
the log's end that recovery could mistake for a record. See ``produce_plan`` for ``numbers``, ``texts`` and ``plan``.
"""

from __future__ import annotations

import numpy as np

from ...protocol.storage.arrays.crc32 import crc32_of
from ...protocol.storage.arrays.jit import bytes_array, i64, i64_array, inlined, kernel, results
from ...protocol.storage.arrays.words import copy_bytes, store_be16, store_be32, store_be64, text_array
from ...protocol.storage.layout import BLANK_BYTES_MIN, HOST_V6_BYTES, MAGIC_V1, RECORD, SysFlag
from ...protocol.storage.record import PROPERTY_KEYS
from .msgpack_reader import read_str
from .produce_plan import (
    KEYS_PROPERTY_BYTES,
    LAYOUT_BATCH,
    N_BASE,
    N_BODY_END,
    N_BORN_HOST_AT,
    N_BORN_HOST_END,
    N_BORN_MS,
    N_CHECKSUM_BYTES,
    N_COMMON_AT,
    N_COMMON_END,
    N_COUNT,
    N_LAYOUT,
    N_LIMIT,
    N_PREFIX_AT,
    N_QUEUE_ID,
    N_QUEUE_OFFSET,
    N_RECONSUME_TIMES,
    N_STORE_HOST_AT,
    N_STORE_HOST_END,
    N_STORE_MS,
    N_TOPIC_AT,
    N_TOPIC_END,
    N_UNIQUE_FIRST,
    OK,
    P_BODY_AT,
    P_BODY_BYTES,
    P_FLAG,
    P_PROPERTIES,
    P_PROPERTIES_AT,
    P_PROPERTIES_BYTES,
    P_SYS_FLAG,
    P_UNIQUE,
    PLAN_WIDTH,
    UNIQ_KEY,
    UNIQUE_PROPERTY_BYTES,
    find_pair,
    is_dropped,
    plan_frame,
    record_bytes_fixed,
)
from .record_crc import store_record_crc

_KEYS = text_array(PROPERTY_KEYS)
_HEX = text_array("0123456789ABCDEF")

_AT_BODY_CRC = RECORD.at["body_crc"]
_AT_QUEUE_ID = RECORD.at["queue_id"]
_AT_FLAG = RECORD.at["flag"]
_AT_QUEUE_OFFSET = RECORD.at["queue_offset"]
_AT_PHYSICAL_OFFSET = RECORD.at["physical_offset"]
_AT_SYS_FLAG = RECORD.at["sys_flag"]
_AT_BORN_TIMESTAMP = RECORD.at["born_timestamp"]
_AT_BORN_HOST = RECORD.at["born_host"]
_FROM_PRODUCER = SysFlag.FROM_PRODUCER
_BORN_V6 = SysFlag.BORN_HOST_V6
_STORE_V6 = SysFlag.STORE_HOST_V6
_BLANK_ROOM = BLANK_BYTES_MIN


@inlined
def _copy(source: np.ndarray, at: int, end: int, target: np.ndarray, target_at: int) -> int:
    copy_bytes(source, at, target, target_at, end - at)
    return target_at + end - at


@inlined
def _write_pair(
    frame: np.ndarray, name_at: int, name_bytes: int, value_at: int, value_bytes: int, log: np.ndarray, at: int
) -> int:
    at = _copy(frame, name_at, name_at + name_bytes, log, at)
    log[at] = 1
    at = _copy(frame, value_at, value_at + value_bytes, log, at + 1)
    log[at] = 2
    return at + 1


@inlined
def _write_unique(numbers: np.ndarray, texts: np.ndarray, message: int, log: np.ndarray, at: int) -> int:
    at = _copy(UNIQ_KEY, 0, len(UNIQ_KEY), log, at)
    log[at] = 1
    at = _copy(texts, numbers[N_PREFIX_AT], numbers[N_PREFIX_AT] + 20, log, at + 1)
    # The last 12 of the key's 32 digits count the producer's messages, so one number a frame is enough for all keys.
    counter = numbers[N_UNIQUE_FIRST] + message
    for digit in range(12):
        log[at + digit] = _HEX[counter >> (44 - 4 * digit) & 0xF]
    log[at + 12] = 2
    return at + 13


@inlined
def _write_pairs(frame: np.ndarray, source: int, size: int, stored_bytes: int, log: np.ndarray, at: int) -> int:
    """Write the properties of a message in a batch, of which ``stored_bytes`` are kept."""
    end = source + size
    is_ended = frame[end - 1] == 2
    if stored_bytes == size + 1 or (is_ended and stored_bytes == size):  # all of them are kept
        at = _copy(frame, source, end, log, at)
        if not is_ended:
            log[at] = 2
            at += 1
        return at
    # Some are dropped, so they are copied one by one. The frame has been checked: no pair can be malformed here.
    while source < end:
        separator, pair_end = find_pair(frame, source, end)
        if not is_dropped(frame, source, separator, pair_end):
            at = _copy(frame, source, pair_end, log, at)
            log[at] = 2
            at += 1
        source = pair_end + 1
    return at


@inlined
def _write_properties(
    frame: np.ndarray, numbers: np.ndarray, texts: np.ndarray, plan: np.ndarray, message: int, log: np.ndarray, at: int
) -> int:
    row = message * PLAN_WIDTH
    at = _copy(texts, numbers[N_COMMON_AT], numbers[N_COMMON_END], log, at)
    # The plan has validated every name and value, so the writers below check nothing again.
    source = plan[row + P_PROPERTIES_AT]
    if numbers[N_LAYOUT] == 0:
        for _ in range(plan[row + P_PROPERTIES]):
            name_bytes, name_at = read_str(frame, source, numbers[N_BODY_END])
            value_bytes, value_at = read_str(frame, name_at + name_bytes, numbers[N_BODY_END])
            at = _write_pair(frame, name_at, name_bytes, value_at, value_bytes, log, at)
            source = value_at + value_bytes
    elif plan[row + P_PROPERTIES]:
        common_bytes = numbers[N_COMMON_END] - numbers[N_COMMON_AT]
        own_bytes = plan[row + P_PROPERTIES_BYTES] - common_bytes - plan[row + P_UNIQUE] * UNIQUE_PROPERTY_BYTES
        if numbers[N_LAYOUT] == LAYOUT_BATCH:
            at = _write_pairs(frame, source, plan[row + P_PROPERTIES], own_bytes, log, at)
            if plan[row + P_UNIQUE]:
                at = _write_unique(numbers, texts, message, log, at)
            return at
        # In the layout of columns a message has no property of its own but its keys, in one text.
        key_bytes = own_bytes - KEYS_PROPERTY_BYTES
        at = _copy(_KEYS, 0, len(_KEYS), log, at)
        log[at] = 1
        at = _copy(frame, source, source + key_bytes, log, at + 1)
        log[at] = 2
        at += 1
    if plan[row + P_UNIQUE]:
        at = _write_unique(numbers, texts, message, log, at)
    return at


@inlined
def _write_record(
    frame: np.ndarray,
    numbers: np.ndarray,
    texts: np.ndarray,
    plan: np.ndarray,
    message: int,
    log: np.ndarray,
    position: int,
    size: int,
) -> None:
    row = message * PLAN_WIDTH
    body_at = plan[row + P_BODY_AT]
    body_end = body_at + plan[row + P_BODY_BYTES]
    # Only these flags are the producer's to set: the others say how the broker stores the record.
    sys_flag = plan[row + P_SYS_FLAG] & _FROM_PRODUCER
    if numbers[N_BORN_HOST_END] - numbers[N_BORN_HOST_AT] == HOST_V6_BYTES:
        sys_flag |= _BORN_V6
    if numbers[N_STORE_HOST_END] - numbers[N_STORE_HOST_AT] == HOST_V6_BYTES:
        sys_flag |= _STORE_V6
    body_crc = crc32_of(frame, body_at, body_end)  # of an empty body: 0
    # Without the sign bit, as RocketMQ's UtilAll.crc32 returns it.
    store_be32(log, position + _AT_BODY_CRC, body_crc & 0x7FFFFFFF)
    store_be32(log, position + _AT_QUEUE_ID, numbers[N_QUEUE_ID])
    store_be32(log, position + _AT_FLAG, plan[row + P_FLAG])
    store_be64(log, position + _AT_QUEUE_OFFSET, numbers[N_QUEUE_OFFSET] + message)
    store_be64(log, position + _AT_PHYSICAL_OFFSET, numbers[N_BASE] + position)
    store_be32(log, position + _AT_SYS_FLAG, sys_flag)
    store_be64(log, position + _AT_BORN_TIMESTAMP, numbers[N_BORN_MS])
    at = _copy(texts, numbers[N_BORN_HOST_AT], numbers[N_BORN_HOST_END], log, position + _AT_BORN_HOST)
    store_be64(log, at, numbers[N_STORE_MS])
    at = _copy(texts, numbers[N_STORE_HOST_AT], numbers[N_STORE_HOST_END], log, at + 8)
    store_be32(log, at, numbers[N_RECONSUME_TIMES])
    store_be64(log, at + 4, 0)  # prepared_transaction_offset
    store_be32(log, at + 12, body_end - body_at)
    at = _copy(frame, body_at, body_end, log, at + 16)
    stored_body_end = at
    log[at] = numbers[N_TOPIC_END] - numbers[N_TOPIC_AT]
    at = _copy(texts, numbers[N_TOPIC_AT], numbers[N_TOPIC_END], log, at + 1)
    store_be16(log, at, plan[row + P_PROPERTIES_BYTES] + numbers[N_CHECKSUM_BYTES])
    _write_properties(frame, numbers, texts, plan, message, log, at + 2)
    if numbers[N_CHECKSUM_BYTES] != 0:
        stored_body_at = stored_body_end - (body_end - body_at)
        store_record_crc(log, position, size, MAGIC_V1, stored_body_at, stored_body_end, body_crc)
    store_be32(log, position + 4, MAGIC_V1)
    store_be32(log, position, size)


@inlined
def _write(
    frame: np.ndarray,
    numbers: np.ndarray,
    texts: np.ndarray,
    plan: np.ndarray,
    log: np.ndarray,
    physical_offsets: np.ndarray,
    first: int,
) -> tuple[int, int]:
    position = 0
    fixed = record_bytes_fixed(numbers)
    for message in range(first, numbers[N_COUNT]):
        row = message * PLAN_WIDTH
        size = fixed + plan[row + P_PROPERTIES_BYTES] + plan[row + P_BODY_BYTES]
        # Each file must end with a blank record, as RocketMQ's do, so room for its head stays free.
        if position + size + _BLANK_ROOM > numbers[N_LIMIT]:
            return message, position
        _write_record(frame, numbers, texts, plan, message, log, position, size)
        store_be64(physical_offsets, message * 8, numbers[N_BASE] + position)
        position += size
    return numbers[N_COUNT], position


_PLAN_FIRST = -1


@kernel(results(i64, i64, i64), bytes_array, i64_array, bytes_array, i64_array, bytes_array, bytes_array, i64)
def _produce(
    frame: np.ndarray,
    numbers: np.ndarray,
    texts: np.ndarray,
    plan: np.ndarray,
    log: np.ndarray,
    physical_offsets: np.ndarray,
    first: int,
) -> tuple[int, int, int]:
    """Implement both functions below in one kernel, because the code that writes records is slow to compile."""
    # The whole frame is planned before the first byte is written: a frame is stored completely or not at all.
    if first == _PLAN_FIRST:
        status, message, at = plan_frame(frame, numbers, plan)
        if status != OK:
            return status, message, at
        first = 0
    message, position = _write(frame, numbers, texts, plan, log, physical_offsets, first)
    return OK, message, position


def produce(
    frame: np.ndarray,
    numbers: np.ndarray,
    texts: np.ndarray,
    plan: np.ndarray,
    log: np.ndarray,
    physical_offsets: np.ndarray,
) -> tuple[int, int, int]:
    """Validate a frame's messages and write their records into ``log``, a buffer for the CommitLog.

    ``plan`` has room for ``PLAN_WIDTH`` integers per message, ``physical_offsets`` for 8 bytes per message
    (big-endian). Records take up to ``numbers[N_LIMIT]`` bytes; each must leave room for a blank record after it.

    Returns ``(OK, messages written, bytes of their records)``: fewer than ``N_COUNT`` if there is no room for the next
    and ``produce_on`` must continue; or ``(error, number of the message, byte of the frame or the size that is too
    large)`` with nothing written.
    """
    return _produce(frame, numbers, texts, plan, log, physical_offsets, _PLAN_FIRST)


def produce_on(
    frame: np.ndarray,
    numbers: np.ndarray,
    texts: np.ndarray,
    plan: np.ndarray,
    log: np.ndarray,
    physical_offsets: np.ndarray,
    first: int,
) -> tuple[int, int]:
    """Write the messages that ``produce`` has planned, starting with ``first``, to the beginning of ``log``.

    Returns ``(messages written in all, bytes of these records)``.
    """
    _, message, position = _produce(frame, numbers, texts, plan, log, physical_offsets, first)
    return message, position
