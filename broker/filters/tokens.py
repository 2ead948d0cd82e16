"""Tokenizer of filters: names, keywords, literals and symbols, each with the column at which it begins."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from ...protocol.commands import FILTER_CHARS_MAX
from ...protocol.errors import FilterIllegal
from ...protocol.fields import I64_MAX

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
        """Return the token as shown in an error message."""
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
