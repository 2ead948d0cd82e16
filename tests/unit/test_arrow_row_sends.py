"""Record batches on their way to a producer: checks, and how rows are grouped."""

from __future__ import annotations

from typing import Any

import pytest

from flintmq.client.errors import InvalidMessage

pa = pytest.importorskip("pyarrow")

from flintmq.client.arrow.rows import GROUP_ROWS_MIN, CheckedRows, ColumnSend, MessageSend, Place, checked_rows, sends  # noqa: E402  # noqa: E402

PLACE = Place(partition=3, rows_before=1000)
MAP = pa.map_(pa.string(), pa.string())
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
LARGE = 4 * GROUP_ROWS_MIN


def rows(option: str | None = "orders", **columns: Any) -> CheckedRows:
    """Return the rows of a batch; ``option`` is the topic of all of them."""
    return checked_rows(pa.RecordBatch.from_pydict(columns), option, PLACE)


def bodies(count: int) -> list[bytes]:
    return [str(number).encode() for number in range(count)]


def flat(found: list[Any]) -> list[tuple[Any, ...]]:
    """Return body, topic, keys, tags, sharding key and queue of each row, in the order of the batch."""
    numbered: list[Any] = []
    for send in found:
        if isinstance(send, ColumnSend):
            keys = send.keys if send.keys is not None else [None] * len(send.bodies)
            mine = [
                (body, send.topic, _keys(key), send.tags, send.sharding_key)
                for body, key in zip(send.bodies, keys, strict=True)
            ]
        else:
            mine = [(m.body, m.topic, m.keys, m.tags, m.sharding_key) for m in send.messages]
        numbered += zip(send.rows.tolist(), [(*row, send.queue) for row in mine], strict=True)
    assert sorted(row for row, _ in numbered) == list(range(len(numbered)))
    return [row for _, row in sorted(numbered)]


def _keys(entry: Any) -> tuple[str, ...]:
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


# ---- contents of a row ----


def test_bodies_are_bytes_or_utf8_of_any_width() -> None:
    for kind, given in (
        (pa.binary(), [b"\xff\x00", b""]),
        (pa.large_binary(), [b"\xff\x00", b""]),
        (pa.string(), ["é", ""]),
        (pa.large_string(), ["é", ""]),
    ):
        found = rows(body=pa.array(given, kind)).bodies
        assert found == [each if isinstance(each, bytes) else each.encode() for each in given]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (pa.array(["a", None, "c"]), ["a", None, "c"]),
        (pa.array(["a", "b", "c"], pa.large_string()), ["a", "b", "c"]),
        (pa.array([None, None, None], pa.string()), None),
        (pa.array([["a"], ["b"], ["c"]]), ["a", "b", "c"]),
        (pa.array([["a", "b"], [], None]), [["a", "b"], None, None]),
        (pa.array([["x"], ["a"], None, ["b", "c"], ["y"]])[1:4], ["a", None, ["b", "c"]]),
        (pa.array([[], None, []], pa.list_(pa.string())), None),
    ],
)
def test_a_row_has_one_key_several_or_none(given: Any, found: Any) -> None:
    assert rows(body=bodies(3), keys=given).keys == found


def test_properties_are_a_map_or_headers() -> None:
    found = [{"a": "1", "b": "é"}, None, None]
    assert rows(body=bodies(3), properties=pa.array([[("a", "1"), ("b", "é")], [], None], MAP)).properties == found
    given = [[{"key": "a", "value": b"1"}, {"key": "b", "value": "é".encode()}], [], None]
    assert rows(body=bodies(3), headers=pa.array(given, HEADERS)).properties == found
    assert rows(body=bodies(1), properties=pa.array([[]], MAP)).properties is None


def test_the_option_wins_over_the_column_topic() -> None:
    assert flat(sends(rows("orders", body=bodies(2), topic=["a b", None]))) == [
        (b"0", "orders", (), None, None, None),
        (b"1", "orders", (), None, None, None),
    ]


def test_columns_that_the_broker_fills_are_not_looked_at() -> None:
    assert len(rows(body=bodies(2), queue_offset=pa.array([1, 2]), message_id=["x", "y"])) == 2


# ---- refused rows ----


@pytest.mark.parametrize(
    ("columns", "row", "words"),
    [
        ({"body": [b"", None, None]}, 1, ["'body'", "null"]),
        ({"topic": ["a", "a", None]}, 2, ["'topic'", "null"]),
        ({"topic": ["a", "b c", "b c"]}, 1, ["'topic'", "'b c'"]),
        ({"keys": ["a", "b", "c d"]}, 2, ["'keys'", "'c d'", "space"]),
        ({"keys": ["a", "", "c"]}, 1, ["'keys'", "empty"]),
        ({"keys": [["a"], ["b", "c d"], []]}, 1, ["'keys'", "'c d'", "space"]),
        ({"keys": [[], ["b", None], ["c"]]}, 1, ["'keys'", "null"]),
        ({"keys": [None, [], [None]]}, 2, ["'keys'", "null"]),
        ({"tags": [None, "eu", "a || b"]}, 2, ["'tags'", "'a || b'"]),
        ({"sharding_key": [None, "", "x"]}, 1, ["'sharding_key'", "empty"]),
        ({"queue": pa.array([0, None, -1], pa.int32())}, 2, ["'queue'", "-1"]),
        ({"queue": pa.array([0, 65536, 1], pa.int32())}, 1, ["'queue'", "65536"]),
        ({"properties": pa.array([None, [("KEYS", "x")], None], MAP)}, 1, ["'properties'", "KEYS"]),
        ({"properties": pa.array([None, [("UNIQ_KEY", "x")], None], MAP)}, 1, ["UNIQ_KEY", "includeHeaders"]),
        ({"properties": pa.array([None, [("INNER_NUM", "x")], None], MAP)}, 1, ["INNER_NUM", "belongs to the broker"]),
        ({"properties": pa.array([[], [], [("a", None)]], MAP)}, 2, ["'a'", "must be a str"]),
        ({"headers": pa.array([[], [{"key": "a", "value": b"\xff"}], []], HEADERS)}, 1, ["'a'", "UTF-8"]),
        ({"headers": pa.array([[{"key": "a", "value": b"1"}] * 2, [], []], HEADERS)}, 0, ["'a' twice"]),
        ({"headers": pa.array([[None], [], []], HEADERS)}, 0, ["null"]),
    ],
)
def test_a_row_that_cannot_be_sent_is_named(columns: dict[str, Any], row: int, words: list[str]) -> None:
    with pytest.raises(InvalidMessage) as raised:
        sends(rows(None if "topic" in columns else "orders", **{"body": bodies(3), **columns}))
    for word in [f"partition 3, row {1000 + row}: column", *words]:
        assert word in str(raised.value)


# ---- groups of rows ----


def test_rows_that_differ_in_body_and_keys_alone_are_one_call_of_columns() -> None:
    found = sends(rows(body=bodies(3), keys=[["a", "b"], None, ["c"]], tags=["eu"] * 3, sharding_key=["s"] * 3))
    assert [type(send) for send in found] == [ColumnSend]
    assert flat(found) == [
        (b"0", "orders", ("a", "b"), "eu", "s", None),
        (b"1", "orders", (), "eu", "s", None),
        (b"2", "orders", ("c",), "eu", "s", None),
    ]


def test_large_groups_are_calls_of_columns_and_small_ones_a_call_of_messages() -> None:
    tags = [None if number % 3 == 0 else f"t{number % 3}" for number in range(LARGE)]
    keys = [f"k{number}" for number in range(LARGE)]
    found = sends(rows(body=bodies(LARGE), keys=keys, tags=tags))
    assert [type(send) for send in found] == [ColumnSend] * 3
    expected = [
        (body, "orders", (key,), tag, None, None) for body, key, tag in zip(bodies(LARGE), keys, tags, strict=True)
    ]
    assert flat(found) == expected
    small = sends(rows(body=bodies(9), keys=keys[:9], tags=tags[:9]))
    assert [type(send) for send in small] == [MessageSend]
    assert flat(small) == expected[:9]


def test_each_topic_and_queue_has_its_own_calls_if_large() -> None:
    topics = [f"t{number % 2}" for number in range(LARGE)]
    queues = [None if number % 4 == 3 else number % 4 // 2 for number in range(LARGE)]
    found = sends(rows(None, body=bodies(LARGE), topic=topics, queue=pa.array(queues, pa.int32())))
    assert {type(send) for send in found} == {ColumnSend}
    assert flat(found) == [
        (body, topic, (), None, None, queue) for body, topic, queue in zip(bodies(LARGE), topics, queues, strict=True)
    ]


def test_the_order_of_a_queue_or_of_a_sharding_key_is_never_split_into_groups() -> None:
    tags = [f"t{number % 2}" for number in range(LARGE)]
    one = pa.array([1] * LARGE, pa.int32())
    for column in (
        {"queue": one},
        {"sharding_key": ["s"] * LARGE},
        {"sharding_key": [f"s{n // 2 % 2}" for n in range(LARGE)]},
    ):
        found = sends(rows(body=bodies(LARGE), tags=tags, **column))
        assert len(found) == 1
        assert isinstance(found[0], MessageSend)
        assert [message.body for message in found[0].messages] == bodies(LARGE)
    # Rows whose key always has the same tag are in one group anyway, and so are rows without a common key.
    assert len(sends(rows(body=bodies(LARGE), tags=tags, sharding_key=tags))) == 2
    assert len(sends(rows(body=bodies(LARGE), tags=tags))) == 2


def test_each_call_keeps_the_order_of_the_rows() -> None:
    queues = [number * 7 % 3 for number in range(LARGE)]
    for extra in ({}, {"properties": pa.array([[("n", "1")]] * LARGE, MAP)}):
        for send in sends(rows(body=bodies(LARGE), queue=pa.array(queues, pa.int32()), **extra)):
            assert isinstance(send, ColumnSend | MessageSend)
            assert send.rows.tolist() == [row for row in range(LARGE) if queues[row] == send.queue]


def test_rows_with_properties_are_messages() -> None:
    found = sends(rows(body=bodies(2), keys=["k", None], properties=pa.array([[("a", "1")], None], MAP)))
    assert isinstance(found[0], MessageSend)
    assert [dict(message.properties) for message in found[0].messages] == [{"a": "1"}, {}]
    assert flat(found) == [(b"0", "orders", ("k",), None, None, None), (b"1", "orders", (), None, None, None)]
