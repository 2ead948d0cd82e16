"""Four producers; each waits until a bulk of 100 messages is on disk before it sends the next."""

from __future__ import annotations

import multiprocessing
import queue
import threading
import time
from typing import Any

from flintmq.client import Producer

from ..bench import Bench
from ..load import TOPIC, columns
from ..measure import BenchFailed, Case, Measure, Sample, Samples

PRODUCERS = 4
MESSAGES_A_BULK = 100
MESSAGES_A_PRODUCER = 200_000
WARM_UP_BULKS = 20
TIMEOUT_SECONDS = 120.0


def samples(bench: Bench) -> Samples:
    """Yield one sample per run."""
    for _ in range(bench.runs):
        count = bench.count(MESSAGES_A_PRODUCER) // MESSAGES_A_BULK * MESSAGES_A_BULK
        sample: Sample = {}
        for kind in ("processes", "threads"):
            with bench.broker("sync") as broker:
                sample[kind] = measure(broker.address, count, as_processes=kind == "processes")
                broker.wait_until_caught_up()
                broker.check_stored(TOPIC, PRODUCERS * (count + WARM_UP_BULKS * MESSAGES_A_BULK))
        yield sample


def measure(address: str, count: int, as_processes: bool) -> float:
    """Return the messages per second of all producers, from the start of the first to the end of the last."""
    barrier: Any
    spans: Any
    start: Any
    if as_processes:
        context = multiprocessing.get_context("spawn")
        barrier, spans, start = context.Barrier(PRODUCERS), context.Queue(), context.Process
    else:
        barrier, spans, start = threading.Barrier(PRODUCERS), queue.Queue(), threading.Thread
    workers = [start(target=produce, args=(address, count, barrier, spans), daemon=True) for _ in range(PRODUCERS)]
    for worker in workers:
        worker.start()
    try:
        begun, ended = zip(*(spans.get(timeout=TIMEOUT_SECONDS) for _ in workers), strict=True)
    except queue.Empty:
        raise BenchFailed(f"a producer did not end within {TIMEOUT_SECONDS:.0f} s") from None
    finally:
        for worker in workers:
            worker.join(1.0)
            if as_processes and worker.is_alive():
                worker.kill()
    rate: float = PRODUCERS * count / (max(ended) - min(begun))
    return rate


def produce(address: str, count: int, barrier: Any, spans: Any) -> None:
    """Run one producer, and put its start and end times, by the clock that all processes share."""
    bulks = list(columns(count).chunks(MESSAGES_A_BULK))
    with Producer(address) as producer:
        for _ in range(WARM_UP_BULKS):
            producer.send_bulk(TOPIC, bodies=bulks[0].bodies, keys=bulks[0].keys)
        barrier.wait(TIMEOUT_SECONDS)
        began = time.monotonic()
        for bulk in bulks:
            producer.send_bulk(TOPIC, bodies=bulk.bodies, keys=bulk.keys)
        spans.put((began, time.monotonic()))


CASE = Case(
    "bulks-sync",
    "bulks of 100 from 4 producers, sync flush",
    (Measure("processes", "4 processes", "msg/s", 250_000), Measure("threads", "4 threads of one process", "msg/s")),
    samples,
)
