"""SQL92 filters: expressions over the properties of messages, with which a consumer selects messages of a topic.

The broker needs only ``compile_filter(text).matches(properties)``. The grammar is RocketMQ's; ``protocol/README.md``
defines the behaviour in cases where RocketMQ's evaluator differs from SQL.
"""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from ..protocol.commands import FILTER_CHARS_MAX
from ..protocol.errors import FilterIllegal
from ..protocol.fields import I64_MAX
from ..protocol.storage.record import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR

# ---- Tokenizer of filters: names, keywords, literals and symbols, each with the column at which it begins.

NAME = "a property"
KEYWORD = "a keyword"
NUMBER = "a number"
TEXT = "a string"
SYMBOL = "a symbol"
END = "the end"

KEYWORDS = frozenset("AND BETWEEN CONTAINS ENDSWITH FALSE IN IS NOT NULL OR STARTSWITH TRUE".split())
"""Words that cannot be names of properties, in upper or lower case."""

DIGITS_MAX = 40
SHOWN_CHARS_MAX = 40
"""Maximum length of an excerpt of a filter in an error message."""

_TOKEN = re.compile(
    r"""(?P<blank>[ \t\n\r\f]+|--[^\n\r]*|/\*.*?\*/)
    |(?P<number>(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][+-]?[0-9]+)?[lL]?)(?P<rest>[A-Za-z0-9_$.]*)
    |(?P<text>'[^']*(?:''[^']*)*')
    |(?P<word>[A-Za-z_$][A-Za-z0-9_$]*)
    |(?P<symbol><>|<=|>=|[=<>(),+-])""",
    re.VERBOSE | re.DOTALL,
)
_HINTS = {
    "'": "the string that begins here is not terminated; double a quote within a string",
    '"': "use single quotes for strings",
    "!": "use <> for not equal",
    "&": "use AND",
    "|": "use OR",
    "/": "a comment that begins with /* must end with */; arithmetic is not supported",
    "*": "arithmetic is not supported",
    "%": "arithmetic is not supported",
}


class Token(NamedTuple):
    """A token. ``text``: as in the filter, but keywords in upper case; ``column``: that of its first character, counted
    from 1; ``value``: the value of a literal."""

    kind: str
    text: str
    column: int
    value: int | float | bytes = 0

    def shown(self) -> str:
        return "the end" if self.kind == END else f"`{shorten(self.text)}`"


def illegal(column: int, problem: str) -> FilterIllegal:
    """Return the error for a filter that breaks a rule at ``column``."""
    return FilterIllegal(f"invalid filter, column {column}: {problem}", column=column)


def shorten(text: str) -> str:
    """Return ``text``, truncated to ``SHOWN_CHARS_MAX`` characters."""
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[: SHOWN_CHARS_MAX - 1]}…"


def tokenize(text: str) -> Iterator[Token]:
    """Yield the tokens of a filter, the last one of kind ``END``. Raises ``FilterIllegal``."""
    if len(text) > FILTER_CHARS_MAX:
        raise illegal(
            FILTER_CHARS_MAX + 1, f"it has {len(text):,} characters; at most {FILTER_CHARS_MAX:,} are allowed"
        )
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            hint = _HINTS.get(text[at])
            raise illegal(at + 1, f"unexpected character {text[at]!r}{f'; {hint}' if hint else ''}")
        if found["blank"] is None:
            yield _token(found, at + 1)
        at = found.end()
    yield Token(END, "", len(text) + 1)


def _token(found: re.Match[str], column: int) -> Token:
    written = found[0]
    if found["number"] is not None:
        if found["rest"]:
            raise illegal(column, f"`{shorten(written)}` is neither a number nor a property")
        return Token(NUMBER, written, column, _number(written, column))
    if found["text"] is not None:
        return Token(TEXT, written, column, _text(written, column))
    if found["word"] is not None:
        word = written.upper()
        return Token(KEYWORD, word, column) if word in KEYWORDS else Token(NAME, written, column)
    return Token(SYMBOL, written, column)


def _number(written: str, column: int) -> int | float:
    """Return the value of a number without a sign. RocketMQ: an integer has 64 bits, any other number is a double."""
    digits = written.rstrip("lL")
    if digits.isdigit():
        # Cut before the conversion: ``int`` refuses more than 4,300 digits with an error of its own.
        if (number := int(digits[:DIGITS_MAX])) > I64_MAX or len(digits) > DIGITS_MAX:
            raise illegal(column, f"{shorten(digits)} is more than {I64_MAX}, the largest integer")
        return number
    if digits != written:
        raise illegal(column, f"{shorten(written)}: only an integer may end with an L")
    if math.isinf(fraction := float(digits)):
        raise illegal(column, f"{shorten(written)} is more than a double can represent")
    return fraction


def _text(written: str, column: int) -> bytes:
    try:
        return written[1:-1].replace("''", "'").encode()
    except UnicodeEncodeError:
        raise illegal(column, f"the string {shorten(ascii(written))} cannot be encoded as UTF-8") from None


# ---- Syntax tree of a filter.
#
# For a message, a *condition* is TRUE, FALSE or UNKNOWN; an *operand* has a value, or none if the message
# lacks the property. Every node stores the column at which it begins.


@dataclass(frozen=True, slots=True)
class Property:
    """The value of a property; properties are strings."""

    name: str
    column: int


@dataclass(frozen=True, slots=True)
class Number:
    value: int | float
    column: int


@dataclass(frozen=True, slots=True)
class Text:
    """A string, as UTF-8."""

    value: bytes
    column: int


@dataclass(frozen=True, slots=True)
class Truth:
    value: bool
    column: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison. ``symbol``: one of = <> < <= > >=."""

    symbol: str
    left: Operand
    right: Operand
    column: int


@dataclass(frozen=True, slots=True)
class Between:
    """A range check: not less than ``low`` and not more than ``high``."""

    value: Operand
    low: Operand
    high: Operand
    column: int


@dataclass(frozen=True, slots=True)
class OneOf:
    """A check that the property is one of several strings."""

    property: Property
    values: frozenset[bytes]
    column: int


@dataclass(frozen=True, slots=True)
class TextMatch:
    """A check that the property contains a string, or begins or ends with it.

    ``keyword``: CONTAINS, STARTSWITH or ENDSWITH.
    """

    keyword: str
    property: Property
    text: bytes
    column: int


@dataclass(frozen=True, slots=True)
class Missing:
    """A check that the operand has no value, or that the condition is UNKNOWN. It is never UNKNOWN itself."""

    operand: Operand
    column: int


@dataclass(frozen=True, slots=True)
class Not:
    """The negation; UNKNOWN stays UNKNOWN."""

    condition: Condition
    column: int


@dataclass(frozen=True, slots=True)
class All:
    """The conjunction: TRUE if all are TRUE, FALSE if one is FALSE, otherwise UNKNOWN."""

    conditions: tuple[Condition, ...]
    column: int


@dataclass(frozen=True, slots=True)
class AnyOf:
    """The disjunction: TRUE if one is TRUE, FALSE if all are FALSE, otherwise UNKNOWN."""

    conditions: tuple[Condition, ...]
    column: int


Condition: TypeAlias = Truth | Comparison | Between | OneOf | TextMatch | Missing | Not | All | AnyOf
Operand: TypeAlias = Property | Number | Text | Condition
CONDITIONS = (Truth, Comparison, Between, OneOf, TextMatch, Missing, Not, All, AnyOf)


def describe(operand: Operand) -> str:
    if isinstance(operand, Property):
        return "a property"
    if isinstance(operand, Number):
        return "a number"
    if isinstance(operand, Text):
        return "a string"
    if isinstance(operand, Truth):
        return "TRUE" if operand.value else "FALSE"
    return "a condition"


# ---- Values of properties: their look-up in a record's bytes, and their conversion for comparisons.

Source: TypeAlias = Any
"""Source of one message's values: its encoded properties after a 0x02, or the result of ``take_apart``."""

NUMBER_BYTES_MAX = 64
"""Maximum length of a property that counts as a number."""
_DIGITS_MAX = 18
_NUMBER = re.compile(rb"[+-]?(?:[0-9]+(\.[0-9]*)?|(\.[0-9]+))([eE][+-]?[0-9]+)?")


def number_of(value: bytes) -> int | float | None:
    """Return a property as a number (optional sign, digits, fraction, exponent); None if it is not a number."""
    # The usual case, without the regular expression; 18 digits are below the largest integer.
    if len(value) <= _DIGITS_MAX and value.isdigit():
        return int(value)
    found = _NUMBER.fullmatch(value) if len(value) <= NUMBER_BYTES_MAX else None
    if found is None:
        return None
    return int(value) if found.lastindex is None else float(value)


def truth_of(value: bytes) -> bool:
    """Return a property as a boolean. As in Java, ``true`` in any case is TRUE and everything else FALSE."""
    return value.lower() == b"true"


class Lookup:
    """Look-up of a message's properties for a filter that does up to ``asked`` look-ups.

    Values are as in ``decode_properties``: the last one of a name counts, and a name without a value is not a property.
    ``apart``: all properties are decoded first; up to ``ASKED_FEW`` look-ups it is faster to search for each name.
    """

    ASKED_FEW = 8

    def __init__(self, asked: int) -> None:
        self.apart = asked > self.ASKED_FEW

    def getter(self, name: str) -> Callable[[Source], bytes | None]:
        """Return a function that returns the property's value, or None if the message does not have it."""
        encoded = name.encode()
        return _looking_up(encoded) if self.apart else _searching(encoded)


def take_apart(properties: bytes) -> dict[bytes, bytes]:
    """Decode all properties; return them by name."""
    found = {}
    for pair in properties.split(PROPERTY_SEPARATOR):
        name, _, value = pair.partition(NAME_VALUE_SEPARATOR)
        if value:
            found[name] = value
    return found


def _looking_up(name: bytes) -> Callable[[Source], bytes | None]:
    def get(found: dict[bytes, bytes]) -> bytes | None:
        return found.get(name)

    return get


def _searching(name: bytes) -> Callable[[Source], bytes | None]:
    # 0x02 is before every name and nowhere else, so a match is always a whole name.
    head = PROPERTY_SEPARATOR + name + NAME_VALUE_SEPARATOR

    def get(source: bytes) -> bytes | None:
        # From the end, because the last value of a name counts.
        rest = source
        while True:
            rest, found, after = rest.rpartition(head)
            if not found:
                return None
            # A name without a value is not a property, so an earlier one of the same name counts.
            if value := after.partition(PROPERTY_SEPARATOR)[0]:
                return value

    return get


# ---- Parser of filters: recursive descent over RocketMQ's grammar, with limits on depth, terms and lists.
#
#     any        := all (OR all)*
#     all        := negated (AND negated)*
#     negated    := NOT negated | comparison
#     comparison := operand [ (= | <> | < | <= | > | >=) operand
#                           | IS [NOT] NULL
#                           | [NOT] BETWEEN operand AND operand
#                           | [NOT] IN ( string (, string)* )
#                           | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) string ]
#     operand    := property | string | [+ | -]* number | TRUE | FALSE | ( any )
#
# As in SQL, NOT binds less tightly than a comparison.

DEPTH_MAX = 32
"""Maximum nesting of parentheses and NOTs."""
TERMS_MAX = 256
"""Maximum number of comparisons and other checks of a property."""
LIST_ITEMS_MAX = 512

ORDER = ("<", "<=", ">", ">=")
PARTS = ("CONTAINS", "STARTSWITH", "ENDSWITH")
_PREDICATES = "=, <>, <, <=, >, >=, IS, IN, BETWEEN, CONTAINS, STARTSWITH or ENDSWITH"


def parse(text: str) -> Condition:
    """Parse a filter. Raises ``FilterIllegal`` with the column of the error."""
    return _Parser(tokenize(text)).whole()


class _Parser:
    """A parser with one token of look-ahead."""

    def __init__(self, tokens: Iterator[Token]) -> None:
        self._tokens = tokens
        self._token = next(tokens)
        self._depth = 0
        self._terms = 0

    def whole(self) -> Condition:
        condition = self._any()
        if self._token.kind != END:
            raise self._unfinished(condition, "the end")
        return self._condition(condition)

    # ---- tokens

    def _take(self) -> Token:
        token = self._token
        if token.kind != END:
            self._token = next(self._tokens)
        return token

    def _is(self, kind: str, *texts: str) -> bool:
        return self._token.kind == kind and self._token.text in texts

    def _takes(self, kind: str, *texts: str) -> Token | None:
        """Take and return the next token if it is one of these; otherwise return None."""
        return self._take() if self._is(kind, *texts) else None

    def _need(self, kind: str, text: str) -> Token:
        if not self._is(kind, text):
            raise self._expected(text)
        return self._take()

    def _expected(self, expected: str) -> Exception:
        return illegal(self._token.column, f"expected {expected}, found {self._token.shown()}")

    def _unfinished(self, operand: Operand, end: str) -> Exception:
        """Return the error for an unexpected token after ``operand``: most often a = b = c, or LIKE."""
        if self._token.kind == NAME and self._token.text.upper() == "LIKE":
            return self._expected("CONTAINS, STARTSWITH or ENDSWITH (there is no LIKE)")
        if isinstance(operand, CONDITIONS):
            return self._expected(f"AND, OR or {end}")
        return self._expected(f"{_PREDICATES} after {describe(operand)}")

    def _condition(self, operand: Operand) -> Condition:
        """Return ``operand``, which was just parsed, as a condition. Raises if it is not one."""
        if isinstance(operand, CONDITIONS):
            return operand
        # If more follows, that token is the mistake, and not the lone operand.
        if not (self._token.kind == END or self._is(SYMBOL, ")") or self._is(KEYWORD, "AND", "OR")):
            raise self._unfinished(operand, "")
        hint = ""
        if isinstance(operand, Property):
            hint = f"; compare it, or write {operand.name} = TRUE or {operand.name} IS NOT NULL"
        raise illegal(operand.column, f"expected a condition, found {describe(operand)} alone{hint}")

    # ---- conditions

    def _any(self) -> Operand:
        return self._joined("OR")

    def _joined(self, keyword: str) -> Operand:
        """Parse conditions joined by AND or by OR. Return a single operand as it is, even if it is not a condition."""
        column = self._token.column
        # OR joins what AND has joined, because AND binds more tightly.
        part = self._negated if keyword == "AND" else lambda: self._joined("AND")
        first = part()
        if not self._is(KEYWORD, keyword):
            return first
        conditions = [self._condition(first)]
        while self._takes(KEYWORD, keyword):
            conditions.append(self._condition(part()))
        return All(tuple(conditions), column) if keyword == "AND" else AnyOf(tuple(conditions), column)

    def _negated(self) -> Operand:
        token = self._takes(KEYWORD, "NOT")
        if token is None:
            return self._comparison()
        self._deeper(token)
        condition = Not(self._condition(self._negated()), token.column)
        self._depth -= 1
        return condition

    def _deeper(self, token: Token) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise illegal(token.column, f"parentheses and NOTs are nested more than {DEPTH_MAX} deep")

    def _term(self, column: int) -> int:
        """Count a term that begins at ``column``."""
        self._terms += 1
        if self._terms > TERMS_MAX:
            raise illegal(column, f"it has more than {TERMS_MAX} comparisons; use IN to compare with many strings")
        return column

    def _comparison(self) -> Operand:
        left = self._operand()
        if symbol := self._takes(SYMBOL, "=", "<>", *ORDER):
            return self._compared(left, symbol)
        if self._takes(KEYWORD, "IS"):
            return self._missing(left)
        token = self._takes(KEYWORD, "NOT")
        if found := self._takes(KEYWORD, "BETWEEN"):
            condition: Condition = self._between(left, found)
        elif self._takes(KEYWORD, "IN"):
            condition = self._one_of(left)
        elif found := self._takes(KEYWORD, *PARTS):
            condition = self._part(left, found.text)
        elif token is not None:
            raise self._expected("BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH after NOT")
        else:
            return left
        return condition if token is None else Not(condition, token.column)

    def _compared(self, left: Operand, symbol: Token) -> Condition:
        right = self._operand()
        if symbol.text in ORDER:
            _check_ordered(left, symbol.text)
            _check_ordered(right, symbol.text)
        elif isinstance(left, CONDITIONS) != isinstance(right, CONDITIONS) and not (
            isinstance(left, Property) or isinstance(right, Property)
        ):
            raise illegal(right.column, f"{describe(left)} is never equal to {describe(right)}")
        return Comparison(symbol.text, left, right, self._term(left.column))

    def _missing(self, left: Operand) -> Condition:
        negation = self._takes(KEYWORD, "NOT")
        if not self._is(KEYWORD, "NULL"):
            raise self._expected("NULL" if negation else "NULL or NOT NULL")
        self._take()
        if isinstance(left, Number | Text | Truth):
            raise illegal(left.column, f"{describe(left)} is never NULL; only a property can be missing")
        condition = Missing(left, self._term(left.column))
        return Not(condition, left.column) if negation else condition

    def _between(self, left: Operand, keyword: Token) -> Condition:
        low = self._operand()
        self._need(KEYWORD, "AND")
        high = self._operand()
        for operand in (left, low, high):
            _check_ordered(operand, keyword.text)
        if isinstance(low, Number) and isinstance(high, Number) and low.value > high.value:
            raise illegal(low.column, f"nothing is BETWEEN {low.value} AND {high.value}; put the lower one first")
        return Between(left, low, high, self._term(left.column))

    def _one_of(self, left: Operand) -> Condition:
        of = _check_property(left, "IN")
        self._need(SYMBOL, "(")
        values = [self._string("IN")]
        while self._takes(SYMBOL, ","):
            if len(values) == LIST_ITEMS_MAX:
                raise illegal(self._token.column, f"a list after IN may have at most {LIST_ITEMS_MAX} strings")
            values.append(self._string("IN"))
        self._need(SYMBOL, ")")
        return OneOf(of, frozenset(values), self._term(left.column))

    def _part(self, left: Operand, keyword: str) -> Condition:
        of = _check_property(left, keyword)
        column = self._token.column
        text = self._string(keyword)
        if not text:
            raise illegal(column, f"{keyword} needs a non-empty string")
        return TextMatch(keyword, of, text, self._term(left.column))

    # ---- operands

    def _string(self, keyword: str) -> bytes:
        if self._token.kind != TEXT:
            hint = f"; {keyword} compares strings: write '{self._token.text}'" if self._token.kind == NUMBER else ""
            raise self._expected(f"a string in single quotes{hint}")
        value = self._take().value
        assert isinstance(value, bytes), "a string token has bytes"
        return value

    def _operand(self) -> Operand:
        token = self._token
        if token.kind == NAME:
            self._take()
            return Property(token.text, token.column)
        if token.kind == TEXT:
            return Text(self._string(""), token.column)
        if token.kind == NUMBER or self._is(SYMBOL, "+", "-"):
            return self._number()
        if self._takes(KEYWORD, "TRUE", "FALSE"):
            return Truth(token.text == "TRUE", token.column)
        if self._takes(SYMBOL, "("):
            self._deeper(token)
            inner = self._any()
            if not self._takes(SYMBOL, ")"):
                raise self._unfinished(inner, ")")
            self._depth -= 1
            return inner
        if self._is(KEYWORD, "NULL"):
            raise illegal(token.column, "nothing is equal to NULL; write IS NULL or IS NOT NULL after a property")
        raise self._expected("a property, a number, a string, TRUE, FALSE or (")

    def _number(self) -> Number:
        column = self._token.column
        sign = 1
        while symbol := self._takes(SYMBOL, "+", "-"):
            sign = -sign if symbol.text == "-" else sign
        if self._token.kind != NUMBER:
            raise self._expected("a number after a sign (arithmetic is not supported)")
        value = self._take().value
        assert isinstance(value, int | float), "a number token has a number"
        return Number(sign * value, column)


def _check_ordered(operand: Operand, symbol: str) -> None:
    """Raise if the operand cannot be ordered. RocketMQ: only numbers have an order."""
    if not isinstance(operand, Property | Number):
        raise illegal(operand.column, f"{symbol} compares numbers and properties, not {describe(operand)}")


def _check_property(operand: Operand, keyword: str) -> Property:
    if isinstance(operand, Property):
        return operand
    raise illegal(operand.column, f"{keyword} needs a property before it, not {describe(operand)}")


# ---- Compiler of a filter's tree to nested functions.
#
# The function of a condition takes the source of a message's values and returns True, False, or None for
# UNKNOWN. Python's ``eval`` and ``exec`` are never used.

COMPILED_MAX = 256
"""Maximum number of compiled filters in the cache (LRU)."""
LONG_CHARS = 512
LONG_COMPILED_MAX = 16
"""Maximum number of cached filters longer than ``LONG_CHARS``: each takes up to 0.5 MiB."""

Evaluate: TypeAlias = Callable[[Source], bool | None]
Get: TypeAlias = Callable[[Source], Any]

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_MIRRORED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


class Filter:
    """A compiled filter. It has no state of a message, so any thread may use it."""

    __slots__ = ("_apart", "_evaluate", "text")

    def __init__(self, text: str) -> None:
        tree = parse(text)
        lookup = Lookup(_asked(tree))
        self.text = text
        self._apart = lookup.apart
        self._evaluate = _Compiler(lookup).condition(tree)

    def matches(self, properties: bytes) -> bool:
        """Return whether the filter is TRUE (not FALSE or UNKNOWN) for a message. ``properties``: encoded as in a
        record."""
        return bool(self.select([PROPERTY_SEPARATOR + properties]))

    def select(self, sources: Sequence[bytes]) -> list[int]:
        """Return the indexes of the messages for which the filter is TRUE.

        ``sources``: for each message, 0x02 followed by its properties, encoded as in a record.
        """
        evaluate = self._evaluate
        # Decided for the filter as a whole, so that no function of it has to ask.
        if self._apart:
            return [place for place, source in enumerate(sources) if evaluate(take_apart(source))]
        return [place for place, source in enumerate(sources) if evaluate(source)]


def compile_filter(text: str) -> Filter:
    """Compile a filter. Raises ``FilterIllegal`` with the ``column`` of the error."""
    return _compiled(text) if len(text) <= LONG_CHARS else _compiled_long(text)


_compiled = functools.lru_cache(COMPILED_MAX)(Filter)
_compiled_long = functools.lru_cache(LONG_COMPILED_MAX)(Filter)


def _asked(node: Operand) -> int:
    """Return the maximum number of property look-ups for one message."""
    if isinstance(node, Property):
        return 1
    if isinstance(node, Comparison):
        return _asked(node.left) + _asked(node.right)
    if isinstance(node, Between):
        return 2 * _asked(node.value) + _asked(node.low) + _asked(node.high)
    if isinstance(node, OneOf | TextMatch):
        return 1
    if isinstance(node, Missing):
        return _asked(node.operand)
    if isinstance(node, Not):
        return _asked(node.condition)
    if isinstance(node, All | AnyOf):
        return sum(map(_asked, node.conditions))
    return 0


class _Compiler:
    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup

    def condition(self, node: Condition) -> Evaluate:
        if isinstance(node, Truth):
            return _constant(node.value)
        if isinstance(node, Comparison):
            return self._comparison(node)
        if isinstance(node, Between):
            return self._between(node)
        if isinstance(node, OneOf):
            return _one_of(self._lookup.getter(node.property.name), node.values)
        if isinstance(node, TextMatch):
            return _part(self._lookup.getter(node.property.name), node.keyword, node.text)
        if isinstance(node, Missing):
            return _missing(self._raw(node.operand))
        if isinstance(node, Not):
            return _not(self.condition(node.condition))
        parts = [self.condition(part) for part in node.conditions]
        return _all(parts) if isinstance(node, All) else _any(parts)

    def _raw(self, node: Operand) -> Get:
        """Return the function of an unconverted operand: bytes of a property or string, a number, or a truth value."""
        if isinstance(node, Property):
            return self._lookup.getter(node.name)
        if isinstance(node, Number | Text):
            return _constant(node.value)
        return self.condition(node)

    def _comparison(self, node: Comparison) -> Evaluate:
        left, right, symbol = node.left, node.right, node.symbol
        # With the property on the left, one fast function serves both orders.
        if isinstance(right, Property) and not isinstance(left, Property):
            left, right, symbol = right, left, _MIRRORED[symbol]
        compare = _OPERATORS[symbol]
        kinds = (type(left), type(right))
        if symbol not in ("=", "<>") or Number in kinds:
            return self._numbers(left, right, compare)
        if isinstance(left, Property | Text) and isinstance(right, Property | Text):
            return _compared(self._raw(left), self._raw(right), compare)
        # One side is a condition, so the other one counts as a truth value.
        return _compared(_converted(self._raw(left), truth_of), _converted(self._raw(right), truth_of), compare)

    def _numbers(self, left: Operand, right: Operand, compare: Callable[[Any, Any], bool]) -> Evaluate:
        if isinstance(left, Property) and isinstance(right, Number):
            return _property_and_number(self._lookup.getter(left.name), right.value, compare)
        return _compared(self._number(left), self._number(right), compare)

    def _number(self, node: Operand) -> Get:
        return _converted(self._raw(node), number_of)

    def _between(self, node: Between) -> Evaluate:
        if isinstance(node.value, Property) and isinstance(node.low, Number) and isinstance(node.high, Number):
            return _property_between(self._lookup.getter(node.value.name), node.low.value, node.high.value)
        value = self._number(node.value)
        return _all(
            [
                _compared(value, self._number(node.low), operator.ge),
                _compared(value, self._number(node.high), operator.le),
            ]
        )


def _constant(value: Any) -> Get:
    def evaluate(source: Source) -> Any:
        return value

    return evaluate


def _converted(get: Get, convert: Callable[[bytes], Any]) -> Get:
    """Return a function that converts the value of ``get`` if it is a string."""

    def evaluate(source: Source) -> Any:
        value = get(source)
        return convert(value) if type(value) is bytes else value

    return evaluate


def _compared(left: Get, right: Get, compare: Callable[[Any, Any], bool]) -> Evaluate:
    def evaluate(source: Source) -> bool | None:
        first = left(source)
        if first is None:
            return None
        second = right(source)
        return None if second is None else compare(first, second)

    return evaluate


def _property_and_number(get: Get, number: int | float, compare: Callable[[Any, Any], bool]) -> Evaluate:
    def evaluate(source: Source) -> bool | None:
        value = get(source)
        if value is None or (value := number_of(value)) is None:
            return None
        return compare(value, number)

    return evaluate


def _property_between(get: Get, low: int | float, high: int | float) -> Evaluate:
    def evaluate(source: Source) -> bool | None:
        value = get(source)
        if value is None or (value := number_of(value)) is None:
            return None
        return low <= value <= high

    return evaluate


def _one_of(get: Get, values: frozenset[bytes]) -> Evaluate:
    def evaluate(source: Source) -> bool | None:
        value = get(source)
        return None if value is None else value in values

    return evaluate


def _part(get: Get, keyword: str, text: bytes) -> Evaluate:
    def contains(source: Source) -> bool | None:
        value = get(source)
        return None if value is None else text in value

    def begins(source: Source) -> bool | None:
        value = get(source)
        return None if value is None else value.startswith(text)

    def ends(source: Source) -> bool | None:
        value = get(source)
        return None if value is None else value.endswith(text)

    return {"CONTAINS": contains, "STARTSWITH": begins, "ENDSWITH": ends}[keyword]


def _missing(get: Get) -> Evaluate:
    def evaluate(source: Source) -> bool | None:
        return get(source) is None

    return evaluate


def _not(condition: Evaluate) -> Evaluate:
    def evaluate(source: Source) -> bool | None:
        found = condition(source)
        return None if found is None else not found

    return evaluate


def _all(conditions: list[Evaluate]) -> Evaluate:
    def evaluate(source: Source) -> bool | None:
        unknown = False
        for condition in conditions:
            found = condition(source)
            # As in SQL, UNKNOWN counts only if no condition decides.
            if found is False:
                return False
            unknown = unknown or found is None
        return None if unknown else True

    return evaluate


def _any(conditions: list[Evaluate]) -> Evaluate:
    def evaluate(source: Source) -> bool | None:
        unknown = False
        for condition in conditions:
            found = condition(source)
            if found:
                return True
            unknown = unknown or found is None
        return None if unknown else False

    return evaluate
