"""The command ``flintmq bench``: measurements against the running broker."""

from __future__ import annotations

import math
import os
import random
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import click

from ....protocol.display import JSON, PLAIN, show_bytes
from ....protocol.errors import FlintError
from ...core.produce.packer import Flush
from ...errors import ClientClosed
from ...message import Message
from ...operator.display import plural, show_count, show_rate, show_seconds
from ...sync.consumer import Consumer
from ...sync.producer import Producer
from ..command import CliGroup, flush_option, note, options, pass_settings
from ..failures import EXIT_INTERRUPTED, EXIT_OK
from ..params import COUNT, SIZE, TOPIC, NumberType, RealType
from ..settings import BrokerChoice

# ---- Latencies: percentiles and distribution.

PERCENTILES = (50.0, 90.0, 99.0, 99.9)
_STEPS = (1, 2, 5)


class Bucket(NamedTuple):
    """Number of latencies below ``below`` seconds that are in no earlier bucket."""

    below: float
    latencies: int


class LatencyHistogram:
    """Latencies in seconds. All are kept, in eight bytes each, so percentiles are exact."""

    def __init__(self, seconds: Iterable[float] = ()) -> None:
        self._seconds = array("d", seconds)
        self._sorted = False

    def add(self, seconds: float) -> None:
        self._seconds.append(seconds)
        self._sorted = False

    def extend(self, others: LatencyHistogram) -> None:
        self._seconds.extend(others._seconds)
        self._sorted = False

    def __len__(self) -> int:
        return len(self._seconds)

    def _in_order(self) -> array[float]:
        if not self._sorted:
            self._seconds = array("d", sorted(self._seconds))
            self._sorted = True
        return self._seconds

    def percentile(self, percent: float) -> float | None:
        """Return the latency that ``percent`` of all do not exceed; None if there are none."""
        ordered = self._in_order()
        if not ordered:
            return None
        return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]

    @property
    def greatest(self) -> float | None:
        return self.percentile(100)

    def summary(self) -> dict[str, float | None]:
        """Return ``p50``, ``p90``, ``p99``, ``p99_9`` and ``max`` in seconds."""
        named = {f"p{percent:g}".replace(".", "_"): self.percentile(percent) for percent in PERCENTILES}
        return {**named, "max": self.greatest}

    def buckets(self) -> list[Bucket]:
        """Return buckets that end at 1, 2 and 5 times powers of ten, from the first that is not empty."""
        ordered = self._in_order()
        if not ordered:
            return []
        buckets: list[Bucket] = []
        exponent, step, at = math.floor(math.log10(max(ordered[0], 1e-9))), 0, 0
        while at < len(ordered):
            below = _STEPS[step] * 10.0**exponent
            first = at
            while at < len(ordered) and ordered[at] < below:
                at += 1
            if at > first or buckets:
                buckets.append(Bucket(below, at - first))
            step += 1
            if step == len(_STEPS):
                exponent, step = exponent + 1, 0
        return buckets


SAMPLED_KEYS = 10_000
PULL_BYTES = 1 << 20
FILL_BATCH = 1000
ARRIVAL_SECONDS = 10.0
"""Seconds that ``latency`` waits for messages that it has sent and not yet received."""

Advance = Callable[[int], None]
"""Callback that takes the number of messages (or queries) done since its last call."""


@dataclass
class Report:
    """The result of one measurement. ``about``: the settings in words; ``latencies``: by the step that they measure.

    ``messages`` counts the queries in ``bench query``.
    """

    bench: str
    topic: str
    about: str = ""
    messages: int = 0
    body_bytes: int = 0
    seconds: float = 0.0
    latencies: dict[str, LatencyHistogram] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def per_second(self) -> float:
        return self.messages / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_second(self) -> float:
        return self.body_bytes / self.seconds if self.seconds else 0.0


@contextmanager
def _timed(report: Report) -> Iterator[None]:
    """Measure the time of the block. Ctrl-C ends the block and keeps the figures up to then."""
    began = time.perf_counter()
    try:
        yield
    except KeyboardInterrupt:
        report.interrupted = True
    finally:
        report.seconds = time.perf_counter() - began


def _flush(settings: BrokerChoice, asked: str | None) -> str:
    """Return the flush policy in force: the stricter of the broker's and the requested one."""
    policy = "sync" if "sync" in (asked, settings.hello.flush) else "async"
    return f"flush {policy}"


def _body(size: int) -> bytes:
    return random.Random(size).randbytes(size)  # noqa: S311 - not a secret; random, so that it does not compress


def _key(number: int) -> str:
    return f"bench-{number}"


# ---- produce


@dataclass
class Produce:
    """Producers of ``count`` messages of ``size`` bytes in batches, one producer per thread."""

    settings: BrokerChoice
    topic: str
    count: int
    size: int
    batch: int
    producers: int
    flush: Flush | None
    keys: bool

    def run(self, advance: Advance) -> Report:
        """Run the measurement. Each latency is the time until a batch is acknowledged."""
        about = (
            f"bodies of {show_bytes(self.size)}{' with a key' if self.keys else ''}, batches of {self.batch:,}, "
            f"{plural(self.producers, 'producer')}, {_flush(self.settings, self.flush)}"
        )
        report = Report("produce", self.topic, about, latencies={"batch": LatencyHistogram()})
        self._taken = 0
        self._stop = threading.Event()
        self._lock = threading.Lock()
        with ThreadPoolExecutor(self.producers) as pool, _timed(report):
            workers = [pool.submit(self._work, report, advance) for _ in range(self.producers)]
            try:
                for worker in workers:
                    worker.result()
            finally:
                self._stop.set()
        return report

    def _take(self) -> range:
        """Return the message numbers of the next batch; empty if all are taken."""
        with self._lock:
            first, self._taken = self._taken, min(self.count, self._taken + self.batch)
            return range(first, self._taken)

    def _work(self, report: Report, advance: Advance) -> None:
        body, latencies = _body(self.size), LatencyHistogram()
        with self.settings.producer(self.flush) as producer:
            while not self._stop.is_set() and (numbers := self._take()):
                keys = [_key(number) for number in numbers] if self.keys else None
                began = time.perf_counter()
                producer.send_bulk(self.topic, [body] * len(numbers), keys=keys)
                latencies.add(time.perf_counter() - began)
                with self._lock:
                    report.messages += len(numbers)
                    report.body_bytes += len(numbers) * self.size
                advance(len(numbers))
        with self._lock:
            report.latencies["batch"].extend(latencies)


def fill(settings: BrokerChoice, topic: str, count: int, size: int, advance: Advance) -> None:
    """Produce messages, each with a key, for a measurement to read."""
    if Produce(settings, topic, count, size, FILL_BATCH, 1, None, keys=True).run(advance).interrupted:
        raise KeyboardInterrupt


# ---- pull


def run_pull(settings: BrokerChoice, topic: str, count: int, batch: int, advance: Advance) -> Report:
    """Pull up to ``count`` messages from all queues and check every body. Each latency is the time of one pull."""
    about = f"pulls of up to {plural(batch, 'message')} or {show_bytes(PULL_BYTES)}, every body checked"
    report = Report("pull", topic, about, latencies={"pull": LatencyHistogram()})
    with settings.consumer() as consumer:
        offsets = {stats.queue: stats.min_offset for stats in consumer.topic_stats(topic)}
        with _timed(report):
            while offsets and report.messages < count:
                for queue in list(offsets):
                    wanted = min(batch, count - report.messages)
                    if not wanted:
                        break
                    began = time.perf_counter()
                    found = consumer.pull(topic, queue, offsets[queue], wanted, PULL_BYTES)
                    bodies = found.bodies()
                    report.latencies["pull"].add(time.perf_counter() - began)
                    report.messages += len(bodies)
                    report.body_bytes += sum(map(len, bodies))
                    advance(len(bodies))
                    offsets[queue] = found.next_offset
                    if found.next_offset >= found.max_offset:
                        del offsets[queue]
    return report


# ---- query


def run_query(settings: BrokerChoice, topic: str, count: int, advance: Advance) -> Report:
    """Query ``count`` times for a message by one of its keys. Each latency is the time of one query."""
    with settings.consumer() as consumer:
        keys = _keys_of(consumer, topic)
        if not keys:
            raise FlintError(f"the first messages of topic {topic} have no keys; bench query needs messages with keys")
        about = f"one after the other, by one of {plural(len(keys), 'key')}"
        report = Report("query", topic, about, latencies={"query": LatencyHistogram()})
        chosen = random.Random(count).choices(keys, k=count)  # noqa: S311 - the same keys in every run
        with _timed(report):
            for key in chosen:
                began = time.perf_counter()
                found = consumer.query(topic, key, max_count=1)
                report.latencies["query"].add(time.perf_counter() - began)
                report.messages += 1
                report.body_bytes += sum(len(message.body) for message in found)
                advance(1)
    return report


def _keys_of(consumer: Consumer, topic: str) -> list[str]:
    keys: list[str] = []
    for stats in consumer.topic_stats(topic):
        offset = stats.min_offset
        while offset < stats.max_offset and len(keys) < SAMPLED_KEYS:
            batch = consumer.pull(topic, stats.queue, offset, SAMPLED_KEYS)
            keys += [message.keys[0] for message in batch.messages if message.keys]
            offset = batch.next_offset
    return keys


# ---- latency


class LatencyRun:
    """Sender of one message at a time, at a fixed rate, that also follows the topic: measures the time until each
    message is acknowledged and until it arrives."""

    def __init__(
        self, settings: BrokerChoice, topic: str, count: int, size: int, per_second: float, flush: Flush | None
    ) -> None:
        self._settings = settings
        self._topic = topic
        self._count = count
        self._body = _body(max(0, size - 8))
        self._per_second = per_second
        self._flush = flush
        self._sent_at: dict[int, float] = {}
        self._arrived = LatencyHistogram()
        self._all_arrived = threading.Event()

    def run(self, advance: Advance) -> Report:
        """Run the measurement. Messages that other producers send to the topic meanwhile are ignored."""
        about = (
            f"bodies of {show_bytes(len(self._body) + 8)}, one at a time, at most {show_rate(self._per_second)}, "
            f"{_flush(self._settings, self._flush)}"
        )
        report = Report("latency", self._topic, about)
        acknowledged = LatencyHistogram()
        report.latencies = {"acknowledged": acknowledged, "received": self._arrived}
        with self._settings.consumer() as consumer, self._settings.producer(self._flush) as producer:
            starts = {stats.queue: stats.max_offset for stats in consumer.topic_stats(self._topic)}
            with ThreadPoolExecutor(1) as pool:
                follower = pool.submit(self._follow, consumer, starts)
                try:
                    with _timed(report):
                        self._send(producer, report, acknowledged, advance)
                        self._all_arrived.wait(ARRIVAL_SECONDS)
                finally:
                    consumer.close()  # ends the follower, which would wait for more messages
                    ended = follower.exception()
        if ended is not None and not isinstance(ended, ClientClosed):
            raise ended
        return report

    def _send(self, producer: Producer, report: Report, acknowledged: LatencyHistogram, advance: Advance) -> None:
        due = time.perf_counter()
        for number in range(self._count):
            message = Message(self._topic, number.to_bytes(8, "big") + self._body)
            pause = due - time.perf_counter()
            if pause > 0:
                time.sleep(pause)  # keep to the requested rate
            # At most a second is caught up after a message that took long, or its successors would come in a burst.
            due = max(due, time.perf_counter() - 1.0) + 1 / self._per_second
            began = self._sent_at[number] = time.perf_counter()
            producer.send(message)
            acknowledged.add(time.perf_counter() - began)
            report.messages += 1
            report.body_bytes += len(message.body)
            advance(1)

    def _follow(self, consumer: Consumer, starts: dict[int, int]) -> None:
        for message in consumer.iter(self._topic, from_=starts):
            now = time.perf_counter()
            body = message.body
            began = self._sent_at.pop(int.from_bytes(body[:8], "big"), None) if body[8:] == self._body else None
            if began is not None:
                self._arrived.add(now - began)
                if len(self._arrived) == self._count:
                    self._all_arrived.set()
                    return


# ---- The commands.

BAR_CHARS = 40
QUEUES = 4


@click.group(cls=CliGroup)
def bench() -> None:
    """Measure the running broker.

    Without --topic, each run creates a topic and deletes it afterwards, unless --keep is given. The messages that it
    wrote stay in the CommitLog until retention deletes their file.
    """


topic_options = options(
    click.option("--topic", type=TOPIC, help="Use this topic and do not delete it.  [default: a new topic]"),
    click.option("--keep", is_flag=True, help="Do not delete the topic afterwards."),
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
@flush_option
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
@flush_option
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
        output.json(row)
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
