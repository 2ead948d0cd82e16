"""The options of the sink, which the driver checks before it plans a task."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...protocol.errors import InvalidParameter
from ...protocol.names import check_name, may_produce_to
from ..arrow.decoder import COLUMNS, HEADERS, PROPERTIES
from ..core.compression import COMPRESS_OVER_BYTES
from ..core.produce.packer import Flush
from .brokers import BrokerAddress, parse_bootstrap
from .columns import DDL
from .errors import IncompatibleSchema, InvalidOption
from .options import ACCESS_OPTIONS, TIMEOUT_MS, Option, parse_options, positive, refuse, with_access

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

AT_LEAST_ONCE = "at-least-once"
EXACTLY_ONCE = "exactly-once"

SPARKS_OWN = ("checkpointLocation", "queryName")
"""Settings of a streaming query that Spark also passes to the sink."""


def one_broker(written: str) -> BrokerAddress:
    """Parse the address of one broker: each is a separate broker, and a message must be stored once."""
    found = parse_bootstrap(written)
    if len(found) > 1:
        raise ValueError(
            f"it names {len(found)} brokers, and each is a separate broker: name only the one that is to store the rows"
        )
    return found[0]


def writable_topic(written: str) -> str:
    """Parse a topic that a producer may write to."""
    try:
        check_name("topic", written)
    except InvalidParameter as error:
        raise ValueError(str(error)) from None
    if not may_produce_to(written):
        raise ValueError("this topic is the broker's own, and no producer may write to it; choose another")
    return written


def flush(written: str) -> str:
    """Parse the meaning of an acknowledgement: ``sync`` or ``async``."""
    if written not in ("sync", "async"):
        raise ValueError("it must be 'sync' (on disk) or 'async' (written); without it the broker's setting applies")
    return written


def delivery(written: str) -> str:
    if written not in (AT_LEAST_ONCE, EXACTLY_ONCE):
        raise ValueError(f"it must be {AT_LEAST_ONCE!r} or {EXACTLY_ONCE!r}")
    return written


def compress_over(written: str) -> int | None:
    """Parse a number of bytes, or ``never`` (None)."""
    if written.lower() == "never":
        return None
    try:
        return positive(written)
    except ValueError:
        raise ValueError("it must be a whole number of bytes of at least 1, or 'never'") from None


WRITE_OPTIONS = (
    Option("bootstrap", one_broker, "the broker as `host:port`, or a replica set as `NAME=host:port;host:port`"),
    Option("topic", writable_topic, "the topic of all rows; wins over a column `topic`"),
    Option("flush", flush, "`sync` or `async`: what an acknowledgement means; never less than the broker's setting"),
    Option(
        "delivery",
        delivery,
        f"`{AT_LEAST_ONCE}` (default) or `{EXACTLY_ONCE}`: one transaction for each write or micro-batch",
    ),
    Option("timeoutMs", positive, f"time limit of sending a message, broker restarts included (default {TIMEOUT_MS})"),
    Option(
        "compressOver",
        compress_over,
        f"bodies of more bytes are compressed (default {COMPRESS_OVER_BYTES}); `never`: none",
    ),
    *ACCESS_OPTIONS,
)


@dataclass(frozen=True)
class WriteOptions:
    """Options of a write; see ``WRITE_OPTIONS``. Spark pickles them for the executors: they are plain values only."""

    broker: BrokerAddress
    topic: str | None = None
    flush: Flush | None = None
    delivery: str = AT_LEAST_ONCE
    timeout: float = TIMEOUT_MS / 1000
    compress_over: int | None = COMPRESS_OVER_BYTES


def write_options(given: Mapping[str, str], *, streaming: bool = False) -> WriteOptions:
    """Parse the options of a write. Raises ``InvalidOption`` for an unknown, malformed or missing one."""
    refuse(given, ["path"], 'is for files, and the sink writes to a topic: option("topic", …) names it')
    ignored = {name.lower() for name in SPARKS_OWN} if streaming else set()
    own = {name: value for name, value in given.items() if name.lower() not in ignored}
    values = parse_options(own, WRITE_OPTIONS, "the sink 'flintmq'")
    if "bootstrap" not in values:
        raise InvalidOption(
            'option \'bootstrap\' is missing: set it to a broker\'s address: option("bootstrap", "127.0.0.1:10911")'
        )
    (broker,) = with_access([values["bootstrap"]], values)
    return WriteOptions(
        broker=broker,
        topic=values.get("topic"),
        flush=values.get("flush"),
        delivery=values.get("delivery", AT_LEAST_ONCE),
        timeout=values.get("timeoutMs", TIMEOUT_MS) / 1000,
        compress_over=values.get("compressOver", COMPRESS_OVER_BYTES),
    )


# ---- The columns that the sink accepts, and the others that a DataFrame may have.


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
