"""The options of the store source, which are checked before anything is read."""

from __future__ import annotations

from collections.abc import Mapping

from ....protocol.errors import InvalidParameter
from ....protocol.fields import I64_MAX
from ....protocol.names import check_name
from ...arrow.store_reader.options import PARTITION_BYTES, StoreReadOptions
from ..errors import InvalidOption
from ..options import Option, boolean, check_order, moment, not_empty, parse_options, pattern, topics

PARTITION_BYTES_MIN = 64 * 1024


def topic_names(written: str) -> tuple[str, ...]:
    """Parse topics, separated by commas; each must be a valid topic name."""
    names = topics(written)
    for name in names:
        try:
            check_name("topic", name)
        except InvalidParameter as error:
            raise ValueError(str(error)) from None
    return names


def physical_offset(written: str) -> int:
    """Parse a position in the log, in bytes."""
    if not (written.isascii() and written.isdigit()) or int(written) > I64_MAX:
        raise ValueError("it must be a physical offset: a whole number of at least 0")
    return int(written)


def partition_bytes(written: str) -> int:
    if not (written.isascii() and written.isdigit()) or not PARTITION_BYTES_MIN <= int(written) <= I64_MAX:
        raise ValueError(f"it must be a whole number of bytes of at least {PARTITION_BYTES_MIN}")
    return int(written)


def one_path(written: str) -> str:
    raise ValueError("the store source reads one store; load each separately, and combine them with union")


STORE_OPTIONS = (
    Option("path", not_empty, "the store's folder, or its commitlog folder: the argument of `load`"),
    Option("topics", topic_names, "topics, separated by commas (default: all except the broker's own)"),
    Option("subscribe", topic_names, "the same as `topics`"),
    Option("subscribePattern", pattern, "regular expression of topics (whole names, without the broker's own)"),
    Option("startingTimestamp", moment, "from messages stored then or later: ms since 1970 UTC, or ISO 8601"),
    Option("endingTimestamp", moment, "only messages stored before"),
    Option("startingPhysicalOffset", physical_offset, "only messages at or after this offset of the CommitLog"),
    Option("endingPhysicalOffset", physical_offset, "only messages before this offset"),
    Option(
        "partitionBytes",
        partition_bytes,
        f"bytes of the CommitLog that a Spark partition reads (default {PARTITION_BYTES}, 128 MiB)",
    ),
    Option("includeProperties", boolean, "`true`: a column `properties`"),
    Option("includeHeaders", boolean, "`true`: a column `headers`"),
    Option("verifyChecksums", boolean, "`true` (default): every body that is read must have its checksum"),
    Option("failOnCorruption", boolean, "`true` (default): fail if the log is damaged; `false`: skip the damage"),
)
_PATHS = Option("paths", one_path, "several stores: refused")


def store_options(given: Mapping[str, str]) -> StoreReadOptions:
    """Parse the options of a read. Raises ``InvalidOption`` for an unknown, malformed, missing or contradictory one."""
    table = (*STORE_OPTIONS, _PATHS) if "paths" in {name.lower() for name in given} else STORE_OPTIONS
    values = parse_options(given, table, "the source 'flintmq-store'")
    if "path" not in values:
        raise InvalidOption(
            "option 'path' is missing: pass the store's folder: spark.read.format(\"flintmq-store\").load(STORE)"
        )
    for one, other in (("topics", "subscribe"), ("topics", "subscribePattern"), ("subscribe", "subscribePattern")):
        if one in values and other in values:
            raise InvalidOption(f"options {one!r} and {other!r} exclude each other: leave one out")
    check_order(values, "startingTimestamp", "endingTimestamp")
    check_order(values, "startingPhysicalOffset", "endingPhysicalOffset")
    return StoreReadOptions(
        path=values["path"],
        topics=values.get("topics", values.get("subscribe")),
        pattern=values.get("subscribePattern"),
        starting_ms=values.get("startingTimestamp"),
        ending_ms=values.get("endingTimestamp"),
        starting_physical_offset=values.get("startingPhysicalOffset"),
        ending_physical_offset=values.get("endingPhysicalOffset"),
        partition_bytes=values.get("partitionBytes", PARTITION_BYTES),
        include_properties=values.get("includeProperties", False),
        include_headers=values.get("includeHeaders", False),
        verify_checksums=values.get("verifyChecksums", True),
        fail_on_corruption=values.get("failOnCorruption", True),
    )
