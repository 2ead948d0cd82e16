"""Loads and stores of words: big-endian, at any byte, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest

from flintmq.protocol.storage.arrays import words
from flintmq.protocol.storage.arrays.jit import INTERPRETED
from tests.twins.arrays import FENCE_ITEMS, fenced

VALUES = (
    0,
    1,
    -1,
    0x7F,
    0x80,
    0x1234,
    0x7FFF,
    -0x8000,
    0x12345678,
    -0x80000000,
    0x7FFFFFFF,
    2**63 - 1,
    -(2**63),
    0x0102030405060708,
)


def _load_all(array: np.ndarray, at: int, out: np.ndarray) -> None:
    out[0] = words.load_be16(array, at)
    out[1] = words.load_be32(array, at)
    out[2] = words.load_be64(array, at)
    out[3] = words.load_le32(array, at)
    out[4] = words.load_le64(array, at)


def _store_16(array: np.ndarray, at: int, value: int) -> None:
    words.store_be16(array, at, value)


def _store_32(array: np.ndarray, at: int, value: int) -> None:
    words.store_be32(array, at, value)


def _store_64(array: np.ndarray, at: int, value: int) -> None:
    words.store_be64(array, at, value)


def _copy(source: np.ndarray, at: int, target: np.ndarray, target_at: int, length: int) -> None:
    words.copy_bytes(source, at, target, target_at, length)


def _compiled(function: Callable[..., None]) -> Callable[..., Any]:
    """Return the function as kernels get it: compiled word functions cannot be called from Python."""
    return function if INTERPRETED else numba.njit(function)


@pytest.fixture(scope="module")
def load_all() -> Callable[..., Any]:
    return _compiled(_load_all)


@pytest.fixture(scope="module")
def copy() -> Callable[..., Any]:
    return _compiled(_copy)


@pytest.mark.parametrize("at", range(9))
def test_a_word_is_loaded_from_any_byte(load_all: Callable[..., Any], at: int) -> None:
    for value in VALUES:
        word = (value & (2**64 - 1)).to_bytes(8, "big")
        out = np.zeros(5, np.int64)
        load_all(fenced(bytes(at) + word).array, at, out)
        assert out.tolist() == [
            int.from_bytes(word[:2], "big", signed=True),
            int.from_bytes(word[:4], "big", signed=True),
            int.from_bytes(word, "big", signed=True),
            int.from_bytes(word[:4], "little"),
            int.from_bytes(word, "little", signed=True),
        ]


@pytest.mark.parametrize(("function", "width"), [(_store_16, 2), (_store_32, 4), (_store_64, 8)])
def test_a_word_is_stored_at_any_byte_and_nowhere_else(function: Callable[..., None], width: int) -> None:
    store = _compiled(function)
    for at in range(9):
        for value in VALUES:
            array = fenced(b"\x5c" * (at + width))
            store(array.array, at, value)
            assert array.bytes() == b"\x5c" * at + (value & (2 ** (8 * width) - 1)).to_bytes(width, "big")
            assert array.intact


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 31, 32, 33, 100])
def test_bytes_are_copied_from_any_byte_to_any_byte(copy: Callable[..., Any], length: int) -> None:
    source = fenced(bytes(range(7, 7 + length + 5)))
    for at, target_at in [(0, 0), (3, 0), (0, 5), (5, 3)]:
        target = fenced(b"\xee" * (target_at + length))
        copy(source.array, at, target.array, target_at, length)
        assert target.bytes() == b"\xee" * target_at + source.bytes()[at : at + length]
        assert target.intact


@pytest.mark.skipif(INTERPRETED, reason="the twins are what is tested")
def test_the_plain_twins_load_and_store_the_same(load_all: Callable[..., Any]) -> None:
    rules = ((2, "big", True), (4, "big", True), (8, "big", True), (4, "little", False), (8, "little", True))
    twins = [words._load_twin(*rule) for rule in rules]
    stores = [
        (words._store_twin(width), _compiled(store))
        for width, store in ((2, _store_16), (4, _store_32), (8, _store_64))
    ]
    for value in VALUES:
        array = fenced(b"\x11" + (value & (2**64 - 1)).to_bytes(8, "big"))
        out = np.zeros(5, np.int64)
        load_all(array.array, 1, out)
        assert [twin(array.array, 1) for twin in twins] == out.tolist()
        for twin, compiled in stores:
            plain, machine = fenced(bytes(10)), fenced(bytes(10))
            twin(plain.array, 2, value)
            compiled(machine.array, 2, value)
            assert plain.bytes() == machine.bytes()
    plain, machine = fenced(bytes(10)), fenced(bytes(10))
    words._copy_twin(array.array, 1, plain.array, 3, 7)
    _compiled(_copy)(array.array, 1, machine.array, 3, 7)
    assert plain.bytes() == machine.bytes()


def test_a_fenced_array_notices_writes_beside_it() -> None:
    for place in (-1, 4, -FENCE_ITEMS, 4 + FENCE_ITEMS - 1):
        array = fenced(b"\x01\x02\x03\x04")
        assert array.intact
        array._buffer[FENCE_ITEMS + place] ^= 1
        assert not array.intact


@pytest.mark.skipif(not INTERPRETED, reason="compiled kernels check no bounds; test_kernel_interpreted runs this")
def test_an_index_outside_an_array_raises_in_interpreted_kernels() -> None:
    array = fenced(b"\x01\x02\x03\x04").array
    for at in (-1, 1, 4):
        with pytest.raises(IndexError):
            words.load_be32(array, at)
        with pytest.raises(IndexError):
            words.store_be32(array, at, 0)
        with pytest.raises(IndexError):
            words.copy_bytes(array, at, array, 0, 4)
    table = fenced(np.zeros((2, 3), np.int64), np.int64).array
    for index in ((2, 0), (-1, 0), (0, 3), (0, -1)):
        with pytest.raises(IndexError):
            table[index]
