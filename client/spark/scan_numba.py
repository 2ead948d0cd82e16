"""The scan of stored records as one loop, compiled by Numba on first use.

Compiling takes some seconds once; Numba caches the code beside this file, or in the user's cache folder.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from ...protocol.storage.layout import (
    IPV6_EXTRA_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    RECORD,
    RECORD_BYTES_MIN,
    RECORD_HEAD_BYTES,
    SysFlag,
)
from .scan import SOUND, Blob, Ints, Part, words_of

# Literals, because Numba's cache does not notice a change in another module; the asserts compare them with the source.
_HEAD = 88
_SIZE_MIN = 91
_V6_EXTRA = 12
_BORN_V6 = 0x10
_STORE_V6 = 0x20
_V1 = -626843481
_V2 = -626843477
assert (_HEAD, _SIZE_MIN, _V6_EXTRA) == (RECORD_HEAD_BYTES, RECORD_BYTES_MIN, IPV6_EXTRA_BYTES)
assert (_BORN_V6, _STORE_V6, _V1, _V2) == (SysFlag.BORN_HOST_V6, SysFlag.STORE_HOST_V6, MAGIC_V1, MAGIC_V2)
assert list(RECORD.at.values()) == [0, 4, 8, 12, 16, 20, 28, 36, 40, 48, 56, 64, 72, 76, 84]
assert [part.value for part in Part] == list(range(19))

_TAGS = np.uint64(int.from_bytes(b"TAGS", "little"))
_KEYS = np.uint64(int.from_bytes(b"KEYS", "little"))
_UNIQ_KEY = np.uint64(int.from_bytes(b"UNIQ_KEY", "little"))
_ONES = np.uint64(0x0101010101010101)
_TWOS = np.uint64(0x0202020202020202)
_HIGHS = np.uint64(0x8080808080808080)


def _crc_tables() -> npt.NDArray[np.uint32]:
    """Return ``tables[k][b]``: the effect of byte b on a CRC-32 if k bytes follow it, for sixteen bytes at a time."""
    tables = np.zeros((16, 256), np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0xEDB88320 if crc & 1 else 0)
        tables[0, byte] = crc
    for k in range(1, 16):
        tables[k] = (tables[k - 1] >> 8) ^ tables[0][tables[k - 1] & 0xFF]
    return tables


_TABLES = _crc_tables()


def scan(blob: Blob, starts: Ints, sizes: Ints, verify: bool) -> tuple[npt.NDArray[np.int64], int]:
    """Scan records as ``scan_records`` describes."""
    parts = np.full((len(Part), len(starts)), -1, np.int64)
    data = np.frombuffer(blob, np.uint8)
    words = words_of(blob)
    damaged = _scan(data, words, starts, sizes, verify, _TABLES, parts)
    return parts, int(damaged)


def _compiled(function: Any) -> Any:
    return njit(cache=True, nogil=True)(function)


@_compiled
def _i32(data, at):  # type: ignore[no-untyped-def]  # Numba infers the types
    value = (
        np.uint32(data[at]) << np.uint32(24)
        | np.uint32(data[at + 1]) << np.uint32(16)
        | np.uint32(data[at + 2]) << np.uint32(8)
        | np.uint32(data[at + 3])
    )
    return np.int64(np.int32(value))


@_compiled
def _i64(data, at):  # type: ignore[no-untyped-def]  # Numba infers the types
    return (_i32(data, at) << 32) | (_i32(data, at + 4) & 0xFFFFFFFF)


@_compiled
def _crc32(data, words, at, end, tables):  # type: ignore[no-untyped-def]  # Numba infers the types
    crc = np.uint32(0xFFFFFFFF)
    byte = np.uint64(0xFF)
    while at + 16 <= end:
        a = words[at] ^ np.uint64(crc)
        b = words[at + 8]
        crc = (
            tables[15, a & byte]
            ^ tables[14, (a >> np.uint64(8)) & byte]
            ^ tables[13, (a >> np.uint64(16)) & byte]
            ^ tables[12, (a >> np.uint64(24)) & byte]
            ^ tables[11, (a >> np.uint64(32)) & byte]
            ^ tables[10, (a >> np.uint64(40)) & byte]
            ^ tables[9, (a >> np.uint64(48)) & byte]
            ^ tables[8, a >> np.uint64(56)]
            ^ tables[7, b & byte]
            ^ tables[6, (b >> np.uint64(8)) & byte]
            ^ tables[5, (b >> np.uint64(16)) & byte]
            ^ tables[4, (b >> np.uint64(24)) & byte]
            ^ tables[3, (b >> np.uint64(32)) & byte]
            ^ tables[2, (b >> np.uint64(40)) & byte]
            ^ tables[1, (b >> np.uint64(48)) & byte]
            ^ tables[0, b >> np.uint64(56)]
        )
        at += 16
    while at < end:
        crc = tables[0, (crc ^ np.uint32(data[at])) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
        at += 1
    return np.int64(~crc & np.uint32(0x7FFFFFFF))


@_compiled
def _find_properties(data, words, at, end, parts, row):  # type: ignore[no-untyped-def]  # Numba infers the types
    """Note the positions of the values of TAGS, KEYS and UNIQ_KEY, by the rules of ``decode_properties``."""
    while at < end:
        equals = at
        while equals < end and data[equals] != 1 and data[equals] != 2:
            equals += 1
        if equals == end or data[equals] == 2:  # no value
            at = equals + 1
            continue
        stop = equals + 1
        # Eight bytes at a time while none of them is \x02: then no byte of `word` below is zero.
        while stop + 8 <= end:
            word = words[stop] ^ _TWOS
            if (word - _ONES) & ~word & _HIGHS:
                break
            stop += 8
        while stop < end and data[stop] != 2:
            stop += 1
        length = equals - at
        if stop > equals + 1 and (length == 4 or length == 8):
            if length == 8:
                if words[at] == _UNIQ_KEY:
                    parts[17, row] = equals + 1
                    parts[18, row] = stop
            else:
                # Only \x01 and one byte of a value must follow a four-byte name: a word might cross the buffer's end.
                name = (
                    np.uint64(data[at])
                    | np.uint64(data[at + 1]) << np.uint64(8)
                    | np.uint64(data[at + 2]) << np.uint64(16)
                    | np.uint64(data[at + 3]) << np.uint64(24)
                )
                if name == _TAGS:
                    parts[13, row] = equals + 1
                    parts[14, row] = stop
                elif name == _KEYS:
                    parts[15, row] = equals + 1
                    parts[16, row] = stop
        at = stop + 1


@_compiled
def _scan(data, words, starts, sizes, verify, tables, parts):  # type: ignore[no-untyped-def]  # Numba infers the types
    """Fill ``parts``; return the first unsound row, or −1."""
    for row in range(starts.size):
        start = starts[row]
        size = sizes[row]
        if size < _SIZE_MIN or _i32(data, start) != size:
            return row
        magic = _i32(data, start + 4)
        if magic != _V1 and magic != _V2:
            return row
        sys_flag = _i32(data, start + 36)
        born_shift = _V6_EXTRA if sys_flag & _BORN_V6 else 0
        shift = born_shift + (_V6_EXTRA if sys_flag & _STORE_V6 else 0)
        end = start + size
        if size < _SIZE_MIN + shift:
            return row
        body_length = _i32(data, start + 84 + shift)
        body_at = start + _HEAD + shift
        body_end = body_at + body_length
        topic_at = body_end + (1 if magic == _V1 else 2)
        if body_length < 0 or topic_at + 2 > end:
            return row
        if magic == _V1:
            topic_length = np.int64(np.int8(data[body_end]))
        else:
            topic_length = np.int64(np.int16(np.uint16(data[body_end]) << np.uint16(8) | np.uint16(data[body_end + 1])))
        topic_end = topic_at + topic_length
        if topic_length < 0 or topic_end + 2 > end:
            return row
        properties_length = np.int64(
            np.int16(np.uint16(data[topic_end]) << np.uint16(8) | np.uint16(data[topic_end + 1]))
        )
        properties_at = topic_end + 2
        if properties_length < 0 or properties_at + properties_length != end:
            return row
        if verify and body_length and _crc32(data, words, body_at, body_end, tables) != _i32(data, start + 8):
            return row
        parts[0, row] = _i32(data, start + 12)
        parts[1, row] = _i64(data, start + 20)
        parts[2, row] = _i64(data, start + 28)
        parts[3, row] = sys_flag
        parts[4, row] = _i64(data, start + 40)
        parts[5, row] = _i64(data, start + 56 + born_shift)
        parts[6, row] = _i32(data, start + 72 + shift)
        parts[7, row] = body_at
        parts[8, row] = body_end
        parts[9, row] = topic_at
        parts[10, row] = topic_end
        parts[11, row] = properties_at
        parts[12, row] = end
        _find_properties(data, words, properties_at, end, parts, row)
    return SOUND
