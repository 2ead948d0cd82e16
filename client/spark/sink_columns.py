"""The columns that the sink takes, and what a DataFrame may have beside them."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .columns import COLUMNS, HEADERS, PROPERTIES
from .errors import IncompatibleSchema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class WriteColumn:
    """A column of the sink: its name, the types that it may have as Spark writes them, what it means."""

    name: str
    types: tuple[str, ...]
    meaning: str


WRITE_COLUMNS = (
    WriteColumn("body", ("binary", "string"), "the body; a string is stored as UTF-8. The only one that must be there"),
    WriteColumn("topic", ("string",), "the topic, unless option `topic` names one for all rows"),
    WriteColumn("keys", ("array<string>", "string"), "what the message is found by: several keys, or one"),
    WriteColumn("tags", ("string",), "one tag, by which readers filter"),
    WriteColumn(PROPERTIES.name, (PROPERTIES.ddl,), "properties of your own, by name"),
    WriteColumn(HEADERS.name, (HEADERS.ddl,), "the same in the source's shape; values must be UTF-8"),
    WriteColumn("sharding_key", ("string",), "rows with the same one go to the same queue, those of a task in order"),
    WriteColumn("queue", ("int",), "the queue; null: by the sharding key, else the broker chooses"),
)
_BY_NAME = {column.name: column for column in WRITE_COLUMNS}

IGNORED_COLUMNS = {column.name: column.ddl for column in COLUMNS if column.name not in _BY_NAME}
"""Columns of the source that the broker gives anew: a DataFrame that was read can be written as it is."""

_KAFKAS = {"value": "body", "key": "keys", "partition": "queue"}
"""What Spark's Kafka sink calls them."""


def check_columns(schema: StructType, topic: str | None) -> None:
    """Raise ``IncompatibleSchema`` where rows of this schema cannot be written. ``topic``: the option."""
    names = [field.name for field in schema.fields]
    for field in schema.fields:
        _check_column(field.name, _shown(field.dataType.simpleString()))
        if names.count(field.name) > 1:
            raise IncompatibleSchema(f"column {field.name!r} is there twice; drop or rename one")
    if "body" not in names:
        raise IncompatibleSchema(
            f"there is no column 'body' among {', '.join(names) or 'none'}: name what is to be sent so, as with "
            "select(to_json(struct('*')).alias('body'))"
        )
    if topic is None and "topic" not in names:
        raise IncompatibleSchema(
            "nothing says which topic the rows go to: set option(\"topic\", …), or add a column 'topic'"
        )
    if PROPERTIES.name in names and HEADERS.name in names:
        raise IncompatibleSchema("columns 'properties' and 'headers' say the same: drop one of them")


def _check_column(name: str, kind: str) -> None:
    column = _BY_NAME.get(name)
    accepted = (IGNORED_COLUMNS[name],) if name in IGNORED_COLUMNS else column.types if column else ()
    if not accepted:
        raise IncompatibleSchema(
            f"column {name!r} ({kind}) is none of the sink's{_meant(name)}: it takes {', '.join(_BY_NAME)}. Rename it, "
            "drop it, or put it into the body or into 'properties'"
        )
    if kind not in accepted:
        what = "the source's own, which is ignored, as" if name in IGNORED_COLUMNS else "to be"
        raise IncompatibleSchema(
            f"column {name!r} is {kind}; it has {what} {' or '.join(accepted)}: convert it, as with "
            f"withColumn({name!r}, col({name!r}).cast({accepted[-1]!r})), or drop it"
        )


def _shown(kind: str) -> str:
    """A type as Spark writes it, without a collation: that is how strings compare, not what is in them."""
    return re.sub(r"string collate \w+", "string", kind)


def _meant(name: str) -> str:
    lower = name.lower()
    close = [_KAFKAS[lower]] if lower in _KAFKAS else difflib.get_close_matches(lower, _BY_NAME, 1)
    return f" (is {close[0]!r} meant?)" if close else ""
