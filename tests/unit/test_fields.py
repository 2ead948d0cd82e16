"""Fields of requests and responses: the checks on arrival, and the error messages."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import msgpack
import pytest

from flintmq.protocol.commands import COMMANDS, Command, ProduceRequest, PullRequest
from flintmq.protocol.errors import InvalidParameter
from flintmq.protocol.fields import boolean, decode_fields, encode_fields, fields_of, integer, text


@dataclass(slots=True)
class Example:
    """A header with one field of each type, with and without a default."""

    name: str = text("a text", 5, 2)
    number: int = integer("an integer", -1, 10)
    yes: bool = boolean("a flag")
    note: str = text("an optional text", 3, default="")
    size: int = integer("an optional integer", 1, 100, 32)
    quiet: bool = boolean("an optional flag", True)


WHOLE = {"name": "abc", "number": 3, "yes": False}


def test_missing_fields_take_their_default_and_unknown_ones_are_ignored() -> None:
    example = decode_fields(Example, {**WHOLE, "later_addition": (1, {"a": 2})})
    assert example == Example(name="abc", number=3, yes=False, note="", size=32, quiet=True)


@pytest.mark.parametrize("name", WHOLE)
def test_a_missing_required_field_is_named(name: str) -> None:
    with pytest.raises(InvalidParameter, match=f"Example needs {name}$"):
        decode_fields(Example, {key: value for key, value in WHOLE.items() if key != name})


def test_all_missing_fields_are_named_at_once() -> None:
    with pytest.raises(InvalidParameter, match=r"Example needs name, number, yes$"):
        decode_fields(Example, {})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("name", b"abc"),
        ("name", None),
        ("name", 3),
        ("name", "a"),
        ("name", "abcdef"),
        ("number", "3"),
        ("number", 3.0),
        ("number", True),
        ("number", None),
        ("number", -2),
        ("number", 11),
        ("number", 2**64 - 1),
        ("yes", 1),
        ("yes", "true"),
        ("yes", ()),
        ("note", "abcd"),
        ("size", 0),
        ("size", {}),
        ("quiet", None),
    ],
)
def test_a_wrong_type_or_range_is_an_invalid_parameter_that_names_field_and_rule(name: str, value: Any) -> None:
    with pytest.raises(InvalidParameter, match=rf"^Example\.{name} must be (a|an) (string|integer|boolean)") as caught:
        decode_fields(Example, {**WHOLE, name: value})
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(("name", "value"), [("name", "ab"), ("name", "abcde"), ("number", -1), ("number", 10)])
def test_the_bounds_themselves_are_valid(name: str, value: Any) -> None:
    assert getattr(decode_fields(Example, {**WHOLE, name: value}), name) == value


def test_fields_equal_to_their_default_are_left_out() -> None:
    assert encode_fields(Example("abc", 3, False)) == WHOLE
    assert encode_fields(Example("abc", 3, False, size=33)) == {**WHOLE, "size": 33}


def test_encoding_never_leaves_out_a_required_field_that_is_empty() -> None:
    produce = encode_fields(ProduceRequest("t", 1))
    assert produce == {"topic": "t", "count": 1}
    assert encode_fields(PullRequest("t", 0, 0)) == {"topic": "t", "queue": 0, "offset": 0}


def _extremes(cls: type[Any], high: bool) -> Any:
    values: dict[str, Any] = {}
    for name, rule in fields_of(cls).rules.items():
        bound = rule.high if high else rule.low
        values[name] = high if rule.type is bool else "é" * bound if rule.type is str else bound
    return cls(**values)


MESSAGES = [
    pytest.param(cls, id=f"{command.name} {part}")
    for command in COMMANDS.values()
    for part, cls in (("request", command.request), ("answer", command.answer))
]


@pytest.mark.parametrize("high", [False, True])
@pytest.mark.parametrize("cls", MESSAGES)
def test_every_request_and_answer_survives_the_wire_at_its_extremes(cls: type[Any], high: bool) -> None:
    message = _extremes(cls, high)
    packed = msgpack.packb(encode_fields(message))
    decoded = decode_fields(cls, msgpack.unpackb(packed))
    assert decoded == message
    assert [type(getattr(decoded, field.name)) for field in dataclasses.fields(cls)] == [
        fields_of(cls).rules[field.name].type for field in dataclasses.fields(cls)
    ]


@pytest.mark.parametrize("command", COMMANDS.values(), ids=lambda command: command.name)
def test_every_field_has_a_meaning_and_a_default_that_its_own_rule_allows(command: Command) -> None:
    for cls in (command.request, command.answer):
        fields = fields_of(cls)
        for name, rule in fields.rules.items():
            assert rule.meaning
            default = fields.defaults.get(name)
            if type(default) is int:
                assert rule.low <= default <= rule.high, (cls, name)
            elif type(default) is str:
                assert rule.low <= len(default) <= rule.high, (cls, name)


def test_codes_and_names_are_unique() -> None:
    assert len({command.name for command in COMMANDS.values()}) == len(COMMANDS)
    assert all(code == command.code for code, command in COMMANDS.items())


def test_codes_are_rocketmqs_if_it_has_the_command() -> None:
    # org.apache.rocketmq.remoting.protocol.RequestCode, 5.3.3. PRODUCE, PULL and QUERY_BY_KEY are its SEND_MESSAGE,
    # PULL_MESSAGE and QUERY_MESSAGE.
    assert {command.name: code for code, command in COMMANDS.items() if not 1000 <= code < 2000} == {
        "PRODUCE": 10,
        "PULL": 11,
        "QUERY_BY_KEY": 12,
        "QUERY_CONSUMER_OFFSET": 14,
        "UPDATE_CONSUMER_OFFSET": 15,
        "UPDATE_AND_CREATE_TOPIC": 17,
        "GET_ALL_TOPIC_CONFIG": 21,
        "UPDATE_BROKER_CONFIG": 25,
        "GET_BROKER_CONFIG": 26,
        "GET_BROKER_RUNTIME_INFO": 28,
        "SEARCH_OFFSET_BY_TIMESTAMP": 29,
        "GET_MAX_OFFSET": 30,
        "GET_MIN_OFFSET": 31,
        "GET_EARLIEST_MSG_STORETIME": 32,
        "VIEW_MESSAGE_BY_ID": 33,
        "HEART_BEAT": 34,
        "UNREGISTER_CLIENT": 35,
        "CONSUMER_SEND_MSG_BACK": 36,
        "END_TRANSACTION": 37,
        "CHECK_TRANSACTION_STATE": 39,
        "NOTIFY_CONSUMER_IDS_CHANGED": 40,
        "GET_ALL_SUBSCRIPTIONGROUP_CONFIG": 201,
        "GET_TOPIC_STATS_INFO": 202,
        "GET_CONSUMER_CONNECTION_LIST": 203,
        "DELETE_SUBSCRIPTIONGROUP": 207,
        "GET_CONSUME_STATS": 208,
        "DELETE_TOPIC_IN_BROKER": 215,
        "INVOKE_BROKER_TO_RESET_OFFSET": 222,
        "AUTH_CREATE_USER": 3001,
        "AUTH_UPDATE_USER": 3002,
        "AUTH_DELETE_USER": 3003,
        "AUTH_LIST_USER": 3005,
        "POP_MESSAGE": 200050,
        "ACK_MESSAGE": 200051,
        "CHANGE_MESSAGE_INVISIBLETIME": 200053,
    }
