"""The scan of stored records as NumPy steps over all of them at once, used if Numba is not installed."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from ...protocol.storage.arrays.record_positions import gather, locate_records
from ...protocol.storage.layout import (
    ANY_HOST_V6,
    IPV6_EXTRA_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    RECORD,
    RECORD_BYTES_MIN,
    RECORD_HEAD_BYTES,
    SysFlag,
)
from ...protocol.storage.record import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQ_KEY
from .properties import Pairs
from .scan import SOUND, Blob, Ints, Part
from .slices import slices

_HEAD = np.dtype(RECORD.dtype())
"""A record's fixed head for IPv4 hosts."""
_AT = RECORD.at
_CRC_MASK = 0x7FFFFFFF
_RECONSUME_TIMES_BEFORE_BODY = RECORD_HEAD_BYTES - RECORD.at["reconsume_times"]


class _Unsound(Exception):
    """Some records are unsound; ``row`` is the first of them."""

    def __init__(self, sound: Any) -> None:
        super().__init__()
        self.row = int(np.argmin(sound))


def scan(blob: Blob, starts: Ints, sizes: Ints, verify: bool) -> tuple[npt.NDArray[np.int64], int]:
    """Scan records as ``scan_records`` describes."""
    parts = np.full((len(Part), len(starts)), -1, np.int64)
    count = len(starts)
    while True:
        try:
            _scan(blob, starts[:count], sizes[:count], verify, parts[:, :count])
        except _Unsound as first:
            # Each step checks all records, so an earlier record may still fail in a later step: scan those again.
            count = first.row
        else:
            return parts, SOUND if count == len(starts) else count


def _scan(blob: Blob, starts: Ints, sizes: Ints, verify: bool, parts: npt.NDArray[np.int64]) -> None:
    _hold(sizes >= RECORD_BYTES_MIN)
    head = gather(blob, starts, f"V{_HEAD.itemsize}", _HEAD.itemsize).view(_HEAD)
    _hold((head["total_size"] == sizes) & ((head["magic"] == MAGIC_V2) | (head["magic"] == MAGIC_V1)))
    located = locate_records(blob, starts, starts + sizes)
    _hold(located.sound)
    parts[Part.QUEUE] = head["queue_id"]
    parts[Part.QUEUE_OFFSET] = head["queue_offset"]
    parts[Part.PHYSICAL_OFFSET] = head["physical_offset"]
    parts[Part.SYS_FLAG] = head["sys_flag"]
    parts[Part.BORN_MS] = head["born_timestamp"]
    parts[Part.STORED_MS] = head["store_timestamp"]
    parts[Part.RECONSUME_TIMES] = head["reconsume_times"]
    if (parts[Part.SYS_FLAG] & ANY_HOST_V6).any():  # the head's fields after a host are not where the layout says
        born = ((parts[Part.SYS_FLAG] & SysFlag.BORN_HOST_V6) != 0) * np.int64(IPV6_EXTRA_BYTES)
        parts[Part.STORED_MS] = gather(blob, starts + born + _AT["store_timestamp"], ">i8", 8)
        parts[Part.RECONSUME_TIMES] = gather(blob, located.body_at - _RECONSUME_TIMES_BEFORE_BODY, ">i4", 4)
    parts[Part.BODY_AT : Part.PROPERTIES_END] = located[:-1]
    parts[Part.PROPERTIES_END] = starts + sizes
    if verify:
        _verify(blob, head["body_crc"], parts)
    _find_properties(blob, parts)


def _verify(blob: Blob, crcs: Any, parts: npt.NDArray[np.int64]) -> None:
    view = memoryview(blob)
    bounds = zip(parts[Part.BODY_AT].tolist(), parts[Part.BODY_END].tolist(), strict=True)
    found = np.fromiter((zlib.crc32(view[at:end]) for at, end in bounds), np.uint32, len(crcs)) & _CRC_MASK
    # The checksum of an empty body is not checked.
    _hold((found == crcs) | (parts[Part.BODY_AT] == parts[Part.BODY_END]))


def _find_properties(blob: Blob, parts: npt.NDArray[np.int64]) -> None:
    pairs = Pairs(slices(blob, parts[Part.PROPERTIES_AT], parts[Part.PROPERTIES_END]))
    for name, at, end in (
        (PROPERTY_TAGS, Part.TAGS_AT, Part.TAGS_END),
        (PROPERTY_KEYS, Part.KEYS_AT, Part.KEYS_END),
        (PROPERTY_UNIQ_KEY, Part.UNIQ_KEY_AT, Part.UNIQ_KEY_END),
    ):
        rows, value_at, value_end = pairs.find(name.encode())
        # If a record has a name twice, the last assignment wins.
        parts[at, rows] = parts[Part.PROPERTIES_AT, rows] + value_at
        parts[end, rows] = parts[Part.PROPERTIES_AT, rows] + value_end


def _hold(sound: Any) -> None:
    if not sound.all():
        raise _Unsound(sound)
