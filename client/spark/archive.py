"""The archive source, ``spark.read.format("flintmq-store")``: a CommitLog read by Spark's tasks, no broker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter, InputPartition
from pyspark.sql.types import StructType

from ...protocol.errors import InvalidParameter
from ...protocol.fields import I64_MAX
from ...protocol.names import check_name
from ..arrow.archive.log_files import find_log
from ..arrow.archive.log_reader import LogRange, check_topics
from ..arrow.archive.options import PARTITION_BYTES, ArchiveOptions
from ..arrow.archive.plan import find_end, plan
from ..arrow.decoder import Column
from .columns import columns_of, ddl, offered
from .errors import InvalidOption, hide_traceback, hide_traceback_each
from .options import Option, boolean, check_order, moment, not_empty, parse_options, pattern, topics
from .sessions import freeze_gc
from .stream import RefusedStream

# ---- The options of the archive source, which are checked before anything is read.

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
    """Parse the size of a partition."""
    if not (written.isascii() and written.isdigit()) or not PARTITION_BYTES_MIN <= int(written) <= I64_MAX:
        raise ValueError(f"it must be a whole number of bytes of at least {PARTITION_BYTES_MIN}")
    return int(written)


def one_path(written: str) -> str:
    """Refuse a list of paths."""
    raise ValueError("the archive source reads one store; load each separately, and combine them with union")


ARCHIVE_OPTIONS = (
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


def archive_options(given: Mapping[str, str]) -> ArchiveOptions:
    """Parse the options of a read. Raises ``InvalidOption`` for an unknown, malformed, missing or contradictory one."""
    table = (*ARCHIVE_OPTIONS, _PATHS) if "paths" in {name.lower() for name in given} else ARCHIVE_OPTIONS
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
    return ArchiveOptions(
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


# ---- The archive source as Spark sees it.


class ArchiveSource(DataSource):
    """``spark.read.format("flintmq-store").load(STORE)``: the messages of a store's CommitLog, read by Spark's tasks.

    STORE is the folder of a store, FlintMQ's or Apache RocketMQ's, or its commitlog folder alone; a broker may have it
    open. The log is read up to the flushed offset in FlintMQ's checkpoint when the read is planned. Without such a mark
    (in RocketMQ's stores, and in files alone) it is read up to the last sound record, flushed or not. All topics except
    the broker's own are read unless options choose; messages of deleted topics are read as long as their records exist.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return "flintmq-store"

    @hide_traceback
    def schema(self) -> str:
        """Return the columns; ``load`` calls this, so options and path are checked here."""
        options = self._options()
        log = find_log(options.path, fail_on_corruption=options.fail_on_corruption)
        check_topics(options.topics or (), log)
        return ddl(offered(properties=options.include_properties, headers=options.include_headers))

    @hide_traceback
    def reader(self, schema: StructType) -> ArchiveReader:
        """Return a reader of the columns in ``schema``."""
        return ArchiveReader(columns_of(schema), self._options())

    def streamReader(self, schema: StructType) -> RefusedStream:  # noqa: N802 - Spark's name
        """Refuse streaming reads: a store that is read as files does not grow."""
        return RefusedStream(
            InvalidOption(
                "the source 'flintmq-store' is read as a batch, with spark.read. To follow a log, ask its broker: "
                'spark.readStream.format("flintmq")'
            )
        )

    @hide_traceback
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Refuse writes: only a broker writes to a store."""
        raise InvalidOption("the source 'flintmq-store' is only read. To send messages: write.format(\"flintmq\")")

    def _options(self) -> ArchiveOptions:
        return archive_options(self.options)


@dataclass
class LogPartition(InputPartition):
    """The stretches of log files that one task reads, in order."""

    stretches: tuple[LogRange, ...]


class ArchiveReader(DataSourceReader):
    """Plans on the driver, reads in the tasks."""

    def __init__(self, columns: Sequence[Column], options: ArchiveOptions) -> None:
        self._columns = columns
        self._options = options

    @hide_traceback
    def partitions(self) -> Sequence[InputPartition]:
        """Return the log as of now, cut at record boundaries."""
        fail = self._options.fail_on_corruption
        log = find_end(find_log(self._options.path, fail_on_corruption=fail), fail_on_corruption=fail)
        return [LogPartition(tuple(stretches)) for stretches in plan(log, self._options)]

    @hide_traceback_each
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one partition."""
        if isinstance(partition, LogPartition):  # otherwise it is Spark's placeholder for an empty plan
            from ..arrow.archive.log_reader import PartitionReader  # only tasks need these
            from ..arrow.decoder import Decoder

            with freeze_gc():
                yield from PartitionReader(partition.stretches, Decoder(self._columns), self._options).batches()
