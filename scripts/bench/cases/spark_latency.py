"""Latency from ``send`` to a sink of Structured Streaming at 500 messages per second, one micro-batch after another."""

from __future__ import annotations

import threading
import time

from flintmq.client import Message, Producer

from ..bench import Bench
from ..load import BODY_BYTES, TOPIC
from ..measure import BenchFailed, Case, Measure, Sample, Samples, percentile
from ..spark import jobs
from ..spark.jobs import STAMP
from ..spark.sides import KAFKA, RATIO, Side, SideBySide, side_by_side

MESSAGES_A_SECOND = 500
WARM_UP_SECONDS = 10
MEASURED_SECONDS = 20
LATE_SECONDS_MAX = 60.0
"""Seconds to wait for the last messages after the last send."""

_QUICK_SECONDS = 1


def samples(bench: Bench) -> Samples:
    """Yield one sample per run: FlintMQ, then Kafka, each with its own query."""
    warm_up, measured = (_QUICK_SECONDS, _QUICK_SECONDS) if bench.quick else (WARM_UP_SECONDS, MEASURED_SECONDS)
    with side_by_side(bench, 0) as both:
        for _ in range(bench.runs):
            sample: Sample = {}
            for side in both.sides:
                taken = measure(both, side, warm_up, measured)
                sample[f"p50{side.suffix}"] = percentile(taken, 0.50)
                sample[f"p99{side.suffix}"] = percentile(taken, 0.99)
            if f"p50{KAFKA}" in sample:
                sample[f"p50{RATIO}"] = sample[f"p50{KAFKA}"] / sample["p50"]
            yield sample
        both.end()


def measure(both: SideBySide, side: Side, warm_up: int, measured: int) -> list[float]:
    """Return the milliseconds from the creation of each message until the sink had it, without the warm-up."""
    both.driver.call(jobs.start_noting, side.source, both.folder)
    count = (warm_up + measured) * MESSAGES_A_SECOND
    began = time.time_ns() // 1000
    if side.suffix == KAFKA:
        assert both.kafka is not None
        with both.kafka.pace(count, BODY_BYTES, MESSAGES_A_SECOND) as sender:
            noted = both.driver.call(jobs.stop_noting, began, count, warm_up + measured + LATE_SECONDS_MAX)
            if sender.wait(LATE_SECONDS_MAX):
                raise BenchFailed(f"Kafka's producer ended with {sender.returncode}")
    else:
        thread = threading.Thread(target=send_paced, args=(both.flintmq.address, count), daemon=True)
        thread.start()
        noted = both.driver.call(jobs.stop_noting, began, count, warm_up + measured + LATE_SECONDS_MAX)
        thread.join()
    first = noted[0][0] + warm_up * 1_000_000
    return [(arrived - made) / 1000 for made, arrived in noted if made >= first]


def send_paced(address: str, count: int) -> None:
    """Send one message every 1/500 s, whose body begins with the time."""
    filler = bytes(BODY_BYTES - STAMP.size)
    with Producer(address) as producer:
        begin = time.perf_counter()
        for number in range(count):
            time.sleep(max(0.0, begin + number / MESSAGES_A_SECOND - time.perf_counter()))
            body = STAMP.pack(time.time_ns() // 1000) + filler
            producer.send(Message(TOPIC, body, keys=(f"order-{number:08}",)))


CASE = Case(
    "spark-latency",
    f"Spark, micro-batches without a pause: message → sink at {MESSAGES_A_SECOND} msg/s",
    (
        Measure("p50", "p50", "ms", 400),
        Measure("p99", "p99", "ms"),
        Measure(f"p50{KAFKA}", "p50: Spark's Kafka connector", "ms"),
        Measure(f"p99{KAFKA}", "p99: Spark's Kafka connector", "ms"),
        Measure(f"p50{RATIO}", "p50: Kafka takes times as long", "×", 1.0),
    ),
    samples,
)
