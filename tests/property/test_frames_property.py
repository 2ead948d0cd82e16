"""The frame parser on any split of any bytes."""

from __future__ import annotations

import struct
from typing import Any

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flintmq.protocol.errors import RemoteProtocolError
from flintmq.protocol.frames import INITIAL_BUFFER_BYTES, FrameParser, encode_frame

Parsed = tuple[int, int, int, dict[str, Any], bytes]

values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
    st.binary(max_size=30),
)
fields_maps = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=10),
    st.one_of(values, st.lists(values, max_size=4).map(tuple)),
    max_size=6,
)
bodies = st.one_of(st.binary(max_size=200), st.integers(0, 200_000).map(bytes))
frames = st.tuples(st.integers(0, 2), st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1), fields_maps, bodies)


def drive(parser: FrameParser, data: bytes, cuts: list[int]) -> list[Parsed]:
    """Feed ``data`` so that no read crosses a cut; return the frames with copies of their bodies."""
    parsed = []
    at = 0
    for end in [*sorted(min(cut, len(data)) for cut in cuts), len(data)]:
        while at < end:
            room = parser.writable()
            assert len(room) > 0
            count = min(len(room), end - at)
            room[:count] = data[at : at + count]
            parser.received(count)
            at += count
            while (frame := parser.next_frame()) is not None:
                parsed.append((frame.kind, frame.code, frame.request_id, frame.fields, bytes(frame.body)))
    return parsed


@given(st.lists(frames, max_size=8), st.lists(st.integers(0, 1_000_000), max_size=30), st.sampled_from([0, 1 << 22]))
def test_any_split_of_the_bytes_yields_the_sent_frames(sent: list[Parsed], cuts: list[int], keep_bytes: int) -> None:
    data = b"".join(encode_frame(*frame) for frame in sent)
    parser = FrameParser(keep_bytes=keep_bytes)
    assert drive(parser, data, cuts) == sent
    assert parser.pending_bytes == 0


@given(st.lists(frames.map(lambda frame: (*frame[:4], frame[4][:300])), min_size=1, max_size=3))
def test_single_bytes_yield_the_sent_frames(sent: list[Parsed]) -> None:
    data = b"".join(encode_frame(*frame) for frame in sent)
    assert drive(FrameParser(), data, list(range(len(data)))) == sent


def framed(header: bytes) -> bytes:
    return struct.pack(">II", 4 + len(header), len(header)) + header


LIMIT = 100_000


def parse_hostile(data: bytes, cuts: list[int]) -> None:
    """Parse any bytes: the parser returns frames or nothing yet, or raises RemoteProtocolError, and never grows a
    buffer over the limit."""
    parser = FrameParser(frame_bytes_max=LIMIT)
    refusal = None
    try:
        for kind, code, request_id, fields, _ in drive(parser, data, cuts):
            assert kind in (0, 1, 2)
            assert 0 <= code < 2**31
            assert 0 <= request_id < 2**31
            assert all(type(name) is str for name in fields)
            repr(fields)
    except RemoteProtocolError as error:
        refusal = str(error)
    assert refusal is None or 10 < len(refusal) < 500
    assert len(parser.buffer) <= max(INITIAL_BUFFER_BYTES, LIMIT + 4)


@given(st.binary(max_size=2000), st.lists(st.integers(0, 2000), max_size=5))
@example(b"\xff" * 8, [])
@example(struct.pack(">II", LIMIT, LIMIT - 4) + bytes(LIMIT * 2), [])
def test_random_bytes_raise_only_remote_protocol_errors(data: bytes, cuts: list[int]) -> None:
    parse_hostile(data, cuts)


@given(st.binary(max_size=500))
@example(b"\x94\x00\x01\x01\x81\xa0" + b"\x91" * 1000 + b"\x00")
@example(b"\x91" * 60_000)
@example(b"\x94" + b"\x81\xa0" * 1000 + b"\xc0\x00\x00\x80")
def test_random_headers_raise_only_remote_protocol_errors(header: bytes) -> None:
    parse_hostile(framed(header), [])


leaves: st.SearchStrategy[Any] = st.one_of(values, st.just(()), st.just({}))
shapes = st.recursive(
    leaves,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=12,
)


@given(st.lists(shapes, max_size=5))
def test_msgpack_of_any_shape_raises_only_remote_protocol_errors(header: list[Any]) -> None:
    parse_hostile(framed(msgpack.packb(header, unicode_errors="surrogatepass")), [])


@given(frames, st.data())
@settings(max_examples=200)
def test_a_frame_with_changed_bytes_raises_only_remote_protocol_errors(sent: Parsed, data: st.DataObject) -> None:
    changed = bytearray(encode_frame(*sent[:4], sent[4][:100]) * 2)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    parse_hostile(bytes(changed), data.draw(st.lists(st.integers(0, len(changed)), max_size=3)))


@pytest.mark.parametrize("frame_length", [LIMIT + 1, 2**31, 2**32 - 1])
@given(header_length=st.integers(0, 2**32 - 1))
def test_a_length_beyond_the_limit_is_refused_before_anything_is_allocated(
    frame_length: int, header_length: int
) -> None:
    parser = FrameParser(frame_bytes_max=LIMIT)
    buffer = parser.buffer
    with pytest.raises(RemoteProtocolError, match="limit"):
        drive(parser, struct.pack(">II", frame_length, header_length), [])
    assert parser.buffer is buffer
