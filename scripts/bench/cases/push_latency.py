"""Latency from ``send`` in one process to the listener of a push consumer in another, at 500 messages per second."""

from __future__ import annotations

import threading

from flintmq.client import PushConsumer, StoredMessage

from ..bench import Bench
from ..broker import Broker
from ..kafka.aio import KAFKA, AioKafka, aiokafka, finish
from ..kafka.server import Kafka
from ..load import QUEUES, TOPIC
from ..measure import BenchFailed, Case, Measure, Sample, Samples, percentile
from ..paced_sender import MESSAGES_A_SECOND, now, sender, sent_at

MESSAGES = 5_000
WARM_UP_MESSAGES = 250
LATE_SECONDS_MAX = 60.0
"""Seconds to wait for the last messages after the last send."""


def samples(bench: Bench) -> Samples:
    """Yield one sample per run."""
    count = bench.count(MESSAGES)
    with aiokafka(bench) as peer:
        for _ in range(bench.runs):
            sample: Sample = {}
            for flush in ("async", "sync"):
                with bench.broker(flush) as broker:
                    sample |= figures(send_and_listen(broker, count), f"{flush}_")
            with peer.broker(QUEUES) as kafka:
                if kafka is not None:
                    sample |= figures(through_kafka(peer, kafka, count), "", KAFKA)
            yield sample
        peer.end()


def figures(taken: list[float], prefix: str, suffix: str = "") -> Sample:
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


CASE = Case(
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
    samples,
)
