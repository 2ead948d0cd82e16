"""JSON in fastjson's form: what is written is read again, standard JSON is read, and no text does more than fail."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flintmq.protocol.remoting.fastjson import DEPTH_MAX, FastjsonError, ObjectMap, decode, encode

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63), st.floats(allow_nan=False, allow_infinity=False), texts
)


def _maps(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    keys = st.dictionaries(texts, st.integers(0, 9), min_size=1, max_size=3)
    pairs = st.lists(st.tuples(keys, values), min_size=1, max_size=4)
    return st.one_of(st.dictionaries(texts, values, max_size=4), pairs.map(ObjectMap))


nested = st.recursive(scalars, lambda values: st.one_of(st.lists(values, max_size=4), _maps(values)), max_leaves=20)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, ObjectMap):
        kept = ObjectMap((_without_nulls(key), _without_nulls(each)) for key, each in value if each is not None)
        return kept or {}
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


@given(nested)
def test_what_is_written_is_read_again(value: Any) -> None:
    assert decode(encode(value)) == _without_nulls(value)


@given(st.recursive(scalars, lambda values: st.one_of(st.lists(values), st.dictionaries(texts, values)), max_leaves=20))
def test_standard_json_is_read_with_and_without_blanks(value: Any) -> None:
    assert decode(json.dumps(value)) == value
    assert decode(json.dumps(value, indent=1, ensure_ascii=False).encode()) == value


@given(st.one_of(st.text(), st.text(alphabet='{}[],:"\\0123456789.-eEtruefalsn \n', max_size=60)))
@example("{" * 100_000)
@example("[" * 100_000 + "]" * 100_000)
@example('"' + "\\" * 1001)
@example("9" * 5_000)
@example("9e999")
def test_any_other_text_is_an_error_of_its_own(text: str) -> None:
    try:
        value = decode(text)
    except FastjsonError:
        return
    assert decode(encode(value)) == _without_nulls(value)


@given(st.binary(max_size=60))
def test_bytes_that_are_no_text_are_an_error(blob: bytes) -> None:
    try:
        decode(blob)
    except FastjsonError:
        return
    blob.decode()


def test_numbers_and_objects_are_keys_as_java_writes_them() -> None:
    queue = {"brokerName": "b", "queueId": 0, "topic": "t"}
    assert encode({"offsetTable": ObjectMap([(queue, 5)]), "brokerAddrs": {0: "127.0.0.1:10911"}}) == (
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:5},"brokerAddrs":{0:"127.0.0.1:10911"}}'
    )
    assert decode(b'{{"queueId":0} : 5, {"queueId":1}:7L}') == ObjectMap([({"queueId": 0}, 5), ({"queueId": 1}, 7)])
    assert decode(b'{0:"a",-1:"b","2":"c",name:"d"}') == {"0": "a", "-1": "b", "2": "c", "name": "d"}


@pytest.mark.parametrize("depth", [DEPTH_MAX, DEPTH_MAX + 1])
def test_nesting_is_bounded(depth: int) -> None:
    text = "[" * depth + "]" * depth
    if depth > DEPTH_MAX:
        with pytest.raises(FastjsonError, match="nested deeper"):
            decode(text)
    else:
        decode(text)


def test_a_comma_at_the_end_is_taken_as_java_takes_it() -> None:
    assert decode('{"a":1,}') == {"a": 1}
    assert decode("[1,]") == [1]


@pytest.mark.parametrize("text", ["", " ", "{", "[1", '{"a"}', "{1:}", "word", "{}x", '"\\x"', "[1 2]"])
def test_a_cut_or_wrong_text_is_refused(text: str) -> None:
    with pytest.raises(FastjsonError):
        decode(text)
