"""The columns that the sources offer, with their types in Arrow and in Spark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from .errors import IncompatibleSchema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, its Spark type in DDL form, its Arrow type and its meaning."""

    name: str
    ddl: str
    arrow: pa.DataType
    meaning: str


_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_UTC_MICROS = pa.timestamp("us", tz="UTC")

COLUMNS = (
    Column("topic", "string", pa.string(), "the topic"),
    Column("queue", "int", pa.int32(), "the queue of the topic"),
    Column("queue_offset", "bigint", pa.int64(), "the message's number in the queue"),
    Column("physical_offset", "bigint", pa.int64(), "the record's position in the CommitLog, in bytes"),
    Column("body", "binary", pa.binary(), "the body, decompressed, its checksum verified"),
    Column("tags", "string", pa.string(), "the tag; null without one"),
    Column("keys", "array<string>", pa.list_(pa.field("element", pa.string())), "the keys; empty without any"),
    Column("message_id", "string", pa.string(), "the unique key, or the offset id if there is none"),
    Column("born_at", "timestamp", _UTC_MICROS, "when the producer created it"),
    Column("stored_at", "timestamp", _UTC_MICROS, "when the broker stored it"),
    Column("reconsume_times", "int", pa.int32(), "how often a consumer sent it back"),
)
"""The columns of a source without options, in this order."""

PROPERTIES = Column(
    "properties", "map<string,string>", pa.map_(pa.string(), pa.string()), "all properties, by RocketMQ's names"
)
HEADERS = Column(
    "headers",
    "array<struct<key:string,value:binary>>",
    pa.list_(pa.field("element", _HEADER)),
    "the producer's own properties, in the shape of the Kafka source's headers",
)
_ALL = {column.name: column for column in (*COLUMNS, PROPERTIES, HEADERS)}


def offered(*, properties: bool = False, headers: bool = False) -> tuple[Column, ...]:
    """Return the columns of a source with these options."""
    return (*COLUMNS, *((PROPERTIES,) if properties else ()), *((HEADERS,) if headers else ()))


def ddl(columns: Iterable[Column]) -> str:
    """Return the schema of these columns in Spark's DDL."""
    return ", ".join(f"{column.name} {column.ddl}" for column in columns)


def columns_of(schema: StructType) -> tuple[Column, ...]:
    """Return the columns that a schema asks for, in its order: all, or a selection.

    Raises ``IncompatibleSchema`` naming the first column that no source has, or has with another type.
    """
    return tuple(_column_of(field.name, field.dataType.simpleString(), field.nullable) for field in schema.fields)


def _column_of(name: str, asked: str, nullable: bool) -> Column:
    column = _ALL.get(name)
    if column is None:
        raise IncompatibleSchema(f"the schema has a column {name!r}; the source has {', '.join(_ALL)}")
    if asked != column.ddl:
        raise IncompatibleSchema(
            f"the schema has column {name!r} as {asked}; the source has it as {column.ddl}: "
            f"read it with that type, and convert it with withColumn"
        )
    if not nullable:
        raise IncompatibleSchema(f"the schema has column {name!r} as NOT NULL; leave NOT NULL out: columns can be null")
    return column


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    """Return the Arrow schema of these columns, which Spark expects of each batch."""
    return pa.schema([pa.field(column.name, column.arrow) for column in columns])
