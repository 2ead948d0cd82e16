"""``__CRC32#``: the checksum over a whole record, header and properties included.

RocketMQ's (``CommitLog.DefaultAppendMessageCallback``, ``MessageDecoder.createCrc32``), an option there and here. It
takes exactly the last 20 bytes of a record, which count as its last property: the name, ``\\x01``, ten decimal digits,
the *least significant first*, and ``\\x02``. The digits say the CRC-32 of all bytes before those 20, without its sign
bit. The sizes in the record include them.

A rewritten record must not keep an old one, and RocketMQ does so while the option is off. So a checksum says something
only where it is known who wrote the record, and that the option was on.
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
"""What the other properties of a record may take, each with its ``\\x02``, if it is to have a checksum: a record of
RocketMQ's that has more is rewritten without one."""


def record_crc(record: Buffer) -> int:
    """The checksum that a whole record with room for it must carry: of all but its last 20 bytes."""
    return zlib.crc32(memoryview(record)[: len(record) - RECORD_CRC_BYTES]) & 0x7FFFFFFF


def record_crc_property(crc: int) -> bytes:
    """The 20 bytes of a checksum."""
    return RECORD_CRC_PREFIX + f"{crc:0{RECORD_CRC_DIGITS}}"[::-1].encode() + b"\x02"


def without_record_crc(properties: bytes) -> bytes:
    """The properties but for ``__CRC32#``, wherever it stands."""
    *pairs, rest = properties.split(b"\x02")
    kept = [pair + b"\x02" for pair in pairs if not _is_record_crc(pair)]
    return b"".join(kept) + (b"" if _is_record_crc(rest) else rest)


def _is_record_crc(pair: bytes) -> bool:
    return pair.partition(b"\x01")[0] == PROPERTY_RECORD_CRC.encode()


def record_crc_problem(record: Buffer, properties_bytes: int) -> str:
    """What is wrong with the checksum of a record that must have one; empty where nothing is.

    ``record``: exactly its bytes, whose parts add up; ``properties_bytes``: what its properties take, as it says
    itself. One whose other properties leave no room for a checksum needs none.
    """
    if properties_bytes < RECORD_CRC_BYTES or bytes(record[-RECORD_CRC_BYTES : -RECORD_CRC_DIGITS - 1]) != (
        RECORD_CRC_PREFIX
    ):
        return "" if properties_bytes > PROPERTIES_WITH_CRC_MAX else f"it has no {PROPERTY_RECORD_CRC}"
    expected, held = record_crc_property(record_crc(record)), bytes(record[-RECORD_CRC_BYTES:])
    if held == expected:
        return ""
    shown = held[-RECORD_CRC_DIGITS - 1 : -1].decode("ascii", "replace")
    return (
        f"its {PROPERTY_RECORD_CRC} says {shown!r}, its bytes have {expected[-RECORD_CRC_DIGITS - 1 : -1].decode()!r}"
    )
