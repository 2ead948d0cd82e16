"""The store source as Spark sees it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter, InputPartition
from pyspark.sql.types import StructType

from ....protocol.storage.archive.manifest import Entry
from ....protocol.storage.archive.objects import is_archive
from ....protocol.storage.reader.log_reader import LogRange, find_end
from ...arrow.decoder import Column
from ...arrow.store_reader.archived import archived_batches, check_archived_topics, open_archive, plan_archive
from ...arrow.store_reader.find_log import check_topics, find_log
from ...arrow.store_reader.options import StoreReadOptions
from ...arrow.store_reader.plan import plan
from ..columns import columns_of, ddl, offered
from ..errors import InvalidOption, hide_traceback, hide_traceback_each
from ..gc_freeze import freeze_gc
from ..stream import RefusedStream
from .options import store_options


class StoreSource(DataSource):
    """``spark.read.format("flintmq-store").load(STORE)``: the messages of a store's CommitLog, read by Spark's tasks.

    STORE is the folder of a store, FlintMQ's or Apache RocketMQ's, or its commitlog folder alone; or an archive, by its
    URL or folder. A broker may have it open. The log is read up to the flushed offset in FlintMQ's checkpoint when the
    read is planned. Without such a mark (in RocketMQ's stores, and in files alone) it is read up to the last sound
    record, flushed or not; an archive is read up to its end. All topics except the broker's own are read unless options
    choose; messages of deleted topics are read as long as their records exist.
    """

    @classmethod
    def name(cls) -> str:
        return "flintmq-store"

    @hide_traceback
    def schema(self) -> str:
        """Return the columns; ``load`` calls this, so options and path are checked here."""
        options = self._options()
        if is_archive(options.path):
            with open_archive(options.path) as reader:
                check_archived_topics(options.topics or (), reader)
        else:
            check_topics(options.topics or (), find_log(options.path, options.on_damage))
        return ddl(offered(properties=options.include_properties, headers=options.include_headers))

    @hide_traceback
    def reader(self, schema: StructType) -> StoreSourceReader:
        return StoreSourceReader(columns_of(schema), self._options())

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

    def _options(self) -> StoreReadOptions:
        return store_options(self.options)


@dataclass
class LogPartition(InputPartition):
    """The stretches of log files that one task reads, in order."""

    stretches: tuple[LogRange, ...]


@dataclass
class ArchivePartition(InputPartition):
    """The fragments of an archive that one task reads, in order. Credentials are in the executor's environment."""

    entries: tuple[Entry, ...]


class StoreSourceReader(DataSourceReader):
    """Plans on the driver, reads in the tasks."""

    def __init__(self, columns: Sequence[Column], options: StoreReadOptions) -> None:
        self._columns = columns
        self._options = options

    @hide_traceback
    def partitions(self) -> Sequence[InputPartition]:
        """Return the log as of now, cut at record boundaries, or the fragments of an archive."""
        if is_archive(self._options.path):
            with open_archive(self._options.path) as reader:
                return [ArchivePartition(tuple(entries)) for entries in plan_archive(reader, self._options)]
        on_damage = self._options.on_damage
        log = find_end(find_log(self._options.path, on_damage), on_damage)
        return [LogPartition(tuple(stretches)) for stretches in plan(log, self._options)]

    @hide_traceback_each
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from ...arrow.decoder import Decoder  # only tasks need these
        from ...arrow.store_reader.partition_reader import PartitionReader

        # Any other partition is Spark's placeholder for an empty plan.
        if isinstance(partition, LogPartition):
            with freeze_gc():
                yield from PartitionReader(partition.stretches, Decoder(self._columns), self._options).batches()
        elif isinstance(partition, ArchivePartition):
            with freeze_gc(), open_archive(self._options.path) as reader:
                yield from archived_batches(reader, partition.entries, Decoder(self._columns), self._options)
