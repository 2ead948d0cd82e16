"""Where a record's parts are, for kernels: the rules of ``record.locate_record`` and ``record.decode_properties``.

The broker's kernels and the scan of ``client.spark`` find records with these functions.
"""

from __future__ import annotations

import numpy as np

from ..layout import (
    HOST_BYTES,
    HOST_V6_BYTES,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_LENGTH_BYTES,
    RECORD,
    RECORD_BYTES_MIN,
    TOPIC_BYTES_MAX,
    TOPIC_LENGTH_BYTES_V1,
    TOPIC_LENGTH_BYTES_V2,
    SysFlag,
)
from ..record import PROPERTY_DELAY, PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQ_KEY
from .crc32 import body_crc_of
from .jit import inlined
from .words import find_byte, is_name, load_be16, load_be32, load_be64, text_array

# Results of ``locate_parts``. The broker's kernels add their own reasons to stop from 7 on.
DONE = 0
"""There is a record; to a kernel that goes through many: it reached the end of its range."""
BLANK = 1
"""A blank: the log continues in the next file."""
NO_RECORD = 2
"""Zeros instead of a record's size: the end of the log, or a hole."""
BAD_LENGTH = 3
BAD_MAGIC = 4
BAD_PHYSICAL_OFFSET = 5
BAD_PARTS = 6

# Slots of ``parts``: positions of a record's parts.
R_SIZE = 0
R_BODY_AT = 1
R_BODY_END = 2
R_TOPIC_AT = 3
R_TOPIC_END = 4
R_PROPERTIES_AT = 5
R_STORE_MS = 6
R_SYS_FLAG = 7
PARTS = 8

# Slots of ``found``: position of a property's value; its end is in the next slot.
V_UNIQ_KEY = 0
V_KEYS = 2
V_TAGS = 4
V_DELAY = 6
VALUES = 8

_AT_MAGIC = RECORD.at["magic"]
_AT_BODY_CRC = RECORD.at["body_crc"]
_AT_PHYSICAL_OFFSET = RECORD.at["physical_offset"]
_AT_SYS_FLAG = RECORD.at["sys_flag"]
_AT_BORN_HOST = RECORD.at["born_host"]
_AFTER_HOSTS_BYTES = RECORD.size - RECORD.at["reconsume_times"]
_BORN_V6 = SysFlag.BORN_HOST_V6
_STORE_V6 = SysFlag.STORE_HOST_V6

_UNIQ_KEY = text_array(PROPERTY_UNIQ_KEY)
_KEYS = text_array(PROPERTY_KEYS)
_TAGS = text_array(PROPERTY_TAGS)
_DELAY = text_array(PROPERTY_DELAY)


@inlined
def locate_parts(log: np.ndarray, at: int, end: int, physical_offset: int, parts: np.ndarray) -> int:
    """Find a record's parts; return DONE, or why there is no sound record at ``at``. The body's CRC is not checked."""
    if end - at < 8:
        return NO_RECORD
    size = load_be32(log, at)
    magic = load_be32(log, at + _AT_MAGIC)
    if magic == MAGIC_BLANK and size >= 8 and size <= end - at:
        return BLANK
    if size == 0 and magic == 0:
        return NO_RECORD
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        return BAD_MAGIC
    if size < RECORD_BYTES_MIN or size > end - at:
        return BAD_LENGTH
    if load_be64(log, at + _AT_PHYSICAL_OFFSET) != physical_offset:
        return BAD_PHYSICAL_OFFSET
    record_end = at + size
    sys_flag = load_be32(log, at + _AT_SYS_FLAG)
    store_ms_at = at + _AT_BORN_HOST + (HOST_V6_BYTES if sys_flag & _BORN_V6 else HOST_BYTES)
    body_at = store_ms_at + 8 + (HOST_V6_BYTES if sys_flag & _STORE_V6 else HOST_BYTES) + _AFTER_HOSTS_BYTES
    topic_length_bytes = TOPIC_LENGTH_BYTES_V1 if magic == MAGIC_V1 else TOPIC_LENGTH_BYTES_V2
    if body_at + topic_length_bytes + PROPERTIES_LENGTH_BYTES > record_end:
        return BAD_PARTS
    body_bytes = load_be32(log, body_at - 4)
    body_end = body_at + body_bytes
    if body_bytes < 0 or body_end + topic_length_bytes + PROPERTIES_LENGTH_BYTES > record_end:
        return BAD_PARTS
    topic_bytes = np.int64(log[body_end]) if magic == MAGIC_V1 else load_be16(log, body_end)
    topic_at = body_end + topic_length_bytes
    topic_end = topic_at + topic_bytes
    properties_at = topic_end + PROPERTIES_LENGTH_BYTES
    if topic_bytes < 0 or (topic_bytes > TOPIC_BYTES_MAX and magic == MAGIC_V1) or properties_at > record_end:
        return BAD_PARTS
    properties_bytes = load_be16(log, topic_end)
    if properties_bytes < 0 or properties_at + properties_bytes != record_end:
        return BAD_PARTS
    parts[R_SIZE] = size
    parts[R_BODY_AT] = body_at
    parts[R_BODY_END] = body_end
    parts[R_TOPIC_AT] = topic_at
    parts[R_TOPIC_END] = topic_end
    parts[R_PROPERTIES_AT] = properties_at
    parts[R_STORE_MS] = load_be64(log, store_ms_at)
    parts[R_SYS_FLAG] = sys_flag
    return DONE


@inlined
def body_sound(log: np.ndarray, at: int, parts: np.ndarray) -> bool:
    """Return whether the body of a located record has the record's checksum; an empty body needs none."""
    if parts[R_BODY_AT] == parts[R_BODY_END]:
        return True
    return body_crc_of(log, parts[R_BODY_AT], parts[R_BODY_END]) == load_be32(log, at + _AT_BODY_CRC)


@inlined
def find_properties(log: np.ndarray, at: int, end: int, found: np.ndarray) -> None:
    """Find the values of UNIQ_KEY, KEYS, TAGS and DELAY: pairs of (begin, end) in ``found``; begin = end: none.

    The value begins after the first 0x01; pairs without a name or a value are ignored; the last value of a name wins.
    """
    for k in range(VALUES):
        found[k] = 0
    while at < end:
        stop = find_byte(log, at, end, 2)
        separator = at
        while separator < stop and log[separator] != 1:
            separator += 1
        name_bytes = separator - at
        if name_bytes > 0 and separator + 1 < stop:
            slot = -1
            if is_name(log, at, name_bytes, _KEYS):
                slot = V_KEYS
            elif is_name(log, at, name_bytes, _TAGS):
                slot = V_TAGS
            elif is_name(log, at, name_bytes, _UNIQ_KEY):
                slot = V_UNIQ_KEY
            elif is_name(log, at, name_bytes, _DELAY):
                slot = V_DELAY
            if slot >= 0:
                found[slot] = separator + 1
                found[slot + 1] = stop
        at = stop + 1
