"""PULL frames with integers of fixed width, whose heads are packed and unpacked in one step.

A request for the next messages differs from the one before only in its id and its offset, and a response with few
records consists mostly of its head. Both ends accept any valid head; only one that is packed like this takes a short
way. A response that also says how many messages were lost is packed the general way.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import msgpack

from .commands import PULL, RecordsAnswer
from .errors import PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY, SUCCESS
from .fields import I64_MAX
from .fixed_width import ARRAY_OF_4, LENGTHS_BYTES, MAPS, REQUEST_START, UINT32, UINT64, request_begin
from .frames import RESPONSE

_pack = msgpack.packb

PULL_BEGIN = request_begin(PULL.code)
PULL_END = struct.Struct(">Q")
"""Last part of a request's head: the offset."""


class PullHead:
    """Heads of PULL requests that differ only in request id and offset.

    ``size``: bytes of each head, including the two lengths before it. ``fixed``: the bytes between ``REQUEST_START``
    and ``PULL_END``.
    """

    __slots__ = ("_pack", "fixed", "size")

    def __init__(self, fields: Mapping[str, str | int]) -> None:
        """``fields``: those of ``PullRequest`` that differ from their default, except the offset."""
        pairs = b"".join(_pack(name) + _pack(value) for name, value in fields.items())
        self.fixed: bytes = MAPS[len(fields) + 1] + pairs + _pack("offset") + UINT64
        head = struct.Struct(f"{REQUEST_START.format}{len(self.fixed)}s{PULL_END.format[1:]}")
        self._pack = head.pack
        self.size = head.size

    def encode(self, request_id: int, offset: int) -> bytes:
        """Return a whole frame."""
        return self._pack(self.size - 4, self.size - LENGTHS_BYTES, PULL_BEGIN, request_id, self.fixed, offset)


class PullFields(dict[str, Any]):
    """The fields of a PULL request, with the head that packs them."""

    __slots__ = ("head",)

    def __init__(self, others: Mapping[str, Any], head: PullHead, offset: int) -> None:
        super().__init__(others, offset=offset)
        self.head = head

    def encode(self, request_id: int) -> bytes:
        """Return a whole frame."""
        return self.head.encode(request_id, self["offset"])


_COUNT = MAPS[4] + _pack("count") + UINT32
_NEXT = _pack("next_offset") + UINT64
_MIN = _pack("min_offset") + UINT64
_MAX = _pack("max_offset") + UINT64
_BEGINS = {
    code: ARRAY_OF_4 + _pack(RESPONSE) + _pack(code) + UINT32
    for code in (SUCCESS, PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY)
}
"""Bytes of a response's header before the request id, by code; all have the same length."""
_CODES = {begin: code for code, begin in _BEGINS.items()}
_HEAD = struct.Struct(f">II{len(_BEGINS[SUCCESS])}sI{len(_COUNT)}sI{len(_NEXT)}sQ{len(_MIN)}sQ{len(_MAX)}sQ")
_HEADER_BYTES = _HEAD.size - LENGTHS_BYTES


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


def decode_records_head(buffer: bytearray, start: int, end: int) -> tuple[int, int, RecordsAnswer, int] | None:
    """Return (code, request id, fields, position of the body) of the response to a PULL in ``buffer[start:end]``.

    None if the bytes are anything else, which may be as valid.
    """
    if end - start < _HEAD.size:
        return None
    length, header, begin, request_id, a, count, b, next_offset, c, min_offset, d, max_offset = _HEAD.unpack_from(
        buffer, start
    )
    code = _CODES.get(begin)
    if code is None or (length, header, a, b, c, d) != (end - start - 4, _HEADER_BYTES, _COUNT, _NEXT, _MIN, _MAX):
        return None
    if next_offset > I64_MAX or min_offset > I64_MAX or max_offset > I64_MAX:
        return None
    return code, request_id, RecordsAnswer(count, next_offset, min_offset, max_offset), start + _HEAD.size
