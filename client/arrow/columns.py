"""The columns of messages, with their types in Arrow."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from ..errors import InvalidArgument, InvalidArgumentType


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, its Arrow type and its meaning."""

    name: str
    arrow: pa.DataType
    meaning: str


_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_UTC_MICROS = pa.timestamp("us", tz="UTC")

COLUMNS = (
    Column("topic", pa.string(), "the topic"),
    Column("queue", pa.int32(), "the queue of the topic"),
    Column("queue_offset", pa.int64(), "the message's number in the queue"),
    Column("physical_offset", pa.int64(), "the record's position in the CommitLog, in bytes"),
    Column("body", pa.binary(), "the body, decompressed, its checksum verified"),
    Column("tags", pa.string(), "the tag; null without one"),
    Column("keys", pa.list_(pa.field("element", pa.string())), "the keys; empty without any"),
    Column("message_id", pa.string(), "the unique key, or the offset id if there is none"),
    Column("born_at", _UTC_MICROS, "when the producer created it"),
    Column("stored_at", _UTC_MICROS, "when the broker stored it"),
    Column("reconsume_times", pa.int32(), "how often a consumer sent it back"),
)
"""The columns without options, in this order."""

PROPERTIES = Column("properties", pa.map_(pa.string(), pa.string()), "all properties, by RocketMQ's names")
HEADERS = Column(
    "headers",
    pa.list_(pa.field("element", _HEADER)),
    "the producer's own properties, in the shape of the Kafka source's headers",
)
ALL_COLUMNS = {column.name: column for column in (*COLUMNS, PROPERTIES, HEADERS)}


def chosen(names: Iterable[str] | None, offered: Mapping[str, Column] = ALL_COLUMNS) -> tuple[Column, ...]:
    """Return the columns with these names, in their order; None: all of ``COLUMNS``. Raises ``InvalidArgument``."""
    if names is None:
        return COLUMNS
    if isinstance(names, str):
        raise InvalidArgumentType(f"columns must be several names, not the str {names!r}; use ({names!r},)")
    wanted = list(names)
    for name in wanted:
        if name not in offered:
            near = difflib.get_close_matches(str(name), offered, 1)
            meant = f" (did you mean {near[0]!r}?)" if near else ""
            raise InvalidArgument(f"columns has {name!r}{meant}; messages have {', '.join(offered)}")
    if not wanted or len(set(wanted)) < len(wanted):
        raise InvalidArgument(f"columns is {wanted}; it must name at least one column, and none twice")
    return tuple(offered[name] for name in wanted)


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    """Return the Arrow schema of these columns."""
    return pa.schema([pa.field(column.name, column.arrow) for column in columns])
