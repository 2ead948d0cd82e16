"""Polars predicates as conditions on columns. A part that is not understood gives none: Polars applies the predicate
to all that is read anyway."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import polars as pl

from ..arrow.bounds import ColumnCondition

_COMPARISONS = {
    "Eq": "EqualTo",
    "EqValidity": "EqualNullSafe",
    "Lt": "LessThan",
    "LtEq": "LessThanOrEqual",
    "Gt": "GreaterThan",
    "GtEq": "GreaterThanOrEqual",
}
_MIRRORED = {"Lt": "Gt", "LtEq": "GtEq", "Gt": "Lt", "GtEq": "LtEq"}
_BETWEEN = {
    "Both": ("GreaterThanOrEqual", "LessThanOrEqual"),
    "Left": ("GreaterThanOrEqual", "LessThan"),
    "Right": ("GreaterThan", "LessThanOrEqual"),
    "None": ("GreaterThan", "LessThan"),
}


def conditions_of(predicate: pl.Expr | None) -> list[ColumnCondition]:
    """Return conditions that every row meets for which the predicate is true."""
    if predicate is None:
        return []
    try:
        tree = json.loads(predicate.meta.serialize(format="json"))
    except (pl.exceptions.PolarsError, ValueError):  # it calls a Python function, for example
        return []
    return list(_conditions(tree))


def _conditions(node: Any) -> Iterator[ColumnCondition]:
    if binary := _named(node, "BinaryExpr"):
        left, op, right = binary.get("left"), binary.get("op"), binary.get("right")
        if op == "And":
            yield from _conditions(left)
            yield from _conditions(right)
        elif op in _COMPARISONS:
            if _column(left) is None:
                left, op, right = right, _MIRRORED.get(op, op), left
            yield from _compared(left, _COMPARISONS[op], right)
    elif (function := _named(node, "Function")) and (kind := _named(function.get("function"), "Boolean")):
        yield from _of_function(kind, function.get("input") or [None])


def _of_function(kind: Any, inputs: list[Any]) -> Iterator[ColumnCondition]:
    """Return the conditions of a call such as ``is_between``; ``kind``: its name, or its name with its options."""
    name = kind if isinstance(kind, str) else next(iter(kind), None)
    if name == "IsIn" and len(inputs) == 2 and (column := _column(inputs[0])) is not None:
        (values,) = _literal(inputs[1]) or [None]
        if isinstance(values, pl.Series) and not values.null_count():  # a null may be meant to match
            yield ColumnCondition(column, "In", values.to_list())
    elif name == "IsBetween" and len(inputs) == 3:
        lower, upper = _BETWEEN.get(str(kind[name].get("closed")), (None, None))
        if lower and upper:
            yield from _compared(inputs[0], lower, inputs[1])
            yield from _compared(inputs[0], upper, inputs[2])


def _compared(column_node: Any, kind: str, literal_node: Any) -> Iterator[ColumnCondition]:
    column, found = _column(column_node), _literal(literal_node)
    if column is not None and found:
        (value,) = found
        if not (isinstance(value, datetime) and value.tzinfo is None):  # Polars decides about those
            yield ColumnCondition(column, kind, value)


def _named(node: Any, name: str) -> Any:
    return node.get(name) if isinstance(node, dict) else None


def _column(node: Any) -> str | None:
    column = _named(node, "Column")
    return column if isinstance(column, str) else None


def _literal(node: Any) -> list[Any]:
    """Return the value of a literal, in a list; an empty one for any other node."""
    if _named(node, "Literal") is None:
        return []
    try:
        return [pl.select(pl.Expr.deserialize(io.StringIO(json.dumps(node)), format="json")).item()]
    except (pl.exceptions.PolarsError, ValueError):  # more than one value
        return []
