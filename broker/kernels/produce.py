"""The messages of a PRODUCE frame: validate all of them, then make records of them for the CommitLog.

The plan checks every rule that a producer must keep, and notes where each message's parts are. ``produce`` makes a
record only if the plan of the whole frame is valid, so that a refused frame leaves no bytes after the log's end that
recovery could mistake for a record. Values common to all messages come in an array of ``numbers`` (see ``N_``) and in
``texts``, bytes that they locate.
"""

from __future__ import annotations

import numpy as np

from ...protocol.storage.arrays.crc32 import crc32_of
from ...protocol.storage.arrays.jit import bytes_array, i64, i64_array, inlined, kernel, results
from ...protocol.storage.arrays.words import (
    copy_bytes,
    load_be16,
    load_be32,
    store_be16,
    store_be32,
    store_be64,
    text_array,
)
from ...protocol.storage.layout import (
    BLANK_BYTES_MIN,
    HOST_BYTES,
    HOST_V6_BYTES,
    MAGIC_V1,
    PRODUCED_PROPERTIES_BYTES_MAX,
    PROPERTIES_LENGTH_BYTES,
    RECORD,
    RECORD_HEAD_BYTES,
    TOPIC_LENGTH_BYTES_V1,
    SysFlag,
)
from ...protocol.storage.record import (
    COMMON_ONLY_PROPERTIES,
    FORBIDDEN_PROPERTIES,
    FORBIDDEN_PROPERTY_PREFIX,
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_POP_CHECK_POINT,
    PROPERTY_UNIQ_KEY,
)
from .msgpack_reader import read_bin, read_container, read_i32, read_str
from .record_crc import store_record_crc
from .text import TEXT_OK, check_text

LAYOUT_BODY = 2
"""One message: the frame's body is its body, and ``common`` has all of its properties. Not for clients of FlintMQ."""
LAYOUT_BATCH = 3
"""The messages of a RocketMQ client's batch: see ``_plan_batch``. Not for clients of FlintMQ."""
BATCH_HEAD_BYTES = 20
BATCH_MESSAGE_BYTES_MIN = BATCH_HEAD_BYTES + PROPERTIES_LENGTH_BYTES
"""Smallest message of a batch: its size, two numbers without meaning here, flag, body length; properties length."""

# Slots of ``numbers``.
N_BODY_AT = 0
N_BODY_END = 1
N_COUNT = 2
N_LAYOUT = 3
N_SYS_FLAG = 4
N_COMMON_AT = 5
N_COMMON_END = 6
N_PREFIX_AT = 7
N_UNIQUE = 8
N_UNIQUE_FIRST = 9
N_TOPIC_AT = 10
N_TOPIC_END = 11
N_BORN_HOST_AT = 12
N_BORN_HOST_END = 13
N_STORE_HOST_AT = 14
N_STORE_HOST_END = 15
N_QUEUE_ID = 16
N_QUEUE_OFFSET = 17
N_BORN_MS = 18
N_STORE_MS = 19
N_RECORD_MAX = 20
N_LIMIT = 21
N_BASE = 22
"""Physical offset of the first byte of ``log``."""
N_RECORDS_MAX = 23
N_CHECKSUM_BYTES = 24
"""Size of the property with a checksum over the whole record: 20, or 0 if none is written."""
N_FLAG = 25
"""Flag of the messages; of ``LAYOUT_BODY`` alone, the others say it for each message."""
N_RECONSUME_TIMES = 26
N_LENGTH = 27

# Columns of the plan, one row per message.
P_BODY_AT = 0
P_BODY_BYTES = 1
P_PROPERTIES_AT = 2
P_PROPERTIES = 3
P_PROPERTIES_BYTES = 4
P_FLAG = 5
P_SYS_FLAG = 6
P_UNIQUE = 7
PLAN_WIDTH = 8

# Errors that ``plan`` finds.
OK = 0
TRUNCATED = 1
NOT_A_MESSAGE = 2
BODY_NOT_BIN = 3
PROPERTIES_NOT_MAP = 4
PROPERTY_NOT_STR = 5
NOT_UTF8 = 6
HAS_SEPARATOR = 7
EMPTY_PROPERTY = 8
FORBIDDEN_PROPERTY = 9
DELAY_NOT_INTEGER = 10
PROPERTIES_TOO_LONG = 11
RECORD_TOO_LONG = 12
FLAG_NOT_INTEGER = 13
BYTES_LEFT = 14
KEYS_NOT_STR = 15
WRONG_COUNT = 16
COMMON_ONLY = 17
RECORDS_TOO_LONG = 18
WRONG_SIZE = 19

UNIQUE_PROPERTY_BYTES = len(PROPERTY_UNIQ_KEY) + 1 + 32 + 1
KEYS_PROPERTY_BYTES = len(PROPERTY_KEYS) + 2

UNIQ_KEY = text_array(PROPERTY_UNIQ_KEY)
_DELAY = text_array(PROPERTY_DELAY)
_POP_CHECK_POINT = text_array(PROPERTY_POP_CHECK_POINT)


def _pack_names(names: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return the concatenated bytes of the names, and their starts (one more than there are names)."""
    return text_array("".join(names)), np.cumsum([0] + [len(name) for name in names]).astype(np.int64)


_FORBIDDEN, _FORBIDDEN_AT = _pack_names(FORBIDDEN_PROPERTIES)
_COMMON_ONLY, _COMMON_ONLY_AT = _pack_names(COMMON_ONLY_PROPERTIES)
_PREFIX = text_array(FORBIDDEN_PROPERTY_PREFIX)
_FIXED_BYTES = RECORD_HEAD_BYTES - 2 * HOST_BYTES + TOPIC_LENGTH_BYTES_V1 + PROPERTIES_LENGTH_BYTES


@inlined
def _same(array: np.ndarray, at: int, length: int, name: np.ndarray, name_at: int) -> bool:
    for step in range(length):  # noqa: SIM110 - a generator cannot be compiled
        if array[at + step] != name[name_at + step]:
            return False
    return True


@inlined
def _one_of(array: np.ndarray, at: int, length: int, names: np.ndarray, starts: np.ndarray) -> bool:
    for k in range(len(starts) - 1):
        if starts[k + 1] - starts[k] == length and _same(array, at, length, names, starts[k]):
            return True
    return False


@inlined
def _delay_status(frame: np.ndarray, at: int, length: int) -> int:
    """Check a DELAY value, an integer as Java's ``parseInt`` reads it; above 0 it asks for a delayed delivery."""
    # In RocketMQ, Java's parseInt would fail on a sign without digits, and might overflow on more than nine digits.
    digits = at
    if frame[at] == 0x2D or frame[at] == 0x2B:
        digits += 1
    end = at + length
    if digits == end or end - digits > 9:
        return DELAY_NOT_INTEGER
    positive = False
    for k in range(digits, end):
        if frame[k] < 0x30 or frame[k] > 0x39:
            return DELAY_NOT_INTEGER
        positive = positive or frame[k] != 0x30
    # A delay moves the message to another topic, which is decided once for the frame: only the common properties may
    # ask for it.
    return COMMON_ONLY if positive and frame[at] != 0x2D else OK


@inlined
def _check_property(frame: np.ndarray, name_at: int, name_bytes: int, value_at: int, value_bytes: int) -> int:
    if name_bytes == 0 or value_bytes == 0:
        return EMPTY_PROPERTY
    status = check_text(frame, name_at, name_at + name_bytes)
    if status == TEXT_OK:
        status = check_text(frame, value_at, value_at + value_bytes)
    if status != TEXT_OK:
        return NOT_UTF8 if status == 1 else HAS_SEPARATOR
    # No reserved name is shorter, and most names of applications are: this spares them the comparisons.
    if name_bytes < 5:
        return OK
    if _one_of(frame, name_at, name_bytes, _FORBIDDEN, _FORBIDDEN_AT):
        return FORBIDDEN_PROPERTY
    if name_bytes >= len(_PREFIX) and _same(frame, name_at, len(_PREFIX), _PREFIX, 0):
        return FORBIDDEN_PROPERTY
    if name_bytes == len(_DELAY) and _same(frame, name_at, len(_DELAY), _DELAY, 0):
        return _delay_status(frame, value_at, value_bytes)
    if _one_of(frame, name_at, name_bytes, _COMMON_ONLY, _COMMON_ONLY_AT):
        return COMMON_ONLY
    return OK


@inlined
def _plan_properties(frame: np.ndarray, at: int, end: int, plan: np.ndarray, row: int) -> tuple[int, int]:
    """Plan the properties map of a row: (status, position after it or of the error)."""
    pairs, at = read_container(frame, at, end, 0x80, 15, 0xDE)
    if pairs < 0:
        return TRUNCATED if pairs == -1 else PROPERTIES_NOT_MAP, at
    plan[row + P_PROPERTIES_AT] = at
    plan[row + P_PROPERTIES] = pairs
    stored_bytes = 0
    for _ in range(pairs):
        name_bytes, name_at = read_str(frame, at, end)
        if name_bytes < 0:
            return TRUNCATED if name_bytes == -1 else PROPERTY_NOT_STR, name_at
        value_bytes, value_at = read_str(frame, name_at + name_bytes, end)
        if value_bytes < 0:
            return TRUNCATED if value_bytes == -1 else PROPERTY_NOT_STR, value_at
        status = _check_property(frame, name_at, name_bytes, value_at, value_bytes)
        if status != OK:
            return status, name_at
        if name_bytes == len(UNIQ_KEY) and _same(frame, name_at, len(UNIQ_KEY), UNIQ_KEY, 0):
            # A message that is sent on, or again, must stay findable by the key that it was first sent with.
            plan[row + P_UNIQUE] = 0  # the message has its own unique key
        stored_bytes += name_bytes + value_bytes + 2
        at = value_at + value_bytes
    plan[row + P_PROPERTIES_BYTES] = stored_bytes
    return OK, at


@inlined
def _plan_rows(frame: np.ndarray, numbers: np.ndarray, plan: np.ndarray) -> tuple[int, int, int]:
    at = numbers[N_BODY_AT]
    end = numbers[N_BODY_END]
    for message in range(numbers[N_COUNT]):
        row = message * PLAN_WIDTH
        items, at = read_container(frame, at, end, 0x90, 15, 0xDC)
        if items < 2 or items > 4:
            return TRUNCATED if items == -1 else NOT_A_MESSAGE, message, at
        body_bytes, body_at = read_bin(frame, at, end)
        if body_bytes < 0:
            return TRUNCATED if body_bytes == -1 else BODY_NOT_BIN, message, at
        plan[row + P_BODY_AT] = body_at
        plan[row + P_BODY_BYTES] = body_bytes
        plan[row + P_UNIQUE] = numbers[N_UNIQUE]
        status, at = _plan_properties(frame, body_at + body_bytes, end, plan, row)
        if status != OK:
            return status, message, at
        # An item is (body, properties), (…, sys_flag) or (…, sys_flag, flag): the pair shifts, so that both forms end
        # alike.
        flags = (0, 0)
        for _ in range(items - 2):
            value, at, sound = read_i32(frame, at, end)
            if not sound:
                return FLAG_NOT_INTEGER, message, at
            flags = (flags[1], value)
        plan[row + P_SYS_FLAG] = flags[0] if items == 4 else flags[1]
        plan[row + P_FLAG] = flags[1] if items == 4 else 0
    return (OK if at == end else BYTES_LEFT), numbers[N_COUNT], at


@inlined
def _plan_columns(frame: np.ndarray, numbers: np.ndarray, plan: np.ndarray) -> tuple[int, int, int]:
    at = numbers[N_BODY_AT]
    end = numbers[N_BODY_END]
    count = numbers[N_COUNT]
    items, at = read_container(frame, at, end, 0x90, 15, 0xDC)
    if items != count:
        return TRUNCATED if items == -1 else WRONG_COUNT, 0, at
    for message in range(count):
        row = message * PLAN_WIDTH
        body_bytes, body_at = read_bin(frame, at, end)
        if body_bytes < 0:
            return TRUNCATED if body_bytes == -1 else BODY_NOT_BIN, message, at
        plan[row + P_BODY_AT] = body_at
        plan[row + P_BODY_BYTES] = body_bytes
        plan[row + P_FLAG] = 0
        plan[row + P_SYS_FLAG] = numbers[N_SYS_FLAG]
        plan[row + P_UNIQUE] = numbers[N_UNIQUE]
        at = body_at + body_bytes
    items, at = read_container(frame, at, end, 0x90, 15, 0xDC)
    if items != count:
        return TRUNCATED if items == -1 else WRONG_COUNT, 0, at
    for message in range(count):
        row = message * PLAN_WIDTH
        plan[row + P_PROPERTIES] = 0
        plan[row + P_PROPERTIES_BYTES] = 0
        # msgpack's nil: this message has no key.
        if at < end and frame[at] == 0xC0:
            at += 1
            continue
        key_bytes, key_at = read_str(frame, at, end)
        if key_bytes <= 0:
            status = TRUNCATED if key_bytes == -1 else EMPTY_PROPERTY if key_bytes == 0 else KEYS_NOT_STR
            return status, message, at
        status = check_text(frame, key_at, key_at + key_bytes)
        if status != TEXT_OK:
            return NOT_UTF8 if status == 1 else HAS_SEPARATOR, message, at
        plan[row + P_PROPERTIES_AT] = key_at
        plan[row + P_PROPERTIES] = 1
        plan[row + P_PROPERTIES_BYTES] = KEYS_PROPERTY_BYTES + key_bytes
        at = key_at + key_bytes
    return (OK if at == end else BYTES_LEFT), count, at


@inlined
def find_pair(array: np.ndarray, at: int, end: int) -> tuple[int, int]:
    """Return the position of the 0x01 after a property's name (``end`` of the pair if there is none), and that end: the
    position of the 0x02 after its value, or ``end``."""
    separator = -1
    while at < end and array[at] != 2:
        if array[at] == 1 and separator < 0:
            separator = at
        at += 1
    return at if separator < 0 else separator, at


@inlined
def is_dropped(array: np.ndarray, at: int, separator: int, pair_end: int) -> bool:
    """Return whether a property of a RocketMQ client is left out: without name or value, or only for brokers to set.

    Honest clients send both: RocketMQ's Proxy sends empty tags, and a consumer sends a message again with everything
    that brokers noted on it.
    """
    length = separator - at
    if length == 0 or separator + 1 >= pair_end:
        return True
    if length < 5:
        return False
    if length == len(_POP_CHECK_POINT) and _same(array, at, length, _POP_CHECK_POINT, 0):
        return True
    return _one_of(array, at, length, _FORBIDDEN, _FORBIDDEN_AT) or (
        length >= len(_PREFIX) and _same(array, at, len(_PREFIX), _PREFIX, 0)
    )


@inlined
def _plan_pairs(frame: np.ndarray, at: int, end: int, plan: np.ndarray, row: int) -> tuple[int, int]:
    """Plan the properties text of a message in a batch: (status, position of the error)."""
    stored_bytes = 0
    while at < end:
        separator, pair_end = find_pair(frame, at, end)
        if not is_dropped(frame, at, separator, pair_end):
            value_at = separator + 1
            status = _check_property(frame, at, separator - at, value_at, pair_end - value_at)
            if status != OK:
                return status, at
            stored_bytes += pair_end - at + 1
            if separator - at == len(UNIQ_KEY) and _same(frame, at, len(UNIQ_KEY), UNIQ_KEY, 0):
                plan[row + P_UNIQUE] = 0
        at = pair_end + 1
    plan[row + P_PROPERTIES_BYTES] = stored_bytes
    return OK, end


@inlined
def _plan_batch(frame: np.ndarray, numbers: np.ndarray, plan: np.ndarray) -> tuple[int, int, int]:
    """Plan the messages of a batch: each is size i32, 0 i32, 0 i32, flag i32, body length i32, body, properties length
    i16, properties."""
    at = numbers[N_BODY_AT]
    end = numbers[N_BODY_END]
    for message in range(numbers[N_COUNT]):
        row = message * PLAN_WIDTH
        if at + BATCH_MESSAGE_BYTES_MIN > end:
            return TRUNCATED, message, at
        body_at = at + BATCH_HEAD_BYTES
        body_bytes = load_be32(frame, at + 16)
        body_end = body_at + body_bytes
        if body_bytes < 0 or body_end + 2 > end:
            return TRUNCATED, message, at
        properties_bytes = load_be16(frame, body_end)
        properties_end = body_end + 2 + properties_bytes
        if properties_bytes < 0 or properties_end > end:
            return TRUNCATED, message, at
        # The size is redundant. If it is wrong, the frame is from a broken client, and its other lengths cannot be
        # trusted.
        if properties_end - at != load_be32(frame, at):
            return WRONG_SIZE, message, at
        plan[row + P_BODY_AT] = body_at
        plan[row + P_BODY_BYTES] = body_bytes
        plan[row + P_FLAG] = load_be32(frame, at + 12)
        plan[row + P_SYS_FLAG] = numbers[N_SYS_FLAG]
        plan[row + P_UNIQUE] = numbers[N_UNIQUE]
        plan[row + P_PROPERTIES_AT] = body_end + 2
        plan[row + P_PROPERTIES] = properties_bytes
        status, at = _plan_pairs(frame, body_end + 2, properties_end, plan, row)
        if status != OK:
            return status, message, at
    return (OK if at == end else BYTES_LEFT), numbers[N_COUNT], at


@inlined
def _plan_body(numbers: np.ndarray, plan: np.ndarray) -> tuple[int, int, int]:
    plan[P_BODY_AT] = numbers[N_BODY_AT]
    plan[P_BODY_BYTES] = numbers[N_BODY_END] - numbers[N_BODY_AT]
    plan[P_FLAG] = numbers[N_FLAG]
    plan[P_SYS_FLAG] = numbers[N_SYS_FLAG]
    plan[P_UNIQUE] = 0
    plan[P_PROPERTIES_AT] = plan[P_PROPERTIES] = plan[P_PROPERTIES_BYTES] = 0
    return OK, 1, numbers[N_BODY_END]


@kernel(results(i64, i64), bytes_array, i64, i64)
def count_batch(array: np.ndarray, at: int, end: int) -> tuple[int, int]:
    """Return the number of messages in a batch and the position after the last, which is ``end`` if all are whole."""
    count = 0
    while at + BATCH_MESSAGE_BYTES_MIN <= end:
        size = load_be32(array, at)
        if size < BATCH_MESSAGE_BYTES_MIN or at + size > end:
            break
        at += size
        count += 1
    return count, at


@inlined
def record_bytes_fixed(numbers: np.ndarray) -> int:
    """Return the size of a record of this frame without its body and the properties that the plan counts."""
    hosts = numbers[N_BORN_HOST_END] - numbers[N_BORN_HOST_AT] + numbers[N_STORE_HOST_END] - numbers[N_STORE_HOST_AT]
    topic_bytes = numbers[N_TOPIC_END] - numbers[N_TOPIC_AT]
    return _FIXED_BYTES + hosts + topic_bytes + numbers[N_CHECKSUM_BYTES]


@inlined
def plan_frame(frame: np.ndarray, numbers: np.ndarray, plan: np.ndarray) -> tuple[int, int, int]:
    """Fill ``plan``: (OK, number of messages, end of the body), or the error, its message, and where or how large."""
    if numbers[N_LAYOUT] == 0:
        status, message, at = _plan_rows(frame, numbers, plan)
    elif numbers[N_LAYOUT] == 1:
        status, message, at = _plan_columns(frame, numbers, plan)
    elif numbers[N_LAYOUT] == LAYOUT_BODY:
        status, message, at = _plan_body(numbers, plan)
    else:
        status, message, at = _plan_batch(frame, numbers, plan)
    if status != OK:
        return status, message, at
    # Sizes only now, when every message is valid: an error about a message comes before one about sizes.
    common_bytes = numbers[N_COMMON_END] - numbers[N_COMMON_AT]
    fixed = record_bytes_fixed(numbers)
    records_bytes = 0
    for message in range(numbers[N_COUNT]):
        row = message * PLAN_WIDTH
        properties_bytes = common_bytes + plan[row + P_PROPERTIES_BYTES] + plan[row + P_UNIQUE] * UNIQUE_PROPERTY_BYTES
        plan[row + P_PROPERTIES_BYTES] = properties_bytes
        if properties_bytes > PRODUCED_PROPERTIES_BYTES_MAX:
            return PROPERTIES_TOO_LONG, message, properties_bytes
        size = fixed + properties_bytes + plan[row + P_BODY_BYTES]
        if size > numbers[N_RECORD_MAX]:
            return RECORD_TOO_LONG, message, size
        records_bytes += size
    if records_bytes > numbers[N_RECORDS_MAX]:
        return RECORDS_TOO_LONG, 0, records_bytes
    return OK, numbers[N_COUNT], at


@kernel(results(i64, i64, i64), bytes_array, i64, i64)
def common_status(array: np.ndarray, at: int, end: int) -> tuple[int, int, int]:
    """Check the properties in ``array[at:end]``, each ended by 0x02: whether a producer may set them.

    Returns ``(OK, end, end)``, or the first error, and the start and end of the name that it is about.
    """
    while at < end:
        separator, pair_end = find_pair(array, at, end)
        value_at = min(separator + 1, pair_end)
        status = _check_property(array, at, separator - at, value_at, pair_end - value_at)
        if status != OK:
            return status, at, separator
        at = pair_end + 1
    return OK, end, end


# ---- The records of a frame whose plan is valid.

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
def write_record(
    frame: np.ndarray,
    numbers: np.ndarray,
    texts: np.ndarray,
    plan: np.ndarray,
    message: int,
    log: np.ndarray,
    position: int,
    size: int,
) -> None:
    """Write the record of a planned message of ``size`` bytes at ``log[position]``."""
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
        write_record(frame, numbers, texts, plan, message, log, position, size)
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
