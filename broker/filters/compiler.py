"""Compiler of a filter's tree to nested functions.

The function of a condition takes the source of a message's values and returns True, False, or None for UNKNOWN.
Python's ``eval`` and ``exec`` are never used.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ...protocol.storage.record import PROPERTY_SEPARATOR
from .parser import parse
from .syntax import All, AnyOf, Between, Comparison, Missing, Not, Number, OneOf, Property, Text, TextMatch, Truth
from .values import Lookup, Source, number_of, take_apart, truth_of

if TYPE_CHECKING:
    from .syntax import Condition, Operand

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
        """Return the function of a condition."""
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
