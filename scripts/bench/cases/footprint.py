"""Memory of the broker per idle connection and per topic."""

from __future__ import annotations

import time

from flintmq.protocol.commands import GET_MAX_OFFSET
from flintmq.protocol.errors import TopicNotExist

from ..bench import Bench
from ..broker import Broker
from ..load import fill_topics
from ..machine import many_files, resident_bytes
from ..measure import BenchFailed, Case, Measure, Sample, Samples
from ..raw import RawClient

CONNECTIONS = 2_000
TOPICS = 1_000
SETTLE_SECONDS = 4.0
"""Seconds after which the broker treats a connection as idle."""
LARGE_FRAME_BYTES = 512 * 1024
"""Size of a frame that each connection sends once before it is idle, which makes its receive buffer grow."""


def samples(bench: Bench) -> Samples:
    """Yield one sample per run."""
    for _ in range(bench.runs):
        sample: Sample = {}
        with bench.store() as store, Broker(store, "async") as broker:
            sample["silent"] = connection_kib(broker, bench.count(CONNECTIONS), used=False)
        with bench.store() as store, Broker(store, "async") as broker:
            sample["used"] = connection_kib(broker, bench.count(CONNECTIONS), used=True)
        with bench.store() as store, Broker(store, "async") as broker:
            sample["topic"] = topic_kib(broker, bench.count(TOPICS))
        yield sample


def connection_kib(broker: Broker, count: int, *, used: bool) -> float:
    """Return the KiB per connection after HELLO; with ``used``, each has also sent a large frame."""
    with many_files(count + 100):
        with RawClient(broker.address) as client:
            client.runtime_info()
        before = resident_bytes(broker.pid)
        clients = []
        try:
            for _ in range(count):
                client = RawClient(broker.address)
                clients.append(client)
                if used:
                    send_large_frame(client)
            time.sleep(SETTLE_SECONDS)
            return (resident_bytes(broker.pid) - before) / 1024 / count
        finally:
            for client in clients:
                client.sock.close()


def send_large_frame(client: RawClient) -> None:
    """Return a frame that the broker must receive completely before it can refuse it."""
    try:
        client.call(GET_MAX_OFFSET, {"topic": "nowhere", "queue": 0}, bytes(LARGE_FRAME_BYTES))
    except TopicNotExist:
        return
    raise BenchFailed("a topic that nobody made is there")


def topic_kib(broker: Broker, count: int) -> float:
    """Return the KiB per topic with 4 queues and a message in each."""
    fill_topics(broker.address, 1)
    broker.wait_until_caught_up()
    before = resident_bytes(broker.pid)
    fill_topics(broker.address, count, first=1)
    broker.wait_until_caught_up()
    return (resident_bytes(broker.pid) - before) / 1024 / count


CASE = Case(
    "footprint",
    "memory of what the broker holds",
    (
        Measure("silent", "an idle connection", "KiB", 80),
        Measure("used", "the same after a frame of 512 KiB, as the process shows it", "KiB"),
        Measure("topic", "a topic of 4 queues", "KiB", 64),
    ),
    samples,
)
