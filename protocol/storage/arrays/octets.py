"""Search and comparison of bytes, compiled into the kernels that call them."""

from __future__ import annotations

import numpy as np

from .jit import inlined
from .words import load_le64

ONES = 0x0101010101010101
"""A word of eight bytes, each 1."""
HIGH_BITS = -0x7F7F7F7F7F7F7F80
"""The high bit of each byte: 0x8080808080808080 as a signed word."""


def text_array(text: str) -> np.ndarray:
    """Return the bytes of a name that kernels compare with."""
    return np.frombuffer(text.encode(), np.uint8)


@inlined
def find_byte(array: np.ndarray, at: int, end: int, wanted: int) -> int:
    """Return the position of the first byte of that value (0 to 127) in ``array[at:end]``, or ``end``."""
    pattern = wanted * ONES
    while at + 8 <= end:
        word = load_le64(array, at) ^ pattern
        if (word - ONES) & ~word & HIGH_BITS != 0:
            break  # one of the eight is zero: compare one by one
        at += 8
    while at < end and array[at] != wanted:
        at += 1
    return at


@inlined
def same_bytes(left: np.ndarray, left_at: int, right: np.ndarray, right_at: int, length: int) -> bool:
    """Return whether two ranges of ``length`` bytes are equal."""
    for step in range(length):  # noqa: SIM110 - a generator cannot be compiled
        if left[left_at + step] != right[right_at + step]:
            return False
    return True


@inlined
def is_name(log: np.ndarray, at: int, length: int, name: np.ndarray) -> bool:
    """Return whether the ``length`` bytes at ``at`` are ``name``."""
    return length == len(name) and same_bytes(log, at, name, 0, length)
