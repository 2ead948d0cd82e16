"""Where the parts of many records are, in NumPy steps over all at once: the rules of ``record.locate_record``."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..layout import (
    ANY_HOST_V6,
    IPV6_EXTRA_BYTES,
    MAGIC_V2,
    PROPERTIES_LENGTH_BYTES,
    RECORD,
    RECORD_HEAD_BYTES,
    TOPIC_LENGTH_BYTES_V1,
    TOPIC_LENGTH_BYTES_V2,
    SysFlag,
)

Ints = npt.NDArray[np.int64]
_AT = RECORD.at
_BODY_LENGTH_BYTES = RECORD_HEAD_BYTES - _AT["body_length"]


class RecordPositions(NamedTuple):
    """Positions in the buffer. Those of a record whose parts do not add up mean nothing: ``sound`` is false for it."""

    body_at: Ints
    body_end: Ints
    topic_at: Ints
    topic_end: Ints
    properties_at: Ints
    sound: npt.NDArray[np.bool_]


def gather(blob: Any, at: Ints, dtype: str, width: int) -> Any:
    """Return the value of ``dtype``, ``width`` bytes wide, at each of the byte positions."""
    return np.ndarray((max(0, len(blob) - width + 1),), dtype, blob, strides=(1,))[at]


def locate_records(blob: Any, starts: Ints, ends: Ints) -> RecordPositions:
    """Find the parts of the records ``blob[starts[i]:ends[i]]`` of at least ``RECORD_BYTES_MIN`` bytes each."""
    is_v2 = gather(blob, starts + _AT["magic"], ">i4", 4) == MAGIC_V2
    length_bytes = TOPIC_LENGTH_BYTES_V1 + is_v2 * (TOPIC_LENGTH_BYTES_V2 - TOPIC_LENGTH_BYTES_V1)
    body_at = starts + RECORD_HEAD_BYTES
    v6_hosts = gather(blob, starts + _AT["sys_flag"], ">i4", 4) & ANY_HOST_V6
    if v6_hosts.any():
        for flag in (SysFlag.BORN_HOST_V6, SysFlag.STORE_HOST_V6):
            body_at[v6_hosts & flag != 0] += IPV6_EXTRA_BYTES
    # A position outside of its record must not be read: the record's start, which is always there, is read instead.
    sound = body_at + PROPERTIES_LENGTH_BYTES < ends
    body_bytes = gather(blob, _within(sound, body_at - _BODY_LENGTH_BYTES, starts), ">i4", 4)
    body_end = body_at + body_bytes
    topic_at = body_end + length_bytes
    sound &= (body_bytes >= 0) & (topic_at + PROPERTIES_LENGTH_BYTES <= ends)
    lengths_at = _within(sound, body_end, starts)
    topic_bytes = gather(blob, lengths_at, "i1", 1).astype(np.int64)
    if is_v2.any():
        topic_bytes[is_v2] = gather(blob, lengths_at[is_v2], ">i2", 2)
    topic_end = topic_at + topic_bytes
    properties_at = topic_end + PROPERTIES_LENGTH_BYTES
    sound &= (topic_bytes >= 0) & (properties_at <= ends)
    properties_bytes = gather(blob, _within(sound, topic_end, starts), ">i2", 2)
    sound &= (properties_bytes >= 0) & (properties_at + properties_bytes == ends)
    return RecordPositions(body_at, body_end, topic_at, topic_end, properties_at, sound)


def _within(sound: npt.NDArray[np.bool_], at: Ints, otherwise: Ints) -> Ints:
    return at if sound.all() else np.where(sound, at, otherwise)
