"""One producer that waits for each acknowledgement before it sends the next message."""

from __future__ import annotations

import time

from flintmq.client import Message, Producer

from ..bench import Bench
from ..broker import Broker
from ..load import TOPIC, columns
from ..measure import Case, Measure, Sample, Samples, percentile

ASYNC_MESSAGES = 20_000
SYNC_MESSAGES = 5_000
WARM_UP_MESSAGES = 500


def samples(bench: Bench) -> Samples:
    """Yield one sample per run."""
    for _ in range(bench.runs):
        sample: Sample = {}
        for flush, count in (("async", ASYNC_MESSAGES), ("sync", SYNC_MESSAGES)):
            with bench.broker(flush) as broker:
                taken = send_one_by_one(broker, bench.count(count))
            sample[f"{flush}_p50"] = percentile(taken, 0.50) * 1e6
            sample[f"{flush}_p99"] = percentile(taken, 0.99) * 1e6
        yield sample


def send_one_by_one(broker: Broker, count: int) -> list[float]:
    """Return the seconds of each ``send``."""
    load = columns(count + WARM_UP_MESSAGES)
    messages = [Message(TOPIC, body, keys=(key,)) for body, key in zip(load.bodies, load.keys, strict=True)]
    taken = []
    with Producer(broker.address) as producer:
        for message in messages:
            began = time.perf_counter()
            producer.send(message)
            taken.append(time.perf_counter() - began)
    broker.wait_until_caught_up()
    broker.check_stored(TOPIC, len(messages))
    return taken[WARM_UP_MESSAGES:]


CASE = Case(
    "single",
    "one send at a time",
    (
        Measure("async_p50", "async flush: p50", "µs", 80),
        Measure("async_p99", "async flush: p99", "µs"),
        Measure("sync_p50", "sync flush: p50", "µs", 350),
        Measure("sync_p99", "sync flush: p99", "µs"),
    ),
    samples,
)
