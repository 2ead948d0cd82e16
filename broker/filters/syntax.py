"""Syntax tree of a filter.

For a message, a *condition* is TRUE, FALSE or UNKNOWN; an *operand* has a value, or none if the message lacks the
property. Every node stores the column at which it begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Property:
    """The value of a property; properties are strings."""

    name: str
    column: int


@dataclass(frozen=True, slots=True)
class Number:
    """A number, its sign included."""

    value: int | float
    column: int


@dataclass(frozen=True, slots=True)
class Text:
    """A string, as UTF-8."""

    value: bytes
    column: int


@dataclass(frozen=True, slots=True)
class Truth:
    """TRUE or FALSE."""

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
    """Describe an operand for error messages."""
    if isinstance(operand, Property):
        return "a property"
    if isinstance(operand, Number):
        return "a number"
    if isinstance(operand, Text):
        return "a string"
    if isinstance(operand, Truth):
        return "TRUE" if operand.value else "FALSE"
    return "a condition"
