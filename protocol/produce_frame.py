"""PRODUCE frames with integers of fixed width: the constant parts of their heads are packed once.

A head is the two lengths and the header; a frame with one message consists mostly of it. So the client does not pack
each head again, but inserts the values that change into bytes that stay, and the broker does not unpack a head whose
other bytes it has unpacked before. Both accept any valid header; only one that is packed like this takes the short way.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import msgpack

from .commands import LAYOUT_ROWS, PRODUCE, PULL, RecordsAnswer
from .errors import PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY, SUCCESS
from .fields import I64_MAX
from .frames import REQUEST, RESPONSE

# ---- Pieces of msgpack headers whose integers have fixed widths, so that all headers of a kind have the same
# size.

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

ANY_QUEUE = -1
"""Queue of a request for which the broker chooses the queue."""

_FIELDS_THAT_CHANGE = 3
_pack = msgpack.packb

PRODUCE_BEGIN = request_begin(PRODUCE.code)
BEFORE_FIRST: bytes = _pack("unique_first") + UINT64
BEFORE_BORN: bytes = _pack("born_ms") + UINT64
HEAD_END = struct.Struct(f">I{len(BEFORE_FIRST)}sQ{len(BEFORE_BORN)}sQ")
"""Last part of a head: count, ``BEFORE_FIRST``, unique_first, ``BEFORE_BORN``, born_ms."""


class ProduceHead:
    """Heads of PRODUCE requests that differ only in request id, count, unique_first and born_ms.

    ``size``: bytes of each head, including the two lengths before it. ``fixed``: the bytes between ``REQUEST_START``
    and ``HEAD_END``. ``flush``, ``common`` and ``prepare``: as in ``ProduceRequest``.
    """

    __slots__ = ("_pack", "common", "fixed", "size")

    def __init__(
        self, topic: str, queue: int, layout: int, flush: str, common: str, unique_prefix: str, prepare: str = ""
    ) -> None:
        self.common = common
        fixed: dict[str, str | int] = {"topic": topic, "unique_prefix": unique_prefix}
        if queue != ANY_QUEUE:
            fixed["queue"] = queue
        if layout != LAYOUT_ROWS:
            fixed["layout"] = layout
        if flush:
            fixed["flush"] = flush
        if common:
            fixed["common"] = common
        if prepare:
            fixed["prepare"] = prepare
        count = MAPS[len(fixed) + _FIELDS_THAT_CHANGE]
        pairs = b"".join(_pack(name) + _pack(value) for name, value in fixed.items())
        self.fixed: bytes = count + pairs + _pack("count") + UINT32
        layout_of_head = struct.Struct(f"{REQUEST_START.format}{len(self.fixed)}s{HEAD_END.format[1:]}")
        self._pack = layout_of_head.pack
        self.size = layout_of_head.size

    def encode(self, request_id: int, count: int, first: int, born_ms: int, body_bytes: int) -> bytes:
        """Return all bytes of a frame that come before its body of ``body_bytes`` bytes."""
        header_bytes = self.size - LENGTHS_BYTES
        return self._pack(
            4 + header_bytes + body_bytes,
            header_bytes,
            PRODUCE_BEGIN,
            request_id,
            self.fixed,
            count,
            BEFORE_FIRST,
            first,
            BEFORE_BORN,
            born_ms,
        )


_ANSWER_BEGIN: bytes = ARRAY_OF_4 + _pack(RESPONSE) + _pack(SUCCESS) + UINT32
_ANSWER_QUEUE: bytes = MAPS[3] + _pack("queue") + UINT32
_ANSWER_OFFSET: bytes = _pack("queue_offset") + UINT64
_ANSWER_STORED: bytes = _pack("store_ms") + UINT64
_ANSWER_HEAD = f">II{len(_ANSWER_BEGIN)}sI{len(_ANSWER_QUEUE)}sI{len(_ANSWER_OFFSET)}sQ{len(_ANSWER_STORED)}sQ"
_ANSWER = struct.Struct(_ANSWER_HEAD)
_ANSWER_OF_ONE = struct.Struct(_ANSWER_HEAD + "q")
_ANSWER_HEADER_BYTES = _ANSWER.size - LENGTHS_BYTES
_CONSTANT_OF_ONE = (
    _ANSWER_OF_ONE.size - 4,
    _ANSWER_HEADER_BYTES,
    _ANSWER_BEGIN,
    _ANSWER_QUEUE,
    _ANSWER_OFFSET,
    _ANSWER_STORED,
)


def encode_produce_answer(
    request_id: int, queue: int, queue_offset: int, store_ms: int, physical_offsets: bytes | bytearray
) -> bytes:
    """Return the response to a PRODUCE: fields as in ``ProduceAnswer``, and count × i64 physical offsets."""
    head = _ANSWER.pack(
        4 + _ANSWER_HEADER_BYTES + len(physical_offsets),
        _ANSWER_HEADER_BYTES,
        _ANSWER_BEGIN,
        request_id,
        _ANSWER_QUEUE,
        queue,
        _ANSWER_OFFSET,
        queue_offset,
        _ANSWER_STORED,
        store_ms,
    )
    return head + physical_offsets


def decode_answer_of_one(buffer: bytearray, start: int, end: int) -> tuple[int, int, int, int, int] | None:
    """Return (request id, queue, queue offset, store_ms, physical offset) of the response to a PRODUCE of one message.

    None if ``buffer[start:end]`` is anything else, which may be as valid.
    """
    if end - start != _ANSWER_OF_ONE.size:
        return None
    length, header, begin, request_id, a, queue, b, queue_offset, c, store_ms, at = _ANSWER_OF_ONE.unpack_from(
        buffer, start
    )
    if (length, header, begin, a, b, c) != _CONSTANT_OF_ONE:
        return None
    return request_id, queue, queue_offset, store_ms, at


# ---- PULL frames with integers of fixed width, whose heads are packed and unpacked in one step.
#
# A request for the next messages differs from the one before only in its id and its offset, and a response
# with few records consists mostly of its head. Both ends accept any valid head; only one that is packed like
# this takes a short way. A response that also says how many messages were lost is packed the general way.

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
