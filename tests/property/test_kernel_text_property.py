"""Text and checksums of any bytes, compared with Python's decoder, ``protocol.javahash`` and zlib."""

from __future__ import annotations

import zlib

from hypothesis import given
from hypothesis import strategies as st

from flintmq.broker.kernels import produce, text
from flintmq.protocol.storage.arrays.crc32 import crc32
from flintmq.protocol.storage.javahash import java_hash
from tests.twins.arrays import SENTINELS, examples, fenced
from tests.twins.produce import text_problem

sentinels = st.sampled_from(SENTINELS)
rough = st.lists(
    st.one_of(
        st.sampled_from([b"abcdefgh", b"\x01", b"\x02", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xed\xa0"]),
        st.characters(exclude_categories=["Cs"]).map(str.encode),
    ),
    max_size=9,
).map(b"".join)
blobs = st.one_of(
    st.binary(max_size=60), rough, st.text(st.characters(exclude_categories=["Cs"]), max_size=30).map(str.encode)
)


@given(blobs, st.binary(max_size=9), st.binary(max_size=9), sentinels)
@examples(300)
def test_any_bytes_are_judged_hashed_and_summed_like_python(
    blob: bytes, before: bytes, behind: bytes, sentinel: int
) -> None:
    array = fenced(before + blob + behind, sentinel=sentinel)
    at, end = len(before), len(before) + len(blob)
    expected = {
        produce.OK: text.TEXT_OK,
        produce.NOT_UTF8: text.TEXT_NOT_UTF8,
        produce.HAS_SEPARATOR: text.TEXT_SEPARATOR,
    }
    assert text.text_status(array.array, at, end) == expected[text_problem(blob)]
    assert text.java_hash(array.array, at, end) == java_hash(blob.decode("utf-8", "replace"))
    assert crc32(array.array, at, end) == zlib.crc32(blob)
    assert array.bytes() == before + blob + behind
    assert array.intact
