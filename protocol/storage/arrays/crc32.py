"""CRC-32 (the polynomial of zlib and of Java's ``java.util.zip.CRC32``), sixteen bytes a step.

Slicing by sixteen: table k holds the checksum of a byte followed by k zero bytes, so that the sixteen look-ups of a
step do not wait for each other.

If the checksum of one part is already known, ``crc32_behind`` combines it without a second pass over that part. A
"state" is an unfinished checksum: its value before the last inversion.
"""

from __future__ import annotations

import zlib

import numpy as np

from .jit import INTERPRETED, are_plain, bytes_array, i64, inlined, kernel
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


_ZERO_LEVELS = 31
"""A record's parts have fewer than 2^31 bytes."""


def _zeros() -> np.ndarray:
    """Return the effect of 2^k zero bytes on a state: 4 * 256 values for each k, one per value of each of its bytes."""
    byte = np.arange(256, dtype=np.uint32)
    levels = [np.stack([TABLES[:256], byte, byte << np.uint32(8), byte << np.uint32(16)])]
    for _ in range(1, _ZERO_LEVELS):
        level = levels[-1]
        levels.append(
            level[0][level & 0xFF] ^ level[1][level >> 8 & 0xFF] ^ level[2][level >> 16 & 0xFF] ^ level[3][level >> 24]
        )
    return np.stack(levels).reshape(-1)


ZEROS = _zeros()
FRESH = 0xFFFFFFFF
"""The state of a checksum over nothing."""


@inlined
def crc32_of(array: np.ndarray, at: int, end: int) -> int:
    """Return the CRC-32 of ``array[at:end]``, 0 to 2^32 - 1."""
    return crc32_on(array, at, end, FRESH) ^ FRESH


@inlined
def crc32_on(array: np.ndarray, at: int, end: int, crc: int) -> int:
    """Return the state ``crc`` after ``array[at:end]``."""
    while at + 16 <= end:
        a = load_le32(array, at) ^ crc
        b = load_le32(array, at + 4)
        c = load_le32(array, at + 8)
        d = load_le32(array, at + 12)
        crc = np.int64(
            TABLES[0xF00 | a & 0xFF]
            ^ TABLES[0xE00 | a >> 8 & 0xFF]
            ^ TABLES[0xD00 | a >> 16 & 0xFF]
            ^ TABLES[0xC00 | a >> 24]
            ^ TABLES[0xB00 | b & 0xFF]
            ^ TABLES[0xA00 | b >> 8 & 0xFF]
            ^ TABLES[0x900 | b >> 16 & 0xFF]
            ^ TABLES[0x800 | b >> 24]
            ^ TABLES[0x700 | c & 0xFF]
            ^ TABLES[0x600 | c >> 8 & 0xFF]
            ^ TABLES[0x500 | c >> 16 & 0xFF]
            ^ TABLES[0x400 | c >> 24]
            ^ TABLES[0x300 | d & 0xFF]
            ^ TABLES[0x200 | d >> 8 & 0xFF]
            ^ TABLES[0x100 | d >> 16 & 0xFF]
            ^ TABLES[d >> 24]
        )
        at += 16
    while at < end:
        crc = np.int64(TABLES[(crc ^ np.int64(array[at])) & 0xFF]) ^ crc >> 8
        at += 1
    return crc


def _crc32_by_zlib(array: np.ndarray, at: int, end: int, crc: int) -> int:
    return zlib.crc32(array[at:end], int(crc) ^ FRESH) ^ FRESH


# A kernel that serves until its compiled code is there must not take a third of a second for a body of a megabyte.
if are_plain() and not INTERPRETED:
    crc32_on = _crc32_by_zlib


@inlined
def crc32_words(crc: int, first: int, second: int) -> int:
    """Return the state ``crc`` after two words of 32 bits, stored big-endian."""
    a = _swapped(first) ^ crc
    b = _swapped(second)
    return np.int64(
        TABLES[0x700 | a & 0xFF]
        ^ TABLES[0x600 | a >> 8 & 0xFF]
        ^ TABLES[0x500 | a >> 16 & 0xFF]
        ^ TABLES[0x400 | a >> 24]
        ^ TABLES[0x300 | b & 0xFF]
        ^ TABLES[0x200 | b >> 8 & 0xFF]
        ^ TABLES[0x100 | b >> 16 & 0xFF]
        ^ TABLES[b >> 24]
    )


@inlined
def _swapped(word: int) -> int:
    return (word & 0xFF) << 24 | (word >> 8 & 0xFF) << 16 | (word >> 16 & 0xFF) << 8 | (word >> 24 & 0xFF)


@inlined
def crc32_behind(crc: int, part_crc: int, part_bytes: int) -> int:
    """Return the state ``crc`` after a part of that length whose own CRC-32, with all 32 bits, is ``part_crc``.

    CRCs are linear: after the same bytes, two states differ by what their difference becomes after as many zeros.
    """
    difference = crc ^ FRESH
    level = 0
    while part_bytes > 0:
        if part_bytes & 1:
            difference = np.int64(
                ZEROS[level | difference & 0xFF]
                ^ ZEROS[level | 0x100 | difference >> 8 & 0xFF]
                ^ ZEROS[level | 0x200 | difference >> 16 & 0xFF]
                ^ ZEROS[level | 0x300 | difference >> 24]
            )
        part_bytes >>= 1
        level += 0x400
    return part_crc ^ FRESH ^ difference


@inlined
def body_crc_of(array: np.ndarray, at: int, end: int) -> int:
    """Return the checksum as stored in a record: without the sign bit; 0 for an empty body."""
    if at == end:
        return 0
    return crc32_of(array, at, end) & 0x7FFFFFFF


@kernel(i64, bytes_array, i64, i64)
def crc32(array: np.ndarray, at: int, end: int) -> int:
    """Return the CRC-32 of ``array[at:end]``."""
    return crc32_of(array, at, end)
