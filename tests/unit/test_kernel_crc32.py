"""CRC-32 is zlib's, from any byte to any byte."""

from __future__ import annotations

import random
import zlib

import pytest

from flintmq.broker.kernels.crc32 import crc32
from tests.twins.arrays import SENTINELS, fenced


@pytest.mark.parametrize("length", [*range(40), 255, 256, 1000, 4096])
@pytest.mark.parametrize("at", [0, 1, 3])
def test_it_is_zlibs(length: int, at: int) -> None:
    blob = random.Random(length).randbytes(at + length + 2)
    for sentinel in SENTINELS[::2]:
        array = fenced(blob, sentinel=sentinel)
        assert crc32(array.array, at, at + length) == zlib.crc32(blob[at : at + length])
        assert array.bytes() == blob
        assert array.intact


@pytest.mark.parametrize(
    ("blob", "expected"), [(b"", 0), (b"123456789", 0xCBF43926), (b"\x00" * 32, 0x190A55AD), (b"\xff" * 32, 0xFF6CAB0B)]
)
def test_it_has_the_values_of_the_specification(blob: bytes, expected: int) -> None:
    assert crc32(fenced(blob).array, 0, len(blob)) == expected
