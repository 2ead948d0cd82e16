"""Bodies as JSON columns: each row has the values of its own body or says why not, whatever the other bodies are."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flintmq.client import InvalidArgument, InvalidArgumentType

pa = pytest.importorskip("pyarrow")

from flintmq.client.arrow import json_bodies  # noqa: E402 - PyArrow may be missing

KIND = pa.struct([("n", pa.int64()), ("s", pa.string()), ("o", pa.struct([("x", pa.float64())]))])
texts = st.text(st.characters(codec="utf-8"), max_size=6)
numbers = st.integers(-(2**63), 2**63 - 1)
good = st.fixed_dictionaries(
    {},
    optional={
        "n": st.none() | numbers,
        "s": st.none() | texts,
        "o": st.none() | st.fixed_dictionaries({}, optional={"x": st.none() | st.floats(allow_nan=False, width=16)}),
        "more": st.lists(numbers | texts, max_size=2),
    },
)
ways = st.sampled_from([{}, {"indent": 1}, {"ensure_ascii": False}, {"separators": (",", ":")}])
sound = st.builds(lambda value, way: json.dumps(value, **way).encode(), good, ways)
HOSTILE = [
    b"",
    b" ",
    b"null",
    b"5",
    b"[1]",
    b'{"n": "text"}',
    b'{"n": 1',
    b'{"n": 1}}',
    b'{}}\n{"b":{}',
    b'{}} {"b":{"n":7}',
    b'{"n":1}{"n":2}',
    b'{"n":1}\0{"n":2}',
    b"\0",
    b'{"s":"',
    b'"}',
    b'{"s":"\xff"}',
    b'{"s":"\\udc00"}',
    b'{"n": 1e400}',
    b'{"o": 1}',
    b"\xef\xbb\xbf{}",
    b"[" * 2000,
]
bodies = st.lists(sound | st.sampled_from(HOSTILE) | st.binary(max_size=12), min_size=1, max_size=12)


def expected(body: bytes) -> Any:
    """Return the row of a sound body, by the plain JSON of Python."""
    value = json.loads(body)
    inner = value.get("o")
    return {"n": value.get("n"), "s": value.get("s"), "o": None if inner is None else {"x": inner.get("x")}}


def is_sound(body: bytes) -> bool:
    """Return whether a body must be read: an object whose fields have the right types."""
    try:
        value = json.loads(body.decode())
    except (ValueError, RecursionError):
        return False
    if not isinstance(value, dict) or b"udc00" in body:
        return False
    n, s, o = value.get("n"), value.get("s"), value.get("o")
    return (
        (n is None or type(n) is int)
        and (s is None or type(s) is str)
        and (o is None or (type(o) is dict and type(o.get("x")) in (float, type(None))))
    )


@given(bodies)
@example([b'{"n":1}', *HOSTILE, b'{"n":2}', *reversed(HOSTILE), b'{"n":3}'])
@example([b'{}} {"b":{"n":7}', b"\0"])
@example([b"\0", b'{}} {"b":{"n":7}'])
def test_each_row_is_that_of_its_own_body(several: list[bytes]) -> None:
    found, errors = json_bodies._parse(pa.array(several, pa.binary()), KIND)
    found.validate(full=True)
    assert len(found) == len(errors) == len(several)
    for body, row, error in zip(several, found.to_pylist(), errors.to_pylist(), strict=True):
        if is_sound(body):
            assert (row, error) == (expected(body), None)
        elif error is not None:
            assert row is None or not any(value is not None for value in row.values())


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "not JSON: Expecting value"),
        (b"hello", "not JSON"),
        (b"[1]", "JSON, but not an object: list"),
        (b"null", "JSON, but not an object: NoneType"),
        (b'{"n": "text"}', "Column.n. changed from number to string"),
        (b'{"n": 1}{"n": 2}', "not JSON: Extra data"),
        (b"[" * 100_000, "nested too deeply|not JSON"),
    ],
)
def test_a_body_that_is_no_such_object_says_why(body: bytes, why: str) -> None:
    _, errors = json_bodies._parse(pa.array([b"{}", body, b"{}"], pa.binary()), KIND)
    assert errors[0].as_py() is errors[2].as_py() is None
    assert re.search(why, errors[1].as_py()), errors[1]


def infer(several: list[bytes], count: int = 1000) -> Any:
    return json_bodies.infer_schema([pa.record_batch({"body": pa.array(several, pa.binary())})], count)


def test_a_schema_is_inferred_from_the_first_bodies_that_are_objects() -> None:
    several = [b"no", b'{"a": 1, "z": null}', b'{"a": 1.5, "t": "2026-01-01T00:00:00Z"}', b'{"l": [{"q": null}]}']
    schema = infer(several)
    assert schema.field("a").type == pa.float64()
    assert schema.field("z").type == pa.string()
    assert pa.types.is_timestamp(schema.field("t").type)
    assert schema.field("l").type == pa.list_(pa.struct([("q", pa.string())]))
    assert infer(several, 2).names == ["a", "z"]
    assert infer([b'{"a": 1}', b'{"a": "text", "b": true}']).field("a").type == pa.int64()


@pytest.mark.parametrize("several", [[], [b"no"], [b"{}", b"[1]"]])
def test_without_an_object_nothing_can_be_inferred(several: list[bytes]) -> None:
    with pytest.raises(InvalidArgument, match="infer: none of the"):
        infer(several)


@pytest.mark.parametrize(
    ("schema", "error", "said"),
    [
        ({"a": pa.int64()}, InvalidArgumentType, "json_schema must be a pyarrow.Schema, not dict"),
        (pa.schema([("topic", pa.string())]), InvalidArgument, "'topic' has the name of a column of messages"),
        (pa.schema([("error", pa.string())]), InvalidArgument, "'error' has the name"),
        (pa.schema([]), InvalidArgument, "must have some"),
        (pa.schema([("a", pa.large_list_view(pa.int8()))]), InvalidArgument, "JSON cannot be read as this"),
    ],
)
def test_a_schema_that_cannot_be_read_is_refused(schema: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        json_bodies.decoder_of(None, schema)
