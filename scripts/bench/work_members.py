"""Workers of a work queue: tasks that receive one message at a time and acknowledge it.

Arguments: address, group, topic, number of workers. They begin when standard input has a line; then the process prints
the number of messages that were handled and confirmed, each time it gets a line, until that is ``end``.
"""

from __future__ import annotations

import asyncio
import sys

from flintmq.client import ClientClosed
from flintmq.client.aio import GroupConsumer

LOOK_SECONDS = 0.05


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
    """Run the workers of one process."""
    address, group, topic, workers = sys.argv[1:]
    count = Count()
    async with GroupConsumer(address, group, topic, mode="work", start="first", max_open=4 * int(workers)) as consumer:
        print("joined", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(int(workers)):
                tasks.create_task(work(consumer, count))
            word = ""
            while word != "end":
                await asyncio.sleep(LOOK_SECONDS)
                handled = count.handled
                await consumer.commit()
                print(handled, flush=True)
                word = (await asyncio.to_thread(sys.stdin.readline)).strip()
            await consumer.close()


if __name__ == "__main__":
    asyncio.run(main())
