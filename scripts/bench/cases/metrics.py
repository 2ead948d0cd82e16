"""A scrape of the metrics of a thousand topics while messages arrive: its duration, and the delay of other requests."""

from __future__ import annotations

import multiprocessing
import time
import urllib.request
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any

from flintmq.protocol.commands import CONSUMER_OFFSET_STRUCT, HELLO, UPDATE_CONSUMER_OFFSET

from ..bench import Bench
from ..broker import Broker
from ..load import QUEUES, TOPIC, FramePacker, columns, fill_topics, topic_name
from ..measure import BenchFailed, Case, Measure, Samples, percentile
from ..raw import TIMEOUT_SECONDS, RawClient

TOPICS = 1_000
GROUPS = ("billing", "search")
SCRAPES = 40
SCRAPE_EVERY_SECONDS = 0.25
PING_EVERY_SECONDS = 0.001
PRODUCE_EVERY_SECONDS = 0.005
FRAME_MESSAGES = 100

_SPAWN = multiprocessing.get_context("spawn")

Span = tuple[float, float]
"""Start and end by ``time.perf_counter``, a clock that all processes share."""


def samples(bench: Bench) -> Samples:
    """Yield one sample per run."""
    topics, scrapes = bench.count(TOPICS), 5 if bench.quick else SCRAPES
    for _ in range(bench.runs):
        with bench.store() as store, Broker(store, "async") as broker:
            fill_topics(broker.address, topics)
            commit_everywhere(broker, topics)
            with RawClient(broker.address) as client:
                url = f"http://{client.runtime_info()['metrics_address']}/metrics"
            with SideProcess(ping, broker.address) as pinging, SideProcess(produce, broker.address):
                spans = [scrape(url, topics) for _ in range(scrapes)]
        pings = pinging.spans
        taken = [end - begin for begin, end in spans]
        during = [end - begin for begin, end in pings if any(begin < stop and end > start for start, stop in spans)]
        yield {
            "p50": percentile(taken, 0.50) * 1e3,
            "max": max(taken) * 1e3,
            "ping_p99": percentile(during, 0.99) * 1e3,
            "stall": max(during) * 1e3,
            "all_p99": percentile([end - begin for begin, end in pings], 0.99) * 1e3,
        }


def commit_everywhere(broker: Broker, topics: int) -> None:
    """Commit an offset of every queue for two groups."""
    body = b"".join(CONSUMER_OFFSET_STRUCT.pack(queue, 0) for queue in range(QUEUES))
    with RawClient(broker.address) as client:
        for number in range(topics):
            for group in GROUPS:
                fields = {"group": group, "topic": topic_name(number), "count": QUEUES}
                client.call(UPDATE_CONSUMER_OFFSET, fields, body)


def scrape(url: str, topics: int) -> Span:
    """Scrape once after a pause, and check that the response is complete."""
    time.sleep(SCRAPE_EVERY_SECONDS)
    began = time.perf_counter()
    with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:
        text = answer.read().decode()
    span = began, time.perf_counter()
    if (
        text.count("\nflintmq_produced_messages_total{") < topics
        or text.count("\nflintmq_group_lag_messages{") < topics
    ):
        raise BenchFailed("the metrics lack topics")
    return span


class SideProcess:
    """A separate process that calls a function of this module until the context ends, so that it does not share the
    bench's GIL. The function takes the address and the event that tells it to stop."""

    def __init__(self, work: Callable[[str, Event, Connection], None], address: str) -> None:
        self._stop = _SPAWN.Event()
        self._receiver, sender = _SPAWN.Pipe(duplex=False)
        self._process = _SPAWN.Process(target=work, args=(address, self._stop, sender), daemon=True)
        self.spans: list[Any] = []

    def __enter__(self) -> SideProcess:
        self._process.start()
        if not self._receiver.poll(TIMEOUT_SECONDS):
            raise BenchFailed("a process of the bench did not start")
        self._receiver.recv()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if not self._receiver.poll(TIMEOUT_SECONDS):
            raise BenchFailed("a process of the bench did not end")
        self.spans = self._receiver.recv()
        self._process.join(TIMEOUT_SECONDS)


def ping(address: str, stop: Event, result: Connection) -> None:
    """Send a small request every millisecond; report the times of each request and its response."""
    spans: list[Span] = []
    with RawClient(address) as client:
        result.send("ready")
        while not stop.wait(PING_EVERY_SECONDS):
            began = time.perf_counter()
            client.call(HELLO, {"protocol": 1})
            spans.append((began, time.perf_counter()))
    result.send(spans)


def produce(address: str, stop: Event, result: Connection) -> None:
    """Produce a frame of 100 messages every 5 ms; report nothing."""
    packer = FramePacker("metrics")
    load = columns(FRAME_MESSAGES)
    with RawClient(address) as client:
        client.create_topic(TOPIC, QUEUES)
        result.send("ready")
        while not stop.wait(PRODUCE_EVERY_SECONDS):
            client.stream([packer.columns(load)])
    result.send([])


CASE = Case(
    "metrics",
    "`/metrics` of 1,000 topics of 4 queues and 2 groups, 20 k msg/s coming in",
    (
        Measure("p50", "a scrape: p50", "ms"),
        Measure("max", "a scrape: longest", "ms", 50),
        Measure("ping_p99", "another client's request during a scrape: p99", "ms"),
        Measure("stall", "another client's request during a scrape: longest", "ms", 5),
        Measure("all_p99", "its requests at any time: p99", "ms"),
    ),
    samples,
)
