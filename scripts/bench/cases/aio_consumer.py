"""One asyncio client reads the bodies of a million stored messages."""

from __future__ import annotations

import asyncio
import time

from flintmq.client.aio import Consumer

from ..bench import Bench
from ..broker import Broker
from ..load import BODY_BYTES, TOPIC, fill
from ..measure import Case, Measure, Sample, Samples
from .pull import MESSAGES, PULL_BYTES, PULL_COUNT, Read, check, read_all, read_each


def samples(bench: Bench) -> Samples:
    """Yield one sample per run."""
    count = bench.count(MESSAGES)
    stored = count, count * BODY_BYTES
    with bench.broker() as broker:
        fill(broker.address, count)
        broker.wait_until_caught_up()
        for _ in range(bench.runs):
            sample: Sample = {}
            for name, reading in (
                ("iter", iterate(broker)),
                ("body", pull(broker, read_each)),
                ("bodies", pull(broker, read_all)),
            ):
                began = time.perf_counter()
                pulled = asyncio.run(reading)
                sample[name] = count / (time.perf_counter() - began)
                check(pulled, stored)
            yield sample


async def iterate(broker: Broker) -> tuple[int, int]:
    """Read every message of every queue with ``Consumer.iter``; return their number and bytes."""
    count = body_bytes = 0
    async with Consumer(broker.address) as consumer:
        async for message in consumer.iter(TOPIC, from_="earliest", until="latest"):
            body_bytes += len(message.body)
            count += 1
    return count, body_bytes


async def pull(broker: Broker, read: Read) -> tuple[int, int]:
    """Read every message with ``Consumer.pull``, all queues at the same time; return their number and bytes."""
    async with Consumer(broker.address) as consumer:

        async def pull_queue(queue: int, end: int) -> tuple[int, int]:
            count = body_bytes = offset = 0
            while offset < end:
                batch = await consumer.pull(TOPIC, queue, offset, max_count=PULL_COUNT, max_bytes=PULL_BYTES)
                batch_count, batch_bytes = read(batch)
                count += batch_count
                body_bytes += batch_bytes
                offset = batch.next_offset
            return count, body_bytes

        queues = await consumer.topic_stats(TOPIC)
        pulled = await asyncio.gather(*[pull_queue(queue.queue, queue.max_offset) for queue in queues])
    return sum(count for count, _ in pulled), sum(body_bytes for _, body_bytes in pulled)


CASE = Case(
    "aio-consumer",
    "1 M stored messages into one asyncio client",
    (
        Measure("iter", "`async for` over `Consumer.iter`, `body` of each message", "msg/s", 800_000),
        Measure("body", "`pull`, `body` of each message", "msg/s", 800_000),
        Measure("bodies", "`pull`, `batch.bodies()`", "msg/s"),
    ),
    samples,
)
