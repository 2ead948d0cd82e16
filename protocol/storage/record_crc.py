"""``__CRC32#``: the checksum over a whole record, header and properties included.

An option in RocketMQ (``CommitLog.DefaultAppendMessageCallback``, ``MessageDecoder.createCrc32``) and here, it
occupies exactly the last 20 bytes of a record, as its last property: the name, ``\\x01``, ten decimal digits, the
*least significant first*, and ``\\x02``. The digits are the CRC-32 of all bytes before those 20, without its sign
bit. The sizes in the record include them.

A rewritten record must not keep its old checksum, but RocketMQ keeps it while the option is off. So a checksum is only
meaningful if you know who wrote the record, and that the option was on.
"""

from __future__ import annotations

import zlib

from .delivery import PROPERTY_RECORD_CRC
from .layout import PROPERTIES_BYTES_MAX

Buffer = bytes | bytearray | memoryview

RECORD_CRC_PREFIX = PROPERTY_RECORD_CRC.encode() + b"\x01"
RECORD_CRC_DIGITS = 10
RECORD_CRC_BYTES = len(RECORD_CRC_PREFIX) + RECORD_CRC_DIGITS + 1
assert RECORD_CRC_BYTES == 20

PROPERTIES_WITH_CRC_MAX = PROPERTIES_BYTES_MAX - RECORD_CRC_BYTES
"""Maximum size of a record's other properties, each with its ``\\x02``, if it is to have a checksum. A record of
RocketMQ's with more is rewritten without one."""


def record_crc(record: Buffer) -> int:
    """Return the checksum of a whole record with room for it: the CRC of all bytes except the last 20."""
    return zlib.crc32(memoryview(record)[: len(record) - RECORD_CRC_BYTES]) & 0x7FFFFFFF


def record_crc_property(crc: int) -> bytes:
    """Return the 20 bytes of the property with this checksum."""
    return RECORD_CRC_PREFIX + f"{crc:0{RECORD_CRC_DIGITS}}"[::-1].encode() + b"\x02"


def without_record_crc(properties: bytes) -> bytes:
    """Return the properties without ``__CRC32#``, wherever it is."""
    *pairs, rest = properties.split(b"\x02")
    kept = [pair + b"\x02" for pair in pairs if not _is_record_crc(pair)]
    return b"".join(kept) + (b"" if _is_record_crc(rest) else rest)


def _is_record_crc(pair: bytes) -> bool:
    return pair.partition(b"\x01")[0] == PROPERTY_RECORD_CRC.encode()


def record_crc_problem(record: Buffer, properties_bytes: int) -> str:
    """Return what is wrong with the checksum of a record that must have one; empty if it is correct.

    ``record``: exactly its bytes, whose parts add up; ``properties_bytes``: the length of its properties according to
    the record. A record whose other properties leave no room for a checksum needs none.
    """
    if properties_bytes < RECORD_CRC_BYTES or bytes(record[-RECORD_CRC_BYTES : -RECORD_CRC_DIGITS - 1]) != (
        RECORD_CRC_PREFIX
    ):
        return "" if properties_bytes > PROPERTIES_WITH_CRC_MAX else f"it has no {PROPERTY_RECORD_CRC}"
    expected, held = record_crc_property(record_crc(record)), bytes(record[-RECORD_CRC_BYTES:])
    if held == expected:
        return ""
    shown = held[-RECORD_CRC_DIGITS - 1 : -1].decode("ascii", "replace")
    return f"its {PROPERTY_RECORD_CRC} is {shown!r}, expected {expected[-RECORD_CRC_DIGITS - 1 : -1].decode()!r}"
