"""Latency from ``send`` to the response of a held pull, at 500 messages per second."""

from __future__ import annotations

import threading
import time

from flintmq.client import Consumer

from ..bench import Bench
from ..broker import Broker
from ..load import TOPIC
from ..measure import BenchFailed, Case, Measure, Sample, Samples, percentile
from ..paced_sender import now, send_paced, sent_at

MESSAGES = 5_000
WARM_UP_MESSAGES = 250
TIMEOUT_SECONDS = 120.0


def samples(bench: Bench) -> Samples:
    """Yield one sample per run."""
    for _ in range(bench.runs):
        sample: Sample = {}
        for flush in ("async", "sync"):
            with bench.broker(flush) as broker:
                taken = produce_and_pull(broker, bench.count(MESSAGES))
            sample[f"{flush}_p50"] = percentile(taken, 0.50) * 1e3
            sample[f"{flush}_p99"] = percentile(taken, 0.99) * 1e3
        yield sample


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


CASE = Case(
    "end-to-end",
    "produce → long-polling pull at 500 msg/s",
    (
        Measure("async_p50", "async flush: p50", "ms", 0.3),
        Measure("async_p99", "async flush: p99", "ms", 1.0),
        Measure("sync_p50", "sync flush: p50", "ms", 0.6),
        Measure("sync_p99", "sync flush: p99", "ms", 1.5),
    ),
    samples,
)
