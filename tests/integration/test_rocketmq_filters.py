"""Apache RocketMQ's own parser and evaluator against FlintMQ's, on the same filters and messages.

Optional, see ``test_rocketmq_accepts.py``.
"""

from __future__ import annotations

import itertools
import json
import random
import subprocess
from collections import Counter
from typing import Any

import pytest

from flintmq.broker.filters import compile_filter
from flintmq.protocol.errors import FilterIllegal
from flintmq.protocol.storage.record import encode_properties
from tests.integration.rocketmq.harness import COMMAND_TIMEOUT_S, JAVA_OPTIONS, class_path

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

SEED = 20261122
NUMBERS = ["0", "5", "-3", "2.5", "5.0", "1e1", "10", ".5", "5L", "2147483648", "5E-1"]
SYMBOLS = ["=", "<>", "<", "<=", ">", ">="]
VALUES = ["0", "5", "7", "-3", "2.5", "10", "10.0", "eu", "us", "true", "FALSE", "it's", "Zürich"]
MESSAGES = [{"a": a, "b": b} for a, b in itertools.product(VALUES, ["5", "eu", "10"])]
MISSING: list[dict[str, str]] = [{}, {"b": "5"}, {"c": "5"}]

TERMS = [
    *[f"a {symbol} {number}" for symbol in SYMBOLS for number in NUMBERS],
    *[f"{number} {symbol} a" for symbol in SYMBOLS for number in ("5", "2.5")],
    *[f"a {symbol} {value}" for symbol in ("=", "<>") for value in ("'eu'", "'5'", "'it''s'", "'Zürich'")],
    *[f"a {symbol} {value}" for symbol in ("=", "<>") for value in ("TRUE", "false")],
    *["a BETWEEN 0 AND 7", "a NOT BETWEEN 0 AND 7", "a between 2.5 and 10.0", "a IS NULL", "a IS NOT NULL"],
    *["a IN ('eu')", "a IN ('5', 'us', 'it''s')", "a NOT IN ('eu', 'us')", "a IN ('1', '2', '3', '4', '5', '6', 'eu')"],
    *["TRUE", "FALSE", "(a > 1) = TRUE", "1 = 1", "2 > 3", "-5 < a", "b = 5", "b <> 5", "b IS NULL"],
]
WITHOUT_MISSING = [
    *[
        f"a {no}{keyword} '{part}'"
        for keyword in ("CONTAINS", "STARTSWITH", "ENDSWITH")
        for no in ("", "NOT ")
        for part in ("e", "u", "5", "ü", "eu")
    ],
    *[f"a {symbol} b" for symbol in SYMBOLS],
]
"""Where a property is missing these are not the same: see the specification."""
REFUSED_BY_BOTH = [
    "",
    "a >",
    "a > 'x'",
    "a = NULL",
    "a IN (1)",
    "a IN ()",
    "5 IN ('x')",
    "a > TRUE",
    "a BETWEEN 5 AND 1",
    "(a = 1",
    "a == 1",
    "a != 1",
    "a * 2 > 1",
    "'x'",
    "5",
    "a = 9223372036854775808",
    'a = "x"',
    "a && b",
    "a IS 5",
    "a BETWEEN 'a' AND 'b'",
    "AND a = 1",
    "größe = 1",
    "a IN ('x',)",
    "NOT a > 'x'",
]
NEVER_TRUE_THERE = [
    "a LIKE '5'",
    "a + 1 > 2",
    "a + 1 = 6",
    "a",
    "NULL",
    "-a < 5",
    "a CONTAINS ''",
    "a = 6 = 5",
    "a = 5.5.5",
    "a 5",
]
"""RocketMQ takes these, and lets nothing through; here they are refused."""


def compound(draw: random.Random, terms: list[str], depth: int = 3) -> str:
    """Return some of the terms, joined with AND, OR, NOT and parentheses."""
    if depth == 0 or draw.random() < 0.2:
        return draw.choice(terms)
    if draw.random() < 0.2:
        return f"NOT ({compound(draw, terms, depth - 1)})"
    parts = []
    for _ in range(draw.randint(2, 3)):
        part = compound(draw, terms, depth - 1)
        parts.append(f"({part})" if " OR " in part or part.startswith("NOT ") or draw.random() < 0.3 else part)
    return draw.choice([" AND ", " OR "]).join(parts)


def rocketmq(filters: list[str], messages: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Return RocketMQ's result for each filter."""
    asked = "".join(json.dumps({"do": "evaluate", "filter": text, "messages": messages}) + "\n" for text in filters)
    done = subprocess.run(
        ["java", *JAVA_OPTIONS, "-cp", class_path(), "FilterDriver"],
        input=asked,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=COMMAND_TIMEOUT_S,
        check=True,
    )
    answers: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(filters)
    return answers


@pytest.mark.parametrize(
    ("terms", "messages"), [(TERMS + WITHOUT_MISSING, MESSAGES), (TERMS, MISSING)], ids=["present", "missing"]
)
def test_the_same_messages_pass(terms: list[str], messages: list[dict[str, str]]) -> None:
    draw = random.Random(SEED)
    if messages is MISSING:  # 5 = a is FALSE there
        terms = [term for term in terms if term[0].isalpha() or term[0] == "("]
    filters = [*terms, *(compound(draw, terms) for _ in range(400))]
    seen: Counter[str] = Counter()
    for text, answer in zip(filters, rocketmq(filters, messages), strict=True):
        assert "results" in answer, (text, answer)
        mine = compile_filter(text)
        for message, result in zip(messages, answer["results"], strict=True):
            seen[result] += 1
            if result != "FAILED":  # a property that is not a number of the literal's type is SQL's UNKNOWN in FlintMQ
                assert mine.matches(encode_properties(message)) is (result == "TRUE"), (text, message, result)
    # Without a missing property nothing is UNKNOWN, but the evaluation can fail.
    expected = ("TRUE", "FALSE", "UNKNOWN" if messages is MISSING else "FAILED")
    assert all(seen[result] > 20 for result in expected), seen


def test_both_brokers_refuse_an_invalid_filter() -> None:
    for text, answer in zip(REFUSED_BY_BOTH, rocketmq(REFUSED_BY_BOTH, MISSING), strict=True):
        with pytest.raises(FilterIllegal):
            compile_filter(text)
        assert "refused" in answer, (text, answer)


def test_filters_that_match_nothing_in_rocketmq_are_refused() -> None:
    for text, answer in zip(NEVER_TRUE_THERE, rocketmq(NEVER_TRUE_THERE, MESSAGES + MISSING), strict=True):
        with pytest.raises(FilterIllegal):
            compile_filter(text)
        assert "TRUE" not in answer["results"], (text, answer)
