"""The batch source: reads ranges of queues, by offset or time, or the messages with a key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from ..arrow.bounds import Bounds
from ..arrow.columns import Column
from .brokers import BrokerAddress
from .filter_pushdown import push, within
from .gc_freeze import freeze_gc
from .offsets import Queue, QueueRange, TopicSubscription, split
from .options import ReadOptions
from .plain_errors import hide_traceback, hide_traceback_each

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class RangePartition(InputPartition):
    """A part of one queue."""

    queue: Queue
    broker: BrokerAddress
    start: int
    end: int


@dataclass
class KeyPartition(InputPartition):
    """The messages of one topic with the requested key."""

    topic: str
    broker: BrokerAddress


def range_partitions(ranges: Iterable[QueueRange], subscription: TopicSubscription) -> list[InputPartition]:
    """Return a Spark partition for each range."""
    return [RangePartition(queue, subscription.brokers[queue.broker], start, end) for queue, start, end in ranges]


class BatchReader(DataSourceReader):
    """Reads what the options select. The driver plans the read, the executors run it."""

    def __init__(self, options: ReadOptions, columns: tuple[Column, ...]) -> None:
        self.options = options
        self.columns = columns
        self.bounds = Bounds()

    @hide_traceback
    def partitions(self) -> list[InputPartition]:
        """Return the ranges to read as of now, one for each queue, split further to reach ``minPartitions``."""
        subscription = TopicSubscription(self.options)
        subscription.check()
        topics = subscription.topics()
        if self.options.key is not None:
            return [
                KeyPartition(topic, subscription.brokers[name])
                for name, names in topics.items()
                for topic in names
                if self.bounds.wants_topic(topic)
            ]
        stats = subscription.stats(topics)
        starts = subscription.starts(stats, "earliest")
        ends = subscription.ends(stats, starts)
        ranges = [QueueRange(queue, starts[queue], ends[queue]) for queue in sorted(stats)]
        ranges = within(self.bounds, ranges, subscription)
        return range_partitions(split(ranges, self.options.min_partitions), subscription)

    @hide_traceback_each
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one partition."""
        # Imported here because only tasks need them: planning runs in its own process, for whose start the query waits.
        from ..arrow.decoder import Decoder
        from .partition_reader import read_key, read_range

        decoder = Decoder(self.columns)
        with freeze_gc():
            if isinstance(partition, RangePartition):
                start, end = partition.start, partition.end
                yield from read_range(partition.queue, partition.broker, start, end, self.options, decoder)
            elif isinstance(partition, KeyPartition):
                yield from read_key(partition.topic, partition.broker, self.options, decoder)
            # otherwise it is the placeholder partition that Spark creates for an empty plan


class PushingReader(BatchReader):
    """A ``BatchReader`` that accepts filters; Spark rejects such a reader while its setting for pushdown is off."""

    @hide_traceback
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Narrow the read by the filters; return those that Spark still has to apply."""
        self.bounds, tags, left = push(filters, self.options.tag_filter)
        self.options = replace(self.options, tags=tags.expression)
        return left
