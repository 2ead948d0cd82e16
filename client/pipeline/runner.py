"""Runs the pipeline: both queries until they are at the end, one fails, or somebody stops them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from ..errors import InvalidArgument
from ..sync.admin import Admin
from . import queries
from .errors import PipelineFailed
from .failures import reason_of
from .folders import Folders
from .progress import Follower, QueryProgress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

ALERT_QUEUES = 4
LOOK_SECONDS = 0.5
"""Time between two looks at how far the queries are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pipeline:
    """What is read, and where it goes."""

    broker: str
    topic: str
    alerts_topic: str
    folders: Folders
    once: bool = False
    """End with what was there at the start; else follow until somebody stops it."""
    lateness: timedelta = queries.LATENESS
    rows_a_batch: int = queries.ROWS_A_BATCH

    @property
    def purpose(self) -> dict[str, str]:
        """What the checkpoints are for; the broker may have moved."""
        return {"topic": self.topic, "alerts": self.alerts_topic}


@contextlib.contextmanager
def prepared(pipeline: Pipeline, timeout: float) -> Iterator[None]:
    """Within, the topics are there and the folders are this pipeline's: checked before Spark is started, in no time.

    Makes the topic of the alerts if it is not there. ``timeout``: seconds for each answer of the broker. Raises what
    the broker answers, ``ConnectionFailed``, ``InvalidFolder``, or ``InvalidArgument`` where alerts would go to the
    topic that is read.
    """
    if pipeline.topic == pipeline.alerts_topic:
        raise InvalidArgument(f"topic {pipeline.topic!r} is read: alerts need another one")
    with Admin(pipeline.broker, timeout=timeout) as admin:
        admin.topic_stats(pipeline.topic)
        with pipeline.folders.claimed(pipeline.purpose):
            if pipeline.alerts_topic not in admin.topics():
                admin.create_topic(pipeline.alerts_topic, ALERT_QUEUES)
            yield


def run(
    spark: SparkSession,
    pipeline: Pipeline,
    *,
    show: Callable[[Sequence[QueryProgress]], None] = lambda progress: None,
    stopping: threading.Event | None = None,
) -> list[QueryProgress]:
    """Run both queries of a ``prepared`` pipeline; how far each came.

    ``show`` is called every half second; ``stopping``, once set, ends them. What was done is in the checkpoints: run
    again with the same folders, it goes on from there. Raises ``PipelineFailed`` when a query fails, after the other
    was stopped.
    """
    stopping = stopping or threading.Event()
    followers: list[Follower] = []
    with _clear_end_of_java(stopping):
        try:
            for name, writer in _writers(spark, pipeline).items():
                followers.append(Follower(name, _started(name, writer)))
            while _look(followers, show) and not stopping.is_set():
                stopping.wait(LOOK_SECONDS)
        finally:
            _stop(followers)
    return [follower.progress for follower in followers]


def _writers(spark: SparkSession, pipeline: Pipeline) -> dict[str, DataStreamWriter]:
    """Both queries, ready to be started."""
    rows = pipeline.rows_a_batch
    flights = queries.flights(queries.messages(spark, pipeline.broker, pipeline.topic, rows))
    departures = queries.departures(flights, pipeline.lateness)
    alerts = queries.alerts(flights)
    return {
        "departures": _writer("departures", departures, "parquet", {"path": str(pipeline.folders.results)}, pipeline),
        "alerts": _writer(
            "alerts", alerts, "flintmq", {"bootstrap": pipeline.broker, "topic": pipeline.alerts_topic}, pipeline
        ),
    }


def _writer(name: str, rows: DataFrame, sink: str, options: Mapping[str, str], pipeline: Pipeline) -> DataStreamWriter:
    writer = rows.writeStream.queryName(name).outputMode("append").format(sink).options(**options)
    writer = writer.option("checkpointLocation", pipeline.folders.checkpoint_of(name))
    return writer.trigger(availableNow=True) if pipeline.once else writer


def _started(name: str, writer: DataStreamWriter) -> StreamingQuery:
    from pyspark.errors import PySparkException

    try:
        return writer.start()
    except PySparkException as error:
        raise _failed(name, error) from error


def _look(followers: Sequence[Follower], show: Callable[[Sequence[QueryProgress]], None]) -> bool:
    """Show how far all are; whether any still runs. Raises ``PipelineFailed`` for one that failed."""
    running = [follower.query.isActive for follower in followers]  # before the last look, which then sees everything
    show([follower.look() for follower in followers])
    for follower in followers:
        if (error := follower.query.exception()) is not None:
            raise _failed(follower.progress.query, error)
    return any(running)


@contextlib.contextmanager
def _clear_end_of_java(stopping: threading.Event) -> Iterator[None]:
    """A Java process that is gone is one error. Asked to stop, it may well be: a signal can reach all processes."""
    from py4j.protocol import Py4JError

    try:
        yield
    except (Py4JError, ConnectionError) as error:
        if not stopping.is_set():
            raise PipelineFailed(
                f"Spark's Java process does not answer any more: {reason_of(error)}. If the system ended it for want "
                "of memory, let it read less at once; run it again with the same folders: it goes on where it was"
            ) from error


def _stop(followers: Sequence[Follower]) -> None:
    for follower in followers:
        if follower.query.isActive:
            follower.query.stop()
            follower.progress.state = "stopped"


def _failed(name: str, error: BaseException) -> PipelineFailed:
    return PipelineFailed(
        f"the query {name!r} failed: {reason_of(error)}. Correct what is wrong and run it again with the same folders: "
        "it goes on where it was"
    )
