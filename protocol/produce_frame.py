"""PRODUCE frames with integers of fixed width: the constant parts of their heads are packed once.

A head is the two lengths and the header; a frame with one message consists mostly of it. So the client does not pack
each head again, but inserts the values that change into bytes that stay, and the broker does not unpack a head whose
other bytes it has unpacked before. Both accept any valid header; only one that is packed like this takes the short way.
"""

from __future__ import annotations

import struct

import msgpack

from .commands import LAYOUT_ROWS, PRODUCE
from .errors import SUCCESS
from .fixed_width import ARRAY_OF_4, LENGTHS_BYTES, MAPS, REQUEST_START, UINT32, UINT64, request_begin
from .frames import RESPONSE

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
