"""Objects that are a msgpack map with a checksum, and heads of larger objects that are.

::

    magic     8 bytes, which say what the object is
    length    4 bytes, big-endian: that of the map
    map       msgpack
    checksum  4 bytes, big-endian: CRC-32 of the map
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgpack

from .errors import CorruptObject, UnknownFormat

Bytes = bytes | bytearray | memoryview

_PREFIX = struct.Struct(">8sI")
_CRC = struct.Struct(">I")
MAP_BYTES_MAX = 64 * 1024 * 1024
"""Maximum size of a map; a damaged length must not make a reader allocate more."""


def pack_checked(magic: bytes, value: dict[str, Any]) -> bytes:
    """Return the bytes of a map."""
    packed = msgpack.packb(value)
    return b"".join((_PREFIX.pack(magic, len(packed)), packed, _CRC.pack(zlib.crc32(packed))))


def checked_end(prefix: Bytes, magic: bytes, name: str) -> int:
    """Return the number of bytes that a map takes with all that belongs to it. ``prefix``: its first 12 bytes or more.

    ``name``: that of the object, for the error. Raises ``CorruptObject``.
    """
    if len(prefix) < _PREFIX.size:
        raise CorruptObject(name, f"it ends after {len(prefix)} bytes")
    found, size = _PREFIX.unpack_from(prefix)
    if found != magic or size > MAP_BYTES_MAX:
        raise CorruptObject(name, f"it does not begin with {magic.decode()} and a length")
    end: int = _PREFIX.size + size + _CRC.size
    return end


def unpack_checked(blob: Bytes, magic: bytes, name: str) -> dict[str, Any]:
    """Return the map at the beginning of ``blob``. Raises ``CorruptObject``."""
    end = checked_end(blob, magic, name)
    view = memoryview(blob)[:end]
    packed = view[_PREFIX.size : -_CRC.size]
    if len(view) < end or zlib.crc32(packed) != int.from_bytes(view[-_CRC.size :], "big"):
        raise CorruptObject(name, f"the map after {magic.decode()} is cut short or has a wrong checksum")
    with known_format(name):
        value: dict[str, Any] = msgpack.unpackb(packed)
    return value


@contextmanager
def known_format(name: str) -> Iterator[None]:
    """Raise ``UnknownFormat`` for what a checked map lacks: its checksum shows that it is as its writer made it."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise UnknownFormat(
            f"the object {name} of the archive has a format that this release does not know: a newer one wrote it. Use "
            "that release"
        ) from error
