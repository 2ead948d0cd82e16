"""CRC-32 (the polynomial of zlib and of Java's ``java.util.zip.CRC32``), sixteen bytes a step.

Slicing by sixteen: table k holds the checksum of a byte followed by k zero bytes, so that the sixteen look-ups of a
step do not wait for each other.
"""

from __future__ import annotations

import numpy as np

from .jit import bytes_array, i64, inlined, kernel
from .words import load_le32

_POLYNOMIAL = 0xEDB88320


def _tables() -> np.ndarray:
    rows = [[0] * 256 for _ in range(16)]
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        rows[0][byte] = value
    for k in range(1, 16):
        for byte in range(256):
            before = rows[k - 1][byte]
            rows[k][byte] = before >> 8 ^ rows[0][before & 0xFF]
    return np.array(rows, dtype=np.uint32).reshape(16 * 256)


TABLES = _tables()


@inlined
def crc32_of(array: np.ndarray, at: int, end: int) -> int:
    """CRC-32 of ``array[at:end]``, 0 to 2^32 - 1."""
    crc = 0xFFFFFFFF
    while at + 16 <= end:
        a = load_le32(array, at) ^ crc
        b = load_le32(array, at + 4)
        c = load_le32(array, at + 8)
        d = load_le32(array, at + 12)
        crc = np.int64(
            TABLES[0xF00 | a & 0xFF] ^ TABLES[0xE00 | a >> 8 & 0xFF]
            ^ TABLES[0xD00 | a >> 16 & 0xFF] ^ TABLES[0xC00 | a >> 24]
            ^ TABLES[0xB00 | b & 0xFF] ^ TABLES[0xA00 | b >> 8 & 0xFF]
            ^ TABLES[0x900 | b >> 16 & 0xFF] ^ TABLES[0x800 | b >> 24]
            ^ TABLES[0x700 | c & 0xFF] ^ TABLES[0x600 | c >> 8 & 0xFF]
            ^ TABLES[0x500 | c >> 16 & 0xFF] ^ TABLES[0x400 | c >> 24]
            ^ TABLES[0x300 | d & 0xFF] ^ TABLES[0x200 | d >> 8 & 0xFF]
            ^ TABLES[0x100 | d >> 16 & 0xFF] ^ TABLES[d >> 24]
        )  # fmt: skip
        at += 16
    while at < end:
        crc = np.int64(TABLES[(crc ^ np.int64(array[at])) & 0xFF]) ^ crc >> 8
        at += 1
    return crc ^ 0xFFFFFFFF


@inlined
def body_crc_of(array: np.ndarray, at: int, end: int) -> int:
    """The checksum as a record keeps it: without the sign bit; an empty body has 0."""
    if at == end:
        return 0
    return crc32_of(array, at, end) & 0x7FFFFFFF


@kernel(i64, bytes_array, i64, i64)
def crc32(array: np.ndarray, at: int, end: int) -> int:
    """CRC-32 of ``array[at:end]``."""
    return crc32_of(array, at, end)
