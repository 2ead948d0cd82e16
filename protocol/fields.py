"""Typed fields of a request or a response, checked on arrival.

A request is a slotted dataclass whose fields are made with ``text``, ``integer`` or ``boolean``; ``decode_fields``
builds it from the map of a frame's header. Unknown names are ignored; missing fields get their default or are refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from typing import Any, TypeVar

from .errors import InvalidParameter

I32_MAX = 2**31 - 1
I64_MAX = 2**63 - 1

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rule:
    """Rule for a field's value. ``low`` and ``high`` bound an integer, or the length of a string in characters."""

    type: type[Any]
    low: int
    high: int
    meaning: str

    def describe(self) -> str:
        """Return the rule in words, for error messages and the specification."""
        if self.type is bool:
            return "a boolean"
        if self.type is int:
            return f"an integer from {self.low} to {self.high}"
        return f"a string of {self.low} to {self.high} characters"


def integer(meaning: str, low: int = 0, high: int = I64_MAX, default: Any = MISSING) -> Any:
    """Declare a field that holds an integer in ``[low, high]``; required unless it has a default."""
    return dataclasses.field(default=default, metadata={"rule": Rule(int, low, high, meaning)})


def text(meaning: str, high: int, low: int = 0, default: Any = MISSING) -> Any:
    """Declare a field that holds a string of ``low`` to ``high`` characters; required unless it has a default."""
    return dataclasses.field(default=default, metadata={"rule": Rule(str, low, high, meaning)})


def boolean(meaning: str, default: Any = MISSING) -> Any:
    """Declare a field that holds true or false; required unless it has a default."""
    return dataclasses.field(default=default, metadata={"rule": Rule(bool, 0, 1, meaning)})


class Fields:
    """Rules and defaults of one request or response class."""

    __slots__ = ("cls", "defaults", "required", "rules")

    def __init__(self, cls: type[Any]) -> None:
        self.cls = cls
        self.rules: dict[str, Rule] = {}
        self.defaults: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            self.rules[field.name] = field.metadata["rule"]
            if field.default is not MISSING:
                self.defaults[field.name] = field.default
        self.required = frozenset(self.rules) - frozenset(self.defaults)


_FIELDS: dict[type[Any], Fields] = {}


def fields_of(cls: type[Any]) -> Fields:
    """Return the field rules of a request or response class."""
    fields = _FIELDS.get(cls)
    if fields is None:
        fields = _FIELDS[cls] = Fields(cls)
    return fields


def decode_fields(cls: type[T], values: Mapping[str, Any]) -> T:
    """Build an instance of ``cls`` from a header's map. Raises ``InvalidParameter``, which names the field and its
    rule."""
    fields = fields_of(cls)
    rules = fields.rules
    known: dict[str, Any] = {}
    for name, value in values.items():
        rule = rules.get(name)
        if rule is None:
            continue
        if type(value) is not rule.type:
            raise InvalidParameter(f"{cls.__name__}.{name} must be {rule.describe()}, not {type(value).__name__}")
        if rule.type is int:
            if not rule.low <= value <= rule.high:
                raise InvalidParameter(f"{cls.__name__}.{name} must be {rule.describe()}, not {value}")
        elif rule.type is str and not rule.low <= len(value) <= rule.high:
            raise InvalidParameter(f"{cls.__name__}.{name} must be {rule.describe()}, got {len(value)}")
        known[name] = value
    if not fields.required <= known.keys():
        missing = ", ".join(sorted(fields.required - known.keys()))
        raise InvalidParameter(f"{cls.__name__} needs {missing}")
    return cls(**known)


def encode_fields(message: Any) -> dict[str, Any]:
    """Return the header's map of a request or response, without fields that equal their default."""
    fields = fields_of(type(message))
    defaults = fields.defaults
    values: dict[str, Any] = {}
    for name in fields.rules:
        value = getattr(message, name)
        if name not in defaults or value != defaults[name]:
            values[name] = value
    return values
