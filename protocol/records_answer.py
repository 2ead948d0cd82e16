"""Responses to PULL with integers of fixed width, which are packed and unpacked in one step.

A response with few records consists mostly of its head. Both ends accept any valid one; a response that also says how
many messages were lost is packed the general way.
"""

from __future__ import annotations

import struct

import msgpack

from .errors import PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY, SUCCESS
from .frames import RESPONSE

_pack = msgpack.packb
_LENGTHS_BYTES = 8
_CODES = (SUCCESS, PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY)
_COUNT = b"\x84" + _pack("count") + b"\xce"
_NEXT = _pack("next_offset") + b"\xcf"
_MIN = _pack("min_offset") + b"\xcf"
_MAX = _pack("max_offset") + b"\xcf"
_BEGINS = {code: b"\x94" + _pack(RESPONSE) + _pack(code) + b"\xce" for code in _CODES}
"""Bytes of the header before the request id, by code; all have the same length."""
_CODE_OF = {begin: code for code, begin in _BEGINS.items()}
_HEAD = struct.Struct(f">II{len(_BEGINS[SUCCESS])}sI{len(_COUNT)}sI{len(_NEXT)}sQ{len(_MIN)}sQ{len(_MAX)}sQ")
_HEADER_BYTES = _HEAD.size - _LENGTHS_BYTES
_CONSTANT = (_HEADER_BYTES, _COUNT, _NEXT, _MIN, _MAX)


def encode_records_head(
    code: int, request_id: int, count: int, next_offset: int, min_offset: int, max_offset: int, body_bytes: int
) -> bytes:
    """Return everything before the body in the response to a PULL. The values are those of ``RecordsAnswer``."""
    return _HEAD.pack(
        4 + _HEADER_BYTES + body_bytes,
        _HEADER_BYTES,
        _BEGINS[code],
        request_id,
        _COUNT,
        count,
        _NEXT,
        next_offset,
        _MIN,
        min_offset,
        _MAX,
        max_offset,
    )
