"""The streaming source. Spark's checkpoint is the only place that stores a query's position."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from ...protocol.errors import FlintError
from ..arrow.bounds import Bounds
from ..arrow.decoder import Column
from .brokers import BrokerAddress
from .errors import hide_traceback, hide_traceback_each
from .gc_freeze import freeze_gc
from .offsets import Queue, QueueRange, Stats, TopicSubscription, limited, push, split, together, within
from .options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

_TOPICS_SECONDS = 1.0
"""Interval of looking for new topics; new queues are seen at once."""
_ASKING_SHARE = 10
"""Spark asks some ninety times a second while there is nothing new. Queries to brokers may take at most a tenth of that
time, so the next one waits for ten times as long as the last one took. The last one's response is never used twice:
``processAllAvailable`` promises that all messages sent before it are read."""
_PAUSE_SECONDS_MAX = 0.1
"""Maximum wait between two queries: a broker that was away, and took seconds, has news when it is back."""
_ROWS_TOGETHER = 500
"""Ranges of together at most this many messages share a task: a Python task takes some 20 ms before its first row."""


@dataclass
class RangesPartition(InputPartition):
    """The ranges that one task reads, each with its broker."""

    ranges: list[tuple[QueueRange, BrokerAddress]]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches on the driver; ``read`` runs in the executors, on a copy."""

    def __init__(self, options: ReadOptions, columns: tuple[Column, ...]) -> None:
        self.options = options
        self.columns = columns
        self._topics: dict[str, list[str]] = {}
        self._topics_at: float | None = None
        self._stats: Stats = {}
        self._ask_from = 0.0
        self._target: dict[Queue, int] | None = None

    # ---- offsets ----

    @hide_traceback
    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's names, here and below
        """Return the offsets at which a query without a checkpoint begins."""
        subscription = TopicSubscription(self.options)
        subscription.check()
        return subscription.to_json(subscription.starts(self._ask(subscription, anew=True), "latest"))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        rows_max = self.options.max_offsets_per_trigger
        return ReadMaxRows(rows_max) if rows_max is not None else ReadAllAvailable()

    @hide_traceback
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the query's end at the current end of the queues."""
        subscription = TopicSubscription(self.options)
        self._target = {queue: row.max_offset for queue, row in self._ask(subscription, anew=True).items()}

    @hide_traceback
    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        subscription = TopicSubscription(self.options)
        starts = subscription.from_json(start)
        stats = self._ask(subscription)
        self._check_loss(subscription, starts, stats)
        available = {queue: row.max_offset for queue, row in stats.items()}
        if self._target is not None:
            available = {queue: min(end, available.get(queue, end)) for queue, end in self._target.items()}
        begins = {queue: starts.get(queue, stats[queue].min_offset if queue in stats else 0) for queue in available}
        ends = {queue: max(end, begins[queue]) for queue, end in available.items()}
        if isinstance(limit, ReadMaxRows):
            ends = limited(begins, ends, limit.max_rows)
        # A queue that is gone keeps its offset, so that offsets never decrease.
        return subscription.to_json(starts | ends)

    def reportLatestOffset(self) -> dict[str, int] | None:  # noqa: N802
        """Return the ends of the queues for the query's progress, which computes the lag from them."""
        subscription = TopicSubscription(self.options)
        return subscription.to_json({queue: row.max_offset for queue, row in self._stats.items()}) or None

    def _ask(self, subscription: TopicSubscription, *, anew: bool = False) -> Stats:
        now = time.monotonic()
        if anew or self._topics_at is None or now - self._topics_at > _TOPICS_SECONDS:
            self._topics = subscription.topics(begun=self._topics_at is not None)
            self._topics_at = now
            anew = True
        if not anew and now < self._ask_from:
            time.sleep(self._ask_from - now)
        asked = time.monotonic()
        self._stats = subscription.stats(self._topics)
        answered = time.monotonic()
        self._ask_from = answered + min((answered - asked) * _ASKING_SHARE, _PAUSE_SECONDS_MAX)
        return self._stats

    def _check_loss(self, subscription: TopicSubscription, starts: dict[Queue, int], stats: Stats) -> None:
        for queue, start in starts.items():
            row = stats.get(queue)
            if row is None:
                if start:
                    subscription.lost(queue, 0, start, "the queue is gone, the query has read it")
            elif start < row.min_offset:
                subscription.lost(queue, start, row.min_offset, "the query has not read them yet")
            elif start > row.max_offset:
                subscription.lost(queue, row.max_offset, start, "the query has read them")

    # ---- micro-batches ----

    @hide_traceback
    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Return the parts of a micro-batch: one for each queue, fewer if there is little to read, more if
        ``minPartitions`` asks for them."""
        subscription = TopicSubscription(self.options)
        starts, ends = subscription.from_json(start), subscription.from_json(end)
        ranges = [
            QueueRange(queue, starts[queue] if queue in starts else self._first(subscription, queue), ends[queue])
            for queue in sorted(ends)
        ]
        pieces = split(ranges, self.options.min_partitions)
        rows_max = _ROWS_TOGETHER if self.options.min_partitions is None else 0
        return [
            RangesPartition([(each, subscription.brokers[each.queue.broker]) for each in group])
            for group in together(pieces, rows_max)
        ]

    def _first(self, subscription: TopicSubscription, queue: Queue) -> int:
        """Return the first offset of a queue that was created after the query began."""
        stats = self._stats if queue in self._stats else self._ask(subscription, anew=True)
        return stats[queue].min_offset if queue in stats else 0

    @hide_traceback_each
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangesPartition)
        from ..arrow.decoder import Decoder
        from .partition_reader import read_range

        decoder = Decoder(self.columns)
        with freeze_gc():
            for (queue, start, end), broker in partition.ranges:
                yield from read_range(queue, broker, start, end, self.options, decoder)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: Spark's checkpoint alone stores the position."""


class RefusedStream(DataSourceStreamReader):
    """Raises an error at the first call of any method: Spark loses errors that are raised when a reader is created."""

    def __init__(self, why: FlintError) -> None:
        self._why = why

    @hide_traceback
    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        raise self._why

    @hide_traceback
    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        raise self._why

    @hide_traceback
    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        raise self._why

    @hide_traceback
    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        raise self._why

    @hide_traceback_each
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._why


# ---- The batch source: reads ranges of queues, by offset or time, or the messages with a key.


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
