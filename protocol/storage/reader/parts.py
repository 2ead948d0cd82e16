"""The parts of stored records that ``scan`` finds. Naming them does not load Numba."""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]
Rows: TypeAlias = npt.NDArray[np.bool_]
Blob: TypeAlias = bytes | bytearray | memoryview

SOUND = -1


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
