"""Encoded names: any text becomes a valid name and comes back, and no two names are mistaken for each other."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flintmq.client import InvalidArgument, decode_name, encode_name
from flintmq.client.operator.display import real_name, shown_name
from flintmq.protocol.names import check_name
from flintmq.protocol.storage.delivery import GROUP_TOPIC_PREFIXES
from flintmq.protocol.storage.layout import GROUP_BYTES_MAX, TOPIC_BYTES_MAX

NEAR = st.text(st.sampled_from("%%%2E5aA|_-.@ \n\u00e9\U0001f600RETRYDLQ"), min_size=1, max_size=14)
"""Short texts of characters that the rules tell apart, so that codes and prefixes occur often."""
TEXTS = NEAR | st.text(min_size=1, max_size=10)
VALID = st.text(st.sampled_from("%%%2E5aA|_-RETRYDLQ0"), min_size=1, max_size=14)


@given(TEXTS)
@example("%RETRY%billing")
@example("%DLQ%billing")
@example("%2E")
@example("%25")
def test_any_text_becomes_a_valid_name_and_comes_back(name: str) -> None:
    encoded = encode_name(name)
    assert check_name("topic", encoded) == check_name("group", encoded) == encoded
    assert decode_name(encoded) == name
    assert not encoded.startswith(GROUP_TOPIC_PREFIXES)


@given(VALID)
@example("%2e")
@example("%41")
@example("%FF")
@example("%2")
@example("%C3")
def test_only_the_result_of_an_encoding_is_decoded(name: str) -> None:
    decoded = decode_name(name)
    assert decoded == name or encode_name(decoded) == name


@given(st.text(st.sampled_from("a.\u00e9"), min_size=100, max_size=140), st.sampled_from(["topic", "group"]))
def test_exactly_the_names_that_fit_once_encoded_are_encoded(name: str, kind: str) -> None:
    longest = TOPIC_BYTES_MAX if kind == "topic" else GROUP_BYTES_MAX
    length = name.count("a") + 3 * name.count(".") + 6 * name.count("\u00e9")
    if length <= longest:
        assert len(encode_name(name, kind)) == length  # type: ignore[arg-type]  # one of the two kinds
    else:
        with pytest.raises(InvalidArgument, match=f"has {length} characters once encoded; at most {longest}"):
            encode_name(name, kind)  # type: ignore[arg-type]  # as above


@given(VALID)
@example("%25RETRY%25billing")
@example("%RETRY%%25DLQ%25%2E")
def test_a_person_reaches_every_real_name_by_the_name_that_is_shown(name: str) -> None:
    assert real_name(shown_name(name)) == name


@given(NEAR)
@example("%RETRY%celery@host")
def test_a_typed_name_that_is_encoded_is_shown_as_it_was_typed(name: str) -> None:
    real = real_name(name)
    assert real == name or shown_name(real) == name
