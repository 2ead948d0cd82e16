"""A group consumer of aiokafka, and a producer for it; runs in an environment that has only aiokafka.

    aio_group.py send ADDRESS TOPIC COUNT PER_SECOND       paced; each body begins with the time
    aio_group.py listen ADDRESS TOPIC COUNT                "joined", then [seconds from the time in each body until it
                                                           was there]
    aio_group.py consume ADDRESS TOPIC GROUP COUNT BATCHES {"messages": …, "bytes": …, "seconds": …}
    aio_group.py rebalance ADDRESS TOPIC MEMBERS           {"join": seconds, "join_moves": …, "leave": …, …}

Settings are aiokafka's defaults, except where a new group starts. The output is JSON, one value per line.
"""

from __future__ import annotations

import asyncio
import json
import logging
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

STAMP = struct.Struct(">d")
BODY_BYTES = 100
LOOK_SECONDS = 0.002
SETTLE_SECONDS_MAX = 60.0
BATCH_RECORDS_MAX = 4_096


async def send(address: str, topic: str, count: str, per_second: str) -> None:
    """Send one message after another, each acknowledged."""
    filler = bytes(BODY_BYTES - STAMP.size)
    async with AIOKafkaProducer(bootstrap_servers=address) as producer:
        begin = time.monotonic()
        for number in range(int(count)):
            await asyncio.sleep(max(0.0, begin + number / int(per_second) - time.monotonic()))
            body = STAMP.pack(time.monotonic()) + filler
            await producer.send_and_wait(topic, body, key=b"order-%08d" % number)


async def listen(address: str, topic: str, count: str) -> list[float]:
    """Receive every message, one at a time."""
    taken: list[float] = []
    async with group_consumer(address, topic, "bench") as consumer:
        await settled([consumer], topic, {})
        print(json.dumps("joined"), flush=True)
        async for record in consumer:
            taken.append(time.monotonic() - STAMP.unpack_from(record.value)[0])
            if len(taken) == int(count):
                break
    return taken


async def consume(address: str, topic: str, group: str, count: str, batches: str) -> dict[str, Any]:
    """Measure the time from joining the group until it has committed and left."""
    began = time.perf_counter()
    messages = body_bytes = 0
    async with group_consumer(address, topic, group) as consumer:
        while messages < int(count):
            if batches == "True":
                for records in (await consumer.getmany(timeout_ms=1000, max_records=BATCH_RECORDS_MAX)).values():
                    messages += len(records)
                    body_bytes += sum(len(record.value) for record in records)
            else:
                record = await consumer.getone()
                messages += 1
                body_bytes += len(record.value)
    return {"messages": messages, "bytes": body_bytes, "seconds": time.perf_counter() - began}


async def rebalance(address: str, topic: str, members: str) -> dict[str, float]:
    """Let all members except one settle; then let the last one join and leave."""
    group = [group_consumer(address, topic, "bench") for _ in range(int(members) - 1)]
    await asyncio.gather(*[member.start() for member in group])
    holders = await settled(group, topic, {})
    last = group_consumer(address, topic, "bench")
    try:
        joined, holders = await measured(last.start, [*group, last], topic, holders)
        left, holders = await measured(last.stop, group, topic, holders)
    finally:
        await asyncio.gather(*[member.stop() for member in (*group, last)])
    return {"join": joined[0], "join_moves": joined[1], "leave": left[0], "leave_moves": left[1]}


async def measured(
    change: Callable[[], Awaitable[object]], group: list[AIOKafkaConsumer], topic: str, before: dict[Any, int]
) -> tuple[tuple[float, int], dict[Any, int]]:
    """Return the seconds until the group has settled after ``change``, the number of partitions that moved, and the new
    assignment."""
    began = time.perf_counter()
    changing = asyncio.ensure_future(change())
    after = await settled(group, topic, before)
    seconds = time.perf_counter() - began
    await changing
    return (seconds, sum(before[partition] != holder for partition, holder in after.items())), after


async def settled(group: list[AIOKafkaConsumer], topic: str, before: dict[Any, int]) -> dict[Any, int]:
    """Wait until the assignment differs from ``before``, gives each partition one member, and is even."""
    deadline = time.monotonic() + SETTLE_SECONDS_MAX
    while True:
        held = [member.assignment() for member in group]
        counts = [len(partitions) for partitions in held]
        holders = {
            partition: id(member) for member, partitions in zip(group, held, strict=True) for partition in partitions
        }
        partitions = len(group[0].partitions_for_topic(topic) or ())
        if (
            partitions
            and len(holders) == sum(counts) == partitions
            and max(counts) - min(counts) <= 1
            and holders != before
        ):
            return holders
        if time.monotonic() > deadline:
            raise TimeoutError(f"the group did not settle within {SETTLE_SECONDS_MAX:.0f} s: {counts}")
        await asyncio.sleep(LOOK_SECONDS)


def group_consumer(address: str, topic: str, group: str) -> AIOKafkaConsumer:
    """Return a consumer that is not started."""
    return AIOKafkaConsumer(topic, bootstrap_servers=address, group_id=group, auto_offset_reset="earliest")


if __name__ == "__main__":
    # aiokafka logs normal events such as every rebalance, and raises real errors.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    command = {"send": send, "listen": listen, "consume": consume, "rebalance": rebalance}[sys.argv[1]]
    print(json.dumps(asyncio.run(command(*sys.argv[2:]))))
