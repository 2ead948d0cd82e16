"""Pieces of msgpack headers whose integers have fixed widths, so that all headers of a kind have the same size."""

from __future__ import annotations

import struct

import msgpack

from .frames import REQUEST

UINT32 = b"\xce"
UINT64 = b"\xcf"
ARRAY_OF_4 = b"\x94"
LENGTHS_BYTES = 8
"""Size of the frame length and the header length, which precede each header."""
REQUEST_BEGIN_BYTES = 4

MAPS = tuple(bytes([0x80 | count]) for count in range(16))
"""First byte of a map, by its number of pairs."""


def request_begin(code: int) -> bytes:
    """Return the bytes of a request's header before its id, for a command with a code below 128."""
    begin: bytes = ARRAY_OF_4 + msgpack.packb(REQUEST) + msgpack.packb(code) + UINT32
    assert len(begin) == REQUEST_BEGIN_BYTES
    return begin


REQUEST_START = struct.Struct(f">II{REQUEST_BEGIN_BYTES}sI")
"""First part of the head of any request: frame length, header length, ``request_begin``, request id."""
