"""Names that RocketMQ's rule forbids: their codes, the errors, and the forms that people see and type."""

from __future__ import annotations

from typing import Any

import pytest

from flintmq.client import InvalidArgument, InvalidArgumentType, decode_name, encode_name
from flintmq.client.operator.display import is_called, real_name, shown_name


@pytest.mark.parametrize(
    ("name", "encoded"),
    [
        ("orders", "orders"),
        ("A_b-C|9", "A_b-C|9"),
        ("orders.v1", "orders%2Ev1"),
        ("celery@host.pidbox", "celery%40host%2Epidbox"),
        ("a/b:c d", "a%2Fb%3Ac%20d"),
        ("\u00fc", "%C3%BC"),
        ("\U0001f600", "%F0%9F%98%80"),
        ("100%", "100%25"),
        ("%RETRY%g", "%25RETRY%25g"),
        ("orders%2Ev1", "orders%252Ev1"),
    ],
)
def test_a_name_and_its_code(name: str, encoded: str) -> None:
    assert encode_name(name) == encoded
    assert decode_name(encoded) == name


@pytest.mark.parametrize("name", ["%RETRY%g", "%DLQ%a%40b", "100%", "%2e", "%41", "%FF", "%", "%2", "a|b", ""])
def test_a_name_that_is_not_encoded_is_decoded_to_itself(name: str) -> None:
    assert decode_name(name) == name


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (("",), InvalidArgument, "the topic name is empty; give it a name of 1 to 127 characters"),
        (("", "group"), InvalidArgument, "the group name is empty; give it a name of 1 to 120 characters"),
        ((b"a.b",), InvalidArgumentType, "the topic name must be a str, not bytes"),
        (
            ("a\ud800",),
            InvalidArgument,
            r"'a\\ud800' cannot be encoded: its character '\\ud800' is half of a surrogate",
        ),
        (("a", "queue"), InvalidArgument, "kind is 'queue'; it must be 'topic' or 'group'"),
        (("." * 43,), InvalidArgument, "has 129 characters once encoded; at most 127 are allowed"),
        (("." * 41, "group"), InvalidArgument, "has 123 characters once encoded; at most 120 are allowed"),
    ],
)
def test_a_name_without_a_code_is_refused(arguments: tuple[Any, ...], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        encode_name(*arguments)


def test_the_error_for_an_enormous_name_is_short() -> None:
    with pytest.raises(InvalidArgument, match=r"has 12,000,000 characters once encoded") as caught:
        encode_name("\U0010ffff" * 1_000_000)
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("orders", "orders"),
        ("orders%2Ev1", "orders.v1"),
        ("%DLQ%celery%40host", "%DLQ%celery@host"),
        ("%RETRY%celery%40host_orders%2Ev1", "%RETRY%celery@host_orders.v1"),
        ("%RETRY%celery%40host+orders%2Ev1", "%RETRY%celery@host+orders.v1"),
        ("%RETRY%a%2Bb", "%RETRY%a%2Bb"),  # else it would look like the retries of a group and a topic
        ("%RETRY%a%2Bb+orders%2Ev1", "%RETRY%a%2Bb+orders%2Ev1"),
        ("%DLQ%a%2Bb", "%DLQ%a+b"),
        ("100%25", "100%25"),  # "100%" is a valid name of its own
        ("%25RETRY%25a%40b", "%25RETRY%25a%40b"),  # else it would look like a retry topic
        ("a%20b", "a%20b"),
        ("a%0A%2E", "a%0A%2E"),
        ("a%E2%80%AE", "a%E2%80%AE"),
    ],
)
def test_people_see_the_decoded_form_if_it_cannot_mean_another_name(name: str, shown: str) -> None:
    assert shown_name(name) == shown
    assert real_name(shown) == name
    assert real_name(name) == name


@pytest.mark.parametrize("typed", ["a b", "a\n", "", "%RETRY%"])
def test_a_typed_name_that_nobody_means_stays_as_it_is(typed: str) -> None:
    assert real_name(typed) == typed


def test_a_typed_name_that_is_too_long_once_encoded_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"group .* has 123 characters once encoded"):
        real_name("." * 41, "group")


@pytest.mark.parametrize("text", ["ORDERS.v", "%2ev", "s.V1", ""])
def test_a_search_finds_a_name_in_either_form(text: str) -> None:
    assert is_called("orders%2Ev1", text)
    assert not is_called("bills", text or ".")
