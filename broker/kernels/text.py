"""UTF-8 in arrays: validation, and Java's hash."""

from __future__ import annotations

import numpy as np

from ...protocol.storage.arrays.jit import bytes_array, i64, inlined, kernel
from ...protocol.storage.arrays.words import HIGH_BITS, ONES, load_le32, load_le64

TEXT_OK = 0
TEXT_NOT_UTF8 = 1
TEXT_SEPARATOR = 2

_TWOS = 0x0202020202020202


@inlined
def _sequence(array: np.ndarray, at: int, end: int) -> tuple[int, int]:
    """Decode one UTF-8 sequence that begins with a byte >= 0x80: (code point, its bytes), or (-1, bytes of the bad
    prefix).

    A bad sequence is as long as its longest valid prefix, as Unicode recommends. Java does the same, except that it
    treats the three bytes of a surrogate as one bad sequence.
    """
    first = np.int64(array[at])
    if first < 0xC2 or first > 0xF4:
        return -1, 1
    need = 1 if first < 0xE0 else 2 if first < 0xF0 else 3
    low, high = 0x80, 0xBF
    if first == 0xE0:
        low = 0xA0
    elif first == 0xED:
        high = 0x9F  # surrogates
    elif first == 0xF0:
        low = 0x90
    elif first == 0xF4:
        high = 0x8F
    point = first & (0x3F >> need)
    for step in range(1, need + 1):
        if at + step >= end:
            return -1, step
        byte = np.int64(array[at + step])
        if byte < low or byte > high:
            return -1, step
        point = point << 6 | byte & 0x3F
        low, high = 0x80, 0xBF
    return point, need + 1


@inlined
def check_text(array: np.ndarray, at: int, end: int) -> int:
    """Check that ``array[at:end]`` is UTF-8 without the property separators 0x01 and 0x02; return a TEXT_ code."""
    while at < end:
        if at + 8 <= end:
            word = load_le64(array, at)
            ones = word ^ ONES
            twos = word ^ _TWOS
            # A byte of x is zero if (x - 0x01…) & ~x has its high bit; only exact while no byte is >= 0x80.
            if (word | (ones - ONES) & ~ones | (twos - ONES) & ~twos) & HIGH_BITS == 0:
                at += 8
                continue
        byte = np.int64(array[at])
        if byte < 0x80:
            if byte == 1 or byte == 2:
                return TEXT_SEPARATOR
            at += 1
        else:
            point, width = _sequence(array, at, end)
            if point < 0:
                return TEXT_NOT_UTF8
            at += width
    return TEXT_OK


@inlined
def java_hash_on(array: np.ndarray, at: int, end: int, value: int) -> int:
    """Continue a Java ``hashCode`` from ``value`` (0 to 2^32 - 1) over the UTF-16 units of ``array[at:end]``.

    Malformed bytes count as U+FFFD, as Java decodes them.
    """
    while at + 4 <= end:
        # Four ASCII bytes per step, from one load: the multiplications do not depend on each other.
        word = load_le32(array, at)
        if word & 0x80808080:
            break
        value = (
            value * 923521 + (word & 0xFF) * 29791 + (word >> 8 & 0xFF) * 961 + (word >> 16 & 0xFF) * 31 + (word >> 24)
        ) & 0xFFFFFFFF
        at += 4
    while at < end:
        byte = np.int64(array[at])
        if byte < 0x80:
            value = (31 * value + byte) & 0xFFFFFFFF
            at += 1
            continue
        point, width = _sequence(array, at, end)
        at += width
        if point < 0:
            value = (31 * value + 0xFFFD) & 0xFFFFFFFF
        elif point < 0x10000:
            value = (31 * value + point) & 0xFFFFFFFF
        else:
            point -= 0x10000
            value = (31 * value + (0xD800 | point >> 10)) & 0xFFFFFFFF
            value = (31 * value + (0xDC00 | point & 0x3FF)) & 0xFFFFFFFF
    return value


@inlined
def signed32(value: int) -> int:
    """Convert 0 to 2^32 - 1 to the signed integer with the same bits."""
    return value - 0x100000000 if value & 0x80000000 else value


@inlined
def index_hash(value: int) -> int:
    """Return an index key's hash from its Java hash: the absolute value, 0 for the smallest integer."""
    value = abs(signed32(value))
    return 0 if value == 0x80000000 else value


@kernel(i64, bytes_array, i64, i64)
def text_status(array: np.ndarray, at: int, end: int) -> int:
    """Run ``check_text`` for callers outside of kernels."""
    return check_text(array, at, end)


@kernel(i64, bytes_array, i64, i64)
def java_hash(array: np.ndarray, at: int, end: int) -> int:
    """Return Java's ``hashCode`` of the UTF-8 text ``array[at:end]``, signed 32 bit."""
    return signed32(java_hash_on(array, at, end, 0))
