"""The JSON in the body of a request, read with its types and bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...protocol.errors import InvalidParameter
from ...protocol.fields import I64_MAX

if TYPE_CHECKING:
    from .request import RemotingRequest

TEXT_CHARS_MAX = 1_024
"""Maximum length of a string, unless the caller allows more."""


class JsonFields:
    """An object of the body. ``what``: its name in errors. Each method raises ``InvalidParameter`` for a wrong value.

    A member that is missing or null has its default.
    """

    __slots__ = ("_values", "what")

    def __init__(self, values: Any, what: str) -> None:
        if not isinstance(values, dict):
            raise InvalidParameter(f"{what} must be a JSON object with names as keys")
        self._values = values
        self.what = what

    def text(self, name: str, default: str | None = None, chars_max: int = TEXT_CHARS_MAX) -> str:
        """Return a string of at most ``chars_max`` characters."""
        value = self._values.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise InvalidParameter(f"{self.what}: {name} must be a string, got {_brief(value)}")
        if len(value) > chars_max:
            raise InvalidParameter(f"{self.what}: {name} has {len(value):,} characters; the maximum is {chars_max:,}")
        return value

    def integer(self, name: str, default: int | None = None, low: int = -I64_MAX - 1, high: int = I64_MAX) -> int:
        """Return an integer from ``low`` to ``high``."""
        value = self._values.get(name)
        if value is None and default is not None:
            return default
        # Not ``isinstance``, for which true is an ``int``.
        if type(value) is not int or not low <= value <= high:
            raise InvalidParameter(f"{self.what}: {name} must be an integer from {low} to {high}, got {_brief(value)}")
        return value

    def flag(self, name: str) -> bool:
        """Return true or false; false if it is missing."""
        value = self._values.get(name)
        if value is not None and type(value) is not bool:
            raise InvalidParameter(f"{self.what}: {name} must be true or false, got {_brief(value)}")
        return bool(value)

    def objects(self, name: str, count_max: int) -> list[JsonFields]:
        """Return a list of at most ``count_max`` objects; an empty one if it is missing."""
        rows = self._values.get(name)
        if rows is None:
            return []
        if not isinstance(rows, list) or len(rows) > count_max:
            count = f" of {len(rows):,}" if isinstance(rows, list) else ""
            raise InvalidParameter(
                f"{self.what}: {name} must be a list of at most {count_max:,} objects, got {_brief(rows)}{count}"
            )
        return [JsonFields(row, f"{self.what}: {name}[{number}]") for number, row in enumerate(rows)]

    def object(self, name: str) -> JsonFields | None:
        """Return an object; None if it is missing."""
        value = self._values.get(name)
        return None if value is None else JsonFields(value, f"{self.what}: {name}")


def _brief(value: Any) -> str:
    if value is None:
        return "nothing"
    return repr(value)[:40] if type(value) in (int, str, bool) else type(value).__name__


def json_body(request: RemotingRequest) -> JsonFields:
    """Return the JSON object in the request's body. Raises ``InvalidParameter``."""
    return JsonFields(request.json, f"the body of request {request.received.code}")
