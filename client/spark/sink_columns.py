"""The columns that the sink accepts, and the others that a DataFrame may have."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..arrow.columns import COLUMNS, HEADERS, PROPERTIES
from .columns import DDL
from .errors import IncompatibleSchema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class WriteColumn:
    """A column of the sink: its name, its accepted types in Spark's notation, its meaning."""

    name: str
    types: tuple[str, ...]
    meaning: str


WRITE_COLUMNS = (
    WriteColumn("body", ("binary", "string"), "the body; a string is stored as UTF-8. The only required column"),
    WriteColumn("topic", ("string",), "the topic, unless option `topic` names one for all rows"),
    WriteColumn("keys", ("array<string>", "string"), "keys to find the message by: several, or one"),
    WriteColumn("tags", ("string",), "one tag, by which readers filter"),
    WriteColumn(PROPERTIES.name, (DDL[PROPERTIES.name],), "your own properties, by name"),
    WriteColumn(HEADERS.name, (DDL[HEADERS.name],), "the same in the source's shape; values must be UTF-8"),
    WriteColumn("sharding_key", ("string",), "rows with the same one go to the same queue, those of a task in order"),
    WriteColumn("queue", ("int",), "the queue; null: by the sharding key, else the broker chooses"),
)
_BY_NAME = {column.name: column for column in WRITE_COLUMNS}

IGNORED_COLUMNS = {column.name: DDL[column.name] for column in COLUMNS if column.name not in _BY_NAME}
"""Source columns whose values the broker assigns again; ignored, so that a DataFrame from the source can be written."""

_KAFKAS = {"value": "body", "key": "keys", "partition": "queue"}
"""Column names of Spark's Kafka sink, with ours."""


def check_columns(schema: StructType, topic: str | None) -> None:
    """Raise ``IncompatibleSchema`` if rows of this schema cannot be written. ``topic``: the option."""
    names = [field.name for field in schema.fields]
    for field in schema.fields:
        _check_column(field.name, _shown(field.dataType.simpleString()))
        if names.count(field.name) > 1:
            raise IncompatibleSchema(f"column {field.name!r} is in the schema twice; drop or rename one")
    if "body" not in names:
        raise IncompatibleSchema(
            f"there is no column 'body' among {', '.join(names) or 'none'}: give the data to send this name, as with "
            "select(to_json(struct('*')).alias('body'))"
        )
    if topic is None and "topic" not in names:
        raise IncompatibleSchema("no topic is named for the rows: set option(\"topic\", …), or add a column 'topic'")
    if PROPERTIES.name in names and HEADERS.name in names:
        raise IncompatibleSchema("columns 'properties' and 'headers' have the same meaning: drop one of them")


def _check_column(name: str, kind: str) -> None:
    column = _BY_NAME.get(name)
    accepted = (IGNORED_COLUMNS[name],) if name in IGNORED_COLUMNS else column.types if column else ()
    if not accepted:
        raise IncompatibleSchema(
            f"column {name!r} ({kind}) is not a column of the sink{_meant(name)}, which takes {', '.join(_BY_NAME)}. "
            "Rename it, drop it, or put it into the body or into 'properties'"
        )
    if kind not in accepted:
        what = "the source's own, which is ignored, as" if name in IGNORED_COLUMNS else "to be"
        raise IncompatibleSchema(
            f"column {name!r} is {kind}; it has {what} {' or '.join(accepted)}: convert it, as with "
            f"withColumn({name!r}, col({name!r}).cast({accepted[-1]!r})), or drop it"
        )


def _shown(kind: str) -> str:
    """Return a type in Spark's notation without a collation, which affects only how strings compare."""
    return re.sub(r"string collate \w+", "string", kind)


def _meant(name: str) -> str:
    lower = name.lower()
    close = [_KAFKAS[lower]] if lower in _KAFKAS else difflib.get_close_matches(lower, _BY_NAME, 1)
    return f" (did you mean {close[0]!r}?)" if close else ""
