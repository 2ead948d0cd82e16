"""A million messages that are due in the same second: time from then until the last one can be consumed."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from flintmq.client import Message, Producer

from ..bench import Bench
from ..broker import Broker
from ..load import QUEUES, TOPIC, blocks
from ..measure import BenchFailed, Case, Measure, Sample, Samples, percentile
from ..raw import RawClient

MESSAGES = 1_000_000
BESIDE_TOPIC = "beside"
AHEAD_SECONDS_MIN = 2.0
MESSAGES_PER_AHEAD_SECOND = 60_000
"""Seconds until the messages are due: they must be stored and indexed well before."""
SECONDS_MAX = 120.0
_POLL_SECONDS = 0.005


def samples(bench: Bench) -> Samples:
    """Yield one sample per run."""
    count = bench.count(MESSAGES)
    for _ in range(bench.runs):
        sample: Sample = {}
        for flush in ("async", "sync"):
            with bench.broker(flush) as broker:
                due = send(broker, count)
                with beside(broker) as taken:
                    sample[flush] = wait_until_all_are_there(broker, count, due)
                broker.check_stored(TOPIC, count)
            sample[f"{flush}_beside"] = percentile(taken, 0.99) * 1e3
        yield sample


def send(broker: Broker, count: int) -> float:
    """Send messages that are all due in the same second; return it in seconds since 1970."""
    loads = list(blocks(count))
    due = math.ceil(time.time() + AHEAD_SECONDS_MIN + count / MESSAGES_PER_AHEAD_SECOND)
    with Producer(broker.address) as producer:
        for number, load in enumerate(loads):
            producer.send_bulk(
                TOPIC, load.bodies, keys=load.keys, queue=number % QUEUES, deliver_at=datetime.fromtimestamp(due, UTC)
            )
    if time.time() >= due - 1:
        raise BenchFailed(f"sending {count:,} messages took until they were due")
    broker.wait_until_caught_up()
    time.sleep(max(due - 0.5 - time.time(), 0))
    return due


@contextmanager
def beside(broker: Broker) -> Iterator[list[float]]:
    """Return the seconds that each send of another producer takes meanwhile, one after another."""
    taken: list[float] = []
    ended = threading.Event()

    def send_on() -> None:
        with Producer(broker.address) as producer:
            while not ended.is_set():
                began = time.perf_counter()
                producer.send(Message(BESIDE_TOPIC, b"x"))
                taken.append(time.perf_counter() - began)

    sender = threading.Thread(target=send_on, daemon=True)
    sender.start()
    try:
        yield taken
    finally:
        ended.set()
        sender.join()


def wait_until_all_are_there(broker: Broker, count: int, due: float) -> float:
    """Return the seconds from ``due`` until the topic's queues hold ``count`` messages."""
    with RawClient(broker.address) as client:
        while sum(client.queue_lengths(TOPIC).values()) < count:
            if time.time() > due + SECONDS_MAX:
                raise BenchFailed(f"not all of {count:,} messages were delivered within {SECONDS_MAX:.0f} s")
            time.sleep(_POLL_SECONDS)
    return time.time() - due


CASE = Case(
    "delayed",
    "1 M messages due in the same second, until the last can be pulled",
    (
        Measure("async", "async flush", "s", 5.0),
        Measure("sync", "sync flush", "s", 5.0),
        Measure("async_beside", "another producer's sends meanwhile, async: p99", "ms"),
        Measure("sync_beside", "the same, sync: p99", "ms"),
    ),
    samples,
)
