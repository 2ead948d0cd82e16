"""From ``send`` to the answer of a pull that waits for it, at 500 messages a second."""

from __future__ import annotations

import struct
import threading
import time

from flintmq.client import Consumer, Message, Producer

from ..bench import Bench
from ..broker import Broker
from ..load import BODY_BYTES, TOPIC
from ..measure import BenchFailed, Case, Measure, Sample, Samples, percentile

MESSAGES = 5_000
WARM_UP_MESSAGES = 250
MESSAGES_A_SECOND = 500
TIMEOUT_SECONDS = 120.0

_STAMP = struct.Struct(">d")


def samples(bench: Bench) -> Samples:
    """One a run."""
    for _ in range(bench.runs):
        sample: Sample = {}
        for flush in ("async", "sync"):
            with bench.broker(flush) as broker:
                taken = produce_and_pull(broker, bench.count(MESSAGES))
            sample[f"{flush}_p50"] = percentile(taken, 0.50) * 1e3
            sample[f"{flush}_p99"] = percentile(taken, 0.99) * 1e3
        yield sample


def produce_and_pull(broker: Broker, count: int) -> list[float]:
    """Seconds from before each ``send`` to after the ``pull`` that brought it, in two threads of one process."""
    expected = WARM_UP_MESSAGES + count
    sender = threading.Thread(target=send_paced, args=(broker.address, expected), daemon=True)
    taken: list[float] = []
    offset = 0
    deadline = time.monotonic() + TIMEOUT_SECONDS
    with Consumer(broker.address) as consumer:
        sender.start()
        while len(taken) < expected:
            batch = consumer.pull(TOPIC, queue=0, offset=offset, wait_ms=5_000)
            now = time.perf_counter()
            taken.extend(now - _STAMP.unpack_from(body)[0] for body in batch.bodies())
            offset = batch.next_offset
            if time.monotonic() > deadline:
                raise BenchFailed(f"{len(taken)} of {expected} messages arrived within {TIMEOUT_SECONDS:.0f} s")
    sender.join()
    return taken[WARM_UP_MESSAGES:]


def send_paced(address: str, count: int) -> None:
    """One message each 1/500 s into queue 0; its body begins with the time."""
    filler = bytes(BODY_BYTES - _STAMP.size)
    with Producer(address) as producer:
        begin = time.perf_counter()
        for number in range(count):
            time.sleep(max(0.0, begin + number / MESSAGES_A_SECOND - time.perf_counter()))
            body = _STAMP.pack(time.perf_counter()) + filler
            producer.send(Message(TOPIC, body, keys=(f"order-{number:08}",)), queue=0)


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
