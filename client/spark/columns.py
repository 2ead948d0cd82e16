"""The columns that the sources offer, with their types in Spark; ``client/arrow`` has those in Arrow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..arrow.decoder import ALL_COLUMNS, COLUMNS, HEADERS, PROPERTIES, Column
from .errors import IncompatibleSchema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

DDL = {
    "topic": "string",
    "queue": "int",
    "queue_offset": "bigint",
    "physical_offset": "bigint",
    "body": "binary",
    "tags": "string",
    "keys": "array<string>",
    "message_id": "string",
    "born_at": "timestamp",
    "stored_at": "timestamp",
    "reconsume_times": "int",
    "properties": "map<string,string>",
    "headers": "array<struct<key:string,value:binary>>",
}
"""The type of each column in Spark's DDL."""


def offered(*, properties: bool = False, headers: bool = False) -> tuple[Column, ...]:
    return (*COLUMNS, *((PROPERTIES,) if properties else ()), *((HEADERS,) if headers else ()))


def ddl(columns: Iterable[Column]) -> str:
    """Return the schema of these columns in Spark's DDL."""
    return ", ".join(f"{column.name} {DDL[column.name]}" for column in columns)


def columns_of(schema: StructType) -> tuple[Column, ...]:
    """Return the columns that a schema asks for, in its order: all, or a selection.

    Raises ``IncompatibleSchema`` naming the first column that no source has, or has with another type.
    """
    return tuple(_column_of(field.name, field.dataType.simpleString(), field.nullable) for field in schema.fields)


def _column_of(name: str, asked: str, nullable: bool) -> Column:
    column = ALL_COLUMNS.get(name)
    if column is None:
        raise IncompatibleSchema(f"the schema has a column {name!r}; the source has {', '.join(ALL_COLUMNS)}")
    if asked != DDL[name]:
        raise IncompatibleSchema(
            f"the schema has column {name!r} as {asked}; the source has it as {DDL[name]}: "
            f"read it with that type, and convert it with withColumn"
        )
    if not nullable:
        raise IncompatibleSchema(f"the schema has column {name!r} as NOT NULL; leave NOT NULL out: columns can be null")
    return column
