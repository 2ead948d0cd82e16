"""Parser of filters: recursive descent over RocketMQ's grammar, with limits on depth, terms and lists.

    any        := all (OR all)*
    all        := negated (AND negated)*
    negated    := NOT negated | comparison
    comparison := operand [ (= | <> | < | <= | > | >=) operand
                          | IS [NOT] NULL
                          | [NOT] BETWEEN operand AND operand
                          | [NOT] IN ( string (, string)* )
                          | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) string ]
    operand    := property | string | [+ | -]* number | TRUE | FALSE | ( any )

As in SQL, NOT binds less tightly than a comparison.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .syntax import (
    CONDITIONS,
    All,
    AnyOf,
    Between,
    Comparison,
    Missing,
    Not,
    Number,
    OneOf,
    Property,
    Text,
    TextMatch,
    Truth,
    describe,
)
from .tokens import END, KEYWORD, NAME, NUMBER, SYMBOL, TEXT, illegal, tokenize

if TYPE_CHECKING:
    from .syntax import Condition, Operand
    from .tokens import Token

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
