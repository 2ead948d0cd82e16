"""``__CRC32#``, the checksum over a whole record: written at its end, and checked.

``protocol.record_crc`` specifies it. The kernels do not read the body again for it: they combine its known checksum.
"""

from __future__ import annotations

import numpy as np

from ...protocol.storage.arrays.crc32 import FRESH, crc32_behind, crc32_on, crc32_words
from ...protocol.storage.arrays.jit import inlined
from ...protocol.storage.arrays.words import load_be64, store_be64
from ...protocol.storage.record import PROPERTIES_WITH_CRC_MAX, RECORD_CRC_BYTES, RECORD_CRC_DIGITS, RECORD_CRC_PREFIX

_NAME = int.from_bytes(RECORD_CRC_PREFIX[:8], "big")
_NAME_BYTES = 8
assert len(RECORD_CRC_PREFIX) == _NAME_BYTES + 1


@inlined
def store_record_crc(
    log: np.ndarray, at: int, size: int, magic: int, body_at: int, body_end: int, body_crc: int
) -> None:
    """Write the last 20 bytes of the record at ``at``. Everything else is written, except size and magic, which are
    stored last. ``body_crc``: CRC-32 of the body with all 32 bits, 0 if it is empty."""
    end = at + size - RECORD_CRC_BYTES
    crc = crc32_on(log, at + 8, body_at, crc32_words(FRESH, size, magic))
    crc = crc32_on(log, body_end, end, crc32_behind(crc, body_crc, body_end - body_at))
    value = (crc ^ FRESH) & 0x7FFFFFFF
    store_be64(log, end, _NAME)
    log[end + _NAME_BYTES] = 1
    digits_at = end + _NAME_BYTES + 1
    for k in range(RECORD_CRC_DIGITS):
        log[digits_at + k] = 0x30 + value % 10
        value //= 10
    log[digits_at + RECORD_CRC_DIGITS] = 2


@inlined
def record_crc_sound(
    log: np.ndarray, at: int, end: int, body_at: int, body_end: int, properties_at: int, body_crc: int
) -> bool:
    """Return whether the record ``log[at:end]``, which must have a checksum, has the right one, or no room for one.

    ``body_crc``: CRC-32 with all 32 bits, computed from the stored body.
    """
    crc_at = end - RECORD_CRC_BYTES
    if crc_at < properties_at or load_be64(log, crc_at) != _NAME or log[crc_at + _NAME_BYTES] != 1:
        return end - properties_at > PROPERTIES_WITH_CRC_MAX
    crc = crc32_behind(crc32_on(log, at, body_at, FRESH), body_crc, body_end - body_at)
    value = (crc32_on(log, body_end, crc_at, crc) ^ FRESH) & 0x7FFFFFFF
    digits_at = crc_at + _NAME_BYTES + 1
    for k in range(RECORD_CRC_DIGITS):
        if log[digits_at + k] != 0x30 + value % 10:
            return False
        value //= 10
    return log[end - 1] == 2
