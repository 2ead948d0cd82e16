"""The options of the sink, which the driver checks before it plans a task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...protocol.errors import InvalidParameter
from ...protocol.names import check_name, may_produce_to
from ..core.compression import COMPRESS_OVER_BYTES
from ..core.produce.grouping import Flush
from .brokers import BrokerAddress, parse_bootstrap
from .errors import InvalidOption
from .options import ACCESS_OPTIONS, TIMEOUT_MS, Option, parse_options, positive, refuse, with_access

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
    """Parse the delivery guarantee."""
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
