"""Extension fields of a remoting request, read with their types. RocketMQ sends every value as a string."""

from __future__ import annotations

from collections.abc import Mapping

from ...protocol.errors import InvalidParameter
from ...protocol.fields import I64_MAX

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
