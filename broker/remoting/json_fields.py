"""The JSON in the body of a request, read with its types and bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from ...protocol.errors import InvalidParameter
from ...protocol.fields import I64_MAX
from ...protocol.remoting.fastjson import FastjsonError, as_flag, as_integer, as_text, as_word

T = TypeVar("T")

TEXT_CHARS_MAX = 1_024
"""Maximum length of a string, unless the caller allows more."""


class JsonFields:
    """An object of the body. ``what``: its name in errors. Each method raises ``InvalidParameter`` for a wrong value.

    A member that is missing or null has its default, and values are converted as RocketMQ's brokers convert them.
    """

    __slots__ = ("_values", "what")

    def __init__(self, values: Any, what: str) -> None:
        if not isinstance(values, dict):
            raise InvalidParameter(f"{what} must be a JSON object with names as keys")
        self._values = values
        self.what = what

    def text(self, name: str, default: str | None = None, chars_max: int = TEXT_CHARS_MAX) -> str:
        """Return a string of at most ``chars_max`` characters."""
        value = as_text(self._values.get(name))
        if value is None:
            if default is not None:
                return default
            raise InvalidParameter(f"{self.what}: {name} must be a string, got nothing")
        if len(value) > chars_max:
            raise InvalidParameter(f"{self.what}: {name} has {len(value):,} characters; the maximum is {chars_max:,}")
        return value

    def integer(self, name: str, default: int | None = None, low: int = -I64_MAX - 1, high: int = I64_MAX) -> int:
        """Return an integer from ``low`` to ``high``."""
        number = self._convert(name, as_integer)
        if number is None:
            if default is not None:
                return default
            raise InvalidParameter(f"{self.what}: {name} must be an integer from {low} to {high}, got nothing")
        if not low <= number <= high:
            raise InvalidParameter(f"{self.what}: {name} must be an integer from {low} to {high}, got {number}")
        return number

    def flag(self, name: str, default: bool = False) -> bool:
        """Return true or false."""
        value = self._convert(name, as_flag)
        return default if value is None else value

    def word(self, name: str, names: Sequence[str], default: str) -> str:
        """Return the name of an enumeration's value, ``default`` for an unknown one. ``names``: by ordinal."""
        return self._convert(name, lambda value: as_word(value, names)) or default

    def texts(self, name: str) -> dict[str, str | None]:
        """Return an object of strings; an empty one if it is missing."""
        value = self._values.get(name)
        if _is_null(value):
            return {}
        if not isinstance(value, dict):
            raise InvalidParameter(f"{self.what}: {name} must be an object, got {_brief(value)}")
        return {key: as_text(each) for key, each in value.items()}

    def has(self, name: str) -> bool:
        """Return whether the object has a value of this name that is not null."""
        return not _is_null(self._values.get(name))

    def _convert(self, name: str, convert: Callable[[Any], T]) -> T:
        value = self._values.get(name)
        try:
            return convert(value)
        except FastjsonError as error:
            raise InvalidParameter(f"{self.what}: {name} {error}, got {_brief(value)}") from None

    def objects(self, name: str, count_max: int) -> list[JsonFields]:
        """Return a list of at most ``count_max`` objects; an empty one if it is missing."""
        rows = self._values.get(name)
        if _is_null(rows):
            return []
        if isinstance(rows, dict):
            rows = [rows]
        if not isinstance(rows, list) or len(rows) > count_max:
            count = f" of {len(rows):,}" if isinstance(rows, list) else ""
            raise InvalidParameter(
                f"{self.what}: {name} must be a list of at most {count_max:,} objects, got {_brief(rows)}{count}"
            )
        return [JsonFields(row, f"{self.what}: {name}[{number}]") for number, row in enumerate(rows)]

    def object(self, name: str) -> JsonFields | None:
        """Return an object; None if it is missing."""
        value = self._values.get(name)
        return None if _is_null(value) else JsonFields(value, f"{self.what}: {name}")


def _is_null(value: Any) -> bool:
    """Return whether a value stands for no object and no array."""
    return value in (None, "", "null")


def _brief(value: Any) -> str:
    return repr(value)[:40] if type(value) in (int, str, bool) else type(value).__name__


# ---- Extension fields of a remoting request, read with their types. RocketMQ sends every value as a string.

_DIGITS_MAX = 19


class ExtFields:
    """The extension fields of one request. Each method raises ``InvalidParameter`` for a missing or invalid value."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def text(self, name: str, default: str | None = None) -> str:
        """Return a field as it is; ``default`` if it is missing."""
        value = self._values.get(name, default)
        if value is None:
            raise InvalidParameter(f"the request lacks its field {name}")
        return value

    def integer(self, name: str, default: int | None = None, low: int = 0, high: int = I64_MAX) -> int:
        """Return a field as an integer from ``low`` to ``high``; ``default`` if it is missing."""
        value = self._values.get(name)
        # A null in a JSON header has become an empty string.
        if value is None or value == "":
            if default is None:
                raise InvalidParameter(f"the request lacks its field {name}")
            return default
        digits = value[1:] if value[0] in "+-" else value
        # Not ``int`` alone, which also accepts spaces, underscores and the digits of other scripts.
        number = int(value) if digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS_MAX else None
        if number is None or not low <= number <= high:
            raise InvalidParameter(f"field {name} must be an integer from {low} to {high}, got {value[:40]!r}")
        return number

    def flag(self, name: str, default: bool = False) -> bool:
        """Return whether a field is ``true``; ``default`` if it is missing."""
        value = self._values.get(name)
        return default if value is None else value.lower() == "true"
