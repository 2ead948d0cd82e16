"""Growth: how rate, memory and latency change with the number of messages, topics and connections."""

from __future__ import annotations

import resource
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from flintmq.client import Producer
from flintmq.protocol.commands import UPDATE_AND_CREATE_TOPIC
from flintmq.protocol.frames import REQUEST, encode_frame

from ..bench import Bench
from ..broker import Broker
from ..load import TOPIC, columns, single_frames, topic_name
from ..machine import Stopwatch, anonymous_bytes, many_files, touch_memory
from ..measure import BenchFailed, Case, Measure, Result, Sample, Samples, Skipped, percentile
from ..plot import Panel, draw
from ..raw import RawClient, closed_loop, connected
from .reads import pull, query, rate_of, read_all

Sized: TypeAlias = Iterator[tuple[int, Sample] | Skipped]
"""The figures of each size by their names, or the reason why a size was left out."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One column of a part's table. ``plotted``: whether the plot has a line for it."""

    name: str
    title: str
    unit: str
    plotted: bool = True


@dataclass(frozen=True, slots=True)
class Part:
    """One quantity that grows through ``sizes``. ``measure`` yields the figures of one run, size by size."""

    name: str
    title: str
    sizes: tuple[int, ...]
    figures: tuple[Figure, ...]
    measure: Callable[[Bench], Sized]

    def key(self, size: int, figure: Figure) -> str:
        """Return the key of a figure's measure at a size."""
        return f"{self.name}_{size}_{figure.name}"

    def measures(self) -> tuple[Measure, ...]:
        """Return a measure for each figure at each size; the part's own table shows them."""
        return tuple(
            Measure(self.key(size, figure), f"{size:,} {self.name}: {figure.title}", figure.unit, in_table=False)
            for size in self.sizes
            for figure in self.figures
        )

    def table(self, result: Result) -> list[str]:
        """Return the lines of a table: a row for each measured size, a column for each figure."""
        medians = {figure.name: dict(self.line(result, figure)) for figure in self.figures}
        measured = [size for size in self.sizes if any(size in line for line in medians.values())]
        if not measured:
            return []
        lines = [f"| {self.title} | {' | '.join(figure.title for figure in self.figures)} |"]
        lines.append("|---" * (1 + len(self.figures)) + "|")
        for size in measured:
            cells = [
                Measure("", "", figure.unit).show(medians[figure.name][size]) if size in medians[figure.name] else ""
                for figure in self.figures
            ]
            lines.append(f"| {size:,} | {' | '.join(cells)} |")
        return lines

    def line(self, result: Result, figure: Figure) -> list[tuple[int, float]]:
        """Return the median of a figure at each size at which it was measured."""
        found = []
        for size in self.sizes:
            measure = Measure(self.key(size, figure), "", figure.unit)
            if result.figures(measure):
                found.append((size, result.median(measure)))
        return found


# ---- Messages: one store with 1 to 100 million messages of 100 bytes with one key each.

MESSAGES_SIZES = (1_000_000, 10_000_000, 100_000_000)
FULL_SIZE = 100_000_000
"""Size that is measured only on request: it takes 35 GB and several minutes."""
MESSAGES_A_CALL = 100_000
QUERIES = 5_000
UNSYNCED_MESSAGES = 200_000
"""Messages sent directly before the broker is killed."""
_MESSAGE_DISK_BYTES = 330
"""Disk space of a message with its queue unit, its index entries, and its share of preallocated files."""
_SPARE_BYTES = 4 << 30


def _grow_messages(bench: Bench) -> Sized:
    """Yield the figures of each size, each in an empty store."""
    for size in MESSAGES_SIZES:
        if size == FULL_SIZE and not bench.full:
            yield Skipped(f"{size:,} messages: only with --full")
            continue
        count = bench.count(size)
        needed = count * _MESSAGE_DISK_BYTES + _SPARE_BYTES
        free = shutil.disk_usage(bench.folder).free
        if free < needed:
            yield Skipped(
                f"{size:,} messages need {needed / 1e9:.0f} GB in {bench.folder}, {free / 1e9:.0f} GB are free"
            )
            continue
        yield size, of_store(bench, count)


def of_store(bench: Bench, count: int) -> Sample:
    """Return the figures of a store with ``count`` messages: filled, read, started after a stop and after a kill."""
    sample: Sample = {}
    with bench.store() as store:
        with bench.broker_on(store) as broker:
            watch = Stopwatch(broker.pid)
            _send(broker, 0, count)
            broker.wait_until_caught_up()
            sample["rate"] = count / watch.seconds()
            sample["cpu"] = watch.broker_cpu_seconds() * 1e6 / count
            sample["query"] = percentile(query(broker, key_of, count, bench.count(QUERIES), seed=count), 0.99) * 1e3
            sample["pull"] = _pull_all(broker, count)
            sample["memory"] = anonymous_bytes(broker.pid) / 1e6
        with Broker(store, "async") as broker:
            sample["start"] = broker.start_seconds
            broker.check_stored(TOPIC, count)
            unsynced = bench.count(UNSYNCED_MESSAGES)
            _send(broker, count, unsynced)
            broker.kill()
        with Broker(store, "async") as broker:
            sample["start_killed"] = broker.start_seconds
            broker.check_stored(TOPIC, count + unsynced)
    return sample


def _send(broker: Broker, first: int, count: int) -> None:
    """Send ``count`` messages, numbered by their keys from ``first``, with ``send_bulk``."""
    bodies = columns(min(count, MESSAGES_A_CALL)).bodies
    acknowledged = 0
    with Producer(broker.address) as producer:
        for begin in range(first, first + count, MESSAGES_A_CALL):
            keys = [key_of(number) for number in range(begin, min(begin + MESSAGES_A_CALL, first + count))]
            acknowledged += len(producer.send_bulk(TOPIC, bodies=bodies[: len(keys)], keys=keys))
    if acknowledged != count:
        raise BenchFailed(f"{acknowledged:,} receipts for {count:,} messages")


def key_of(number: int) -> str:
    return f"order-{number:08}"


def _pull_all(broker: Broker, stored: int) -> float:
    """Return the messages per second of a consumer that pulls every queue from its start."""
    with RawClient(broker.address) as client:
        lengths = {queue: length for queue, length in client.queue_lengths(TOPIC).items() if length}
    return rate_of(lambda: pull(broker, lengths, read_all), stored)


MESSAGES = Part(
    "messages",
    "messages stored",
    MESSAGES_SIZES,
    (
        Figure("rate", "send_bulk", "msg/s"),
        Figure("cpu", "broker CPU a million", "s"),
        Figure("memory", "memory without file pages", "MB"),
        Figure("query", "query by key, p99", "ms"),
        Figure("pull", "pull from the start", "msg/s"),
        Figure("start", "start after a stop", "s"),
        Figure("start_killed", "start after kill −9", "s"),
    ),
    _grow_messages,
)

# ---- Topics: 10 connections create them, then each sends to all of them in turn.

TOPICS_SIZES = (1, 100, 1_000, 10_000)
TOPICS_CONNECTIONS = 10
MESSAGES_A_CONNECTION = 5_000
"""Minimum number of messages that each connection sends; each topic gets at least one from each."""
WARM_UP_A_CONNECTION = 500
IDLE_SECONDS = 10.0
QUICK_IDLE_SECONDS = 0.1


def _grow_topics(bench: Bench) -> Sized:
    """Yield the figures of each number of topics, each in an empty store."""
    for size in TOPICS_SIZES:
        yield size, of_topics(bench, bench.size(size))


def of_topics(bench: Bench, count: int) -> Sample:
    """Return the figures of ``count`` topics with one queue each."""
    sample: Sample = {}
    topics = [topic_name(number) for number in range(count)]
    with bench.store() as store:
        with Broker(store, "async") as broker, connected(broker.address, TOPICS_CONNECTIONS) as clients:
            touch_memory(bench.touched_gib, bench.folder)
            sample["create"] = closed_loop(clients, _creations(topics)).seconds
            warm_up, messages = (
                max(count, bench.count(least)) for least in (WARM_UP_A_CONNECTION, MESSAGES_A_CONNECTION)
            )
            # Each connection begins with another topic, so that the connections do not _send to the same one together.
            turned = [
                topics[count * number // TOPICS_CONNECTIONS :] + topics[: count * number // TOPICS_CONNECTIONS]
                for number in range(TOPICS_CONNECTIONS)
            ]
            frames = [
                single_frames(f"growth {number}", warm_up + messages, own_topics)
                for number, own_topics in enumerate(turned)
            ]
            # The first messages of a topic create its files.
            closed_loop(clients, [own_frames[:warm_up] for own_frames in frames])
            watch = Stopwatch(broker.pid)
            result = closed_loop(clients, [own_frames[warm_up:] for own_frames in frames])
            sample["cpu"] = watch.broker_cpu_seconds() * 1e6 / len(result.taken)
            sample["rate"] = result.rate
            sample["p99"] = percentile(result.taken, 0.99) * 1e3
            sample["memory"] = anonymous_bytes(broker.pid) / 1e6
            sample["sdk_cpu"] = _sdk_cpu(broker, clients, turned, warm_up, messages)
            broker.wait_until_caught_up()
            sample["idle"] = idle_percent(bench, broker.pid)
        with Broker(store, "async") as broker:
            sample["start"] = broker.start_seconds
    return sample


def _sdk_cpu(broker: Broker, clients: list[RawClient], topics: list[list[str]], warm_up: int, messages: int) -> float:
    """Return the broker's CPU time a message, in µs, of frames with the heads of the SDK: the broker serves them by a
    short way as long as a connection has few of them."""
    frames = [
        single_frames(f"growth sdk {number}", warm_up + messages, own_topics, as_sdk=True)
        for number, own_topics in enumerate(topics)
    ]
    closed_loop(clients, [own_frames[:warm_up] for own_frames in frames])
    watch = Stopwatch(broker.pid)
    result = closed_loop(clients, [own_frames[warm_up:] for own_frames in frames])
    return watch.broker_cpu_seconds() * 1e6 / len(result.taken)


def idle_percent(bench: Bench, pid: int) -> float:
    """Return the percentage of one processor that a broker takes while nobody sends."""
    watch = Stopwatch(pid)
    time.sleep(QUICK_IDLE_SECONDS if bench.quick else IDLE_SECONDS)
    return watch.broker_cpu_seconds() / watch.seconds() * 100


def _creations(topics: list[str]) -> list[list[bytes]]:
    """Return the requests of each connection that create the topics together."""
    fields = [{"topic": topic, "read_queues": 1, "write_queues": 1} for topic in topics]
    frames = [encode_frame(REQUEST, UPDATE_AND_CREATE_TOPIC.code, 1, each) for each in fields]
    return [frames[number::TOPICS_CONNECTIONS] for number in range(TOPICS_CONNECTIONS)]


TOPICS = Part(
    "topics",
    "topics",
    TOPICS_SIZES,
    (
        Figure("create", "created by 10 connections", "s", plotted=False),
        Figure("rate", "one send at a time, 10 connections", "msg/s"),
        Figure("p99", "p99", "ms"),
        Figure("cpu", "broker CPU a message", "µs"),
        Figure("sdk_cpu", "with heads as the SDK packs them", "µs"),
        Figure("memory", "memory without file pages", "MB"),
        Figure("idle", "CPU when idle", "%", plotted=False),
        Figure("start", "start", "s"),
    ),
    _grow_topics,
)

# ---- Connections: each has one message in flight.

CONNECTIONS_SIZES = (1, 10, 100, 1_000, 5_000)
CONNECTIONS_MESSAGES = 100_000
A_CONNECTION_MAX = {"async": 20_000, "sync": 5_000}
WARM_UP_A_LOOP = 3
_OTHER_FILES = 200
"""Descriptors of a process besides its connections."""


def _grow_connections(bench: Bench) -> Sized:
    """Yield the figures of each number of connections: one broker with async flush, one with sync flush."""
    files_max = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    sizes = [size for size in CONNECTIONS_SIZES if bench.size(size) + _OTHER_FILES <= files_max]
    found: dict[int, Sample] = {size: {} for size in sizes}
    for flush in ("async", "sync"):
        with bench.broker(flush) as broker, many_files(max(sizes) + _OTHER_FILES):
            for size in sizes:
                found[size] |= of_connections(bench, broker.address, broker.pid, bench.size(size), flush)
    with many_files(max(sizes) + _OTHER_FILES):
        for size in sizes:
            found[size] |= of_idle_connections(bench, bench.size(size))
    yield from found.items()
    for size in CONNECTIONS_SIZES:
        if size not in found:
            yield Skipped(f"{size:,} connections need {size + _OTHER_FILES:,} open files, {files_max:,} are allowed")


def of_connections(bench: Bench, address: str, pid: int, count: int, flush: str) -> Sample:
    """Return the figures of ``count`` connections."""
    each = min(max(bench.count(CONNECTIONS_MESSAGES) // count, 1), A_CONNECTION_MAX[flush])
    frames = [single_frames(f"growth {flush} {count} {number}", WARM_UP_A_LOOP + each) for number in range(count)]
    with connected(address, count) as clients:
        closed_loop(clients, [own_frames[:WARM_UP_A_LOOP] for own_frames in frames])
        watch = Stopwatch(pid)
        result = closed_loop(clients, [own_frames[WARM_UP_A_LOOP:] for own_frames in frames])
        cpu = watch.broker_cpu_seconds() * 1e6 / len(result.taken)
        memory = anonymous_bytes(pid) / 1e6
    sample = {f"{flush}_rate": result.rate, f"{flush}_p99": percentile(result.taken, 0.99) * 1e3, f"{flush}_cpu": cpu}
    return sample | ({"memory": memory} if flush == "async" else {})


def of_idle_connections(bench: Bench, count: int) -> Sample:
    """Return what connections cost that send nothing after they were opened, beside a broker without any."""
    with bench.broker() as broker:
        before = anonymous_bytes(broker.pid)
        with connected(broker.address, count):
            return {
                "idle_memory": (anonymous_bytes(broker.pid) - before) / count / 1024,
                "idle": idle_percent(bench, broker.pid),
            }


CONNECTIONS = Part(
    "connections",
    "connections, one send at a time each",
    CONNECTIONS_SIZES,
    (
        Figure("async_rate", "async: rate", "msg/s"),
        Figure("async_p99", "async: p99", "ms", plotted=False),
        Figure("async_cpu", "async: broker CPU a message", "µs"),
        Figure("memory", "memory without file pages", "MB"),
        Figure("sync_rate", "sync: rate", "msg/s"),
        Figure("sync_p99", "sync: p99", "ms", plotted=False),
        Figure("sync_cpu", "sync: broker CPU a message", "µs"),
        Figure("idle_memory", "idle: memory each", "KiB", plotted=False),
        Figure("idle", "idle: CPU", "%", plotted=False),
    ),
    _grow_connections,
)

# ---- the case

PARTS = (MESSAGES, TOPICS, CONNECTIONS)


def samples(bench: Bench) -> Samples:
    """Yield one sample per run; afterwards, the reasons for the sizes that were left out end the case."""
    left_out: list[str] = []
    for _ in range(bench.runs):
        sample: Sample = {}
        for part in PARTS:
            for found in part.measure(bench):
                if isinstance(found, Skipped):
                    left_out.append(str(found))
                else:
                    size, figures = found
                    sample |= {part.key(size, figure): figures[figure.name] for figure in part.figures}
        yield sample
    if left_out:
        raise Skipped("; ".join(dict.fromkeys(left_out)))


def tables(result: Result) -> list[str]:
    """Return the lines of a table for each part."""
    return [line for part in PARTS for line in ("", *part.table(result))]


def plot(result: Result, path: Path) -> None:
    """Write a plot with a panel for each part to ``path``, as SVG."""
    panels = [
        Panel(part.title, {figure.title: part.line(result, figure) for figure in part.figures if figure.plotted})
        for part in PARTS
    ]
    path.write_text(draw("Figures relative to those of the smallest size", panels))


CASE = Case(
    "growth",
    "growth of messages, topics and connections",
    tuple(measure for part in PARTS for measure in part.measures()),
    samples,
    tables,
    plot,
)
