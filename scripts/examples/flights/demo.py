"""The example from end to end: replay, count, verify, show. Used by ``run demo`` and by the quickstart."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from flintmq.client import FlintError

from ...lib.step_report import console, rate_of, report
from . import runner, verification
from .flight import packaged_csv, replay
from .runner import ResultsFolder, progress_display, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "flights-by-hour"
ALERTS_TOPIC = "flight-alerts"
TIMEOUT_SECONDS = 60.0
BUSY_DEPARTURES = 10
ROWS_SHOWN = 5


def run_demo(address: str, output: Path, log: Path) -> None:
    """Run all steps with the broker at ``address``; Parquet goes to ``output``, Spark's log to ``log``.

    Raises ``FlintError`` if a step fails or the results differ from the CSV.
    """
    with console.status("replaying the flights…"):
        sent = replay(address, TOPIC, packaged_csv(), timeout=TIMEOUT_SECONDS)
    replayed = f"{sent.flights:,} flights in the order of their hours to `{TOPIC}`"
    report("replayed", replayed, rate_of(sent.flights, sent.seconds, sent.body_bytes))
    pipeline = runner.Pipeline(
        broker=address, topic=TOPIC, alerts_topic=ALERTS_TOPIC, results=ResultsFolder(output), once=True
    )
    with runner.prepared(pipeline, TIMEOUT_SECONDS), contextlib.ExitStack() as stack:
        started = time.perf_counter()
        with console.status("starting Spark…"):
            spark = stack.enter_context(spark_session(log, is_short_run=True))
        report("started", f"Spark {spark.version}, {spark.sparkContext.master}", seconds_since(started))
        _run(spark, pipeline)
        _verify(spark, pipeline)
        _show(spark, output)


def seconds_since(started: float) -> str:
    """Format the seconds since ``started`` in the column of the rates."""
    return f"{time.perf_counter() - started:>11.1f} s"


def _run(spark: SparkSession, pipeline: runner.Pipeline) -> None:
    started = time.perf_counter()
    with progress_display() as show:
        progress = runner.run(spark, pipeline, show=show)
    for query in progress:
        if query.late or query.unreadable:
            raise FlintError(f"{query.query}: {query.late} rows were late, {query.unreadable} messages unreadable")
    batches = " and ".join(f"{query.batches} ({query.query})" for query in progress)
    report("computed", f"both queries, in {batches} micro-batches", seconds_since(started))


def _verify(spark: SparkSession, pipeline: runner.Pipeline) -> None:
    started = time.perf_counter()
    with console.status("computing the same from the CSV in plain Python…"):
        expected = verification.Expected.of_csv(packaged_csv())
        verified = verification.verify(spark, pipeline.results.path, pipeline.broker, pipeline.alerts_topic, expected)
    verified.raise_for_differences()
    figures = f"{verified.departures:,} departures in {verified.hours:,} rows and {verified.alerts:,} alerts"
    report("verified", f"{figures}: as in the CSV", seconds_since(started))


def _show(spark: SparkSession, results: Path) -> None:
    """Print the hours with the longest delays."""
    from pyspark.sql import functions as F  # noqa: N812

    rows = spark.read.parquet(str(results)).where(F.col("departures") >= BUSY_DEPARTURES)
    worst = rows.orderBy(F.desc("mean_delay_minutes"), "hour", "origin").limit(ROWS_SHOWN)
    table = Table("worst hours, UTC", "from", "departures", "mean delay, min", box=None, header_style="dim")
    hour = F.date_format("hour", "yyyy-MM-dd HH:mm")
    for row in worst.select(hour, "origin", "departures", "mean_delay_minutes").collect():
        table.add_row(row[0], row[1], str(row[2]), f"{row[3]:.1f}")
    console.print()
    console.print(table)
    console.print()
