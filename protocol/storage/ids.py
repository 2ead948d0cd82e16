"""The two forms of a message id.

The producer makes a *unique key* (property UNIQ_KEY): 32 hex digits, in RocketMQ's form
``ip 4 | pid 2 | loader hash 4 | ms since the month began 4 | counter 2`` (``MessageClientIDSetter``). FlintMQ's
producers use the same 10-byte prefix, and fill the rest with a 48-bit counter that starts at the time part shifted by
16 bits. So a million messages in one second still get different keys, and RocketMQ's tools still read the time.

The broker makes an *offset id*: advertised address and physical offset, upper-case hex, 32 digits (56 for IPv6).
"""

from __future__ import annotations

import struct
import time
import zlib

from .record import decode_host

UNIQUE_PREFIX_BYTES = 10
UNIQUE_PREFIX_DIGITS = 2 * UNIQUE_PREFIX_BYTES
UNIQUE_COUNTER_MAX = 2**48
"""The 48-bit counter wraps here."""

ID_DIGITS = (32, 56)
_PREFIX = struct.Struct(">4sHI")
_OFFSET = struct.Struct(">q")


def unique_prefix(address: bytes, pid: int, seed: bytes) -> str:
    """Return 20 hex digits: 4 bytes of address, 2 of process id, 4 of a hash of ``seed``, which distinguishes the
    producers of one process."""
    return _PREFIX.pack(address[:4].ljust(4, b"\0"), pid & 0xFFFF, zlib.crc32(seed)).hex().upper()


def unique_counter_start(now_seconds: float) -> int:
    """Return the first 48-bit counter of a producer created at ``now_seconds`` (seconds since 1970 UTC)."""
    now = time.localtime(now_seconds)
    month_start = time.mktime((now.tm_year, now.tm_mon, 1, 0, 0, 0, 0, 0, -1))
    return (int((now_seconds - month_start) * 1000) << 16) % UNIQUE_COUNTER_MAX


def unique_key(prefix: str, counter: int) -> str:
    """Return the unique key that the broker's kernel writes for this prefix and counter."""
    return f"{prefix}{counter % UNIQUE_COUNTER_MAX:012X}"


def offset_id(store_host: bytes, physical_offset: int) -> str:
    """Return the id of the record at ``physical_offset``; ``store_host``: 8 or 20 bytes, as in the record."""
    return (store_host + _OFFSET.pack(physical_offset)).hex().upper()


def offset_ids(store_host: bytes, physical_offsets: bytes | bytearray) -> str:
    """Return the ids of the records at ``physical_offsets`` (count × i64), separated by commas."""
    size = len(store_host) + _OFFSET.size
    offsets = range(0, len(physical_offsets), _OFFSET.size)
    blob = b"".join([store_host + physical_offsets[at : at + _OFFSET.size] for at in offsets])
    return blob.hex(",", size).upper()


def parse_offset_id(message_id: str) -> tuple[tuple[str, int], int] | None:
    """Return ``((host, port), physical_offset)`` of an offset id, or None if the text cannot be one.

    A unique key also has 32 or 56 digits: only the log can tell, by having a record at that offset or not.
    """
    if len(message_id) not in ID_DIGITS:
        return None
    try:
        blob = bytes.fromhex(message_id)
    except ValueError:
        return None
    if 2 * len(blob) != len(message_id):  # fromhex skips white space
        return None
    physical_offset: int = _OFFSET.unpack_from(blob, len(blob) - 8)[0]
    if physical_offset < 0:
        return None
    return decode_host(blob[:-8]), physical_offset
