"""Remoting frames: both forms of headers against a twin, cut and random bytes, every split of a stream."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import assume, example, given
from hypothesis import strategies as st

from flintmq.broker.budgets import ReceiveBudget
from flintmq.broker.remoting.connection import RemotingParser
from flintmq.protocol.errors import RemoteProtocolError
from flintmq.protocol.frames import ONE_WAY, REQUEST, RESPONSE
from flintmq.protocol.remoting.command import LANGUAGE, VERSION, RemotingFrame, decode_frame, encode_head
from tests.twins.remoting import LANGUAGES, TwinFrame, decode, encode

LIMIT = 100_000
KINDS = {0: REQUEST, 1: RESPONSE, 2: ONE_WAY, 3: RESPONSE}
FLAGS = {REQUEST: 0, RESPONSE: 1, ONE_WAY: 2}
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
field_maps = st.dictionaries(texts, texts, max_size=6)
i32 = st.integers(-(2**31), 2**31 - 1)
i16 = st.integers(-(2**15), 2**15 - 1)


def frames(binary: bool) -> st.SearchStrategy[TwinFrame]:
    """Return frames whose numbers fit into one form of header."""
    number = i16 if binary else i32
    return st.builds(
        TwinFrame,
        binary=st.just(binary),
        code=number,
        language=st.sampled_from([*LANGUAGES, LANGUAGE]),
        version=number,
        opaque=i32,
        flag=st.sampled_from(sorted(KINDS)),
        remark=texts,
        fields=field_maps.map(lambda fields: tuple(fields.items())),
        body=st.one_of(st.binary(max_size=50), st.integers(0, 80_000).map(bytes)),
    )


any_frames = st.one_of(frames(False), frames(True))


def check_equal(frame: RemotingFrame, twin: TwinFrame) -> None:
    assert frame.kind == KINDS[twin.flag]
    assert (frame.code, frame.language, frame.version) == (twin.code, twin.language, twin.version)
    assert (frame.request_id, frame.remark) == (twin.opaque, twin.remark)
    assert frame.fields == dict(twin.fields)
    assert frame.header_type == twin.binary


@given(any_frames, st.integers())
@example(TwinFrame(True, -1, "JAVA", 479, -1, 0, "", (("", ""),), b""), 0)
def test_a_frame_is_decoded_as_it_was_encoded(twin: TwinFrame, seed: int) -> None:
    blob = bytearray(encode(twin, seed))
    frame = decode_frame(blob, 0, len(blob))
    check_equal(frame, twin)
    assert bytes(frame.body) == twin.body


@given(st.booleans(), st.sampled_from(sorted(FLAGS)), i32, i32, st.none() | field_maps, st.none() | texts, st.binary())
def test_an_encoded_head_is_what_the_twin_reads(
    binary: bool, kind: int, code: int, opaque: int, fields: dict[str, str] | None, remark: str | None, body: bytes
) -> None:
    assume(not binary or -(2**15) <= code < 2**15)
    head = encode_head(kind, code, opaque, fields, len(body), remark=remark, header_type=int(binary))
    expected = (binary, code, LANGUAGE, VERSION, opaque, FLAGS[kind], remark or "", tuple((fields or {}).items()), body)
    assert decode(head + body) == TwinFrame(*expected)


def drive(parser: RemotingParser, data: bytes, cuts: list[int]) -> list[tuple[RemotingFrame, bytes]]:
    """Feed ``data`` so that no read crosses a cut, as a connection does; return the frames with their bodies."""
    parsed = []
    at = 0
    for end in [*sorted(min(cut, len(data)) for cut in cuts), len(data)]:
        while at < end:
            room = parser.writable()
            count = min(len(room), end - at)
            room[:count] = data[at : at + count]
            parser.received(count)
            at += count
            while (frame := parser.next_frame()) is not None:
                parsed.append((frame, bytes(frame.body)))
            assert parser.settle(), "there is enough memory"
    return parsed


def new_parser() -> RemotingParser:
    return RemotingParser(LIMIT, ReceiveBudget(1 << 20, lambda call: None))


@given(st.lists(st.tuples(any_frames, st.integers()), max_size=5), st.lists(st.integers(0, 300_000), max_size=20))
def test_any_split_of_a_stream_yields_its_frames(sent: list[tuple[TwinFrame, int]], cuts: list[int]) -> None:
    parsed = drive(new_parser(), b"".join(encode(twin, seed) for twin, seed in sent), cuts)
    assert [body for _, body in parsed] == [twin.body for twin, _ in sent]
    for (frame, _), (twin, _) in zip(parsed, sent, strict=True):
        check_equal(frame, twin)


@given(st.lists(st.tuples(any_frames, st.integers()), min_size=1, max_size=2))
def test_single_bytes_yield_the_frames(sent: list[tuple[TwinFrame, int]]) -> None:
    data = b"".join(encode(twin, seed)[: 4 + 5_000] for twin, seed in sent if len(twin.body) < 1_000)
    assert len(drive(new_parser(), data, list(range(len(data))))) == sum(len(twin.body) < 1_000 for twin, _ in sent)


def check_hostile(data: bytes, cuts: list[int]) -> None:
    """Parse any bytes: there are frames, or nothing yet, or ``RemoteProtocolError``, and no memory beyond a frame."""
    parser = new_parser()
    refusal = None
    try:
        for frame, _ in drive(parser, data, cuts):
            assert frame.kind in KINDS.values()
            assert -(2**31) <= frame.code < 2**31
            assert -(2**31) <= frame.request_id < 2**31
            assert len(frame.fields) <= 256
            for text in (*frame.fields, *frame.fields.values()):
                text.encode()
    except RemoteProtocolError as error:
        refusal = str(error)
    assert refusal is None or 10 < len(refusal) < 500
    assert parser.own_bytes <= LIMIT + 8 * 1024


@given(st.binary(max_size=2_000), st.lists(st.integers(0, 2_000), max_size=5))
@example(b"\xff" * 8, [])
@example(bytes(64), [])
def test_random_bytes_raise_only_remote_protocol_errors(data: bytes, cuts: list[int]) -> None:
    check_hostile(data, cuts)


@given(any_frames, st.integers(), st.data())
def test_cut_and_changed_frames_raise_only_remote_protocol_errors(
    twin: TwinFrame, seed: int, data: st.DataObject
) -> None:
    blob = bytearray(encode(twin, seed)[:2_000])
    for _ in range(data.draw(st.integers(0, 4))):
        blob[data.draw(st.integers(0, min(len(blob), 200) - 1))] = data.draw(st.integers(0, 255))
    check_hostile(bytes(blob[: data.draw(st.integers(0, len(blob)))]), [])


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
shapes: st.SearchStrategy[Any] = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.sampled_from(["code", "opaque", "flag", "version", "language", "remark", "extFields", "x"]), shapes
    )
    | shapes
)
@example({"code": 10, "extFields": {"a": "\ud800"}})
@example({"code": 10, "extFields": {"a": float("nan")}})
def test_json_of_any_shape_raises_only_remote_protocol_errors(members: Any) -> None:
    header = json.dumps(members).encode()
    check_hostile((4 + len(header)).to_bytes(4) + len(header).to_bytes(4) + header, [])
