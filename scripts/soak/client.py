"""A producer or follower: an asyncio process whose loop is blocked at random.

It prints a line of JSON every second and at its end. A line on standard input tells a producer to finish, and a
follower how many messages of each producer it must see before it ends.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import sys
import time
from pathlib import Path
from typing import Any

from flintmq.client import Message, StoredMessage
from flintmq.client.aio import Consumer, Producer

TOPIC = "soak"
DELIVERY_SECONDS = 180.0
"""Longer than a blocked loop and a restart of the broker together."""
BLOCK_EVERY_SECONDS = 60.0
IN_FLIGHT_MAX = 500


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class Blocker:
    """Blocker of the event loop: sleeps at random times, as a user's own code might."""

    def __init__(self, source: random.Random, seconds_max: float) -> None:
        self._source = source
        self._seconds_max = seconds_max
        self.blocked_seconds = 0.0

    async def run(self) -> None:
        """Block the loop again and again, until cancelled."""
        while True:
            await asyncio.sleep(self._source.expovariate(1 / BLOCK_EVERY_SECONDS))
            seconds = self._source.uniform(0, self._seconds_max)
            self.blocked_seconds += seconds
            time.sleep(seconds)  # noqa: ASYNC251 - the purpose of this class


class Reporter:
    """Reporter of a client's figures on standard output."""

    def __init__(self, blocker: Blocker) -> None:
        self._blocker = blocker
        self.numbers: dict[str, Any] = {}

    async def run(self) -> None:
        """Print a line every second, until cancelled."""
        while True:
            self.say()
            await asyncio.sleep(1)

    def say(self, **last: Any) -> None:
        figures = {"resident_bytes": resident_bytes(), "blocked_seconds": self._blocker.blocked_seconds}
        print(json.dumps(figures | self.numbers | last), flush=True)


async def read_order() -> Any:
    """Return the next line of standard input, parsed as JSON."""
    line = await asyncio.to_thread(sys.stdin.readline)
    return json.loads(line)


async def produce(address: str, number: int, rate: int, reporter: Reporter) -> None:
    """Send numbered messages until told to finish; the broker must acknowledge all of them in the end."""
    finish = asyncio.create_task(read_order())
    sent = acknowledged = 0
    in_flight: set[asyncio.Future[Any]] = set()
    async with Producer(address, delivery_timeout=DELIVERY_SECONDS) as producer:
        began = time.monotonic()
        while not finish.done():
            due = int((time.monotonic() - began) * rate)
            # Do not catch up with everything after a long block: shift the schedule instead.
            began += max(0, due - sent - IN_FLIGHT_MAX) / rate
            for _ in range(min(due - sent, IN_FLIGHT_MAX - len(in_flight))):
                body = b"%d:%d" % (number, sent)
                message = Message(TOPIC, body.ljust(100, b"."), keys=(f"{number}-{sent}",))
                in_flight.add(asyncio.ensure_future(producer.send(message)))
                sent += 1
            done, in_flight = await asyncio.wait(in_flight, timeout=0.01) if in_flight else (set(), in_flight)
            for future in done:
                future.result()
                acknowledged += 1
            if not done:
                await asyncio.sleep(0.01)
            reporter.numbers = {"sent": sent, "acknowledged": acknowledged}
        for future in in_flight:
            await future
            acknowledged += 1
    reporter.say(done=True, sent=sent, acknowledged=acknowledged)


class Seen:
    """Messages received from each producer, one bit each, so that a run of hours takes little memory."""

    def __init__(self, producers: int, messages_max: int) -> None:
        self._bits = [bytearray(messages_max // 8 + 1) for _ in range(producers)]
        self.counts = [0] * producers
        self.duplicates = 0

    def add(self, producer: int, number: int) -> None:
        bits, place, bit = self._bits[producer], number >> 3, 1 << (number & 7)
        if bits[place] & bit:
            self.duplicates += 1
        else:
            bits[place] |= bit
            self.counts[producer] += 1


async def follow(address: str, producers: int, messages_max: int, reporter: Reporter) -> None:
    """Follow the topic until every message that the producers report as acknowledged has been seen."""
    expected = asyncio.create_task(read_order())
    seen = Seen(producers, messages_max)
    last: dict[int, int] = {}
    async with Consumer(address, timeout=DELIVERY_SECONDS) as consumer:
        messages = consumer.iter(TOPIC, from_="earliest")
        pending: asyncio.Future[StoredMessage] = asyncio.ensure_future(anext(messages))
        while not (expected.done() and seen.counts == expected.result()):
            if not (await asyncio.wait({pending}, timeout=1.0))[0]:
                continue
            message = pending.result()
            pending = asyncio.ensure_future(anext(messages))
            assert message.queue_offset == last.get(message.queue, -1) + 1, f"{message} after {last}"
            last[message.queue] = message.queue_offset
            producer, number = message.body.rstrip(b".").split(b":")
            seen.add(int(producer), int(number))
            reporter.numbers = {"seen": sum(seen.counts), "duplicates": seen.duplicates}
        pending.cancel()
    reporter.say(done=True, seen=sum(seen.counts), duplicates=seen.duplicates)


async def main(arguments: dict[str, Any]) -> None:
    blocker = Blocker(random.Random(arguments["seed"]), arguments["block_seconds_max"])
    reporter = Reporter(blocker)
    background = [asyncio.create_task(blocker.run()), asyncio.create_task(reporter.run())]
    if arguments["role"] == "produce":
        await produce(arguments["address"], arguments["number"], arguments["rate"], reporter)
    else:
        await follow(arguments["address"], arguments["producers"], arguments["messages_max"], reporter)
    for task in background:
        task.cancel()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
