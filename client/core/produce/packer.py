"""The bodies of PRODUCE frames: messages packed as rows or as columns, and divided into frames.

Rows carry properties for each message; columns carry only bodies and keys, and take a tenth of the time to pack.
``flintmq.protocol.commands`` describes the layouts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import msgpack

from ....protocol.commands import LAYOUT_COLUMNS, LAYOUT_ROWS
from ....protocol.storage.record import PROPERTY_KEYS
from ...message import Message, Row, bodies_of, rows_of
from ..compression import Compressor

FRAME_BYTES_TARGET = 192 * 1024
"""Target size of a frame of many messages: large enough that the cost of the frame per message vanishes, small enough
for the broker's caches and for other clients that wait for their turn."""
FRAME_COUNT_MAX = 4096
"""Maximum number of messages in a frame."""
_LOOK_AT_FIRST = 512
ROW_OVERHEAD_BYTES = 48
"""Approximate bytes of a message in a frame besides its body; the packed size decides."""
HEAD_BYTES_RESERVED = 1024
"""Room in a frame for its lengths and header, besides the properties that its messages have in common."""


class Rows:
    """Messages packed one by one."""

    __slots__ = ("rows",)
    layout = LAYOUT_ROWS

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def pack(self, packer: Any) -> bytes | memoryview:
        """Return the frame's body. ``packer``: a ``msgpack.Packer`` that no other thread is using."""
        return _pack_rows(self.rows, packer)

    def cut(self, at: int) -> tuple[Rows, Rows]:
        """Return the messages before message ``at``, and the others."""
        return Rows(self.rows[:at]), Rows(self.rows[at:])


class MessageRows:
    """Messages packed one by one. Their rows are made only for packing and freed before the response arrives:
    thousands of rows would keep the garbage collector busy."""

    __slots__ = ("messages",)
    layout = LAYOUT_ROWS

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = messages

    def __len__(self) -> int:
        return len(self.messages)

    def pack(self, packer: Any) -> bytes | memoryview:
        """Return the frame's body. ``packer``: a ``msgpack.Packer`` that no other thread is using."""
        return _pack_rows(rows_of(self.messages), packer)

    def cut(self, at: int) -> tuple[MessageRows, MessageRows]:
        """Return the messages before message ``at``, and the others."""
        return MessageRows(self.messages[:at]), MessageRows(self.messages[at:])


class Columns:
    """Bodies, with a KEYS value or None for each."""

    __slots__ = ("bodies", "keys")
    layout = LAYOUT_COLUMNS

    def __init__(self, bodies: Sequence[bytes], keys: Sequence[str | None] | None) -> None:
        self.bodies = bodies
        self.keys = keys

    def __len__(self) -> int:
        return len(self.bodies)

    def pack(self, packer: Any) -> bytes | memoryview:
        """Return the frame's body. ``packer``: a ``msgpack.Packer`` that no other thread is using."""
        bodies: bytes = packer.pack(self.bodies)
        keys: bytes = packer.pack(self.keys if self.keys is not None else [None] * len(self.bodies))
        return bodies + keys

    def cut(self, at: int) -> tuple[Columns, Columns]:
        """Return the messages before message ``at``, and the others."""
        keys = self.keys
        return (
            Columns(self.bodies[:at], keys[:at] if keys is not None else None),
            Columns(self.bodies[at:], keys[at:] if keys is not None else None),
        )


Content: TypeAlias = Rows | MessageRows | Columns


def _pack_rows(rows: Sequence[Row], packer: Any) -> bytes | memoryview:
    if len(rows) == 1:
        return packer.pack(rows[0])  # type: ignore[no-any-return] # msgpack is untyped
    # Packing all rows as one array is faster than packing each; PRODUCE wants them without the array's head.
    return memoryview(packer.pack(rows))[_array_head_bytes(len(rows)) :]


def _array_head_bytes(count: int) -> int:
    """Return the number of bytes that msgpack writes before an array of ``count`` items."""
    if count < 16:
        return 1
    return 3 if count < 65_536 else 5


def new_packer() -> Any:
    """Return a packer for ``Content.pack``; it is not thread-safe."""
    return msgpack.Packer(autoreset=True)


def count_that_fits(bodies: Sequence[bytes], bytes_target: int) -> int:
    """Return how many of ``bodies`` make a frame of about ``bytes_target`` bytes; at least 1."""
    totals = list(accumulate(map(len, bodies)))
    fitting = bisect_right(range(len(totals)), bytes_target, key=lambda at: totals[at] + ROW_OVERHEAD_BYTES * (at + 1))
    return max(1, fitting)


class _Source:
    """The messages of one call, handed out one frame at a time; bodies are compressed at that moment.

    Each step examines about as many messages as the last frame took.
    """

    __slots__ = ("_at", "_compressor", "_count", "_look_at")

    def __init__(self, count: int, compressor: Compressor) -> None:
        self._count = count
        self._compressor = compressor
        self._at = 0
        self._look_at = _LOOK_AT_FIRST

    @property
    def left(self) -> int:
        """Number of messages not handed out yet."""
        return self._count - self._at

    def _advance(self, count: int, looked_at: int) -> None:
        self._at += count
        self._look_at = min(FRAME_COUNT_MAX, 4 * looked_at if count == looked_at else count + count // 8 + 8)

    def _must_compress(self, bodies: Sequence[bytes]) -> bool:
        over_bytes = self._compressor.over_bytes
        return over_bytes is not None and max(map(len, bodies)) > over_bytes


class RowSource(_Source):
    """The source of a ``send_many``."""

    __slots__ = ("_messages",)

    def __init__(self, messages: list[Message], compressor: Compressor) -> None:
        super().__init__(len(messages), compressor)
        self._messages = messages

    def take(self, bytes_target: int, count_max: int = FRAME_COUNT_MAX) -> Content:
        """Return the next messages for a frame of about that size, at most ``count_max``; some must be left."""
        messages = self._messages[self._at : self._at + min(self._look_at, count_max)]
        bodies = bodies_of(messages)
        content: Content
        if self._must_compress(bodies):
            content = Rows(compress_rows(rows_of(messages), bytes_target, self._compressor))
        else:
            content = MessageRows(messages[: count_that_fits(bodies, bytes_target)])
        self._advance(len(content), len(messages))
        return content


class ColumnSource(_Source):
    """The source of a ``send_bulk``. ``keys``: a KEYS value or None for each body, or None."""

    __slots__ = ("_bodies", "_keys")

    def __init__(self, bodies: list[bytes], keys: list[str | None] | None, compressor: Compressor) -> None:
        super().__init__(len(bodies), compressor)
        self._bodies = bodies
        self._keys = keys

    def take(self, bytes_target: int, count_max: int = FRAME_COUNT_MAX) -> Content:
        """Return the next messages for a frame of about that size, at most ``count_max``; as rows if one of them is
        compressed."""
        start, end = self._at, self._at + min(self._look_at, count_max)
        bodies = self._bodies[start:end]
        keys = self._keys[start:end] if self._keys is not None else None
        content: Content
        if self._must_compress(bodies):
            wires = [{PROPERTY_KEYS: key} if key else {} for key in keys or [None] * len(bodies)]
            content = Rows(compress_rows(list(zip(bodies, wires, strict=True)), bytes_target, self._compressor))
        else:
            count = count_that_fits(bodies, bytes_target)
            content = Columns(bodies[:count], keys[:count] if keys is not None else None)
        self._advance(len(content), len(bodies))
        return content


def compress_rows(rows: Sequence[Row], bytes_target: int, compressor: Compressor) -> list[Row]:
    """Compress long bodies and return as many rows as make a frame of about ``bytes_target`` bytes."""
    packed: list[Row] = []
    total = 0
    for body, properties in rows:
        body, sys_flag = compressor.compress(body)
        total += len(body) + ROW_OVERHEAD_BYTES
        if packed and total > bytes_target:
            break
        packed.append((body, properties, sys_flag) if sys_flag else (body, properties))
    return packed
