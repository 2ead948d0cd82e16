"""The CRC-32 kernel equals zlib's for every range of bytes."""

from __future__ import annotations

import random
import struct
import zlib

import pytest

from flintmq.protocol.storage.arrays.crc32 import FRESH, crc32, crc32_behind, crc32_words
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


@pytest.mark.parametrize("length", [*range(18), 255, 256, 257, 1000, 4097, 3_000_000])
@pytest.mark.parametrize("before", [b"", b"a", b"a longer text in front of it"])
def test_a_part_whose_checksum_is_known_is_put_in_without_a_look_at_it(before: bytes, length: int) -> None:
    part = random.Random(length).randbytes(length)
    state = crc32_behind(zlib.crc32(before) ^ FRESH, zlib.crc32(part), length)
    assert state ^ FRESH == zlib.crc32(before + part)


@pytest.mark.parametrize(("first", "second"), [(0, 0), (119, -626843481), (-1, 2**31 - 1)])
def test_words_that_are_not_stored_yet_are_summed_as_they_will_be(first: int, second: int) -> None:
    blob = struct.pack(">ii", first, second)
    assert crc32_words(FRESH, first, second) ^ FRESH == zlib.crc32(blob)
    assert crc32_words(zlib.crc32(b"x") ^ FRESH, first, second) ^ FRESH == zlib.crc32(b"x" + blob)
