"""Frames: their bytes, the refused ones, and the memory of the parser's buffer."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import msgpack
import pytest

from flintmq.protocol.errors import LocalProtocolError, RemoteProtocolError
from flintmq.protocol.frames import (
    FIELD_DEPTH_MAX,
    FRAME_BYTES_MAX,
    HEADER_BYTES_MAX,
    INITIAL_BUFFER_BYTES,
    REQUEST,
    RESPONSE,
    Frame,
    FrameParser,
    encode_frame,
    encode_head,
)


def feed(
    parser: FrameParser, data: bytes, piece_bytes: int = 1 << 30
) -> list[tuple[int, int, int, dict[str, Any], bytes]]:
    """Pass ``data`` to the parser in pieces of at most ``piece_bytes``, as a driver does; return the frames with copied
    bodies.
    """
    frames = []
    at = 0
    while at < len(data):
        room = parser.writable()
        count = min(len(room), len(data) - at, piece_bytes)
        room[:count] = data[at : at + count]
        parser.received(count)
        at += count
        while (frame := parser.next_frame()) is not None:
            frames.append((frame.kind, frame.code, frame.request_id, frame.fields, bytes(frame.body)))
    return frames


def raw_frame(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


def nested(depth: int) -> bytes:
    """Return the msgpack of 0 inside ``depth`` arrays."""
    return b"\x91" * depth + b"\x00"


def header_with(kind: Any = 0, code: Any = 11, request_id: Any = 1, fields: Any = None) -> bytes:
    packed: bytes = msgpack.packb([kind, code, request_id, {} if fields is None else fields])
    return packed


def test_a_frame_is_two_lengths_a_msgpack_header_and_the_body() -> None:
    assert encode_frame(REQUEST, 11, 7, {"topic": "t", "queue": -1}, b"BODY") == (
        b"\x00\x00\x00\x1c"  # 28 bytes follow
        b"\x00\x00\x00\x14"  # 20 of them are the header
        b"\x94\x00\x0b\x07"  # [0, 11, 7,
        b"\x82\xa5topic\xa1t\xa5queue\xff"  # {"topic": "t", "queue": -1}]
        b"BODY"
    )


def test_the_head_announces_a_body_that_is_sent_separately() -> None:
    head = encode_head(RESPONSE, 0, 5, {"count": 2}, 3)
    assert feed(FrameParser(), head + b"abc") == [(RESPONSE, 0, 5, {"count": 2}, b"abc")]


@pytest.mark.parametrize("arrived", [4, 8, 100])
def test_a_frame_beyond_the_limit_is_refused_by_its_length_alone(arrived: int) -> None:
    parser = FrameParser(frame_bytes_max=4096)
    with pytest.raises(RemoteProtocolError, match="a frame of 4097 bytes; the limit is 4096"):
        feed(parser, (struct.pack(">II", 4097, 1) + bytes(100))[:arrived])
    assert len(parser.buffer) == INITIAL_BUFFER_BYTES


def test_a_frame_of_exactly_the_limit_is_taken() -> None:
    body = bytes(4096 - 4 - len(header_with()))
    assert [frame[4] for frame in feed(FrameParser(frame_bytes_max=4096), raw_frame(header_with(), body))] == [body]


@pytest.mark.parametrize("frame_length", [0, 1, 3])
def test_a_frame_too_short_for_its_header_length_is_refused(frame_length: int) -> None:
    with pytest.raises(RemoteProtocolError, match="cannot hold the length of its header"):
        feed(FrameParser(), struct.pack(">I", frame_length))


@pytest.mark.parametrize(
    ("frame_length", "header_length"), [(4, 1), (100, 97), (FRAME_BYTES_MAX, HEADER_BYTES_MAX + 1), (10, 0xFFFFFFFF)]
)
def test_a_header_that_cannot_be_is_refused_before_it_arrives(frame_length: int, header_length: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"a header of {header_length} bytes in a frame of {frame_length}"):
        feed(FrameParser(), struct.pack(">II", frame_length, header_length))


@pytest.mark.parametrize(
    "header",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xc1", id="byte that msgpack never uses"),
        pytest.param(header_with()[:-1], id="cut off"),
        pytest.param(header_with() + b"\x00", id="bytes behind it"),
        pytest.param(b"\x00", id="not an array"),
        pytest.param(msgpack.packb([0, 11, 1]), id="three items"),
        pytest.param(msgpack.packb([0, 11, 1, {}, 0]), id="five items"),
        pytest.param(msgpack.packb({0: 0}), id="map with an integer key"),
        pytest.param(header_with(kind=3), id="unknown kind"),
        pytest.param(header_with(kind=-1), id="negative kind"),
        pytest.param(header_with(kind=True), id="boolean kind"),
        pytest.param(header_with(kind="x" * 60_000), id="long text as kind"),
        pytest.param(b"\x94" + nested(1000) + b"\x0b\x01\x80", id="kind nested deeper than repr can follow"),
        pytest.param(header_with(code=-1), id="negative code"),
        pytest.param(header_with(code=2**31), id="code beyond 31 bits"),
        pytest.param(header_with(code=11.0), id="fractional code"),
        pytest.param(header_with(request_id=-1), id="negative request id"),
        pytest.param(header_with(request_id=2**31), id="request id beyond 31 bits"),
        pytest.param(header_with(request_id=None), id="no request id"),
        pytest.param(header_with(fields=[]), id="fields as an array"),
        pytest.param(header_with(fields=7), id="fields as a number"),
        pytest.param(header_with(fields={1: 1}), id="integer field name"),
        pytest.param(header_with(fields={b"topic": 1}), id="binary field name"),
        pytest.param(b"\x94\x00\x0b\x01\x81\x91\x01\x01", id="array as field name"),
        pytest.param(b"\x94\x00\x0b\x01\x81\xa1a\xd4\x05\x00", id="extension type"),
        pytest.param(b"\x94\x00\x0b\x01\x81\xa1a\xc7\x00\x05", id="extension type without content"),
        pytest.param(b"\x94\x00\x0b\x01\x81\xa1a\xd6\xff\x00\x00\x00\x00", id="timestamp extension"),
        pytest.param(b"\x94\x00\x0b\x01\x81\xa1a\xa1\xff", id="text that is not UTF-8"),
        pytest.param(b"\x94\x00\x0b\x01\x81\xa1a\xa3\xed\xa0\x80", id="text with a surrogate"),
        pytest.param(b"\x94\x00\x0b\x01\x81\xa1a\xdd\xff\xff\xff\xff", id="array of four billion"),
        pytest.param(b"\x94\x00\x0b\x01\x81\xa1a\xdf\xff\xff\xff\xff", id="map of four billion"),
        pytest.param(b"\x94\x00\x0b\x01\x81\xa1a\xdb\xff\xff\xff\xff", id="text of four gigabytes"),
        pytest.param(b"\x94\x00\x0b\x01\x81\xa1a\xc6\xff\xff\xff\xff", id="bytes of four gigabytes"),
        pytest.param(b"\x94\x00\x0b\x01\x81\xa1a" + nested(FIELD_DEPTH_MAX + 1), id="field nested too deep"),
        pytest.param(b"\x94\x00\x0b\x01\x81\xa1a" + b"\x81\xa0" * 9 + b"\x00", id="field of maps nested too deep"),
        pytest.param(b"\x94\x00\x0b\x01\x81\xa1a" + nested(60_000), id="field nested beyond any stack"),
    ],
)
def test_a_bad_header_is_a_remote_protocol_error_with_a_short_message(header: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        feed(FrameParser(), raw_frame(header))
    assert 10 < len(str(caught.value)) < 400


def test_a_field_may_nest_to_the_limit() -> None:
    [frame] = feed(FrameParser(), raw_frame(b"\x94\x00\x0b\x01\x81\xa1a" + nested(FIELD_DEPTH_MAX)))
    value = frame[3]["a"]
    for _ in range(FIELD_DEPTH_MAX):
        (value,) = value
    assert value == 0


def test_a_header_full_of_small_objects_costs_a_bounded_amount() -> None:
    fields: dict[str, Any] = {"a": tuple(tuple({} for _ in range(250)) for _ in range(250))}
    data = raw_frame(header_with(fields=fields))
    del fields
    parser = FrameParser()
    tracemalloc.start()
    try:
        assert len(feed(parser, data)) == 1
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 8 * 1024 * 1024


def test_an_announced_length_alone_allocates_nothing() -> None:
    parser = FrameParser()
    data = raw_frame(header_with(), bytes(8 * 1024 * 1024))
    arrived = 0
    while arrived < 2 * 1024 * 1024:
        assert feed(parser, data[arrived : arrived + 10_000]) == []
        arrived += 10_000
        assert len(parser.buffer) <= max(INITIAL_BUFFER_BYTES, 4 * arrived)


def test_the_buffer_never_outgrows_one_largest_frame() -> None:
    parser = FrameParser(frame_bytes_max=1_000_000)
    largest = raw_frame(header_with(), bytes(1_000_000 - 4 - len(header_with())))
    for piece_bytes in (5_000, 70_000, 1 << 30):
        assert len(feed(parser, largest * 3 + largest[:500_000], piece_bytes)) == 3
        assert len(parser.buffer) <= 4 + 1_000_000
        assert len(feed(parser, largest[500_000:], piece_bytes)) == 1


def test_the_buffer_shrinks_after_a_large_frame() -> None:
    parser = FrameParser()
    feed(parser, raw_frame(header_with(), bytes(3_000_000)))
    assert len(parser.buffer) > 3_000_000
    parser.writable()
    assert len(parser.buffer) == INITIAL_BUFFER_BYTES


def test_a_parser_that_may_keep_a_large_buffer_uses_it_again() -> None:
    parser = FrameParser(keep_bytes=4_000_000)
    data = raw_frame(header_with(), bytes(3_000_000))
    feed(parser, data)
    kept = parser.buffer
    assert len(feed(parser, data)) == 1
    assert parser.buffer is kept


def test_there_is_always_room_worth_a_read_or_for_the_rest_of_the_frame() -> None:
    parser = FrameParser()
    data = b"".join(raw_frame(header_with(), bytes(size)) for size in (13_000, 60_000, 65_000, 70_000, 300_000) * 5)
    at = 0
    while at < len(data):
        room = parser.writable()
        assert len(room) >= 4096
        count = min(len(room), len(data) - at, 9_999)
        room[:count] = data[at : at + count]
        parser.received(count)
        at += count
        while parser.next_frame() is not None:
            pass
    assert parser.pending_bytes == 0


def test_a_body_that_is_still_held_does_not_stop_the_parser() -> None:
    parser = FrameParser()
    held: list[Frame] = []
    views = []
    for size in (10, 100_000, 10, 1_000_000, 10):
        data = raw_frame(header_with(), bytes(size))
        at = 0
        while at < len(data):
            room = parser.writable()
            count = min(len(room), len(data) - at)
            room[:count] = data[at : at + count]
            parser.received(count)
            at += count
        frame = parser.next_frame()
        assert frame is not None
        held.append(frame)
        views.append(frame.body)
    assert [len(view) for view in views] == [10, 100_000, 10, 1_000_000, 10]
    assert [frame.body_end - frame.body_at for frame in held] == [10, 100_000, 10, 1_000_000, 10]


def test_reading_on_over_untaken_whole_frames_is_a_programming_error() -> None:
    parser = FrameParser()
    data = raw_frame(header_with(), bytes(40_000)) * 2
    parser.writable()[:] = data[:INITIAL_BUFFER_BYTES]
    parser.received(INITIAL_BUFFER_BYTES)
    with pytest.raises(AssertionError, match="take all complete frames"):
        parser.writable()


def test_reporting_more_bytes_than_there_was_room_for_is_a_programmers_mistake() -> None:
    parser = FrameParser()
    with pytest.raises(AssertionError, match="more bytes"):
        parser.received(len(parser.writable()) + 1)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"text": "x" * HEADER_BYTES_MAX}, id="larger than a header may be"),
        pytest.param({"object": object()}, id="no msgpack type"),
        pytest.param({"number": 2**64}, id="integer beyond 64 bits"),
        pytest.param({"text": "\ud800"}, id="surrogate"),
    ],
)
def test_a_header_that_cannot_be_sent_is_a_local_error_and_spoils_nothing(fields: dict[str, Any]) -> None:
    with pytest.raises(LocalProtocolError):
        encode_frame(REQUEST, 11, 1, fields)
    assert encode_frame(REQUEST, 11, 1, {}) == raw_frame(header_with())


def test_a_body_that_the_length_field_cannot_hold_is_a_local_error() -> None:
    with pytest.raises(LocalProtocolError, match="length field"):
        encode_head(REQUEST, 11, 1, {}, 2**32)


@pytest.mark.parametrize(
    ("sent", "named"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "responds with HTTP, as the metrics port does"),
        (b"GET /metrics HTTP/1.1\r\n", "an HTTP request"),
        (b"\x15\x03\x03\x00\x02\x02\x46\x00", "speaks TLS"),
        (b"SSH-2.0-OpenSSH\r\n", "a frame of 1397966893 bytes"),
    ],
)
def test_another_protocol_is_named(sent: bytes, named: str) -> None:
    parser = FrameParser()
    parser.writable()[: len(sent)] = sent
    parser.received(len(sent))
    with pytest.raises(RemoteProtocolError, match=named):
        parser.next_frame()
