"""UTF-8 and Java's string hash, compared with Python's decoder and with values computed by Java."""

from __future__ import annotations

import itertools

import pytest

from flintmq.broker.kernels import text as kernel
from flintmq.protocol.storage.arrays.jit import INTERPRETED
from flintmq.protocol.storage.javahash import java_hash
from tests.twins.arrays import fenced
from tests.twins.produce import text_problem

JAVA_HASHES = {
    "": 0,
    "a": 97,
    "Aa": 2112,
    "BB": 2112,
    "hello": 99162322,
    "Hello, World!": 1498789909,
    "polygenelubricants": -(2**31),
    "The quick brown fox jumps over the lazy dog": -609428141,
    "TagA": 2598919,
    "TagA||TagB": 1789476431,
    "CompatTopic#key-17": 1491761898,
    "é": 233,
    "你好": 652829,
    "日本語": 25921943,
    "äöüß": 7036789,
    "😀": 1772899,
    "a😀b": 57849694,
    "\U0001d11e\U0010ffff": 1705073866,
    "\0": 0,
    "\u07ff\u0800\uffff": 2096190,
    "Привет, мир": -182151000,
}
"""``hashCode`` of OpenJDK 17."""

JAVA_HASHES_OF_MALFORMED = {
    "80": 65533,
    "ff": 65533,
    "c0af": 2097056,
    "c280c2": 69501,
    "e280": 65533,
    "e28061": 2031620,
    "f0808080": 2017367872,
    "f48fbfbf": 1803232,
    "f4908080": 2017367872,
    "f0908080": 1770496,
    "61e0a061": 2124837,
    "f09f98": 65533,
    "f09f9862": 2031621,
    "fe80bf": 65074269,
    "c3c3a9": 2031756,
    "e2e282ac": 2039887,
    "f0f09f9880": 64750112,
    "ed9fbf": 55295,
}
"""``new String(bytes, UTF_8).hashCode()`` of OpenJDK 17."""


def hash_of(blob: bytes, before: bytes = b"", behind: bytes = b"") -> int:
    """Return the kernel's hash of ``blob``, with other bytes around it."""
    array = fenced(before + blob + behind)
    return int(kernel.java_hash(array.array, len(before), len(before) + len(blob)))


@pytest.mark.parametrize(("text", "expected"), JAVA_HASHES.items())
def test_the_hash_equals_javas(text: str, expected: int) -> None:
    assert java_hash(text) == expected
    for before in (b"", b"x", b"\xe9\xff\x80"):
        assert hash_of(text.encode(), before, b"\x80\xbf") == expected


@pytest.mark.parametrize(("digits", "expected"), JAVA_HASHES_OF_MALFORMED.items())
def test_malformed_bytes_count_as_java_decodes_them(digits: str, expected: int) -> None:
    blob = bytes.fromhex(digits)
    assert java_hash(blob.decode("utf-8", "replace")) == expected
    assert hash_of(blob) == expected
    assert hash_of(b"abcd" + blob) == java_hash("abcd" + blob.decode("utf-8", "replace"))


EDGES = list(bytes.fromhex("00 01 02 41 7f 80 8f 90 9f a0 bf c0 c1 c2 df e0 e1 ec ed ee ef f0 f1 f3 f4 f5 ff"))
"""The bytes at which the rules of UTF-8 change."""


@pytest.mark.parametrize("first", EDGES)
def test_every_sequence_of_edges_is_judged_as_python_judges_it(first: int) -> None:
    edges = EDGES[:: 3 if INTERPRETED else 1]
    array = fenced(bytes(11))
    problems = {kernel.TEXT_OK: 0, kernel.TEXT_NOT_UTF8: 6, kernel.TEXT_SEPARATOR: 7}
    for rest in itertools.product(edges, repeat=2):
        for last in (0x41, 0x80, 0xBF):
            blob = bytes([first, *rest, last])
            array.array[3:7] = list(blob)
            status = kernel.text_status(array.array, 3, 7)
            assert problems[status] == text_problem(blob), blob
            assert kernel.java_hash(array.array, 3, 7) == java_hash(blob.decode("utf-8", "replace")), blob
