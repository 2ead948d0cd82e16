"""The options of the sink, checked on the driver before a task is planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...protocol.errors import InvalidParameter
from ...protocol.names import check_name, may_produce_to
from ..core.compression import COMPRESS_OVER_BYTES
from ..core.outgoing import Flush
from .brokers import BrokerAddress, parse_bootstrap
from .errors import InvalidOption
from .options import ACCESS_OPTIONS, TIMEOUT_MS, Option, parse_options, positive, refuse, with_access

AT_LEAST_ONCE = "at-least-once"
EXACTLY_ONCE = "exactly-once"

SPARKS_OWN = ("checkpointLocation", "queryName")
"""What Spark hands on to a streaming sink of a query's own settings."""


def one_broker(written: str) -> BrokerAddress:
    """The address of one broker: each is a broker of its own, and a message is to be stored once."""
    found = parse_bootstrap(written)
    if len(found) > 1:
        raise ValueError(
            f"it names {len(found)} brokers, and each is a broker of its own: name the one that is to store the rows"
        )
    return found[0]


def writable_topic(written: str) -> str:
    """A topic that a producer may write to."""
    try:
        check_name("topic", written)
    except InvalidParameter as error:
        raise ValueError(str(error)) from None
    if not may_produce_to(written):
        raise ValueError("this topic is the broker's own, and no producer may write to it; choose another")
    return written


def flush(written: str) -> str:
    """What an acknowledgement means."""
    if written not in ("sync", "async"):
        raise ValueError("it must be 'sync' (on disk) or 'async' (written); without it the broker's own setting holds")
    return written


def delivery(written: str) -> str:
    """How often a row can be stored."""
    if written not in (AT_LEAST_ONCE, EXACTLY_ONCE):
        raise ValueError(f"it must be {AT_LEAST_ONCE!r} or {EXACTLY_ONCE!r}")
    return written


def compress_over(written: str) -> int | None:
    """Bytes, or ``never`` (None)."""
    if written.lower() == "never":
        return None
    try:
        return positive(written)
    except ValueError:
        raise ValueError("it must be a whole number of bytes from 1 on, or 'never'") from None


WRITE_OPTIONS = (
    Option("bootstrap", one_broker, "the broker as `host:port`"),
    Option("topic", writable_topic, "the topic of all rows; wins over a column `topic`"),
    Option("flush", flush, "`sync` or `async`: what an acknowledgement means; the broker's setting is the least"),
    Option(
        "delivery", delivery,
        f"`{AT_LEAST_ONCE}` (default) or `{EXACTLY_ONCE}`: one transaction for each write or micro-batch",
    ),
    Option("timeoutMs", positive, f"how long a message is tried, broker restarts included (default {TIMEOUT_MS})"),
    Option(
        "compressOver", compress_over,
        f"bodies longer than so many bytes are compressed (default {COMPRESS_OVER_BYTES}); `never`: none",
    ),
    *ACCESS_OPTIONS,
)  # fmt: skip


@dataclass(frozen=True)
class WriteOptions:
    """Where to write and how; see ``WRITE_OPTIONS``. Goes to executors, so it is values alone."""

    broker: BrokerAddress
    topic: str | None = None
    flush: Flush | None = None
    delivery: str = AT_LEAST_ONCE
    timeout: float = TIMEOUT_MS / 1000
    compress_over: int | None = COMPRESS_OVER_BYTES


def write_options(given: Mapping[str, str], *, streaming: bool = False) -> WriteOptions:
    """The options of a write. Raises ``InvalidOption`` for what is unknown, malformed or missing."""
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
