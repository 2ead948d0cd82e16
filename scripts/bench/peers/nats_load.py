"""A producer and a reader of a NATS JetStream stream; runs in an environment of its own with nats-py.

nats_load.py single ADDRESS COUNT WARM_UP             {"p50": µs, "p99": µs, "rate": messages/s}
nats_load.py tasks ADDRESS COUNT WARM_UP              {"rate": messages/s}, 64 acknowledgements awaited at a time
nats_load.py end_to_end ADDRESS COUNT WARM_UP RATE    {"p50": ms, "p99": ms}
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import nats
from figures import BODY_BYTES, WINDOW, end_to_end_figures, seconds_since, seconds_until, single_figures, stamped_body

SUBJECT = "bench"


async def single(stream: Any, count: int, warm_up: int) -> dict[str, float]:
    body, taken = bytes(BODY_BYTES), []
    for _ in range(count + warm_up):
        began = time.perf_counter()
        await stream.publish(SUBJECT, body)
        taken.append(time.perf_counter() - began)
    del taken[:warm_up]
    return single_figures(taken)


async def tasks(stream: Any, count: int, warm_up: int) -> dict[str, float]:
    """Send from 64 tasks, each of which waits for its acknowledgement."""
    body = bytes(BODY_BYTES)

    async def send(messages: int) -> None:
        for _ in range(messages // WINDOW):
            await stream.publish(SUBJECT, body)

    await asyncio.gather(*[send(warm_up) for _ in range(WINDOW)])
    began = time.perf_counter()
    await asyncio.gather(*[send(count) for _ in range(WINDOW)])
    return {"rate": count // WINDOW * WINDOW / (time.perf_counter() - began)}


async def end_to_end(stream: Any, count: int, warm_up: int, per_second: int) -> dict[str, float]:
    """Send at a steady rate and receive by a push subscription."""
    taken: list[float] = []
    done = asyncio.Event()

    async def receive(message: Any) -> None:
        taken.append(seconds_since(message.data))
        if len(taken) == count + warm_up:
            done.set()

    await stream.subscribe(SUBJECT, cb=receive)
    begin = time.monotonic()
    for number in range(count + warm_up):
        await asyncio.sleep(seconds_until(begin, number, per_second))
        await stream.publish(SUBJECT, stamped_body())
    await asyncio.wait_for(done.wait(), 60)
    del taken[:warm_up]
    return end_to_end_figures(taken)


async def main(command: str, address: str, *numbers: str) -> None:
    client = await nats.connect(f"nats://{address}")
    stream = client.jetstream()
    await stream.add_stream(name="bench", subjects=[SUBJECT])
    figures = {"single": single, "tasks": tasks, "end_to_end": end_to_end}[command]
    print(json.dumps(await figures(stream, *map(int, numbers))))
    await client.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
