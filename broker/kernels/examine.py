"""Search of the offline tools in the CommitLog: the next readable record after damage, and the records of a topic, a
queue and a time."""

from __future__ import annotations

import numpy as np

from ...protocol.storage.arrays.jit import bytes_array, i64, i64_array, kernel, results
from ...protocol.storage.arrays.record_parts import DONE, R_SIZE, R_STORE_MS, R_TOPIC_AT, R_TOPIC_END, locate_parts
from ...protocol.storage.arrays.words import load_be32, same_bytes
from ...protocol.storage.layout import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RECORD, RECORD_BYTES_MIN
from .dispatch import FULL

_AT_MAGIC = RECORD.at["magic"]
_AT_QUEUE_ID = RECORD.at["queue_id"]


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


@kernel(results(i64, i64, i64), bytes_array, i64, i64, i64, bytes_array, i64, i64, i64, i64, i64_array, i64_array)
def pick(
    log: np.ndarray,
    at: int,
    end: int,
    file_base: int,
    topic: np.ndarray,
    topic_bytes: int,
    queue_id: int,
    begin_ms: int,
    end_ms: int,
    picked: np.ndarray,
    parts: np.ndarray,
) -> tuple[int, int, int]:
    """Choose the records of ``log[at:end]`` with the topic ``topic[:topic_bytes]`` (empty: any), the queue ``queue_id``
    (negative: any) and a store time in ``[begin_ms, end_ms]``.

    ``picked`` gets the position of each. Returns (why it stopped, where, how many): DONE, FULL, BLANK, or the error
    that hides the next record. Body checksums are not checked.
    """
    count = 0
    while at < end:
        status = locate_parts(log, at, len(log), file_base + at, parts)
        if status != DONE:
            return status, at, count
        wanted = (
            (queue_id < 0 or load_be32(log, at + _AT_QUEUE_ID) == queue_id)
            and begin_ms <= parts[R_STORE_MS] <= end_ms
            and (
                topic_bytes == 0
                or (
                    parts[R_TOPIC_END] - parts[R_TOPIC_AT] == topic_bytes
                    and same_bytes(topic, 0, log, parts[R_TOPIC_AT], topic_bytes)
                )
            )
        )
        if wanted:
            if count == len(picked):
                return FULL, at, count
            picked[count] = at
            count += 1
        at += parts[R_SIZE]
    return DONE, at, count
