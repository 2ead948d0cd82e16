"""64 concurrent sends from one asyncio client, which batches them automatically."""

from __future__ import annotations

import asyncio
import time

from flintmq.client import Message
from flintmq.client.aio import Producer

from ..bench import Bench
from ..broker import Broker
from ..load import TOPIC, Columns, columns
from ..measure import Case, Measure, Sample, Samples

TASKS = 64
ASYNC_MESSAGES = 200_000
SYNC_MESSAGES = 100_000
WARM_UP_MESSAGES = 5_000


def samples(bench: Bench) -> Samples:
    """Yield one sample per run."""
    for _ in range(bench.runs):
        sample: Sample = {}
        for flush, count in (("async", ASYNC_MESSAGES), ("sync", SYNC_MESSAGES)):
            with bench.broker(flush) as broker:
                load = columns(bench.count(WARM_UP_MESSAGES) + bench.count(count))
                rate, client_cpu_seconds = asyncio.run(send_all(broker, load, bench.count(WARM_UP_MESSAGES)))
                broker.wait_until_caught_up()
                broker.check_stored(TOPIC, len(load))
            sample[flush] = rate
            sample[f"{flush}_cpu"] = client_cpu_seconds * 1e6
        yield sample


async def send_all(broker: Broker, load: Columns, warm_up: int) -> tuple[float, float]:
    """Return messages per second, and the client's CPU seconds per message, without the first ``warm_up`` messages.

    Each task repeatedly creates a message, sends it, and waits for its acknowledgement.
    """
    async with Producer(broker.address) as producer:

        async def send(start: int, end: int) -> None:
            for body, key in zip(load.bodies[start:end:TASKS], load.keys[start:end:TASKS], strict=True):
                await producer.send(Message(TOPIC, body, keys=(key,)))

        await asyncio.gather(*[send(number, warm_up) for number in range(TASKS)])
        cpu_before, began = time.process_time(), time.perf_counter()
        await asyncio.gather(*[send(warm_up + number, len(load)) for number in range(TASKS)])
        count = len(load) - warm_up
        return count / (time.perf_counter() - began), (time.process_time() - cpu_before) / count


CASE = Case(
    "aio-sends",
    "64 sends in flight from one asyncio client",
    (
        Measure("async", "async flush", "msg/s", 100_000),
        Measure("async_cpu", "async flush: the client's CPU a message", "µs"),
        Measure("sync", "sync flush", "msg/s", 60_000),
        Measure("sync_cpu", "sync flush: the client's CPU a message", "µs"),
    ),
    samples,
)
