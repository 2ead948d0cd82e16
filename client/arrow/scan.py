"""Scan of stored records: finds the parts of each, and checks that they are sound.

``scan_records`` is one compiled pass if Numba is installed (``scan_numba.py``), otherwise a series of NumPy steps
(``scan_numpy.py``). Both give the same result; the tests compare it with ``flintmq.protocol.storage.record``.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]
Rows: TypeAlias = npt.NDArray[np.bool_]
Blob: TypeAlias = bytes | bytearray | memoryview

SOUND = -1
WORD_BYTES = 8


class Part(IntEnum):
    """The rows of a scan's result: integers of the head, then byte positions within the buffer.

    A property that a record does not have is at −1; of two with the same name the last one counts.
    """

    QUEUE = 0
    QUEUE_OFFSET = 1
    PHYSICAL_OFFSET = 2
    SYS_FLAG = 3
    BORN_MS = 4
    STORED_MS = 5
    RECONSUME_TIMES = 6
    BODY_AT = 7
    BODY_END = 8
    TOPIC_AT = 9
    TOPIC_END = 10
    PROPERTIES_AT = 11
    PROPERTIES_END = 12
    TAGS_AT = 13
    TAGS_END = 14
    KEYS_AT = 15
    KEYS_END = 16
    UNIQ_KEY_AT = 17
    UNIQ_KEY_END = 18


def words_of(blob: Any) -> npt.NDArray[np.uint64]:
    """Return the little-endian 64-bit word at every byte position of a buffer, as a view."""
    return np.ndarray((max(0, len(blob) - WORD_BYTES + 1),), "<u8", blob, strides=(1,))


@functools.cache
def scanner() -> Callable[[Blob, Ints, Ints, bool], tuple[npt.NDArray[np.int64], int]]:
    """Return the scan for this environment."""
    if importlib.util.find_spec("numba") is not None:
        from .scan_numba import scan
    else:
        from .scan_numpy import scan
    return scan


def scan_records(blob: Blob, starts: Ints, sizes: Ints, *, verify: bool = True) -> tuple[npt.NDArray[np.int64], int]:
    """Scan the records of ``sizes[i]`` bytes at ``starts[i]`` of ``blob``, which must be within it.

    Returns an array with a row for each ``Part`` and a column for each record, and the number of the first unsound
    record (its size, magic, parts or, with ``verify``, its body's checksum are wrong), or ``SOUND``. If a record is
    unsound, the array is meaningless.
    """
    return scanner()(blob, starts, sizes, verify)
