"""One producer or follower: an asyncio process whose loop is blocked now and then.

It says a line of JSON every second and at its end on standard output. A line on standard input tells a producer to
finish what it has, and a follower the number of messages of each producer that it must still wait for.
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
"""Longer than a blocked loop and a broker's restart together."""
BLOCK_EVERY_SECONDS = 60.0
IN_FLIGHT_MAX = 500


def resident_bytes() -> int:
    """This process's memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class Blocker:
    """Blocks the loop, as a user's own code might: at random, now and then for long."""

    def __init__(self, source: random.Random, seconds_max: float) -> None:
        self._source = source
        self._seconds_max = seconds_max
        self.blocked_seconds = 0.0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._source.expovariate(1 / BLOCK_EVERY_SECONDS))
            seconds = self._source.uniform(0, self._seconds_max)
            self.blocked_seconds += seconds
            time.sleep(seconds)  # noqa: ASYNC251 - that is what it is for


class Reporter:
    """Says how a client is doing."""

    def __init__(self, blocker: Blocker) -> None:
        self._blocker = blocker
        self.numbers: dict[str, Any] = {}

    async def run(self) -> None:
        """Every second, until cancelled."""
        while True:
            self.say()
            await asyncio.sleep(1)

    def say(self, **last: Any) -> None:
        """One line now."""
        print(
            json.dumps(
                {
                    "resident_bytes": resident_bytes(),
                    "blocked_seconds": self._blocker.blocked_seconds,
                    **self.numbers,
                    **last,
                }
            ),
            flush=True,
        )


async def told() -> Any:
    """What the next line on standard input says."""
    line = await asyncio.to_thread(sys.stdin.readline)
    return json.loads(line)


async def produce(address: str, number: int, rate: int, reporter: Reporter) -> None:
    """Send numbered messages until told to finish; all of them have to be acknowledged in the end."""
    finish = asyncio.create_task(told())
    sent = acknowledged = 0
    in_flight: set[asyncio.Future[Any]] = set()
    async with Producer(address, delivery_timeout=DELIVERY_SECONDS) as producer:
        began = time.monotonic()
        while not finish.done():
            due = int((time.monotonic() - began) * rate)
            # After a long block not all at once: what is late stays late.
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
    """Which messages of each producer have come, a bit each, so that hours take little memory."""

    def __init__(self, producers: int, messages_max: int) -> None:
        self._bits = [bytearray(messages_max // 8 + 1) for _ in range(producers)]
        self.counts = [0] * producers
        self.twice = 0

    def add(self, producer: int, number: int) -> None:
        """It came."""
        bits, place, bit = self._bits[producer], number >> 3, 1 << (number & 7)
        if bits[place] & bit:
            self.twice += 1
        else:
            bits[place] |= bit
            self.counts[producer] += 1


async def follow(address: str, producers: int, messages_max: int, reporter: Reporter) -> None:
    """Follow the topic until every message was seen that the producers say was acknowledged."""
    expected = asyncio.create_task(told())
    seen = Seen(producers, messages_max)
    last: dict[int, int] = {}
    async with Consumer(address, timeout=DELIVERY_SECONDS) as consumer:
        messages = consumer.iter(TOPIC, from_="earliest")
        coming: asyncio.Future[StoredMessage] = asyncio.ensure_future(anext(messages))
        while not (expected.done() and seen.counts == expected.result()):
            if not (await asyncio.wait({coming}, timeout=1.0))[0]:
                continue
            message = coming.result()
            coming = asyncio.ensure_future(anext(messages))
            assert message.queue_offset == last.get(message.queue, -1) + 1, f"{message} after {last}"
            last[message.queue] = message.queue_offset
            producer, number = message.body.rstrip(b".").split(b":")
            seen.add(int(producer), int(number))
            reporter.numbers = {"seen": sum(seen.counts), "twice": seen.twice}
        coming.cancel()
    reporter.say(done=True, seen=sum(seen.counts), twice=seen.twice)


async def main(arguments: dict[str, Any]) -> None:
    blocker = Blocker(random.Random(arguments["seed"]), arguments["block_seconds_max"])
    reporter = Reporter(blocker)
    beside = [asyncio.create_task(blocker.run()), asyncio.create_task(reporter.run())]
    if arguments["role"] == "produce":
        await produce(arguments["address"], arguments["number"], arguments["rate"], reporter)
    else:
        await follow(arguments["address"], arguments["producers"], arguments["messages_max"], reporter)
    for task in beside:
        task.cancel()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
