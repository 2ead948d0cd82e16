"""A producer and a reader of a NATS JetStream stream; runs in an environment that has only nats-py.

nats_load.py single ADDRESS COUNT WARM_UP             {"p50": µs, "p99": µs, "rate": messages/s}
nats_load.py window ADDRESS COUNT WARM_UP             {"rate": messages/s}, 64 acknowledgements awaited at a time
nats_load.py end_to_end ADDRESS COUNT WARM_UP RATE    {"p50": ms, "p99": ms}
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import time
from typing import Any

import nats

BODY_BYTES = 100
SUBJECT = "bench"
WINDOW = 64
STAMP = struct.Struct(">d")


def percentile(taken: list[float], share: float) -> float:
    return sorted(taken)[min(len(taken) - 1, int(share * len(taken)))]


async def single(stream: Any, count: int, warm_up: int) -> dict[str, float]:
    """Send one message at a time."""
    body, taken = bytes(BODY_BYTES), []
    for _ in range(count + warm_up):
        began = time.perf_counter()
        await stream.publish(SUBJECT, body)
        taken.append(time.perf_counter() - began)
    del taken[:warm_up]
    return {"p50": percentile(taken, 0.5) * 1e6, "p99": percentile(taken, 0.99) * 1e6, "rate": count / sum(taken)}


async def window(stream: Any, count: int, warm_up: int) -> dict[str, float]:
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
        taken.append(time.monotonic() - STAMP.unpack_from(message.data)[0])
        if len(taken) == count + warm_up:
            done.set()

    await stream.subscribe(SUBJECT, cb=receive)
    filler, begin = bytes(BODY_BYTES - STAMP.size), time.monotonic()
    for number in range(count + warm_up):
        await asyncio.sleep(max(0.0, begin + number / per_second - time.monotonic()))
        await stream.publish(SUBJECT, STAMP.pack(time.monotonic()) + filler)
    await asyncio.wait_for(done.wait(), 60)
    del taken[:warm_up]
    return {"p50": percentile(taken, 0.5) * 1e3, "p99": percentile(taken, 0.99) * 1e3}


async def main(command: str, address: str, *numbers: str) -> None:
    client = await nats.connect(f"nats://{address}")
    stream = client.jetstream()
    await stream.add_stream(name="bench", subjects=[SUBJECT])
    figures = {"single": single, "window": window, "end_to_end": end_to_end}[command]
    print(json.dumps(await figures(stream, *map(int, numbers))))
    await client.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
