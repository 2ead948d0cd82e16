"""PRODUCE frames for Hypothesis: sound ones in every msgpack form, and ways to break them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from hypothesis import strategies as st

from flintmq.protocol.record import FORBIDDEN_PROPERTIES, FORBIDDEN_PROPERTY_PREFIX, NOT_SUPPORTED_PROPERTIES

from .produce import COLUMNS, HOST, HOST_V6, ROWS, Batch, Message
from .wire import (
    NIL,
    NOT_A_BIN,
    NOT_A_MAP,
    NOT_A_STR,
    NOT_AN_ARRAY,
    NOT_AN_INT,
    a_bin,
    a_map,
    a_str,
    an_array,
    any_form,
    array_heads,
    int_forms,
    map_heads,
)

PREFIX = b"7F00000104D2A1B2C3D4"
I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)

clean_text = st.text(
    st.one_of(
        st.characters(min_codepoint=32, max_codepoint=126),
        st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"),
    ),
    min_size=1,
    max_size=40,
).map(str.encode)
known_names = st.sampled_from([b"KEYS", b"TAGS", b"UNIQ_KEY", b"WAIT", b"UNIQ_KEZ", b"DELAX", b"KEYS2", b"INNER_NUN"])
clean_names = st.one_of(known_names, clean_text)
harmless_delays = st.sampled_from([b"0", b"-1", b"-0", b"+0", b"000000000", b"-999999999"])
clean_pairs = st.one_of(
    st.tuples(clean_names, clean_text),
    st.tuples(st.just(b"DELAY"), harmless_delays),
)

rough_bytes = st.one_of(
    st.binary(max_size=12),
    st.lists(st.sampled_from([b"a", b"seven c", b"\x01", b"\x02", b"\xe9", b"\xc3\xa9", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"\xf0\x9f"]))
    .map(b"".join),
    st.just(b""),
)  # fmt: skip
refused_names = st.sampled_from(
    [name.encode() for name in FORBIDDEN_PROPERTIES + NOT_SUPPORTED_PROPERTIES]
    + [FORBIDDEN_PROPERTY_PREFIX.encode() + tail for tail in (b"", b"X", b"\xc3\xa9")]
)
any_delays = st.one_of(
    st.integers(-5, 25).map(lambda level: b"%d" % level),
    st.sampled_from([b"+1", b"1 ", b"0x1", b"1.0", b"-", b"+", b"--1", b"1234567890", b"0000000001", b"\xd9\xa1", b"true"]),
    st.text("+-0123456789a", max_size=12).map(str.encode),
)
any_pairs = st.one_of(
    clean_pairs,
    st.tuples(refused_names, clean_text),
    st.tuples(st.just(b"DELAY"), any_delays),
    st.tuples(rough_bytes, clean_text),
    st.tuples(clean_names, rough_bytes),
)
"""Properties that a producer may set, may not set, or cannot."""


def messages(pairs: st.SearchStrategy[tuple[bytes, bytes]] = clean_pairs) -> st.SearchStrategy[Message]:
    """A message in rows."""
    many = st.one_of(st.lists(pairs, max_size=4), st.lists(pairs, max_size=18))
    return st.builds(Message, st.one_of(st.binary(max_size=20), st.binary(max_size=300)), many, I32, I32)


@st.composite
def a_row(draw: st.DrawFn, message: Message) -> bytes:
    """A message as one row, in any form; what equals a default may be left out."""
    items = [draw(a_bin(message.body)), draw(a_map(message.properties))]
    if message.flag or message.sys_flag or draw(st.booleans()):
        items.append(draw(any_form(int_forms(message.sys_flag))))
        if message.flag or draw(st.booleans()):
            items.append(draw(any_form(int_forms(message.flag))))
    return draw(an_array(items))


@st.composite
def columns_body(draw: st.DrawFn, bodies: Sequence[bytes], keys: Sequence[bytes]) -> bytes:
    """The two columns; an empty key is nil."""
    encoded_bodies = [draw(a_bin(body)) for body in bodies]
    encoded_keys = [draw(a_str(key)) if key else NIL for key in keys]
    return draw(an_array(encoded_bodies)) + draw(an_array(encoded_keys))


@st.composite
def headers(draw: st.DrawFn, body: bytes, count: int, layout: int) -> Batch:
    """A batch with this body and anything in its header."""
    common = draw(st.lists(clean_pairs, max_size=3))
    return Batch(
        body,
        count,
        layout,
        sys_flag=draw(I32),
        common=b"".join(name + b"\x01" + value + b"\x02" for name, value in common),
        unique_prefix=draw(st.sampled_from([b"", PREFIX])),
        unique_first=draw(st.one_of(st.integers(0, 2**48 - 1), st.integers(2**48 - 5, 2**48 - 1))),
        topic=draw(st.sampled_from([b"t", b"orders", b"%RETRY%group", b"x" * 127])),
        queue_id=draw(st.integers(0, 65_535)),
        queue_offset=draw(st.integers(0, 2**62)),
        born_ms=draw(I64),
        store_ms=draw(I64),
        born_host=draw(st.sampled_from([HOST, HOST_V6])),
        store_host=draw(st.sampled_from([HOST, HOST_V6])),
    )


@st.composite
def batches(draw: st.DrawFn, pairs: st.SearchStrategy[tuple[bytes, bytes]] = clean_pairs, max_count: int = 4) -> Batch:
    """A frame in one of the layouts, sound as long as ``pairs`` are."""
    layout = draw(st.sampled_from([ROWS, COLUMNS]))
    if layout == ROWS:
        rows = draw(st.lists(messages(pairs), min_size=1, max_size=max_count))
        return draw(headers(b"".join(draw(a_row(row)) for row in rows), len(rows), layout))
    bodies = draw(st.lists(st.binary(max_size=40), min_size=1, max_size=5 * max_count))
    values = pairs.map(lambda pair: pair[1])
    keys = draw(st.lists(st.one_of(st.just(b""), values), min_size=len(bodies), max_size=len(bodies)))
    return draw(headers(draw(columns_body(bodies, keys)), len(bodies), layout))


def _spliced(blob: bytes, at: int, removed: int, inserted: bytes) -> bytes:
    return blob[:at] + inserted + blob[at + removed :]


@st.composite
def broken(draw: st.DrawFn, sound: st.SearchStrategy[Batch]) -> Batch:
    """A frame with something done to it: cut, lengthened, another count or layout, bytes changed."""
    batch = draw(sound)
    body = batch.body
    at = draw(st.integers(0, len(body)))
    what = draw(st.sampled_from(["cut", "more", "count", "layout", "bytes", "bytes", "bytes"]))
    if what == "cut":
        return dataclasses.replace(batch, body=body[:at])
    if what == "more":
        return dataclasses.replace(batch, body=body + draw(st.binary(min_size=1, max_size=4)))
    if what == "count":
        return dataclasses.replace(batch, count=max(batch.count + draw(st.sampled_from([-2, -1, 1, 2, 50])), 1))
    if what == "layout":
        return dataclasses.replace(batch, layout=1 - batch.layout)
    markers = st.sampled_from([bytes([byte]) for byte in range(0x80, 0x100)])
    inserted = draw(st.one_of(st.binary(max_size=3), markers, st.sampled_from(NOT_A_BIN + NOT_A_STR)))
    return dataclasses.replace(batch, body=_spliced(body, at, draw(st.integers(0, 3)), inserted))


@st.composite
def ill_typed_rows(draw: st.DrawFn) -> Batch:
    """Rows in which any value may be of another type, and any count may lie."""

    def often(sound: st.SearchStrategy[bytes], wrong: list[bytes]) -> bytes:
        return draw(st.one_of(sound, sound, sound, st.sampled_from(wrong)))

    rows = []
    for _ in range(draw(st.integers(1, 3))):
        pairs = draw(st.lists(any_pairs, max_size=3))
        map_count = len(pairs) + draw(st.sampled_from([0, 0, 0, 1, -1])) if pairs else 0
        properties = often(any_form(map_heads(map_count)), NOT_A_MAP)
        for name, value in pairs:
            properties += often(a_str(name), NOT_A_STR) + often(a_str(value), NOT_A_STR)
        integers = [often(I32.flatmap(lambda value: any_form(int_forms(value))), NOT_AN_INT + int_forms(2**31) + int_forms(2**63))
                    for _ in range(draw(st.integers(0, 3)))]  # fmt: skip
        items = [often(st.binary(max_size=9).flatmap(a_bin), NOT_A_BIN), properties, *integers]
        item_count = len(items) + draw(st.sampled_from([0, 0, 0, 0, 1, -1]))
        rows.append(often(any_form(array_heads(item_count)), NOT_AN_ARRAY) + b"".join(items))
    return draw(headers(b"".join(rows), len(rows), ROWS))


@st.composite
def ill_typed_columns(draw: st.DrawFn) -> Batch:
    """Columns in which any value may be of another type, and any count may lie."""
    count = draw(st.integers(1, 4))
    lies = st.sampled_from([0, 0, 0, 0, 1, -1])
    columns = b""
    for column in (0, 1):
        sound = st.binary(max_size=9).flatmap(a_bin) if column == 0 else clean_text.flatmap(a_str)
        wrong = NOT_A_BIN if column == 0 else [*NOT_A_STR, b"\xa0", b"\xa1\x01", b"\xa1\xff"]
        values = [draw(st.one_of(sound, sound, sound, st.sampled_from(wrong))) for _ in range(count)]
        heads = any_form(array_heads(count + draw(lies)))
        columns += draw(st.one_of(heads, heads, heads, st.sampled_from(NOT_AN_ARRAY))) + b"".join(values)
    return draw(headers(columns, count, COLUMNS))


noise = st.one_of(
    st.binary(max_size=60),
    st.lists(st.sampled_from([*NOT_A_BIN, *NOT_A_MAP, b"\x92", b"\xc4\x01x", b"\x80", b"\x81\xa1a\xa1b", b"\xdd\x00\x00\x00\x02"])).map(b"".join),
)  # fmt: skip
random_frames = st.tuples(noise, st.integers(1, 3), st.sampled_from([ROWS, COLUMNS])).flatmap(lambda parts: headers(*parts))
