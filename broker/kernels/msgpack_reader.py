"""The msgpack of PRODUCE bodies, read without creating objects: lengths, strings, containers, integers."""

from __future__ import annotations

import numpy as np

from ...protocol.storage.arrays.jit import inlined
from ...protocol.storage.arrays.words import load_be16, load_be32, load_be64


@inlined
def read_length(frame: np.ndarray, at: int, end: int, code: int) -> tuple[int, int]:
    """Read an unsigned length of 1, 2 or 4 bytes (``code`` 0, 1, 2): (length, start of the content), or length -1."""
    if code == 0:
        if at + 1 > end:
            return -1, at
        return np.int64(frame[at]), at + 1
    if code == 1:
        if at + 2 > end:
            return -1, at
        return load_be16(frame, at) & 0xFFFF, at + 2
    if at + 4 > end:
        return -1, at
    return load_be32(frame, at) & 0xFFFFFFFF, at + 4


@inlined
def read_bin(frame: np.ndarray, at: int, end: int) -> tuple[int, int]:
    """Read the head of a msgpack bin: (length, start of its bytes); length -1: truncated, -2: another type."""
    if at >= end:
        return -1, at
    code = np.int64(frame[at]) - 0xC4
    if code < 0 or code > 2:
        return -2, at
    length, content = read_length(frame, at + 1, end, code)
    if length < 0 or content + length > end:
        return -1, at
    return length, content


@inlined
def read_str(frame: np.ndarray, at: int, end: int) -> tuple[int, int]:
    """Read the head of a msgpack str, as ``read_bin`` does for a bin."""
    if at >= end:
        return -1, at
    first = np.int64(frame[at])
    if 0xA0 <= first <= 0xBF:
        length, content = first & 0x1F, at + 1
    elif 0xD9 <= first <= 0xDB:
        length, content = read_length(frame, at + 1, end, first - 0xD9)
    else:
        return -2, at
    if length < 0 or content + length > end:
        return -1, at
    return length, content


@inlined
def read_container(frame: np.ndarray, at: int, end: int, fixed: int, fixed_max: int, wide: int) -> tuple[int, int]:
    """Read the head of a msgpack array or map: (items, start of the first); -1: truncated, -2: another type."""
    if at >= end:
        return -1, at
    first = np.int64(frame[at])
    if fixed <= first <= fixed + fixed_max:
        return first - fixed, at + 1
    if first == wide or first == wide + 1:
        return read_length(frame, at + 1, end, first - wide + 1)
    return -2, at


@inlined
def read_i32(frame: np.ndarray, at: int, end: int) -> tuple[int, int, bool]:
    """Read a msgpack integer that fits 32 signed bits: (value, position after it, whether it is one)."""
    if at >= end:
        return 0, at, False
    first = np.int64(frame[at])
    if first < 0x80:
        return first, at + 1, True
    if first >= 0xE0:
        return first - 256, at + 1, True
    if first < 0xCC or first > 0xD3:
        return 0, at, False
    width = 1 << (first - 0xCC & 3)
    if at + 1 + width > end:
        return 0, at, False
    signed = first >= 0xD0
    at += 1
    if width == 1:
        value = np.int64(frame[at])
        if signed and value > 127:
            value -= 256
    elif width == 2:
        value = load_be16(frame, at)
        if not signed:
            value &= 0xFFFF
    elif width == 4:
        value = load_be32(frame, at)
        if not signed:
            value &= 0xFFFFFFFF
    else:
        value = load_be64(frame, at)
        if not signed and value < 0:
            return 0, at, False
    return value, at + width, -0x80000000 <= value <= 0x7FFFFFFF
