"""``scan`` and ``scan_store``: lazy frames over a topic of a broker, or of a store's files."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from datetime import datetime
from typing import Any, Unpack

import polars as pl
import pyarrow as pa
from polars.io.plugins import register_io_source

from ..arrow.bounds import ColumnCondition, push
from ..arrow.options import BATCH_ROWS, ArrowOptions
from ..arrow.store_reader.store import StoreOptions, bounded_stream, read_store
from ..core.consume.batch import parse_tags
from ..core.consume.positions import EARLIEST, LATEST, Position
from ..core.rpc.access import AccessOptions
from ..sync.arrow import inferred, topic_stream
from ..sync.consumer import Consumer

# ---- Polars predicates as conditions on columns. A part that is not understood gives none: Polars applies the
# predicate to all that is read anyway.

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


Source = Callable[[list[str], pl.Expr | None, int], Generator[pa.RecordBatch]]
"""Function that reads the named columns of rows that may meet a predicate, in batches of a given number of rows."""


class ScanOptions(ArrowOptions, AccessOptions, total=False):
    """Options of ``scan``: those of ``Consumer.arrow``, and those of every client."""


def scan(
    addresses: str | Iterable[str] | None,
    topic: str,
    from_: Position = EARLIEST,
    until: Position = LATEST,
    **options: Unpack[ScanOptions],
) -> pl.LazyFrame:
    """Return the messages of a topic as a lazy frame; each ``collect`` reads what is stored by then.

    Only the columns that a query needs are made. Conditions on ``queue``, ``queue_offset``, ``stored_at`` and ``tags``,
    joined by ``&``, become bounds on what is pulled. All arguments are those of ``Consumer.arrow``, whose errors are
    raised at once, and of every client, such as ``user``.
    """
    access: Any = {name: value for name, value in options.items() if name in AccessOptions.__annotations__}
    reading: Any = {name: value for name, value in options.items() if name not in access}

    def read(columns: list[str], predicate: pl.Expr | None, rows: int) -> Generator[pa.RecordBatch]:
        bounds, tags, _ = push(conditions_of(predicate), parse_tags(options.get("tags")))
        narrowed = reading | {"columns": columns, "tags": sorted(tags.wanted) or None}
        narrowed["batch_rows"] = min(rows, options.get("batch_rows", BATCH_ROWS))
        with Consumer(addresses, **access) as consumer:
            yield from topic_stream(consumer._caller, topic, from_, until, narrowed, bounds)

    with Consumer(addresses, **access) as consumer:
        if options.get("infer") is not None:  # once, so that the columns stay what they are
            schema = inferred(consumer._caller, topic, from_, until, reading)
            reading |= {"json_schema": schema, "infer": None}
        schema = consumer.arrow(topic, from_, until, **reading).schema
    return _lazy_frame(schema, read)


def scan_store(path: str | os.PathLike[str], topic: str, **options: Unpack[StoreOptions]) -> pl.LazyFrame:
    """Return the messages of a topic in a store's files as a lazy frame; no broker is needed, and nothing is written.

    Only the columns that a query needs are made, and conditions on ``stored_at`` leave out files. The arguments are
    those of ``flintmq.client.arrow.read_store``.
    """

    def read(columns: list[str], predicate: pl.Expr | None, rows: int) -> Generator[pa.RecordBatch]:
        bounds, _, _ = push(conditions_of(predicate), parse_tags(None))
        narrowed: Any = options | {"columns": columns}
        yield from bounded_stream(path, topic, narrowed, bounds)

    return _lazy_frame(read_store(path, topic, **options).schema, read)


def _lazy_frame(schema: pa.Schema, read: Source) -> pl.LazyFrame:
    empty = pl.DataFrame(schema.empty_table())

    def source(
        with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        needed = set(with_columns if with_columns is not None else empty.columns)
        if predicate is not None:
            needed |= set(predicate.meta.root_names())
        # Without a column there would be no rows to count.
        columns = [name for name in empty.columns if name in needed] or empty.columns[:1]
        left = n_rows
        rows = min(batch_size or BATCH_ROWS, BATCH_ROWS if left is None else max(1, left), BATCH_ROWS)
        with closing(read(columns, predicate, rows)) as batches:
            for batch in batches if left != 0 else ():
                frame = pl.DataFrame(batch)
                if predicate is not None:
                    frame = frame.filter(predicate)
                if with_columns is not None:
                    frame = frame.select(with_columns)
                if left is not None:
                    frame = frame.head(left)
                    left -= len(frame)
                yield frame
                if left == 0:
                    return

    return register_io_source(source, schema=empty.schema, is_pure=False)
