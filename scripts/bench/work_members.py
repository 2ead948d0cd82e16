"""Workers of a work queue: tasks that receive one message at a time and acknowledge it.

Arguments: address, group, topic, number of workers, number of connections that they share. They begin when standard
input has a line; then the process prints the number of handled messages each time it gets a line, until that is
``end``; after ``confirm`` the broker has confirmed them.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack

from flintmq.client import ClientClosed
from flintmq.client.aio import GroupConsumer

LOOK_SECONDS = 0.05
OPEN_A_WORKER = 4
"""Deliveries for each worker and prefetched message that may be open or not confirmed."""
PREFETCH = 32
"""Messages that a worker with a connection of its own has ready; others share what they ask for."""


class Count:
    """Number of handled messages."""

    handled = 0


async def work(consumer: GroupConsumer, count: Count) -> None:
    """Handle messages until the consumer is closed."""
    try:
        while True:
            (delivery,) = await consumer.receive()
            assert delivery.message.body
            delivery.ack()
            count.handled += 1
    except ClientClosed:
        return


async def main() -> None:
    address, group, topic, workers, connections = sys.argv[1:]
    each = int(workers) // int(connections)
    ahead = PREFETCH if each == 1 else 0
    count = Count()
    async with AsyncExitStack() as stack:
        consumers = [
            await stack.enter_async_context(
                GroupConsumer(
                    address,
                    group,
                    topic,
                    mode="work",
                    start="first",
                    max_open=OPEN_A_WORKER * (each + ahead),
                    prefetch_messages=ahead,
                )
            )
            for _ in range(int(connections))
        ]
        print("joined", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        async with asyncio.TaskGroup() as tasks:
            for consumer in consumers:
                for _ in range(each):
                    tasks.create_task(work(consumer, count))
            word = ""
            while word != "end":
                await asyncio.sleep(LOOK_SECONDS)
                handled = count.handled
                if word == "confirm":
                    await asyncio.gather(*[consumer.commit() for consumer in consumers])
                print(handled, flush=True)
                word = (await asyncio.to_thread(sys.stdin.readline)).strip()
            await asyncio.gather(*[consumer.close() for consumer in consumers])


if __name__ == "__main__":
    asyncio.run(main())
