"""msgpack unpacks the packed messages unchanged, and every message goes into exactly one frame."""

from __future__ import annotations

from typing import Any

import msgpack
from hypothesis import given
from hypothesis import strategies as st

from flintmq.client import Message
from flintmq.client.core.compression import Compressor, decompress
from flintmq.client.core.produce.packer import Columns, ColumnSource, Content, Rows, RowSource, new_packer
from flintmq.client.errors import InvalidMessage

bodies = st.binary(max_size=300) | st.integers(0, 9000).map(lambda size: b"z" * size)
text = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=20)
keys = text.filter(lambda key: " " not in key)
properties = st.dictionaries(text.filter(lambda name: not name.startswith(("INNER", "KEYS", "TAGS"))), text, max_size=3)


def unpack(content: Content) -> list[Any]:
    """Return all msgpack items of a packed frame body, read by msgpack itself."""
    unpacker = msgpack.Unpacker(strict_map_key=True)
    unpacker.feed(content.pack(new_packer()))
    return list(unpacker)


@given(st.lists(st.tuples(bodies, properties), min_size=1, max_size=70))
def test_rows_are_unpacked_unchanged(rows: list[tuple[bytes, dict[str, str]]]) -> None:
    assert unpack(Rows(rows)) == [list(row) for row in rows]
    if len(rows) > 1:
        first, second = Rows(rows).cut(len(rows) // 2)
        assert [*unpack(first), *unpack(second)] == unpack(Rows(rows))


@given(st.lists(st.tuples(bodies, st.none() | keys), min_size=1, max_size=70), st.booleans())
def test_columns_are_unpacked_unchanged(pairs: list[tuple[bytes, str | None]], with_keys: bool) -> None:
    columns = Columns([body for body, _ in pairs], [key for _, key in pairs] if with_keys else None)
    expected = [[body for body, _ in pairs], [key if with_keys else None for _, key in pairs]]
    assert unpack(columns) == expected
    if len(pairs) > 1:
        first, second = unpack(columns.cut(len(pairs) // 2)[0]), unpack(columns.cut(len(pairs) // 2)[1])
        assert [first[0] + second[0], first[1] + second[1]] == expected


def taken(source: RowSource | ColumnSource, bytes_target: int) -> list[tuple[bytes, str | None, int]]:
    """Return ``(stored body, keys, sys_flag)`` of each message of all frames."""
    messages: list[tuple[bytes, str | None, int]] = []
    while source.left:
        content = source.take(bytes_target)
        assert len(content) > 0
        assert len(content) == 1 or len(content.pack(new_packer())) <= 2 * bytes_target + 100 * len(content)
        items = unpack(content)
        if isinstance(content, Columns):
            messages += [(body, key, 0) for body, key in zip(*items, strict=True)]
        else:
            messages += [(row[0], row[1].get("KEYS"), row[2] if len(row) > 2 else 0) for row in items]
    return messages


def plain(messages: list[tuple[bytes, str | None, int]], over_bytes: int | None) -> list[tuple[bytes, str | None]]:
    for body, _, sys_flag in messages:
        assert sys_flag == 0 or over_bytes is not None
        assert sys_flag or over_bytes is None or len(body) <= over_bytes or len(set(body)) > 1
    return [(decompress(body, flag) if flag else body, key) for body, key, flag in messages]


@given(
    st.lists(st.tuples(bodies, st.none() | keys), max_size=200),
    st.integers(1, 20_000),
    st.none() | st.just(100) | st.just(4096),
)
def test_every_message_goes_into_one_frame_in_order(
    pairs: list[tuple[bytes, str | None]], bytes_target: int, over_bytes: int | None
) -> None:
    compressor = Compressor(over_bytes, "zlib")
    rows = RowSource([Message("t", body, keys=key or ()) for body, key in pairs], compressor)
    columns = ColumnSource([body for body, _ in pairs], [key for _, key in pairs], compressor)
    assert plain(taken(rows, bytes_target), over_bytes) == pairs
    assert plain(taken(columns, bytes_target), over_bytes) == pairs


@given(
    bodies,
    st.lists(st.text(max_size=5), max_size=3),
    st.none() | st.text(max_size=5),
    st.dictionaries(st.text(), st.text()),
)
def test_a_message_is_refused_or_can_be_stored(
    body: bytes, some_keys: list[str], tags: str | None, some_properties: dict[str, str]
) -> None:
    try:
        message = Message("t", body, keys=some_keys, tags=tags, properties=some_properties)
    except InvalidMessage:
        return
    (row,) = unpack(Rows([message.row()]))
    assert row[0] == body
    for name, value in row[1].items():
        assert name
        assert value
        assert "\x01" not in name + value
        assert "\x02" not in name + value
    assert row[1].get("KEYS", "").split(" ") == (list(message.keys) or [""])
