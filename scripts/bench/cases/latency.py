"""Latencies from a send to its consumer: a held pull, a push consumer, and a million messages that are due together."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from flintmq.client import Consumer, Message, Producer, PushConsumer, StoredMessage

from ..bench import Bench
from ..broker import Broker
from ..kafka.server import KAFKA, AioKafka, Kafka, aiokafka, finish
from ..load import QUEUES, TOPIC, blocks
from ..measure import BenchFailed, Case, Measure, Sample, Samples, p50_and_p99, percentile
from ..paced_sender import MESSAGES_A_SECOND, now, send_paced, sender, sent_at
from ..raw import RawClient

MESSAGES = 5_000
WARM_UP_MESSAGES = 250

# ---- end-to-end: from ``send`` to the response of a held pull, at 500 messages per second.

TIMEOUT_SECONDS = 120.0


def _end_to_end_samples(bench: Bench) -> Samples:
    return bench.by_flush(lambda broker, _: p50_and_p99(produce_and_pull(broker, bench.count(MESSAGES)), "ms"))


def produce_and_pull(broker: Broker, count: int) -> list[float]:
    """Return the seconds from before each ``send`` until after its ``pull``, in two threads of one process."""
    expected = WARM_UP_MESSAGES + count
    sender = threading.Thread(target=send_paced, args=(broker.address, expected, 0), daemon=True)
    taken: list[float] = []
    offset = 0
    deadline = time.monotonic() + TIMEOUT_SECONDS
    with Consumer(broker.address) as consumer:
        sender.start()
        while len(taken) < expected:
            batch = consumer.pull(TOPIC, queue=0, offset=offset, wait_ms=5_000)
            arrived = now()
            taken.extend(arrived - sent_at(body) for body in batch.bodies())
            offset = batch.next_offset
            if time.monotonic() > deadline:
                raise BenchFailed(f"{len(taken)} of {expected} messages arrived within {TIMEOUT_SECONDS:.0f} s")
    sender.join()
    return taken[WARM_UP_MESSAGES:]


END_TO_END = Case(
    "end-to-end",
    "produce → long-polling pull at 500 msg/s",
    (
        Measure("async_p50", "async flush: p50", "ms", 0.3),
        Measure("async_p99", "async flush: p99", "ms", 1.0),
        Measure("sync_p50", "sync flush: p50", "ms", 0.6),
        Measure("sync_p99", "sync flush: p99", "ms", 1.5),
    ),
    _end_to_end_samples,
)

# ---- push-latency: from ``send`` in one process to the listener of a push consumer in another, at the same rate.

LATE_SECONDS_MAX = 60.0
"""Seconds to wait for the last messages after the last send."""


def _push_samples(bench: Bench) -> Samples:
    count = bench.count(MESSAGES)
    with aiokafka(bench) as peer:
        for _ in range(bench.runs):
            sample: Sample = {}
            for flush in ("async", "sync"):
                with bench.broker(flush) as broker:
                    sample |= _figures(send_and_listen(broker, count), f"{flush}_")
            with peer.broker(QUEUES) as kafka:
                if kafka is not None:
                    sample |= _figures(through_kafka(peer, kafka, count), "", KAFKA)
            yield sample
        peer.end()


def _figures(taken: list[float], prefix: str, suffix: str = "") -> Sample:
    """Return median, 99th percentile and maximum of ``taken`` in ms, under keys with that prefix and suffix."""
    return {
        f"{prefix}p50{suffix}": percentile(taken, 0.50) * 1e3,
        f"{prefix}p99{suffix}": percentile(taken, 0.99) * 1e3,
        f"{prefix}max{suffix}": max(taken) * 1e3,
    }


def through_kafka(peer: AioKafka, kafka: Kafka, count: int) -> list[float]:
    """Measure the same with a producer and a group consumer of aiokafka, each in its own process."""
    expected = WARM_UP_MESSAGES + count
    listening = peer.start(kafka, "listen", expected)
    try:
        assert listening.stdout is not None
        listening.stdout.readline()  # wait until the member has joined
        peer.run(kafka, "send", expected, MESSAGES_A_SECOND)
    except BaseException:
        listening.kill()
        raise
    taken: list[float] = finish(listening)[WARM_UP_MESSAGES:]
    return taken


def send_and_listen(broker: Broker, count: int) -> list[float]:
    """Return the seconds from before each ``send`` until the listener had its message."""
    expected = WARM_UP_MESSAGES + count
    taken: list[float] = []
    complete = threading.Event()

    def listener(message: StoredMessage) -> None:
        taken.append(now() - sent_at(message.body))
        if len(taken) == expected:
            complete.set()

    with PushConsumer(broker.address, "bench", TOPIC, listener, start="first"), sender(broker.address, expected):
        if not complete.wait(expected / MESSAGES_A_SECOND + LATE_SECONDS_MAX):
            raise BenchFailed(f"{len(taken):,} of {expected:,} messages came to the listener")
    return taken[WARM_UP_MESSAGES:]


PUSH_LATENCY = Case(
    "push-latency",
    f"send → listener of a push consumer at {MESSAGES_A_SECOND} msg/s",
    (
        Measure("async_p50", "async flush: p50", "ms", 0.8),
        Measure("async_p99", "async flush: p99", "ms", 5.0),
        Measure("async_max", "async flush: max", "ms"),
        Measure("sync_p50", "sync flush: p50", "ms"),
        Measure("sync_p99", "sync flush: p99", "ms"),
        Measure("sync_max", "sync flush: max", "ms"),
        Measure(f"p50{KAFKA}", "aiokafka, no flush: p50", "ms"),
        Measure(f"p99{KAFKA}", "aiokafka, no flush: p99", "ms"),
        Measure(f"max{KAFKA}", "aiokafka, no flush: max", "ms"),
    ),
    _push_samples,
)

# ---- delayed: a million messages that are due in the same second, until the last one can be consumed.

DUE_MESSAGES = 1_000_000
BESIDE_TOPIC = "beside"
AHEAD_SECONDS_MIN = 2.0
MESSAGES_PER_AHEAD_SECOND = 60_000
"""Seconds until the messages are due: they must be stored and indexed well before."""
SECONDS_MAX = 120.0
_POLL_SECONDS = 0.005


def _delayed_samples(bench: Bench) -> Samples:
    count = bench.count(DUE_MESSAGES)

    def measure(broker: Broker, _: str) -> Sample:
        due = _send(broker, count)
        with _beside(broker) as taken:
            seconds = _until_all_are_there(broker, count, due)
        broker.check_stored(TOPIC, count)
        return {"": seconds, "beside": percentile(taken, 0.99) * 1e3}

    return bench.by_flush(measure)


def _send(broker: Broker, count: int) -> float:
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
def _beside(broker: Broker) -> Iterator[list[float]]:
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


def _until_all_are_there(broker: Broker, count: int, due: float) -> float:
    """Return the seconds from ``due`` until the topic's queues hold ``count`` messages."""
    with RawClient(broker.address) as client:
        while sum(client.queue_lengths(TOPIC).values()) < count:
            if time.time() > due + SECONDS_MAX:
                raise BenchFailed(f"not all of {count:,} messages were delivered within {SECONDS_MAX:.0f} s")
            time.sleep(_POLL_SECONDS)
    return time.time() - due


DELAYED = Case(
    "delayed",
    "1 M messages due in the same second, until the last can be pulled",
    (
        Measure("async", "async flush", "s", 5.0),
        Measure("sync", "sync flush", "s", 5.0),
        Measure("async_beside", "another producer's sends meanwhile, async: p99", "ms"),
        Measure("sync_beside", "the same, sync: p99", "ms"),
    ),
    _delayed_samples,
)
