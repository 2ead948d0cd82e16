"""``Message``: valid contents, and the refusal of invalid ones before anything is sent."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from flintmq.client import FlintError, InvalidMessage, InvalidMessageType, Message, MessageIllegal


def test_a_message_has_the_arguments_it_was_created_with() -> None:
    message = Message("orders", b"body", keys=["a", "b"], tags="eu", properties={"source": "web"}, sharding_key="s")
    assert (message.topic, message.body, message.keys, message.tags) == ("orders", b"body", ("a", "b"), "eu")
    assert (dict(message.properties), message.sharding_key) == ({"source": "web"}, "s")


def test_only_topic_and_body_are_required() -> None:
    message = Message("orders", b"")
    assert (message.keys, message.tags, dict(message.properties), message.sharding_key) == ((), None, {}, None)


def test_one_str_is_one_key() -> None:
    assert Message("t", b"", keys="o-1").keys == ("o-1",)


def test_keys_may_come_from_a_generator() -> None:
    assert Message("t", b"", keys=(f"k{number}" for number in range(3))).keys == ("k0", "k1", "k2")


@pytest.mark.parametrize("body", [b"abc", bytearray(b"abc"), memoryview(b"abc"), memoryview(b"a-b-c-")[::2]])
def test_a_bytes_like_body_becomes_bytes(body: Any) -> None:
    assert Message("t", body).body == b"abc"
    assert type(Message("t", body).body) is bytes


def test_a_body_is_a_copy_of_a_bytearray() -> None:
    body = bytearray(b"before")
    message = Message("t", body)
    body[:] = b"after!"
    assert message.body == b"before"


def test_a_message_cannot_be_changed() -> None:
    message = Message("t", b"", properties={"a": "b"})
    with pytest.raises(AttributeError):
        message.topic = "other"  # type: ignore[misc]  # the assignment must fail
    with pytest.raises(TypeError):
        message.properties["a"] = "c"  # type: ignore[index]  # the assignment must fail


def test_properties_are_a_copy() -> None:
    properties = {"a": "b"}
    message = Message("t", b"", properties=properties)
    properties["a"] = "c"
    assert message.properties["a"] == "b"


@pytest.mark.parametrize("body", ["text", None, 5, ["x"], object()])
def test_a_body_that_is_not_bytes_is_a_type_error(body: Any) -> None:
    with pytest.raises(InvalidMessageType, match="body must be bytes") as raised:
        Message("t", body)
    assert isinstance(raised.value, TypeError)
    assert isinstance(raised.value, FlintError)


def test_a_str_body_is_refused_with_a_hint() -> None:
    with pytest.raises(InvalidMessageType, match=r"encode it first: body\.encode\(\)"):
        Message("t", "text")  # type: ignore[arg-type]  # the wrong argument is the test


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"keys": ["a b"]}, "has a space"),
        ({"keys": "a b"}, "has a space"),
        ({"keys": [" "]}, "has a space"),
        ({"keys": ["ok", ""]}, "empty"),
        ({"keys": ["a\x01b"]}, "separate"),
        ({"keys": ["a\x02b"]}, "separate"),
        ({"keys": ["\ud800"]}, "Unicode"),
        ({"tags": ""}, "empty"),
        ({"tags": "a || b"}, "one tag"),
        ({"tags": " a"}, "one tag"),
        ({"tags": "a\x01"}, "separate"),
        ({"sharding_key": ""}, "empty"),
        ({"sharding_key": "a\x02"}, "separate"),
        ({"properties": {"": "a"}}, "empty"),
        ({"properties": {"a": ""}}, "empty"),
        ({"properties": {"a\x01": "b"}}, "separate"),
        ({"properties": {"a": "b\x02"}}, "separate"),
        ({"properties": {"a": "\udfff"}}, "Unicode"),
        ({"properties": {"KEYS": "a"}}, "keys="),
        ({"properties": {"TAGS": "a"}}, "tags="),
        ({"properties": {"UNIQ_KEY": "a"}}, "producer generates it"),
        ({"properties": {"__SHARDINGKEY": "a"}}, "sharding_key="),
        ({"properties": {"INNER_NUM": "1"}}, "belongs to the broker"),
        ({"properties": {"INNER_MULTI_DISPATCH": "1"}}, "belongs to the broker"),
        ({"properties": {"__CRC32#": "1"}}, "belongs to the broker"),
        ({"topic": ""}, "empty"),
        ({"topic": "a b"}, "not allowed"),
        ({"topic": "x" * 128}, "128 characters"),
    ],
)
def test_content_that_readers_could_not_handle_is_refused(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidMessage, match=reason) as raised:
        Message(**{"topic": "t", "body": b"", **arguments})
    assert isinstance(raised.value, ValueError)
    assert not isinstance(raised.value, MessageIllegal)  # the broker has not seen it


@pytest.mark.parametrize(
    "arguments",
    [
        {"keys": [1]},
        {"keys": [b"a"]},
        {"keys": [None]},
        {"tags": 5},
        {"tags": ["a"]},
        {"sharding_key": 5},
        {"properties": {"a": 1}},
        {"properties": {1: "a"}},
        {"properties": [("a", "b")]},
        {"topic": None},
        {"topic": b"orders"},
    ],
)
def test_a_wrong_type_is_a_type_error(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessageType):
        Message(**{"topic": "t", "body": b"", **arguments})


@pytest.mark.parametrize("text", ["ключ-中文", "a\tb", "emoji-🦀", "a\u00a0b", "%|_-", "\u200b"])
def test_any_other_text_can_be_a_key_a_tag_and_a_property(text: str) -> None:
    message = Message("t", b"", keys=[text], tags=text, properties={text: text}, sharding_key=text)
    assert (message.keys, message.tags, dict(message.properties)) == ((text,), text, {text: text})


def test_messages_with_the_same_parts_are_equal() -> None:
    first, second = (Message("t", b"b", keys=["a"], tags="x", properties={"p": "q"}) for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)
    assert first != Message("t", b"b", keys=["a"], tags="x", properties={"p": "r"})
    assert first != Message("u", b"b", keys=["a"], tags="x", properties={"p": "q"})
    assert first != "t"


def test_a_message_can_be_pickled() -> None:
    message = Message("t", b"b", keys=["a", "c"], tags="x", properties={"p": "q"}, sharding_key="s")
    assert pickle.loads(pickle.dumps(message)) == message


def test_a_message_shows_its_parts_and_not_a_whole_body() -> None:
    shown = repr(Message("t", b"x" * 1000, keys=["a"], tags="eu", properties={"p": "q"}, sharding_key="s"))
    assert shown.startswith("Message('t', b'xxx")
    assert len(shown) < 200
    assert "keys=['a'], tags='eu', properties={'p': 'q'}, sharding_key='s'" in shown
