"""The flights pipeline in one go: replay, run to the end, verify, show. For `scripts/pipeline` and `quickstart`."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from flintmq.client import Consumer, FlintError
from flintmq.client.cli.pipeline_progress import shown_progress
from flintmq.client.pipeline import runner, verification
from flintmq.client.pipeline.flights import packaged_csv
from flintmq.client.pipeline.folders import Folders
from flintmq.client.pipeline.replay import replay
from flintmq.client.pipeline.session import pipeline_session
from lib.reporting import console, rate_of, report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "flights-by-hour"
ALERTS_TOPIC = "flight-alerts"
TIMEOUT_SECONDS = 60.0
DIFFERENCES_SHOWN = 10
BUSY_DEPARTURES = 10
SHOWN = 5


def run_pipeline(address: str, output: Path, log: Path) -> None:
    """All steps with the broker at ``address``; Parquet goes to ``output``, what Spark logs to ``log``.

    Raises ``FlintError`` for whatever fails, and for a result that is not the CSV's.
    """
    with console.status("replaying the flights…"):
        sent = replay(address, TOPIC, packaged_csv(), timeout=TIMEOUT_SECONDS)
    replayed = f"{sent.flights:,} flights in the order of their hours to `{TOPIC}`"
    report("replayed", replayed, rate_of(sent.flights, sent.seconds, sent.body_bytes))
    task = runner.Pipeline(
        broker=address, topic=TOPIC, alerts_topic=ALERTS_TOPIC, folders=Folders.of(output), once=True
    )
    with runner.prepared(task, TIMEOUT_SECONDS), contextlib.ExitStack() as stack:
        started = time.perf_counter()
        with console.status("starting Spark…"):
            spark = stack.enter_context(pipeline_session(log, brief=True))
        report("started", f"Spark {spark.version}, {spark.sparkContext.master}", f"{seconds_since(started)}")
        _run(spark, task)
        _verify(spark, task)
        _show(spark, task.folders.results)


def seconds_since(started: float) -> str:
    """As the rates are shown."""
    return f"{time.perf_counter() - started:>11.1f} s"


def _run(spark: SparkSession, task: runner.Pipeline) -> None:
    started = time.perf_counter()
    with shown_progress() as show:
        progress = runner.run(spark, task, show=show)
    for query in progress:
        if query.late or query.unreadable:
            raise FlintError(f"{query.query}: {query.late} rows were late, {query.unreadable} messages unreadable")
    batches = " and ".join(f"{query.batches} ({query.query})" for query in progress)
    report("computed", f"both queries, in {batches} micro-batches", seconds_since(started))


def _verify(spark: SparkSession, task: runner.Pipeline) -> None:
    started = time.perf_counter()
    with console.status("computing the same from the CSV in plain Python…"):
        expected = verification.Expected.of_csv(packaged_csv())
        verified = verification.PipelineVerified()
        verification.compare_hours(verification.read_hours(spark, task.folders.results), expected, verified)
        with Consumer(task.broker, timeout=TIMEOUT_SECONDS) as consumer:
            alerts = consumer.iter(task.alerts_topic, from_="earliest", until="latest")
            verification.compare_alerts(alerts, expected, verified)
    verified.raise_for_differences(DIFFERENCES_SHOWN)
    found = f"{verified.departures:,} departures in {verified.hours:,} rows, {verified.alerts:,} alerts: as the CSV has"
    report("verified", found, seconds_since(started))


def _show(spark: SparkSession, results: Path) -> None:
    """The hours with the longest delays."""
    from pyspark.sql import functions as F  # noqa: N812

    rows = spark.read.parquet(str(results)).where(F.col("departures") >= BUSY_DEPARTURES)
    worst = rows.orderBy(F.desc("mean_delay_minutes"), "hour", "origin").limit(SHOWN)
    table = Table("worst hours, UTC", "from", "departures", "mean delay, min", box=None, header_style="dim")
    hour = F.date_format("hour", "yyyy-MM-dd HH:mm")
    for row in worst.select(hour, "origin", "departures", "mean_delay_minutes").collect():
        table.add_row(row[0], row[1], str(row[2]), f"{row[3]:.1f}")
    console.print()
    console.print(table)
    console.print()
