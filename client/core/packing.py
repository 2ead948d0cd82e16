"""The bodies of PRODUCE frames: messages packed as rows or as columns, and cut into frames.

Rows carry properties per message; columns carry only bodies and keys, and cost a tenth of the time. Layouts:
``flintmq.protocol.commands``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import msgpack

from ...protocol.commands import LAYOUT_COLUMNS, LAYOUT_ROWS
from ...protocol.record import PROPERTY_KEYS
from ..message import Message, Row, bodies_of, rows_of
from .compression import Compressor

FRAME_BYTES_TARGET = 192 * 1024
"""Where a frame of many messages is cut: large enough that its cost per message vanishes, small enough for the broker's
caches and for others who wait behind it."""
FRAME_COUNT_MAX = 4096
_LOOK_AT_FIRST = 512
ROW_OVERHEAD_BYTES = 48
"""What a message takes in a frame beside its body, roughly; only the packed size decides."""
HEAD_BYTES_RESERVED = 1024
"""Room in a frame for its lengths and header, beside the properties that are common to its messages."""


class Rows:
    """Messages packed one by one."""

    __slots__ = ("rows",)
    layout = LAYOUT_ROWS

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def pack(self, packer: Any) -> bytes | memoryview:
        """The frame's body. ``packer``: a ``msgpack.Packer`` that no other thread uses meanwhile."""
        return _pack_rows(self.rows, packer)

    def cut(self, at: int) -> tuple[Rows, Rows]:
        """The messages in front of message ``at``, and the others."""
        return Rows(self.rows[:at]), Rows(self.rows[at:])


class MessageRows:
    """Messages as they are, packed one by one. Their rows are made for packing only, and gone before the answer comes:
    thousands of them would keep the garbage collector busy."""

    __slots__ = ("messages",)
    layout = LAYOUT_ROWS

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = messages

    def __len__(self) -> int:
        return len(self.messages)

    def pack(self, packer: Any) -> bytes | memoryview:
        """The frame's body. ``packer``: a ``msgpack.Packer`` that no other thread uses meanwhile."""
        return _pack_rows(rows_of(self.messages), packer)

    def cut(self, at: int) -> tuple[MessageRows, MessageRows]:
        """The messages in front of message ``at``, and the others."""
        return MessageRows(self.messages[:at]), MessageRows(self.messages[at:])


class Columns:
    """Bodies, and a KEYS value or None for each."""

    __slots__ = ("bodies", "keys")
    layout = LAYOUT_COLUMNS

    def __init__(self, bodies: Sequence[bytes], keys: Sequence[str | None] | None) -> None:
        self.bodies = bodies
        self.keys = keys

    def __len__(self) -> int:
        return len(self.bodies)

    def pack(self, packer: Any) -> bytes | memoryview:
        """The frame's body. ``packer``: a ``msgpack.Packer`` that no other thread uses meanwhile."""
        bodies: bytes = packer.pack(self.bodies)
        keys: bytes = packer.pack(self.keys if self.keys is not None else [None] * len(self.bodies))
        return bodies + keys

    def cut(self, at: int) -> tuple[Columns, Columns]:
        """The messages in front of message ``at``, and the others."""
        keys = self.keys
        return (
            Columns(self.bodies[:at], keys[:at] if keys is not None else None),
            Columns(self.bodies[at:], keys[at:] if keys is not None else None),
        )


Content: TypeAlias = Rows | MessageRows | Columns


def _pack_rows(rows: Sequence[Row], packer: Any) -> bytes | memoryview:
    if len(rows) == 1:
        return packer.pack(rows[0])  # type: ignore[no-any-return]
    # Packed in one go as an array, whose head is left out.
    return memoryview(packer.pack(rows))[_array_head_bytes(len(rows)) :]


def _array_head_bytes(count: int) -> int:
    """How many bytes msgpack writes in front of an array of ``count`` items."""
    if count < 16:
        return 1
    return 3 if count < 65_536 else 5


def new_packer() -> Any:
    """A packer as ``Content.pack`` needs it; not safe for two threads at once."""
    return msgpack.Packer(autoreset=True)


def count_that_fits(bodies: Sequence[bytes], bytes_target: int) -> int:
    """How many of ``bodies`` make a frame of about ``bytes_target`` bytes: at least 1 of at least 1."""
    totals = list(accumulate(map(len, bodies)))
    fitting = bisect_right(range(len(totals)), bytes_target, key=lambda at: totals[at] + ROW_OVERHEAD_BYTES * (at + 1))
    return max(1, fitting)


class _Source:
    """The messages of one call, handed out a frame's worth at a time; bodies are compressed then.

    Each time it looks at about as many messages as the last frame took.
    """

    __slots__ = ("_at", "_compressor", "_count", "_look_at")

    def __init__(self, count: int, compressor: Compressor) -> None:
        self._count = count
        self._compressor = compressor
        self._at = 0
        self._look_at = _LOOK_AT_FIRST

    @property
    def left(self) -> int:
        """Messages not handed out yet."""
        return self._count - self._at

    def _advance(self, count: int, looked_at: int) -> None:
        self._at += count
        self._look_at = min(FRAME_COUNT_MAX, 4 * looked_at if count == looked_at else count + count // 8 + 8)

    def _must_compress(self, bodies: Sequence[bytes]) -> bool:
        over_bytes = self._compressor.over_bytes
        return over_bytes is not None and max(map(len, bodies)) > over_bytes


class RowSource(_Source):
    """The messages of a ``send_many``."""

    __slots__ = ("_messages",)

    def __init__(self, messages: list[Message], compressor: Compressor) -> None:
        super().__init__(len(messages), compressor)
        self._messages = messages

    def take(self, bytes_target: int, count_max: int = FRAME_COUNT_MAX) -> Content:
        """The next messages that make a frame of about that size, at most ``count_max``; there must be some left."""
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
    """The messages of a ``send_bulk``. ``keys``: a KEYS value or None for each body, or None."""

    __slots__ = ("_bodies", "_keys")

    def __init__(self, bodies: list[bytes], keys: list[str | None] | None, compressor: Compressor) -> None:
        super().__init__(len(bodies), compressor)
        self._bodies = bodies
        self._keys = keys

    def take(self, bytes_target: int, count_max: int = FRAME_COUNT_MAX) -> Content:
        """The next messages that make a frame of about that size, at most ``count_max``; as rows if one of them is
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
    """As many of ``rows`` as make a frame of about ``bytes_target`` bytes once their long bodies are compressed."""
    packed: list[Row] = []
    total = 0
    for body, properties in rows:
        body, sys_flag = compressor.compress(body)
        total += len(body) + ROW_OVERHEAD_BYTES
        if packed and total > bytes_target:
            break
        packed.append((body, properties, sys_flag) if sys_flag else (body, properties))
    return packed
