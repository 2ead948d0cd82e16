"""JSON as fastjson, the library of RocketMQ's programs, writes and reads it.

It differs from standard JSON where a map has keys that are not text: numbers are keys without quotes,
``{0:"127.0.0.1:10911"}``, and objects are keys as they are, ``{{"queueId":0,"topic":"t"}:5}``. Java's clients read a
quoted number as a key, but an object only in that form.

Java reads a value into a field of a type, and converts it: an enumeration is a name or an ordinal, a number may be a
text of digits, a text a number. The functions ``as_…`` do the same, for all that fastjson 1.2 (RocketMQ up to 5.3) or
fastjson2 (from 5.4 on) converts between scalar values.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

DEPTH_MAX = 32
"""Maximum number of objects and arrays inside of each other."""
CHARS_MAX = 16 * 1024 * 1024
"""Longest text that is read."""
VALUES_MAX = 65_536
"""Maximum number of values in one text: each takes microseconds and up to 100 bytes of memory."""
_INTEGER_DIGITS_MAX = 40

_encode_text = json.JSONEncoder(ensure_ascii=False).encode
_decode_text = json.JSONDecoder(strict=False).decode
_TOKEN = re.compile(
    r"""[ \t\r\n]*(?:
    (?P<sign>[{}\[\],:])
    |(?P<text>"(?:[^"\\]|\\.)*")
    |'(?P<quoted>(?:[^'\\]|\\.)*)'
    |(?P<number>[-+]?[0-9]+(?P<fraction>\.[0-9]+)?(?P<exponent>[eE][+-]?[0-9]+)?)(?P<suffix>[LDFSBldfsb]?)
    |(?P<word>[A-Za-z_$][A-Za-z0-9_$]*)
    )""",
    re.VERBOSE | re.DOTALL,
)
_WORDS = {"true": True, "false": False, "null": None}
_NUMBER = re.compile(r"[-+]?[0-9]{1,40}(\.[0-9]{1,40})?([eE][-+]?[0-9]{1,3})?\Z")
_NULLS = ("", "null", "NULL")
_QUOTES = re.compile(r"\\.|\"", re.DOTALL)
_REQUOTED = {'"': '\\"', "\\'": "'"}
_FLAGS = {"true": True, "false": False, "1": True, "0": False, "y": True, "n": False, "t": True, "f": False}


class FastjsonError(ValueError):
    """A text is not JSON, not even in fastjson's sense, or it exceeds a bound."""


class ObjectMap(list[tuple[Any, Any]]):
    """A map whose keys are objects: pairs of key and value."""


def encode(value: Any) -> bytes:
    """Return a value as fastjson writes it: without white space and without members that are None.

    Keys of a ``Mapping`` are text or integers; an ``ObjectMap`` may have keys of any kind.
    """
    parts: list[str] = []
    _write(value, parts)
    return "".join(parts).encode("utf-8", "replace")


def _write(value: Any, parts: list[str]) -> None:
    if isinstance(value, ObjectMap):
        _write_map(value, parts)
    elif isinstance(value, Mapping):
        _write_map(value.items(), parts)
    elif isinstance(value, list | tuple):
        parts.append("[")
        for number, each in enumerate(value):
            if number:
                parts.append(",")
            _write(each, parts)
        parts.append("]")
    else:
        parts.append(_encode_text(value))


def _write_map(items: Iterable[tuple[Any, Any]], parts: list[str]) -> None:
    parts.append("{")
    first = True
    for key, each in items:
        if each is None:
            continue
        if not first:
            parts.append(",")
        first = False
        _write(key, parts)
        parts.append(":")
        _write(each, parts)
    parts.append("}")


def decode(blob: bytes | bytearray | memoryview | str, values_max: int = VALUES_MAX) -> Any:
    """Return the value of a text in standard JSON or in fastjson's, with at most ``values_max`` values in it.

    Raises ``FastjsonError``.

    A map is a ``dict`` with keys of text, numbers as their digits, or an ``ObjectMap`` if a key is an object or array.
    """
    if isinstance(blob, str):
        text = blob
    elif len(blob) > CHARS_MAX:
        raise FastjsonError(f"the text has {len(blob):,} bytes; at most {CHARS_MAX:,} are read")
    else:
        try:
            text = bytes(blob).decode()
        except UnicodeDecodeError as error:
            raise FastjsonError(f"the text is not UTF-8: {error}") from None
    if len(text) > CHARS_MAX:
        raise FastjsonError(f"the text has {len(text):,} characters; at most {CHARS_MAX:,} are read")
    reader = _Reader(text, values_max)
    value = reader.value(0)
    if text[reader.at :].strip(" \t\r\n"):
        raise reader.error("the end")
    return value


# ---- values, as Java's fields take them; None stands for null, and for what counts as null ----


def as_text(value: Any) -> str | None:
    """Return a value for a field of type ``String``: any other value is its JSON."""
    if value is None or isinstance(value, str):
        return value
    return encode(value).decode()


def as_integer(value: Any) -> int | None:
    """Return a value for a field of type ``int`` or ``long``; a fraction is cut off. Raises ``FastjsonError``."""
    if isinstance(value, str):
        if value in _NULLS:
            return None
        if value in ("true", "false"):
            return int(value == "true")
        digits = value.replace(",", "")
        match = _NUMBER.match(digits)
        if match is None:
            raise FastjsonError("must be an integer")
        value = int(digits) if match[1] is None and match[2] is None else float(digits)
    if isinstance(value, float) and not math.isfinite(value):
        raise FastjsonError("must be an integer")
    if value is None or isinstance(value, int | float):
        return None if value is None else int(value)
    raise FastjsonError("must be an integer")


def as_flag(value: Any) -> bool | None:
    """Return a value for a field of type ``boolean``; of numbers, 1 is true. Raises ``FastjsonError``."""
    if isinstance(value, str):
        if value in _NULLS:
            return None
        if value.lower() not in _FLAGS:
            raise FastjsonError("must be true or false")
        return _FLAGS[value.lower()]
    if value is None or isinstance(value, int | float):
        return None if value is None else value == 1
    raise FastjsonError("must be true or false")


def as_word(value: Any, names: Sequence[str]) -> str | None:
    """Return the name of an enumeration's value for a name in either case, or for an ordinal.

    ``names``: in the order of their ordinals. An unknown name counts as null. Raises ``FastjsonError``.
    """
    if isinstance(value, str):
        if value.upper() in names:
            return value.upper()
        value = int(value) if value.isascii() and value.isdigit() and len(value) < 10 else None
        if value is None or value >= len(names):
            return None
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value < len(names):
        raise FastjsonError(f"must be {' or '.join(names)}, or a number from 0 to {len(names) - 1}")
    return names[int(value)]


class _Reader:
    """A text and the position in it."""

    __slots__ = ("_values_left", "_values_max", "at", "text")

    def __init__(self, text: str, values_max: int) -> None:
        self.text = text
        self.at = 0
        self._values_left = self._values_max = values_max

    def error(self, wanted: str) -> FastjsonError:
        """Return the error for a text that has something other than ``wanted`` at its position."""
        found = self.text[self.at : self.at + 20]
        return FastjsonError(f"at character {self.at:,} must be {wanted}, not {found!r}")

    def _next(self, wanted: str) -> re.Match[str]:
        match = _TOKEN.match(self.text, self.at)
        if match is None:
            raise self.error(wanted)
        return match

    def _takes(self, sign: str) -> bool:
        """Return whether the next token is ``sign``, and pass over it if it is."""
        match = _TOKEN.match(self.text, self.at)
        if match is None or match["sign"] != sign:
            return False
        self.at = match.end()
        return True

    def value(self, depth: int, *, as_key: bool = False) -> Any:
        """Return the value at the position, and pass over it."""
        self._values_left -= not as_key
        if self._values_left < 0:
            raise FastjsonError(f"the text has more than {self._values_max:,} values")
        match = self._next("a value")
        sign = match["sign"]
        if sign is not None and sign in "{[":
            if depth >= DEPTH_MAX:
                raise FastjsonError(f"objects and arrays are nested deeper than {DEPTH_MAX}")
            self.at = match.end()
            return self._map(depth + 1) if sign == "{" else self._array(depth + 1)
        if sign is not None:
            raise self.error("a value")
        if (word := match["word"]) is not None and not as_key and word not in _WORDS:
            raise self.error("a value")
        self.at = match.end()
        if word is not None:
            return word if as_key else _WORDS[word]
        if (text := match["text"]) is not None:
            return self._text(text)
        if (quoted := match["quoted"]) is not None:
            # The same text between double quotes: those inside are escaped, and an escaped single one needs no escape.
            return self._text('"' + _QUOTES.sub(lambda found: _REQUOTED.get(found[0], found[0]), quoted) + '"')
        if as_key:
            return match["number"]
        return self._number(match)

    def _text(self, text: str) -> str:
        try:
            value: str = _decode_text(text)
        except ValueError as error:
            raise FastjsonError(f"before character {self.at:,}: {error}") from None
        return value

    @staticmethod
    def _number(match: re.Match[str]) -> int | float:
        digits = match["number"]
        if match["fraction"] is None and match["exponent"] is None:
            # The time of ``int`` grows with the square of the digits.
            if len(digits) > _INTEGER_DIGITS_MAX:
                raise FastjsonError(f"an integer of {len(digits):,} digits; at most {_INTEGER_DIGITS_MAX} are read")
            return int(digits)
        number = float(digits)
        if math.isinf(number):
            raise FastjsonError(f"the number {digits[:40]} is too large")
        return number

    def _array(self, depth: int) -> list[Any]:
        items: list[Any] = []
        if self._takes("]"):
            return items
        while True:
            items.append(self.value(depth))
            comma = self._takes(",")
            # A comma may follow the last item.
            if self._takes("]"):
                return items
            if not comma:
                raise self.error("a comma or the end of an array")

    def _map(self, depth: int) -> dict[str, Any] | ObjectMap:
        pairs = ObjectMap()
        has_objects = False
        ended = self._takes("}")
        while not ended:
            key = self.value(depth, as_key=True)
            has_objects = has_objects or not isinstance(key, str)
            if not self._takes(":"):
                raise self.error("a colon")
            pairs.append((key, self.value(depth)))
            comma = self._takes(",")
            ended = self._takes("}")
            if not ended and not comma:
                raise self.error("a comma or the end of an object")
        return pairs if has_objects else dict(pairs)
