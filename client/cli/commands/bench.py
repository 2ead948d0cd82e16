"""The command ``flintmq bench``."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from ....protocol.display import JSON, PLAIN, show_bytes, to_json
from ...operator.display import plural, show_count, show_rate, show_seconds
from ..bench_runs import Advance, LatencyHistogram, LatencyRun, Produce, Report, fill, run_pull, run_query
from ..command import CliGroup, note, pass_settings
from ..failures import EXIT_INTERRUPTED, EXIT_OK
from ..params import COUNT, SIZE, TOPIC, NumberType, RealType
from ..settings import BrokerChoice

if TYPE_CHECKING:
    from ...core.produce.packer import Flush

BAR_CHARS = 40
QUEUES = 4


@click.group(cls=CliGroup)
def bench() -> None:
    """Measure the running broker.

    Without --topic, each run creates a topic and deletes it afterwards, unless --keep is given. The messages that it
    wrote stay in the CommitLog until retention deletes their file.
    """


def topic_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--topic`` and ``--keep``."""
    function = click.option("--keep", is_flag=True, help="Do not delete the topic afterwards.")(function)
    return click.option("--topic", type=TOPIC, help="Use this topic and do not delete it.  [default: a new topic]")(
        function
    )


@bench.command("produce")
@pass_settings
@click.option("-n", "--count", type=COUNT, default=200_000, show_default=True, help="Number of messages.")
@click.option("--size", type=SIZE, default="100", show_default=True, help="Bytes per body.")
@click.option("--batch", type=COUNT, default=1000, show_default=True, help="Messages per batch.")
@click.option(
    "--producers",
    type=NumberType(1, 64),
    default=1,
    show_default=True,
    help="Number of threads, each with its own producer.",
)
@click.option(
    "--flush", type=click.Choice(["sync", "async"]), help="sync: acknowledge after the flush; async: broker's policy."
)
@click.option("--keys/--no-keys", default=True, show_default=True, help="Give each message a key.")
@topic_options
def produce(settings: BrokerChoice, topic: str | None, keep: bool, count: int, **load: Any) -> int:
    """Measure how fast the broker stores and acknowledges messages."""
    with _topic(settings, topic, keep) as name:
        run = Produce(settings, name, count, **load)
        with _progress(settings, "produce", count) as advance:
            report = run.run(advance)
    return _show(settings, report)


@bench.command("pull")
@pass_settings
@click.option("-n", "--count", type=COUNT, default=200_000, show_default=True, help="Number of messages.")
@click.option("--size", type=SIZE, default="100", show_default=True, help="Bytes per body, if messages are produced.")
@click.option("--batch", type=COUNT, default=1000, show_default=True, help="Messages per pull.")
@topic_options
def pull(settings: BrokerChoice, count: int, size: int, batch: int, topic: str | None, keep: bool) -> int:
    """Measure how fast messages are read. Without --topic, the run produces them first."""
    with _topic(settings, topic, keep) as name:
        if topic is None:
            with _progress(settings, "produce", count) as advance:
                fill(settings, name, count, size, advance)
        with _progress(settings, "pull", count) as advance:
            report = run_pull(settings, name, count, batch, advance)
    return _show(settings, report)


@bench.command("query")
@pass_settings
@click.option("-n", "--count", type=COUNT, default=5000, show_default=True, help="Number of queries.")
@click.option(
    "--messages", type=COUNT, default=100_000, show_default=True, help="Messages to produce, without --topic."
)
@click.option("--size", type=SIZE, default="100", show_default=True, help="Bytes per body, if messages are produced.")
@topic_options
def query(settings: BrokerChoice, count: int, messages: int, size: int, topic: str | None, keep: bool) -> int:
    """Measure how fast a message is found by its key. Without --topic, the run produces messages first."""
    with _topic(settings, topic, keep) as name:
        if topic is None:
            with _progress(settings, "produce", messages) as advance:
                fill(settings, name, messages, size, advance)
        with _progress(settings, "query", count) as advance:
            report = run_query(settings, name, count, advance)
    return _show(settings, report)


@bench.command("latency")
@pass_settings
@click.option("-n", "--count", type=COUNT, default=2000, show_default=True, help="Number of messages.")
@click.option("--size", type=NumberType(8), default=100, show_default=True, help="Bytes per body.")
@click.option(
    "--rate", type=RealType(min=0.1), metavar="N", default=500, show_default=True, help="Maximum messages per second."
)
@click.option(
    "--flush", type=click.Choice(["sync", "async"]), help="sync: acknowledge after the flush; async: broker's policy."
)
@topic_options
def latency(
    settings: BrokerChoice, count: int, size: int, rate: float, flush: Flush | None, topic: str | None, keep: bool
) -> int:
    """Measure how long one message takes to be acknowledged, and to reach a waiting consumer."""
    with _topic(settings, topic, keep) as name:
        run = LatencyRun(settings, name, count, size, rate, flush)
        with _progress(settings, "latency", count) as advance:
            report = run.run(advance)
    return _show(settings, report)


# ---- before and after a run


@contextmanager
def _topic(settings: BrokerChoice, given: str | None, keep: bool) -> Iterator[str]:
    """Yield the topic to use: ``given``, or a new one, which is deleted afterwards unless ``keep`` is set."""
    if given is not None:
        yield given
        return
    name = f"flintmq-bench-{os.getpid()}-{time.time_ns() // 1_000_000}"
    with settings.admin() as admin:
        admin.create_topic(name, QUEUES)
        try:
            yield name
        finally:
            if keep:
                note(settings, f"kept topic {name}; flintmq topic delete {name} deletes it")
            else:
                admin.delete_topic(name)


@contextmanager
def _progress(settings: BrokerChoice, what: str, total: int) -> Iterator[Advance]:
    """Show a progress bar on standard error if that is a terminal; yield the function that advances it."""
    if settings.quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description:7}"), BarColumn(None), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)


def _show(settings: BrokerChoice, report: Report) -> int:
    output = settings.output
    row = report_row(report)
    if output.mode == JSON:
        output.write(to_json(row) + "\n")
    elif output.mode == PLAIN:
        output.record((), _flat(row))
    else:
        counted = ("query", "queries") if report.bench == "query" else ("message",)
        rate = f"{show_rate(report.per_second)}, {show_bytes(report.bytes_per_second)}/s"
        output.line(f"{report.bench}: {plural(report.messages, *counted)} in {show_seconds(report.seconds)}: {rate}")
        output.line(f"  {report.about}")
        for what, latencies in report.latencies.items():
            _show_latencies(settings, what, latencies)
    if report.interrupted:
        note(settings, "interrupted: these are the figures up to then")
        return EXIT_INTERRUPTED
    return EXIT_OK


def report_row(report: Report) -> dict[str, Any]:
    """Return the report under its JSON names."""
    return {
        "bench": report.bench,
        "topic": report.topic,
        "about": report.about,
        "messages": report.messages,
        "body_bytes": report.body_bytes,
        "seconds": round(report.seconds, 6),
        "messages_per_second": round(report.per_second, 1),
        "bytes_per_second": round(report.bytes_per_second, 1),
        "latency_seconds": {what: _rounded(latencies) for what, latencies in report.latencies.items()},
        "interrupted": report.interrupted,
    }


def _rounded(latencies: LatencyHistogram) -> dict[str, float | None]:
    return {name: None if value is None else round(value, 9) for name, value in latencies.summary().items()}


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    flat = {name: value for name, value in row.items() if name != "latency_seconds"}
    for what, summary in row["latency_seconds"].items():
        flat |= {f"{what}_{name}_seconds": value for name, value in summary.items()}
    return flat


def _show_latencies(settings: BrokerChoice, what: str, latencies: LatencyHistogram) -> None:
    output = settings.output
    titles = {"batch": "a batch acknowledged", "pull": "a pull", "query": "a query"}
    output.write("\n")
    output.line(f"{titles.get(what, what)}:")
    summary = {name.replace("_", "."): value for name, value in latencies.summary().items()}
    width = output.width
    if width >= 60:
        output.line("  " + "   ".join(f"{name} {show_seconds(value)}" for name, value in summary.items()))
    else:
        for name, value in summary.items():
            output.line(f"  {name:6}{show_seconds(value):>8}")
    buckets = latencies.buckets()
    most = max((bucket.latencies for bucket in buckets), default=1)
    bar_chars = max(5, min(BAR_CHARS, width - 26))
    for bucket in buckets:
        bar = "█" * round(bar_chars * bucket.latencies / most) or ("▏" if bucket.latencies else "")
        output.line(f"  < {show_seconds(bucket.below):>7} {show_count(bucket.latencies):>10}  {bar}")
