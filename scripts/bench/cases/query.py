"""One message found by its unique key among a million."""

from __future__ import annotations

import random
import time

from flintmq.client import Consumer

from ..bench import Bench
from ..broker import Broker
from ..load import TOPIC, FramePacker, fill
from ..measure import BenchFailed, Case, Measure, Samples, percentile

MESSAGES = 1_000_000
QUERIES = 10_000
WARM_UP_QUERIES = 200


def samples(bench: Bench) -> Samples:
    """Yield one sample per run."""
    count = bench.count(MESSAGES)
    with bench.broker() as broker:
        packer = fill(broker.address, count)
        broker.wait_until_caught_up()
        for run in range(bench.runs):
            taken = query(broker, packer, count, bench.count(QUERIES), seed=run)
            yield {"p50": percentile(taken, 0.50) * 1e6, "p99": percentile(taken, 0.99) * 1e3}


def query(broker: Broker, packer: FramePacker, stored: int, queries: int, seed: int) -> list[float]:
    """Return the seconds of each query for one of the stored messages."""
    choose = random.Random(seed)
    taken = []
    with Consumer(broker.address) as consumer:
        for _ in range(WARM_UP_QUERIES + queries):
            key = packer.unique_key(choose.randrange(stored))
            began = time.perf_counter()
            found = consumer.query(TOPIC, key=key)
            taken.append(time.perf_counter() - began)
            if [message.message_id for message in found] != [key]:
                raise BenchFailed(f"the query for {key} found {[message.message_id for message in found]}")
    return taken[WARM_UP_QUERIES:]


CASE = Case(
    "query",
    "query by unique key among 1 M",
    (Measure("p50", "p50", "µs", 150), Measure("p99", "p99", "ms", 1.0)),
    samples,
)
