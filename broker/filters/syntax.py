"""What a filter says, as a tree.

A *condition* is TRUE, FALSE or UNKNOWN of a message; an *operand* has a value, or none where the message has no such
property. Every node knows the column at which it begins.
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
    """``symbol``: one of = <> < <= > >=."""

    symbol: str
    left: Operand
    right: Operand
    column: int


@dataclass(frozen=True, slots=True)
class Between:
    """Not less than ``low`` and not more than ``high``."""

    value: Operand
    low: Operand
    high: Operand
    column: int


@dataclass(frozen=True, slots=True)
class OneOf:
    """The property is one of several strings."""

    property: Property
    values: frozenset[bytes]
    column: int


@dataclass(frozen=True, slots=True)
class Part:
    """The property contains a string, or begins or ends with it. ``keyword``: CONTAINS, STARTSWITH or ENDSWITH."""

    keyword: str
    property: Property
    text: bytes
    column: int


@dataclass(frozen=True, slots=True)
class Missing:
    """The operand has no value, or the condition is UNKNOWN; itself it never is."""

    operand: Operand
    column: int


@dataclass(frozen=True, slots=True)
class Not:
    """The opposite; of UNKNOWN it is UNKNOWN."""

    condition: Condition
    column: int


@dataclass(frozen=True, slots=True)
class All:
    """TRUE where all are, FALSE where one is FALSE, else UNKNOWN."""

    conditions: tuple[Condition, ...]
    column: int


@dataclass(frozen=True, slots=True)
class AnyOf:
    """TRUE where one is, FALSE where all are FALSE, else UNKNOWN."""

    conditions: tuple[Condition, ...]
    column: int


Condition: TypeAlias = Truth | Comparison | Between | OneOf | Part | Missing | Not | All | AnyOf
Operand: TypeAlias = Property | Number | Text | Condition
CONDITIONS = (Truth, Comparison, Between, OneOf, Part, Missing, Not, All, AnyOf)


def describe(operand: Operand) -> str:
    """What an operand is, for error messages."""
    if isinstance(operand, Property):
        return "a property"
    if isinstance(operand, Number):
        return "a number"
    if isinstance(operand, Text):
        return "a string"
    if isinstance(operand, Truth):
        return "TRUE" if operand.value else "FALSE"
    return "a condition"
