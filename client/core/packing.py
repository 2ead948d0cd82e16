"""The bodies of PRODUCE frames: messages packed as rows or as columns, and cut into frames.

Rows carry properties per message; columns carry only bodies and keys, and cost a tenth of the time. Layouts:
``flintmq.protocol.commands``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import msgpack

from ...protocol.commands import LAYOUT_COLUMNS, LAYOUT_ROWS
from ...protocol.record import PROPERTY_KEYS
from .compression import Compressor

Row: TypeAlias = tuple[Any, ...]
"""``(body, properties)`` or ``(body, properties, sys_flag)``."""

FRAME_BYTES_TARGET = 192 * 1024
"""Where a frame of many messages is cut: large enough that its cost per message vanishes, small enough for the broker's
caches and for others who wait behind it."""
FRAME_COUNT_MAX = 4096
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
        rows = self.rows
        if len(rows) == 1:
            return packer.pack(rows[0])  # type: ignore[no-any-return]
        return memoryview(packer.pack(rows))[_array_head_bytes(len(rows)) :]

    def halves(self) -> tuple[Rows, Rows]:
        """The first and the second half of at least two messages."""
        middle = len(self.rows) // 2
        return Rows(self.rows[:middle]), Rows(self.rows[middle:])


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

    def halves(self) -> tuple[Columns, Columns]:
        """The first and the second half of at least two messages."""
        middle = len(self.bodies) // 2
        keys = self.keys
        return (
            Columns(self.bodies[:middle], keys[:middle] if keys is not None else None),
            Columns(self.bodies[middle:], keys[middle:] if keys is not None else None),
        )


Content: TypeAlias = Rows | Columns


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
    sizes = list(map(len, bodies))
    if sum(sizes) + ROW_OVERHEAD_BYTES * len(sizes) <= bytes_target:
        return len(sizes)
    for count, total in enumerate(accumulate(sizes)):
        if total + ROW_OVERHEAD_BYTES * (count + 1) > bytes_target:
            return max(1, count)
    return len(sizes)


class RowSource:
    """The messages of a ``send_many``, handed out a frame's worth at a time.

    ``rows``: ``(body, properties)`` of each message; bodies are compressed when their frame is made.
    """

    __slots__ = ("_at", "_compressor", "_rows")

    def __init__(self, rows: list[Row], compressor: Compressor) -> None:
        self._rows = rows
        self._compressor = compressor
        self._at = 0

    @property
    def left(self) -> int:
        """Messages not handed out yet."""
        return len(self._rows) - self._at

    def take(self, bytes_target: int) -> Rows:
        """The next messages that make a frame of about that size; there must be some left."""
        rows = self._rows[self._at : self._at + FRAME_COUNT_MAX]
        bodies = [row[0] for row in rows]
        if _longest(bodies, self._compressor.over_bytes):
            rows = compress_rows(rows, bytes_target, self._compressor)
        else:
            del rows[count_that_fits(bodies, bytes_target) :]
        self._at += len(rows)
        return Rows(rows)


class ColumnSource:
    """The messages of a ``send_bulk``; see ``RowSource``. ``keys``: a KEYS value or None for each body, or None."""

    __slots__ = ("_at", "_bodies", "_compressor", "_keys")

    def __init__(self, bodies: list[bytes], keys: list[str | None] | None, compressor: Compressor) -> None:
        self._bodies = bodies
        self._keys = keys
        self._compressor = compressor
        self._at = 0

    @property
    def left(self) -> int:
        """Messages not handed out yet."""
        return len(self._bodies) - self._at

    def take(self, bytes_target: int) -> Content:
        """The next messages that make a frame of about that size, as rows where one of them is compressed."""
        at = self._at
        bodies = self._bodies[at : at + FRAME_COUNT_MAX]
        keys = self._keys[at : at + FRAME_COUNT_MAX] if self._keys is not None else None
        if _longest(bodies, self._compressor.over_bytes):
            rows: list[Row] = [
                (body, {PROPERTY_KEYS: key} if key else {})
                for body, key in zip(bodies, keys or [None] * len(bodies), strict=True)
            ]
            rows = compress_rows(rows, bytes_target, self._compressor)
            self._at += len(rows)
            return Rows(rows)
        count = count_that_fits(bodies, bytes_target)
        self._at += count
        if count == len(bodies):
            return Columns(bodies, keys)
        return Columns(bodies[:count], keys[:count] if keys is not None else None)


def _longest(bodies: list[bytes], over_bytes: int | None) -> bool:
    return over_bytes is not None and max(map(len, bodies)) > over_bytes


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
