"""A producer and a reader of a Redis stream; runs in an environment of its own with redis-py.

redis_load.py single ADDRESS COUNT WARM_UP             {"p50": µs, "p99": µs, "rate": messages/s}
redis_load.py batch ADDRESS COUNT WARM_UP              {"rate": messages/s}, 64 messages in a pipeline
redis_load.py tasks ADDRESS COUNT WARM_UP              {"rate": messages/s}, 64 tasks, each with a message at a time
redis_load.py end_to_end ADDRESS COUNT WARM_UP RATE    {"p50": ms, "p99": ms}
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time

import figures
import redis
import redis.asyncio

STREAM = "bench"


def connect(address: str) -> redis.Redis:
    host, port = address.split(":")
    return redis.Redis(host, int(port))


def single(client: redis.Redis, count: int, warm_up: int) -> dict[str, float]:
    body = bytes(figures.BODY_BYTES)
    return figures.single_sends(
        lambda number: client.xadd(STREAM, {"key": f"order-{number:08}", "body": body}), count, warm_up
    )


def batch(client: redis.Redis, count: int, warm_up: int) -> dict[str, float]:
    """Send pipelines of 64 messages."""
    body = bytes(figures.BODY_BYTES)

    def send(first: int) -> None:
        pipeline = client.pipeline(transaction=False)
        for number in range(first, first + figures.WINDOW):
            pipeline.xadd(STREAM, {"key": f"order-{number:08}", "body": body})
        pipeline.execute()

    return figures.batch_sends(send, count, warm_up)


def tasks(client: redis.Redis, count: int, warm_up: int) -> dict[str, float]:
    """Send from 64 tasks that share an asyncio client, each of which waits for its response."""
    settings = client.connection_pool.connection_kwargs
    return asyncio.run(_tasks(settings["host"], settings["port"], count, warm_up))


async def _tasks(host: str, port: int, count: int, warm_up: int) -> dict[str, float]:
    body = bytes(figures.BODY_BYTES)
    async with redis.asyncio.Redis(host=host, port=port) as client:

        async def send(messages: int) -> None:
            for number in range(messages // figures.WINDOW):
                await client.xadd(STREAM, {"key": f"order-{number:08}", "body": body})

        await asyncio.gather(*[send(warm_up) for _ in range(figures.WINDOW)])
        began = time.perf_counter()
        await asyncio.gather(*[send(count) for _ in range(figures.WINDOW)])
        return {"rate": count // figures.WINDOW * figures.WINDOW / (time.perf_counter() - began)}


def end_to_end(address: str, count: int, warm_up: int, per_second: int) -> dict[str, float]:
    """Send at a steady rate from one thread and read in another."""
    taken: list[float] = []
    expected = count + warm_up

    def pace() -> None:
        client = connect(address)
        begin = time.monotonic()
        for number in range(expected):
            time.sleep(figures.seconds_until(begin, number, per_second))
            body = figures.stamped_body()
            client.xadd(STREAM, {"key": f"order-{number:08}", "body": body})

    sender = threading.Thread(target=pace, daemon=True)
    reader, last = connect(address), b"0"
    sender.start()
    while len(taken) < expected:
        for _, entries in reader.xread({STREAM: last}, block=5_000):
            taken.extend(figures.seconds_since(fields[b"body"]) for _, fields in entries)
            last = entries[-1][0]
    sender.join()
    del taken[:warm_up]
    return figures.end_to_end_figures(taken)


if __name__ == "__main__":
    command, address, *numbers = sys.argv[1:]
    if command == "end_to_end":
        found = end_to_end(address, *map(int, numbers))
    else:
        found = {"single": single, "batch": batch, "tasks": tasks}[command](connect(address), *map(int, numbers))
    print(json.dumps(found))
