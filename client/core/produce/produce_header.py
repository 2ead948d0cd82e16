"""The heads of PRODUCE frames: the constant parts are packed once, the changing ones are inserted.

A frame with one message is mostly head, so packing the head each time would cost more than the message.
"""

from __future__ import annotations

import struct

import msgpack

from ....protocol.commands import LAYOUT_ROWS, PRODUCE
from ....protocol.frames import REQUEST
from .route import ANY_QUEUE

# Integers of fixed width, so that all heads have the same size and only the values change.
_UINT32 = b"\xce"
_UINT64 = b"\xcf"
_FIXED_ARRAY_OF_4 = b"\x94"
_FIXED_MAP = 0x80
_FIELDS_THAT_CHANGE = 3
_LENGTHS_BYTES = 8


class ProduceHead:
    """Heads of PRODUCE requests that differ only in request id, count, unique_first and born_ms.

    ``size``: bytes of each head, including the two lengths before it. ``flush``, ``common`` and ``prepare``: as in
    ``ProduceRequest``.
    """

    __slots__ = ("_before_born", "_before_count", "_before_first", "_begin", "_pack", "common", "size")

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
        pack = msgpack.packb
        self._begin: bytes = _FIXED_ARRAY_OF_4 + pack(REQUEST) + pack(PRODUCE.code) + _UINT32
        count = bytes([_FIXED_MAP | len(fixed) + _FIELDS_THAT_CHANGE])
        pairs = b"".join(pack(name) + pack(value) for name, value in fixed.items())
        self._before_count: bytes = count + pairs + pack("count") + _UINT32
        self._before_first: bytes = pack("unique_first") + _UINT64
        self._before_born: bytes = pack("born_ms") + _UINT64
        parts = (self._begin, self._before_count, self._before_first, self._before_born)
        layout_of_head = struct.Struct(">II{}sI{}sI{}sQ{}sQ".format(*map(len, parts)))
        self._pack = layout_of_head.pack
        self.size = layout_of_head.size

    def encode(self, request_id: int, count: int, first: int, born_ms: int, body_bytes: int) -> bytes:
        """Return all bytes of a frame that come before its body of ``body_bytes`` bytes."""
        header_bytes = self.size - _LENGTHS_BYTES
        return self._pack(
            4 + header_bytes + body_bytes,
            header_bytes,
            self._begin,
            request_id,
            self._before_count,
            count,
            self._before_first,
            first,
            self._before_born,
            born_ms,
        )
