"""Arrays that detect a kernel's accesses out of bounds.

Compiled kernels check no bounds. So the arrays of these tests are parts of larger buffers, whose other bytes are a
sentinel: a write beside an array changes it, and a read beside it returns values that the twin does not have. When the
kernels run interpreted (``NUMBA_DISABLE_JIT=1``), every access is checked too, including negative indexes, which numpy
would wrap.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from hypothesis import settings

from flintmq.protocol.storage.arrays.jit import INTERPRETED

FENCE_ITEMS = 64
SENTINELS = (0x00, 0x02, 0x20, 0x80, 0xC4, 0xFF)
"""Sentinel bytes with a meaning to a kernel that read them: an empty size, separators, UTF-8, msgpack, the last of
all."""

F = TypeVar("F", bound=Callable[..., None])


def examples(count: int) -> Callable[[F], F]:
    """Limit the number of Hypothesis examples, to a fifth of it if kernels run interpreted."""
    decorate: Callable[[F], F] = settings(max_examples=max(count // 5, 10) if INTERPRETED else count, deadline=None)
    return decorate


class BoundsChecked(np.ndarray):
    """An array that checks every index; for plain Python code only."""

    def __getitem__(self, index: Any) -> Any:
        self._check(index)
        return super().__getitem__(index)

    def __setitem__(self, index: Any, value: Any) -> None:
        self._check(index)
        super().__setitem__(index, value)

    def _check(self, index: Any) -> None:
        indexes = index if isinstance(index, tuple) else (index,)
        for item, length in zip(indexes, self.shape, strict=False):
            if isinstance(item, slice):
                begin, end = item.start or 0, length if item.stop is None else item.stop
                inside = 0 <= begin <= end <= length
            else:
                inside = 0 <= item < length
            if not inside:
                raise IndexError(f"{index} is outside an array of {self.shape}")


class Recording(BoundsChecked):
    """A bounds-checked array that notes each write: (first index, end) in ``writes``, in order; for plain Python code
    only."""

    writes: list[tuple[int, int]]

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(index, value)
        self.writes.append((index.start, index.stop) if isinstance(index, slice) else (int(index), int(index) + 1))


def recording(content: bytes) -> Recording:
    """Return an array of bytes that notes each write."""
    array = np.frombuffer(bytearray(content), np.uint8).view(Recording)
    array.writes = []
    return array


class Fenced:
    """``array``: the content inside a larger buffer; a kernel gets it. ``intact``: whether the rest is unchanged."""

    def __init__(self, content: Any, kind: Any = np.uint8, sentinel: int = 0xA5) -> None:
        items = np.frombuffer(bytes(content), np.uint8) if kind is np.uint8 else np.asarray(content, kind)
        self._fence = np.frombuffer(bytes([sentinel]) * FENCE_ITEMS * items.itemsize, kind)
        self._buffer = np.concatenate((self._fence, items.reshape(-1), self._fence))
        inner = self._buffer[FENCE_ITEMS : FENCE_ITEMS + items.size].reshape(items.shape)
        self.array: np.ndarray = inner.view(BoundsChecked) if INTERPRETED else inner

    @property
    def intact(self) -> bool:
        """Return whether nothing was written beside the array."""
        before, behind = self._buffer[:FENCE_ITEMS], self._buffer[len(self._buffer) - FENCE_ITEMS :]
        return bool((before == self._fence).all() and (behind == self._fence).all())

    def bytes(self) -> bytes:
        """Return the array's current bytes."""
        return bytes(self.array.tobytes())

    def values(self) -> list[Any]:
        """Return the array's current items."""
        values: list[Any] = np.asarray(self.array).tolist()
        return values


def fenced(content: Any, kind: Any = np.uint8, sentinel: int = 0xA5) -> Fenced:
    """Return the content as ``Fenced``, of bytes unless another kind is given."""
    return Fenced(content, kind, sentinel)


def room(items: int, kind: Any = np.uint8, sentinel: int = 0xA5) -> Fenced:
    """Return room for so many items, filled with one bits so that nothing in it looks written."""
    return Fenced(b"\xff" * items if kind is np.uint8 else np.full(items, -1), kind, sentinel)
