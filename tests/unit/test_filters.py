"""Filters: the syntax, the result for a message, and the position that an error names."""

from __future__ import annotations

from typing import Any

import pytest

from flintmq.broker.filters import (
    DEPTH_MAX,
    LIST_ITEMS_MAX,
    TERMS_MAX,
    All,
    AnyOf,
    Comparison,
    Lookup,
    Not,
    Truth,
    compile_filter,
    number_of,
    parse,
)
from flintmq.protocol.commands import FILTER_CHARS_MAX
from flintmq.protocol.errors import FilterIllegal
from flintmq.protocol.storage.record import encode_properties

MESSAGE = {
    "a": "10",
    "half": "2.5",
    "minus": "-3",
    "zero": "0",
    "big": "9007199254740993",
    "region": "eu",
    "quote": "it's",
    "yes": "True",
    "no": "perhaps",
    "text": "abcabc",
    "TAGS": "odd",
    "_x$1": "u",
    "ä": "ö",
    "name": "Zürich",
}

TRUE, FALSE, UNKNOWN = True, False, None


def says(condition: str, properties: dict[str, str] = MESSAGE) -> bool | None:
    """Return the result of the condition for a message."""
    if passes(condition, properties):
        return TRUE
    return FALSE if passes(f"NOT ({condition})", properties) else UNKNOWN


def one_of(text: str, count: int) -> str:
    """Return a list of ``count`` equal strings."""
    return f"a IN ({','.join([repr(text)] * count)})"


def passes(condition: str, properties: dict[str, str] = MESSAGE) -> bool:
    return compile_filter(condition).matches(encode_properties(properties))


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("a = 10", TRUE),
        ("a = 11", FALSE),
        ("a <> 10", FALSE),
        ("a > 9", TRUE),
        ("a >= 10", TRUE),
        ("a < 10", FALSE),
        ("a <= 10", TRUE),
        ("10 = a", TRUE),
        ("9 < a", TRUE),
        ("11 <= a", FALSE),
        ("a = 10.0", TRUE),
        ("a = 1e1", TRUE),
        ("a = 10L", TRUE),
        ("a > 9.99", TRUE),
        ("half = 2.5", TRUE),
        ("half > 2", TRUE),
        ("half < .3e1", TRUE),
        ("half = 2.", FALSE),
        ("minus = -3", TRUE),
        ("minus < + 1", TRUE),
        ("minus = - - -3", TRUE),
        ("zero = -0", TRUE),
        ("big = 9007199254740993", TRUE),
        ("big = 9007199254740992", FALSE),
        ("a < 9223372036854775807", TRUE),
        ("a > half", TRUE),
        ("half >= a", FALSE),
        ("a = a", TRUE),
        ("a = half", FALSE),
        ("a <> half", TRUE),
        ("region > 5", UNKNOWN),
        ("region = 5", UNKNOWN),
        ("region <> 5", UNKNOWN),
        ("region > a", UNKNOWN),
        ("region = 'eu'", TRUE),
        ("region = 'EU'", FALSE),
        ("'eu' = region", TRUE),
        ("region <> 'us'", TRUE),
        ("a = '10'", TRUE),
        ("a = '10.0'", FALSE),
        ("quote = 'it''s'", TRUE),
        ("name = 'Zürich'", TRUE),
        ("TAGS = 'odd'", TRUE),
        ("tags = 'odd'", UNKNOWN),
        ("_x$1 = 'u'", TRUE),
        ("region IN ('us', 'eu')", TRUE),
        ("region IN ('us')", FALSE),
        ("region NOT IN ('us')", TRUE),
        ("nothing IN ('us')", UNKNOWN),
        ("nothing NOT IN ('us')", UNKNOWN),
        ("a BETWEEN 10 AND 11", TRUE),
        ("a BETWEEN 9 AND 10", TRUE),
        ("a BETWEEN 1 AND 9.5", FALSE),
        ("a NOT BETWEEN 1 AND 9", TRUE),
        ("a NOT BETWEEN 1 AND 10", FALSE),
        ("5 BETWEEN half AND a", TRUE),
        ("a BETWEEN half AND 7", FALSE),
        ("nothing BETWEEN 1 AND 2", UNKNOWN),
        ("region BETWEEN 1 AND 2", UNKNOWN),
        ("a BETWEEN nothing AND 7", FALSE),
        ("a BETWEEN nothing AND 70", UNKNOWN),
        ("a BETWEEN 10 AND 10", TRUE),
        ("text CONTAINS 'cab'", TRUE),
        ("text CONTAINS 'cb'", FALSE),
        ("text NOT CONTAINS 'cb'", TRUE),
        ("text STARTSWITH 'abc'", TRUE),
        ("text NOT STARTSWITH 'abc'", FALSE),
        ("text ENDSWITH 'cabc'", TRUE),
        ("text ENDSWITH 'xabcabc'", FALSE),
        ("name CONTAINS 'ü'", TRUE),
        ("nothing CONTAINS 'a'", UNKNOWN),
        ("nothing NOT ENDSWITH 'a'", UNKNOWN),
        ("a IS NULL", FALSE),
        ("a IS NOT NULL", TRUE),
        ("nothing IS NULL", TRUE),
        ("nothing IS NOT NULL", FALSE),
        ("(nothing > 1) IS NULL", TRUE),
        ("(a > 1) IS NULL", FALSE),
        ("nothing = 1", UNKNOWN),
        ("1 = nothing", UNKNOWN),
        ("a = nothing", UNKNOWN),
        ("a <> nothing", UNKNOWN),
        ("nothing = 'x'", UNKNOWN),
        ("nothing < 1", UNKNOWN),
        ("nothing = TRUE", UNKNOWN),
        ("yes = TRUE", TRUE),
        ("TRUE = yes", TRUE),
        ("no = FALSE", TRUE),
        ("no <> TRUE", TRUE),
        ("a = TRUE", FALSE),
        ("(a > 5) = TRUE", TRUE),
        ("(a > 5) <> (half > 5)", TRUE),
        ("(nothing > 5) = FALSE", UNKNOWN),
        ("yes = (a = 10)", TRUE),
        ("TRUE", TRUE),
        ("FALSE", FALSE),
        ("(TRUE)", TRUE),
        ("1 = 1", TRUE),
        ("'a' = 'b'", FALSE),
        ("5 = '5.0'", TRUE),
        ("5 = 'five'", UNKNOWN),
        ("2 > 1", TRUE),
        ("NOT FALSE", TRUE),
    ],
)
def test_a_condition_has_its_value_for_a_message(condition: str, expected: bool | None) -> None:
    assert says(condition) is expected


@pytest.mark.parametrize(
    ("left", "right", "both", "either"),
    [
        (TRUE, TRUE, TRUE, TRUE),
        (TRUE, FALSE, FALSE, TRUE),
        (TRUE, UNKNOWN, UNKNOWN, TRUE),
        (FALSE, FALSE, FALSE, FALSE),
        (FALSE, UNKNOWN, FALSE, UNKNOWN),
        (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN),
    ],
)
def test_three_valued_logic(left: bool | None, right: bool | None, both: bool | None, either: bool | None) -> None:
    written = {TRUE: "a = 10", FALSE: "a = 11", UNKNOWN: "nothing = 10"}
    for one, other in ((written[left], written[right]), (written[right], written[left])):
        assert says(f"{one} AND {other}") is both
        assert says(f"{one} OR {other}") is either
        assert says(f"TRUE AND {one} AND {other}") is both
        assert says(f"FALSE OR {one} OR {other}") is either
    opposite = {TRUE: FALSE, FALSE: TRUE, UNKNOWN: UNKNOWN}
    assert says(f"NOT {written[left]}") is opposite[left]


def test_and_binds_before_or_and_not_before_and() -> None:
    tree = parse("NOT a = 1 AND b = 2 OR c = 3")
    assert isinstance(tree, AnyOf)
    both, comparison = tree.conditions
    assert isinstance(both, All)
    assert isinstance(both.conditions[0], Not)
    assert isinstance(both.conditions[0].condition, Comparison)
    assert isinstance(comparison, Comparison)
    assert says("TRUE OR FALSE AND FALSE") is TRUE
    assert says("(TRUE OR FALSE) AND FALSE") is FALSE
    assert says("NOT TRUE OR TRUE") is TRUE
    assert says("NOT (TRUE OR TRUE)") is FALSE
    assert says("a BETWEEN 1 AND 20 AND region = 'us'") is FALSE


def test_keywords_are_known_in_any_case_and_space_may_be_anything() -> None:
    assert passes("not a between 11 and 12 And region iN('eu')aNd nothing iS\tnUlL\r\n or\ffAlse")
    assert passes("-- what is wanted\na /* the amount */ >/**/5 -- no more")
    assert isinstance(parse("true"), Truth)


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        (b"a\x015\x02", True),
        (b"a\x015", True),
        (b"b\x01a\x02a\x015", True),
        (b"aa\x015\x02", False),
        (b"", False),
        (b"a\x014\x02a\x015\x02", True),
        (b"a\x015\x02a\x014\x02", False),
        (b"a\x015\x02a\x01\x02", True),
        (b"a\x01\x02a\x015\x02a\x01", True),
        (b"a\x01\x02", False),
        (b"a\x02a\x02", False),
        (b"\x015\x02", False),
        (b"b\x01a\x015\x02", False),
        (b"\x02\x02a\x015", True),
    ],
)
@pytest.mark.parametrize("more", [0, Lookup.ASKED_FEW])
def test_properties_are_found_as_readers_of_records_find_them(properties: bytes, expected: bool, more: int) -> None:
    assert compile_filter("a = 5" + " AND (x IS NULL)" * more).matches(properties) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5", 5),
        ("-5", -5),
        ("+5", 5),
        ("007", 7),
        ("5.", 5.0),
        (".5", 0.5),
        ("-2.5e-3", -0.0025),
        ("1E2", 100.0),
        ("1" * 19, 1111111111111111111),
        ("1e999", float("inf")),
        ("9" * 64, int("9" * 64)),
        ("", None),
        (" 5", None),
        ("5 ", None),
        ("1_000", None),
        ("0x5", None),
        ("NaN", None),
        ("inf", None),
        (".", None),
        ("5d", None),
        ("5L", None),
        ("٥", None),
        ("5\n", None),
        ("1" * 65, None),
        ("1" * 30_000, None),
        ("--5", None),
        ("e5", None),
    ],
)
def test_a_property_that_spells_a_number_is_one(text: str, expected: Any) -> None:
    found = number_of(text.encode())
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("condition", "column", "message"),
    [
        ("", 1, "expected a property"),
        ("  ", 3, "found the end"),
        ("a >", 4, "expected a property"),
        ("a > 5 AND", 10, "found the end"),
        ("a > 5 b", 7, "expected AND, OR or the end, found `b`"),
        ("a = 1 = 2", 7, "expected AND, OR or the end"),
        ("(a = 1", 7, "expected AND, OR or )"),
        ("a = 1)", 6, "`)`"),
        ("a LIKE 'x'", 3, "no LIKE"),
        ("(a like 'x')", 4, "no LIKE"),
        ("TRUE OR a LIKE 'x'", 11, "no LIKE"),
        ("a NOT LIKE 'x'", 7, "expected BETWEEN"),
        ("a", 1, "a IS NOT NULL"),
        ("(a)", 2, "expected a condition"),
        ("NOT a", 5, "a = TRUE"),
        ("a AND b = 1", 1, "alone"),
        ("b = 1 AND a 5", 13, "after a property"),
        ("NOT a like 'x'", 7, "no LIKE"),
        ("5", 1, "found a number alone"),
        ("b = 1 OR 'x'", 10, "found a string alone"),
        ("a b", 3, "BETWEEN"),
        ("a = NULL", 5, "IS NULL"),
        ("NULL", 1, "IS NULL"),
        ("a IS 5", 6, "NULL or NOT NULL"),
        ("a IS NOT 5", 10, "NULL"),
        ("5 IS NULL", 1, "never NULL"),
        ("TRUE IS NULL", 1, "never NULL"),
        ("a > 'x'", 5, "not a string"),
        ("'x' < a", 1, "not a string"),
        ("a > TRUE", 5, "not TRUE"),
        ("a > (b = 1)", 6, "not a condition"),
        ("a BETWEEN 'a' AND 'b'", 11, "BETWEEN compares numbers"),
        ("a BETWEEN 5 AND 1", 11, "nothing is BETWEEN"),
        ("a BETWEEN 5", 12, "expected AND"),
        ("5 = TRUE", 5, "never equal"),
        ("FALSE <> 'x'", 10, "never equal"),
        ("(a = 1) = 5", 11, "never equal"),
        ("a IN 'x'", 6, "expected ("),
        ("a IN ()", 7, "a string in single quotes"),
        ("a IN (1)", 7, "write '1'"),
        ("a IN ('x' 'y')", 11, "expected )"),
        ("a IN ('x',)", 11, "a string"),
        ("5 IN ('x')", 1, "needs a property"),
        ("a CONTAINS b", 12, "a string"),
        ("a CONTAINS ''", 12, "non-empty"),
        ("'x' CONTAINS 'x'", 1, "needs a property"),
        ("a > -b", 6, "arithmetic is not"),
        ("a > 1 + 1", 7, "AND, OR"),
        ("a * 2 > 1", 3, "arithmetic is not"),
        ("a = 'x", 5, "not terminated"),
        ('a = "x"', 5, "single quotes"),
        ("a != 5", 3, "use <> for not equal"),
        ("a == 5", 4, "`=`"),
        ("a = 1 && b = 2", 7, "use AND"),
        ("a = 1 || b = 2", 7, "use OR"),
        ("a = 5x", 5, "neither"),
        ("a = 5.5.5", 5, "neither"),
        ("a = 1.5L", 5, "only an integer"),
        ("a = 1e999", 5, "a double can represent"),
        ("a = 9223372036854775808", 5, "largest integer"),
        ("a = " + "9" * 3000, 5, "largest integer"),
        ("a = 1 /* b", 7, "end with */"),
        ("größe > 1", 3, "unexpected character"),
        ("order-id = 1", 6, "found `-`"),
        ("a = '\ud800'", 5, "UTF-8"),
        ("a\x00= 1", 2, "unexpected character"),
        (f"{'(' * (DEPTH_MAX + 1)}a = 1", DEPTH_MAX + 1, "deep"),
        ("NOT " * (DEPTH_MAX + 1), 4 * DEPTH_MAX + 1, "deep"),
        ("a=1 OR " * TERMS_MAX + "a=1", 7 * TERMS_MAX + 1, "comparisons"),
        (one_of("x", LIST_ITEMS_MAX + 1), 7 + 4 * LIST_ITEMS_MAX, "at most 512"),
        (" " * FILTER_CHARS_MAX + " ", FILTER_CHARS_MAX + 1, "4,097 characters"),
    ],
)
def test_an_error_names_position_and_problem(condition: str, column: int, message: str) -> None:
    with pytest.raises(FilterIllegal) as raised:
        compile_filter(condition)
    assert message in str(raised.value)
    assert raised.value.column == column
    assert f"column {column}: " in str(raised.value)
    assert len(str(raised.value)) < 300


def test_a_filter_within_the_limits_is_parsed() -> None:
    assert passes("a = 10 OR " * (TERMS_MAX - 1) + "a = 10")
    assert passes("(" * DEPTH_MAX + "a = 10" + ")" * DEPTH_MAX)
    assert passes("NOT " * DEPTH_MAX + "a = 10")
    assert passes("(" * 10 + "a = 10" + ") AND (TRUE)" * 10)
    assert passes(f"region = 'eu' AND NOT {one_of('x', LIST_ITEMS_MAX)}")
    assert passes("a = 10".ljust(FILTER_CHARS_MAX))


def test_the_same_text_is_compiled_once() -> None:
    assert compile_filter("a = 987") is compile_filter("a = 987")
