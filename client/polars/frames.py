"""``scan`` and ``scan_store``: lazy frames over a topic of a broker, or of a store's files."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from typing import Any, Unpack

import polars as pl
import pyarrow as pa
from polars.io.plugins import register_io_source

from ..arrow.archive.store import StoreOptions, bounded_stream, read_store
from ..arrow.bounds import push
from ..arrow.options import BATCH_ROWS, ArrowOptions
from ..core.consume.positions import EARLIEST, LATEST, Position
from ..core.consume.tags import parse_tags
from ..core.rpc.access import AccessOptions
from ..sync.arrow_reads import inferred, topic_stream
from ..sync.consumer import Consumer
from .predicates import conditions_of

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
