"""The sink that Spark calls for ``df.write`` and ``df.writeStream``. The driver plans and checks a write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ...protocol.errors import TopicNotExist
from ..core import topics as topic_operations
from ..endpoint import client_name
from . import brokers
from .errors import InvalidOption, hide_traceback
from .gc_freeze import freeze_gc
from .sink_delivery import SinkDelivery, Written, delivery_of
from .sink_options import WriteOptions, check_columns, write_options


class _TaskWriter:
    """The part of both writers that runs in Spark's tasks."""

    def __init__(self, delivery: SinkDelivery) -> None:
        self._delivery = delivery

    @hide_traceback
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with freeze_gc():
            return self._delivery.write(iterator, _partition())


class BatchWriter(_TaskWriter, DataSourceArrowWriter):
    @hide_traceback
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the write after all tasks have finished."""
        self._delivery.commit(_written(messages), None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Abort the write after a task failed or the job was cancelled."""
        self._delivery.abort(_written(messages), None)


class StreamWriter(_TaskWriter, DataSourceStreamArrowWriter):
    """Writes the rows of each micro-batch. Spark creates one for its tasks, and another one to commit."""

    @hide_traceback
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Commit the micro-batch after all tasks have finished."""
        self._delivery.commit(_written(messages), batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Abort the micro-batch after a task failed or the query was stopped."""
        self._delivery.abort(_written(messages), batchId)


def batch_writer(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> BatchWriter:
    """Return the writer of ``df.write``. Raises if options, columns, broker or topic do not fit."""
    if overwrite:
        raise InvalidOption('mode("overwrite") would delete what the topic holds, and a log only grows: use "append"')
    options = write_options(given)
    check_columns(schema, options.topic)
    check_target(options)
    return BatchWriter(delivery_of(options, streaming=False))


def stream_writer(given: Mapping[str, str], schema: StructType, *, commits: bool) -> StreamWriter:
    """Return the writer of ``df.writeStream``, new for each micro-batch; ``commits``: it ends a micro-batch.

    The broker is asked only once in a query. Later it may be away for a while, for which the tasks wait; and the
    messages that are to be committed are stored already.
    """
    options = write_options(given, streaming=True)
    check_columns(schema, options.topic)
    asked = (options, *sorted(given.items()))
    if not commits and asked not in _asked:
        check_target(options)
        _asked.add(asked)
    return StreamWriter(delivery_of(options, streaming=True))


_asked: set[tuple[object, ...]] = set()
"""Options of streaming queries whose broker and topic were found: Spark plans all micro-batches in one process."""


def check_target(options: WriteOptions) -> None:
    """Raise if the broker is unreachable, or lacks the topic and does not create topics by itself."""
    topics = brokers.greet(options.broker, options.timeout)
    if options.topic is None or options.topic in topics:
        return
    queues = brokers.call(options.broker, topic_operations.created_queues(client_name()), options.timeout)
    if not queues:
        raise TopicNotExist(
            f"option 'topic': topic {options.topic!r} does not exist at {options.broker.address}, and it creates "
            f"none by itself: create it first (flintmq topic create {options.topic}), or correct the name"
        )


def _partition() -> int:
    context = TaskContext.get()
    assert context is not None, "only a task writes"
    return context.partitionId()


def _written(messages: list[WriterCommitMessage | None]) -> list[Written | None]:
    return [message if isinstance(message, Written) else None for message in messages]
