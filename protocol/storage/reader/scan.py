"""The scan of stored records: one compiled loop finds the parts of each, and checks that they are sound."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..arrays.jit import i64, i64_array, i64_table, kernel, read_only_bytes, results
from ..arrays.record_parts import (
    DONE,
    PARTS,
    R_BODY_AT,
    R_BODY_END,
    R_PROPERTIES_AT,
    R_SIZE,
    R_STORE_MS,
    R_SYS_FLAG,
    R_TOPIC_AT,
    R_TOPIC_END,
    V_KEYS,
    V_TAGS,
    V_UNIQ_KEY,
    VALUES,
    body_sound,
    find_properties,
    locate_parts,
)
from ..arrays.words import load_be32, load_be64
from ..layout import MAGIC_BLANK, RECORD, RECORD_BYTES_MIN, RECORD_HEAD_BYTES
from .parts import SOUND, Blob, Ints, Part

_AT_MAGIC = RECORD.at["magic"]
_AT_QUEUE_ID = RECORD.at["queue_id"]
_AT_QUEUE_OFFSET = RECORD.at["queue_offset"]
_AT_PHYSICAL_OFFSET = RECORD.at["physical_offset"]
_AT_BORN_MS = RECORD.at["born_timestamp"]
_RECONSUME_TIMES_BEFORE_BODY = RECORD_HEAD_BYTES - RECORD.at["reconsume_times"]

_VALUES = ((V_TAGS, Part.TAGS_AT), (V_KEYS, Part.KEYS_AT), (V_UNIQ_KEY, Part.UNIQ_KEY_AT))


def scan_records(blob: Blob, starts: Ints, sizes: Ints, *, verify: bool = True) -> tuple[npt.NDArray[np.int64], int]:
    """Scan the records of ``sizes[i]`` bytes at ``starts[i]`` of ``blob``, which must be within it.

    Returns an array with a row for each ``Part`` and a column for each record, and the number of the first unsound
    record (its size, magic, parts or, with ``verify``, its body's checksum are wrong), or ``SOUND``. If a record is
    unsound, the array is meaningless.
    """
    parts = np.full((len(Part), len(starts)), -1, np.int64)
    scratch = np.empty(PARTS + VALUES, np.int64)
    damaged = _scan(np.frombuffer(blob, np.uint8), starts, sizes, int(verify), scratch, parts)
    return parts, damaged


@kernel(i64, read_only_bytes, i64_array, i64_array, i64, i64_array, i64_table)
def _scan(
    data: np.ndarray, starts: np.ndarray, sizes: np.ndarray, verify: int, scratch: np.ndarray, parts: np.ndarray
) -> int:
    """Fill ``parts``; return the first unsound row, or −1."""
    found = scratch[PARTS:]
    for row in range(len(starts)):
        at, end = starts[row], starts[row] + sizes[row]
        if (
            sizes[row] < RECORD_BYTES_MIN
            # The caller compares the physical offset: only a log's reader knows what it must be.
            or locate_parts(data, at, end, load_be64(data, at + _AT_PHYSICAL_OFFSET), scratch) != DONE
            or scratch[R_SIZE] != sizes[row]
            or (verify and not body_sound(data, at, scratch))
        ):
            return row
        parts[Part.QUEUE, row] = load_be32(data, at + _AT_QUEUE_ID)
        parts[Part.QUEUE_OFFSET, row] = load_be64(data, at + _AT_QUEUE_OFFSET)
        parts[Part.PHYSICAL_OFFSET, row] = load_be64(data, at + _AT_PHYSICAL_OFFSET)
        parts[Part.SYS_FLAG, row] = scratch[R_SYS_FLAG]
        parts[Part.BORN_MS, row] = load_be64(data, at + _AT_BORN_MS)
        parts[Part.STORED_MS, row] = scratch[R_STORE_MS]
        parts[Part.RECONSUME_TIMES, row] = load_be32(data, scratch[R_BODY_AT] - _RECONSUME_TIMES_BEFORE_BODY)
        parts[Part.BODY_AT, row] = scratch[R_BODY_AT]
        parts[Part.BODY_END, row] = scratch[R_BODY_END]
        parts[Part.TOPIC_AT, row] = scratch[R_TOPIC_AT]
        parts[Part.TOPIC_END, row] = scratch[R_TOPIC_END]
        parts[Part.PROPERTIES_AT, row] = scratch[R_PROPERTIES_AT]
        parts[Part.PROPERTIES_END, row] = end
        find_properties(data, scratch[R_PROPERTIES_AT], end, found)
        for slot, part in _VALUES:
            if found[slot]:
                parts[part, row] = found[slot]
                parts[part + 1, row] = found[slot + 1]
    return SOUND


def find_records(blob: Blob) -> tuple[Ints, Ints]:
    """Return starts and sizes of the complete, adjacent records at the start of ``blob``, going by their sizes alone.

    A blank record, or a size that is invalid or too large, ends them.
    """
    starts = np.empty(len(blob) // RECORD_BYTES_MIN + 1, np.int64)
    count, end = _find_starts(np.frombuffer(blob, np.uint8), starts)
    starts = starts[:count].copy()
    return starts, np.diff(starts, append=end)


@kernel(results(i64, i64), read_only_bytes, i64_array)
def _find_starts(data: np.ndarray, starts: np.ndarray) -> tuple[int, int]:
    at = 0
    count = 0
    while at + RECORD_BYTES_MIN <= len(data):
        size = load_be32(data, at)
        if size < RECORD_BYTES_MIN or at + size > len(data) or load_be32(data, at + _AT_MAGIC) == MAGIC_BLANK:
            break
        starts[count] = at
        count += 1
        at += size
    return count, at
