"""A member of a group that settles its deliveries in random order until it gets SIGTERM, or is killed.

Arguments: address, driver (``sync`` or ``aio``), seed, mode of the consumer. It prints a line for each delivery that it
has received, that it is about to settle, and that is lost: event, physical offset, body, and the machine's monotonic
time in ns.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from flintmq.client import Delivery, DeliveryLost, GroupConsumer, aio

GROUP = "settling"
TOPIC = "jobs"
LEASE_SECONDS = 8.0
OPTIONS: dict[str, dict[str, Any]] = {
    "clustering": {"start": "first", "max_open": 100, "max_uncommitted": 300, "commit_interval": 0.2},
    "work": {"start": "first", "max_open": 100, "mode": "work", "lease": LEASE_SECONDS},
}
"""By mode: options of the consumer."""
READY = "ready\n"
"""The first line of a member: from then on SIGTERM ends it in order."""
RECEIVE_SECONDS = 0.01
SHORT_SECONDS_MAX = 0.05
LONG_SECONDS_MAX = 1.0


def say(event: str, delivery: Delivery) -> None:
    """Print one line, completely or not at all."""
    message = delivery.message
    text = f"{event} {message.physical_offset} {message.body.decode()} {time.monotonic_ns()}\n"
    os.write(1, text.encode())


def settle(delivery: Delivery, chance: float) -> None:
    """Settle a delivery: most are handled, some are tried again, few are dead."""
    say("retry" if chance < 0.05 else "settle", delivery)
    try:
        if chance < 0.05:
            delivery.retry(1, "by chance")
        elif chance < 0.07:
            delivery.dead("by chance")
        else:
            delivery.ack()
    except DeliveryLost:
        say("lost", delivery)


class Held:
    """The open deliveries of this process, settled in random order: each when its time has come."""

    def __init__(self, source: random.Random) -> None:
        self.source = source
        self.deliveries: list[tuple[float, Delivery]] = []

    def add(self, received: list[Delivery]) -> None:
        """Hold more: most for a moment, a few for long."""
        for delivery in received:
            say("open", delivery)
            seconds_max = LONG_SECONDS_MAX if self.source.random() < 0.02 else SHORT_SECONDS_MAX
            self.deliveries.append((time.monotonic() + self.source.uniform(0, seconds_max), delivery))

    def due(self, now: float) -> list[tuple[Delivery, float]]:
        """Remove and return those to be settled now, each with a number from 0 to 1."""
        chosen = [delivery for at, delivery in self.deliveries if at <= now]
        self.deliveries = [(at, delivery) for at, delivery in self.deliveries if at > now]
        self.source.shuffle(chosen)
        return [(delivery, self.source.random()) for delivery in chosen]


def run_sync(address: str, held: Held, mode: str) -> None:
    """Settle in threads."""
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopping.append(number))
    os.write(1, READY.encode())
    with GroupConsumer(address, GROUP, TOPIC, **OPTIONS[mode]) as consumer, ThreadPoolExecutor(3) as pool:
        settling = []
        while not stopping:
            held.add(consumer.receive(held.source.randint(1, 64), RECEIVE_SECONDS))
            settling += [pool.submit(settle, *each) for each in held.due(time.monotonic())]
        settling += [pool.submit(settle, *each) for each in held.due(math.inf)]
        for each in settling:
            each.result()


async def run_aio(address: str, held: Held, mode: str) -> None:
    """Settle in the loop."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    os.write(1, READY.encode())
    async with aio.GroupConsumer(address, GROUP, TOPIC, **OPTIONS[mode]) as consumer:
        while not stopping.is_set():
            held.add(await consumer.receive(held.source.randint(1, 64), RECEIVE_SECONDS))
            for each in held.due(time.monotonic()):
                settle(*each)
        for each in held.due(math.inf):
            settle(*each)


def main() -> None:
    """Run one member."""
    address, driver, seed, mode = sys.argv[1:]
    held = Held(random.Random(int(seed)))
    if driver == "sync":
        run_sync(address, held, mode)
    else:
        asyncio.run(run_aio(address, held, mode))


if __name__ == "__main__":
    main()
