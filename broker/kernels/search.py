"""The search for the next record after damage, byte by byte. A broker loads it only if there is damage."""

from __future__ import annotations

import numpy as np

from ...protocol.storage.arrays.jit import bytes_array, i64, i64_array, kernel
from ...protocol.storage.arrays.record_parts import DONE, PARTS, R_STORE_MS, body_sound, locate_parts
from ...protocol.storage.arrays.words import load_be32, load_be64
from ...protocol.storage.layout import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RECORD, RECORD_BYTES_MIN

_AT_MAGIC = RECORD.at["magic"]
_AT_PHYSICAL_OFFSET = RECORD.at["physical_offset"]


@kernel(i64, bytes_array, i64, i64, i64, i64, i64_array)
def find_record(log: np.ndarray, at: int, end: int, file_base: int, store_ms_min: int, parts: np.ndarray) -> int:
    """Return the first position in ``[at, end)`` of a sound record with the right physical offset, stored at
    ``store_ms_min`` or later, else ``end``.

    ``file_base``: physical offset of the array's first byte; ``parts`` (``PARTS`` integers) gets the record's parts.
    The record ends within the array, not necessarily before ``end``.
    """
    # A record that begins later could not end within the array.
    last = min(end, len(log) - RECORD_BYTES_MIN + 1)
    while at < last:
        magic = load_be32(log, at + _AT_MAGIC)
        if (
            # The cheap comparisons first: random bytes pass both of them once in 2^95 positions, so the checksum is
            # computed for real records only.
            magic in (MAGIC_V1, MAGIC_V2)
            and load_be64(log, at + _AT_PHYSICAL_OFFSET) == file_base + at
            and locate_parts(log, at, len(log), file_base + at, parts) == DONE
            and parts[R_STORE_MS] >= store_ms_min
            and body_sound(log, at, parts)
        ):
            return at
        at += 1
    return end


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


__all__ = ["PARTS", "find_record", "next_record"]
