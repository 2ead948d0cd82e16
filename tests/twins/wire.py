"""msgpack in every form that its specification allows, not only the shortest, which is the only one that packers
write."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

# The marker byte and the struct code of the following number, from the specification's table of formats.
BIN_FORMS = ((0xC4, "B"), (0xC5, "H"), (0xC6, "I"))
STR_FORMS = ((0xD9, "B"), (0xDA, "H"), (0xDB, "I"))
ARRAY_FORMS = ((0xDC, "H"), (0xDD, "I"))
MAP_FORMS = ((0xDE, "H"), (0xDF, "I"))
INT_FORMS = ((0xCC, "B"), (0xCD, "H"), (0xCE, "I"), (0xCF, "Q"), (0xD0, "b"), (0xD1, "h"), (0xD2, "i"), (0xD3, "q"))
NIL = b"\xc0"


def _wide(forms: Sequence[tuple[int, str]], number: int) -> list[bytes]:
    encoded = []
    for marker, code in forms:
        try:
            encoded.append(bytes([marker]) + struct.pack(f">{code}", number))
        except struct.error:  # it does not fit this width
            continue
    return encoded


def _heads(number: int, fixed: int, fixed_max: int, forms: Sequence[tuple[int, str]]) -> list[bytes]:
    short = [bytes([fixed + number])] if number <= fixed_max else []
    return short + _wide(forms, number)


def bin_heads(length: int) -> list[bytes]:
    return _wide(BIN_FORMS, length)


def str_heads(length: int) -> list[bytes]:
    return _heads(length, 0xA0, 31, STR_FORMS)


def array_heads(items: int) -> list[bytes]:
    return _heads(items, 0x90, 15, ARRAY_FORMS)


def map_heads(pairs: int) -> list[bytes]:
    return _heads(pairs, 0x80, 15, MAP_FORMS)


def int_forms(value: int) -> list[bytes]:
    """Return every form of an integer."""
    short = [struct.pack("b", value)] if -32 <= value <= 127 else []
    return short + _wide(INT_FORMS, value)


class Packer:
    """Encodes values, each in a form that ``seed`` chooses; seed 0: the shortest, as a packer would.

    A str's content may be any bytes; a map keeps its order and its duplicates.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed) if seed else None

    def choose(self, forms: Sequence[bytes]) -> bytes:
        return self._random.choice(forms) if self._random else forms[0]

    def bin(self, content: bytes) -> bytes:
        return self.choose(bin_heads(len(content))) + content

    def str(self, content: bytes) -> bytes:
        return self.choose(str_heads(len(content))) + content

    def int(self, value: int) -> bytes:
        return self.choose(int_forms(value))

    def map(self, pairs: Sequence[tuple[bytes, bytes]]) -> bytes:
        return self.choose(map_heads(len(pairs))) + b"".join(self.str(name) + self.str(value) for name, value in pairs)

    def array(self, items: Sequence[bytes]) -> bytes:
        return self.choose(array_heads(len(items))) + b"".join(items)


NOT_A_BIN = [
    b"\xa1x",
    b"\x05",
    NIL,
    b"\x90",
    b"\x80",
    b"\xc2",
    b"\xcb" + bytes(8),
    b"\xc7\x00\x01",
    b"\xd4\x01x",
    b"\xc1",
    b"\xd9\x01x",
]
"""Values of every other type, and 0xC1, which is not a value."""
NOT_A_MAP = [b"\xa1x", b"\x05", NIL, b"\x90", b"\xc4\x00", b"\xc3", b"\xca" + bytes(4), b"\xc1", b"\xdc\x00\x00"]
NOT_A_STR = [b"\xc4\x01x", b"\x05", NIL, b"\x90", b"\x80", b"\xc2", b"\xc8\x00\x00\x01", b"\xc1"]
NOT_AN_INT = [
    b"\xa11",
    b"\xc4\x011",
    NIL,
    b"\x90",
    b"\x80",
    b"\xc2",
    b"\xc3",
    b"\xcb" + struct.pack(">d", 1.0),
    b"\xd4\x01x",
    b"\xc1",
]
NOT_AN_ARRAY = [b"\xa1x", b"\x05", NIL, b"\x82", b"\xc4\x02xx", b"\xc2", b"\xde\x00\x02", b"\xc1", b"\xd9\x02xx"]
