"""Loads and stores of whole words at any byte of an array.

Compiled, each is one unaligned machine access with a byte swap; interpreted, its twin below does the same with
``int.from_bytes``. Results are signed 64-bit integers, like everything in the kernels. Bounds are not checked: the
caller must do that first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from .jit import are_plain, inlined

if sys.byteorder != "little":  # the intrinsics below swap bytes
    raise ImportError("FlintMQ's kernels support only little-endian machines")


def _load_twin(width: int, order: str, signed: bool) -> Callable[[Any, int], int]:
    def load(array: Any, at: int) -> int:
        return int.from_bytes(array[at : at + width].tobytes(), order, signed=signed)

    return load


def _store_twin(width: int) -> Callable[[Any, int, int], None]:
    mask = (1 << 8 * width) - 1

    def store(array: Any, at: int, value: int) -> None:
        array[at : at + width] = list((int(value) & mask).to_bytes(width, "big"))

    return store


def _copy_twin(source: Any, at: int, target: Any, target_at: int, length: int) -> None:
    target[target_at : target_at + length] = source[at : at + length]


if are_plain():
    copy_bytes = _copy_twin
    load_be16 = _load_twin(2, "big", True)
    load_be32 = _load_twin(4, "big", True)
    load_be64 = _load_twin(8, "big", True)
    load_le32 = _load_twin(4, "little", False)
    load_le64 = _load_twin(8, "little", True)
    store_be16 = _store_twin(2)
    store_be32 = _store_twin(4)
    store_be64 = _store_twin(8)
else:
    from llvmlite import ir
    from numba import types
    from numba.core.cgutils import raw_memcpy
    from numba.extending import intrinsic

    @intrinsic
    def copy_bytes(typing_context: Any, source: Any, at: Any, target: Any, target_at: Any, length: Any) -> Any:
        """Emit memcpy: a loop over bytes would be vectorised, with checks that cost more than a short copy."""

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            read = context.make_array(signature.args[0])(context, builder, args[0])
            write = context.make_array(signature.args[2])(context, builder, args[2])
            to, source_at = builder.gep(write.data, [args[3]]), builder.gep(read.data, [args[1]])
            raw_memcpy(builder, to, source_at, args[4], 1)  # type: ignore[no-untyped-call] # Numba is untyped
            return context.get_dummy_value()

        return types.void(source, types.int64, target, types.int64, types.int64), generate

    def _pointer(context: Any, builder: Any, signature: Any, args: Any, bits: int) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        return builder.bitcast(builder.gep(array.data, [args[1]]), ir.IntType(bits).as_pointer())

    def _load(bits: int, swap: bool, signed: bool) -> Any:
        @intrinsic
        def load(typing_context: Any, array: Any, at: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                word = builder.load(_pointer(context, builder, signature, args, bits))
                word.align = 1
                value = builder.bswap(word) if swap else word
                if bits == 64:
                    return value
                widen = builder.sext if signed else builder.zext
                return widen(value, ir.IntType(64))

            return types.int64(array, types.int64), generate

        return load

    def _store(bits: int) -> Any:
        @intrinsic
        def store(typing_context: Any, array: Any, at: Any, value: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                word = args[2] if bits == 64 else builder.trunc(args[2], ir.IntType(bits))
                stored = builder.store(builder.bswap(word), _pointer(context, builder, signature, args, bits))
                stored.align = 1
                return context.get_dummy_value()

            return types.void(array, types.int64, types.int64), generate

        return store

    load_be16 = _load(16, swap=True, signed=True)
    load_be32 = _load(32, swap=True, signed=True)
    load_be64 = _load(64, swap=True, signed=True)
    load_le32 = _load(32, swap=False, signed=False)
    load_le64 = _load(64, swap=False, signed=True)
    store_be16 = _store(16)
    store_be32 = _store(32)
    store_be64 = _store(64)


# ---- Search and comparison of bytes, compiled into the kernels that call them.

ONES = 0x0101010101010101
"""A word of eight bytes, each 1."""
HIGH_BITS = -0x7F7F7F7F7F7F7F80
"""The high bit of each byte: 0x8080808080808080 as a signed word."""


def text_array(text: str) -> np.ndarray:
    """Return the bytes of a name that kernels compare with."""
    return np.frombuffer(text.encode(), np.uint8)


@inlined
def find_byte(array: np.ndarray, at: int, end: int, wanted: int) -> int:
    """Return the position of the first byte of that value (0 to 127) in ``array[at:end]``, or ``end``."""
    pattern = wanted * ONES
    while at + 8 <= end:
        word = load_le64(array, at) ^ pattern
        if (word - ONES) & ~word & HIGH_BITS != 0:
            break  # one of the eight is zero: compare one by one
        at += 8
    while at < end and array[at] != wanted:
        at += 1
    return at


@inlined
def same_bytes(left: np.ndarray, left_at: int, right: np.ndarray, right_at: int, length: int) -> bool:
    """Return whether two ranges of ``length`` bytes are equal."""
    for step in range(length):  # noqa: SIM110 - a generator cannot be compiled
        if left[left_at + step] != right[right_at + step]:
            return False
    return True


@inlined
def is_name(log: np.ndarray, at: int, length: int, name: np.ndarray) -> bool:
    """Return whether the ``length`` bytes at ``at`` are ``name``."""
    return length == len(name) and same_bytes(log, at, name, 0, length)
