"""The runner: runs both queries until they reach the end, one of them fails, or the caller stops them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from flintmq.client import Admin, InvalidArgument

from . import queries
from .errors import QueryFailed
from .progress import Follower, QueryProgress
from .results_folder import ResultsFolder
from .spark_errors import reason_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

ALERT_QUEUES = 4
UPDATE_SECONDS = 0.5
"""Seconds between two updates of the progress."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pipeline:
    """Input and output of the queries."""

    broker: str
    topic: str
    alerts_topic: str
    results: ResultsFolder
    once: bool = False
    """True: end after the messages that were there at the start; False: follow the topic."""
    lateness: timedelta = queries.LATENESS
    rows_a_batch: int = queries.ROWS_A_BATCH

    @property
    def purpose(self) -> dict[str, str]:
        """Return the names that must not change between runs; the broker's address may."""
        return {"topic": self.topic, "alerts": self.alerts_topic}


@contextlib.contextmanager
def prepared(pipeline: Pipeline, timeout: float) -> Iterator[None]:
    """Check the topics and claim the results folder for the time of the context: this fails fast, Spark starts slowly.

    Creates the topic of the alerts if it does not exist. ``timeout`` is in seconds, for each response of the broker.
    Raises the broker's errors, ``ConnectionFailed``, ``InvalidFolder``, or ``InvalidArgument`` if alerts would go to
    the topic that is read.
    """
    if pipeline.topic == pipeline.alerts_topic:
        raise InvalidArgument(f"topic {pipeline.topic!r} is the input; use another topic for the alerts")
    with Admin(pipeline.broker, timeout=timeout) as admin:
        admin.topic_stats(pipeline.topic)
        with pipeline.results.claimed(pipeline.purpose):
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
    """Run both queries of a ``prepared`` pipeline and return their progress.

    ``show`` is called every half second; setting ``stopping`` ends the queries. Their state is in the checkpoints: a
    run with the same folder continues there. Raises ``QueryFailed`` if a query fails, after stopping the other one.
    """
    stopping = stopping or threading.Event()
    followers: list[Follower] = []
    with _java_failures(stopping):
        try:
            for name, writer in _writers(spark, pipeline).items():
                followers.append(Follower(name, _start(name, writer)))
            while _update(followers, show) and not stopping.is_set():
                stopping.wait(UPDATE_SECONDS)
        finally:
            _stop(followers)
    return [follower.progress for follower in followers]


def _writers(spark: SparkSession, pipeline: Pipeline) -> dict[str, DataStreamWriter]:
    """Return both queries, ready to start, by name."""
    rows = pipeline.rows_a_batch
    flights = queries.flights(queries.messages(spark, pipeline.broker, pipeline.topic, rows))
    departures = queries.departures(flights, pipeline.lateness)
    alerts = queries.alerts(flights)
    return {
        "departures": _writer("departures", departures, "parquet", {"path": str(pipeline.results.path)}, pipeline),
        "alerts": _writer(
            "alerts", alerts, "flintmq", {"bootstrap": pipeline.broker, "topic": pipeline.alerts_topic}, pipeline
        ),
    }


def _writer(name: str, rows: DataFrame, sink: str, options: Mapping[str, str], pipeline: Pipeline) -> DataStreamWriter:
    writer = rows.writeStream.queryName(name).outputMode("append").format(sink).options(**options)
    writer = writer.option("checkpointLocation", str(pipeline.results.checkpoint / name))
    return writer.trigger(availableNow=True) if pipeline.once else writer


def _start(name: str, writer: DataStreamWriter) -> StreamingQuery:
    from pyspark.errors import PySparkException

    try:
        return writer.start()
    except PySparkException as error:
        raise _failed([(name, error)]) from error


def _update(followers: Sequence[Follower], show: Callable[[Sequence[QueryProgress]], None]) -> bool:
    """Show the progress; return whether any query still runs. Raises ``QueryFailed`` if one failed."""
    running = [follower.query.isActive for follower in followers]  # before the update, so that the last one is complete
    show([follower.update() for follower in followers])
    # Spark may end the workers of one query with those of another that failed: name all, the cause is among them.
    failures = [(each.progress.query, error) for each in followers if (error := each.query.exception()) is not None]
    if failures:
        raise _failed(failures)
    return any(running)


@contextlib.contextmanager
def _java_failures(stopping: threading.Event) -> Iterator[None]:
    """Raise ``QueryFailed`` if Spark's Java process is gone, unless a stop was requested.

    A signal to the whole process group, such as Ctrl-C, stops Java too.
    """
    from py4j.protocol import Py4JError

    try:
        yield
    except (Py4JError, ConnectionError) as error:
        if not stopping.is_set():
            raise QueryFailed(
                f"Spark's Java process no longer responds: {reason_of(error)}. If the system ended it because memory "
                "ran out, use a smaller --batch. Run it again with the same folder to continue"
            ) from error


def _stop(followers: Sequence[Follower]) -> None:
    for follower in followers:
        if follower.query.isActive:
            follower.query.stop()
            follower.progress.state = "stopped"


def _failed(failures: Sequence[tuple[str, BaseException]]) -> QueryFailed:
    reasons = "; ".join(f"the query {name!r} failed: {reason_of(error)}" for name, error in failures)
    return QueryFailed(f"{reasons}. Fix the cause and run it again with the same folder to continue")
