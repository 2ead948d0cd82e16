"""Filters against an independent evaluator that walks the tree, and against random text."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from flintmq.broker.filters import TERMS_MAX, compile_filter
from flintmq.protocol.errors import FilterIllegal
from flintmq.protocol.storage.record import decode_properties, encode_properties

NAMES = ["a", "b", "aa", "TAGS"]
VALUES = ["0", "1", "2", "10", "-1", "1.0", "1.5", "+2", "1e1", ".5", "eu", "us", "e", "true", "TRUE", "x'y", "1x", "ü"]
NUMBERS = ["0", "1", "2", "10", "-1", "1.0", "1.5", "1e1", "- 5E-1"]

Evaluate = Callable[[dict[str, str]], Any]
"""Value of a filter's part for a message: True, False or None for UNKNOWN; an operand is a str, a Decimal, a bool or
None."""


def number(value: Any) -> Decimal | None:
    """Return a number, converted if it is a string."""
    if isinstance(value, str):
        return Decimal(value) if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", value) else None
    assert value is None or isinstance(value, Decimal)
    return value


def compared(symbol: str, left: Any, right: Any) -> bool | None:
    """Compare two values as SQL does, with the conversions of the specification."""
    if left is None or right is None:
        return None
    if symbol in ("<", "<=", ">", ">=") or isinstance(left, Decimal) or isinstance(right, Decimal):
        left, right = number(left), number(right)
        if left is None or right is None:
            return None
    elif isinstance(left, bool) or isinstance(right, bool):
        left, right = (side if isinstance(side, bool) else side.lower() == "true" for side in (left, right))
    results: dict[str, bool] = {
        "=": left == right,
        "<>": left != right,
        "<": left < right,
        "<=": left <= right,
        ">": left > right,
        ">=": left >= right,
    }
    return results[symbol]


def opposite(value: bool | None) -> bool | None:
    return None if value is None else not value


def both(left: bool | None, right: bool | None) -> bool | None:
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def either(left: bool | None, right: bool | None) -> bool | None:
    return opposite(both(opposite(left), opposite(right)))


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def is_part(keyword: str, text: str, value: str | None) -> bool | None:
    if value is None:
        return None
    return {"CONTAINS": text in value, "STARTSWITH": value.startswith(text), "ENDSWITH": value.endswith(text)}[keyword]


@st.composite
def properties_named(draw: st.DrawFn) -> tuple[str, Evaluate]:
    name = draw(st.sampled_from(NAMES))
    return name, lambda message: message.get(name)


@st.composite
def numbers(draw: st.DrawFn) -> tuple[str, Evaluate]:
    text = draw(st.sampled_from(NUMBERS))
    return text, lambda message: Decimal(text.replace(" ", ""))


@st.composite
def strings(draw: st.DrawFn) -> tuple[str, Evaluate]:
    text = draw(st.sampled_from(VALUES))
    return quoted(text), lambda message: text


@st.composite
def terms(draw: st.DrawFn) -> tuple[str, Evaluate]:
    """Draw one comparison or another condition on a property, as text and as its meaning."""
    name, get = draw(properties_named())
    kind = draw(st.sampled_from(["order", "equal", "between", "in", "part", "null", "truth"]))
    negated = draw(st.booleans())
    no = "NOT " if negated else ""
    change = opposite if negated else (lambda value: value)
    if kind == "order" or kind == "equal":
        symbol = draw(st.sampled_from(["<", "<=", ">", ">="] if kind == "order" else ["=", "<>"]))
        others = [properties_named(), numbers()] + ([strings()] if kind == "equal" else [])
        other, its = draw(st.one_of(others))
        if draw(st.booleans()):
            return f"{name} {symbol} {other}", lambda message: compared(symbol, get(message), its(message))
        return f"{other}{symbol}{name}", lambda message: compared(symbol, its(message), get(message))
    if kind == "between":
        low, high = sorted(draw(st.lists(st.sampled_from(["0", "1", "2", "10"]), min_size=2, max_size=2)), key=int)
        return f"{name} {no}BETWEEN {low} AND {high}", lambda message: change(
            both(compared(">=", get(message), Decimal(low)), compared("<=", get(message), Decimal(high)))
        )
    if kind == "in":
        values = draw(st.lists(st.sampled_from(VALUES), min_size=1, max_size=4))
        text = f"{name} {no}IN ({', '.join(map(quoted, values))})"
        return text, lambda message: None if get(message) is None else change(get(message) in values)
    if kind == "part":
        keyword, part = draw(st.sampled_from(["CONTAINS", "STARTSWITH", "ENDSWITH"])), draw(st.sampled_from(VALUES))
        text = f"{name} {no}{keyword} {quoted(part)}"
        return text, lambda message: change(is_part(keyword, part, get(message)))
    if kind == "null":
        return f"{name} IS {no}NULL", lambda message: change(get(message) is None)
    truth = draw(st.booleans())
    return f"{name} = {str(truth).lower()}", lambda message: compared("=", get(message), truth)


def joined(parts: list[tuple[str, Evaluate]], word: str, join: Callable[[Any, Any], Any]) -> tuple[str, Evaluate]:
    def evaluate(message: dict[str, str]) -> Any:
        value = parts[0][1](message)
        for _, part in parts[1:]:
            value = join(value, part(message))
        return value

    return f" {word} ".join(f"({text})" for text, _ in parts), evaluate


conditions = st.recursive(
    terms(),
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=5).map(lambda parts: joined(parts, "AND", both)),
        st.lists(inner, min_size=2, max_size=5).map(lambda parts: joined(parts, "or", either)),
        inner.map(lambda part: (f"NOT ({part[0]})", lambda message: opposite(part[1](message)))),
        inner.map(lambda part: (f"({part[0]}) IS NULL", lambda message: part[1](message) is None)),
        st.tuples(inner, inner).map(
            lambda parts: (
                f"({parts[0][0]}) <> ({parts[1][0]})",
                lambda message: compared("<>", parts[0][1](message), parts[1][1](message)),
            )
        ),
    ),
    max_leaves=12,
)
messages = st.lists(st.tuples(st.sampled_from([*NAMES, "other"]), st.sampled_from([*VALUES, ""])), max_size=7)


@settings(max_examples=200, deadline=None)
@given(conditions, st.lists(messages, min_size=1, max_size=4))
def test_a_filter_evaluates_like_its_tree(condition: tuple[str, Evaluate], sent: list[list[tuple[str, str]]]) -> None:
    text, evaluate = condition
    compiled = compile_filter(text)
    refused = compile_filter(f"NOT ({text})")
    for pairs in sent:
        properties = encode_properties(pairs)
        expected = evaluate(decode_properties(properties))
        assert compiled.matches(properties) is (expected is True)
        assert refused.matches(properties) is (expected is False)


TOKENS = [
    "a",
    "b",
    "5",
    "-",
    "1.5",
    "'x'",
    "''",
    "(",
    ")",
    ",",
    "=",
    "<>",
    "<",
    ">=",
    "AND",
    "OR",
    "NOT",
    "IN",
    "IS",
    "NULL",
    "BETWEEN",
    "TRUE",
    "FALSE",
    "CONTAINS",
    "STARTSWITH",
    "--",
    "/*",
    "*/",
    "\n",
    "'",
    "9" * 30,
    "1e999",
    "5x",
    "LIKE",
]


@settings(max_examples=500, deadline=None)
@given(st.one_of(st.text(max_size=60), st.lists(st.sampled_from(TOKENS), max_size=25).map(" ".join)), st.binary())
@example("(" * 4096, b"")
@example("NOT " * 1024, b"")
@example("a=1 AND " * TERMS_MAX + "a=1", b"")
@example("'" * 4095, b"")
@example("a = '\ud800'", b"")
def test_any_text_parses_or_raises_an_error_with_a_position(text: str, properties: bytes) -> None:
    try:
        compiled = compile_filter(text)
    except FilterIllegal as error:
        column = error.column
    else:
        column = 1
        assert compiled.matches(properties) in (True, False)
    assert 1 <= column <= len(text) + 1
