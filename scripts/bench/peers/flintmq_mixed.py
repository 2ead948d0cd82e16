"""The operations of the mixed load with FlintMQ's client: see ``mixed.py``."""

from __future__ import annotations

import queue
import random
import time

import figures
import mixed

from flintmq.client import Consumer, Message, OffsetOutOfRange, Producer, PushConsumer, StoredMessage


def send(address: str) -> mixed.Operation:
    producer = Producer(address)

    def one(number: int) -> None:
        body = figures.stamped_body()
        producer.send(Message(figures.SINGLE_TOPIC, body, keys=(mixed.key_of(number),)), queue=0)

    return one


def bulk(address: str) -> mixed.Operation:
    producer, bodies = Producer(address), mixed.bulk_bodies()
    return lambda number: producer.send_bulk(figures.BULK_TOPIC, bodies, keys=mixed.bulk_keys(number))


def read(address: str) -> mixed.Operation:
    consumer, choose = Consumer(address), random.Random(1)
    lowest = highest = 0

    def one(number: int) -> None:
        nonlocal lowest, highest
        offset = choose.randint(lowest, highest)
        try:
            batch = consumer.pull(figures.BULK_TOPIC, 0, offset, mixed.READ_MESSAGES)
        except OffsetOutOfRange as expired:
            lowest, highest = expired.min_offset, expired.max_offset
            return
        batch.bodies()
        lowest, highest = max(batch.min_offset, batch.max_offset - mixed.READ_BEHIND), batch.max_offset

    return one


def query(address: str) -> mixed.Operation:
    consumer, begin = Consumer(address), time.monotonic()

    def one(number: int) -> None:
        sent = int((time.monotonic() - begin - mixed.QUERY_BEHIND_S) * mixed.RATES["send"])
        consumer.query(figures.SINGLE_TOPIC, key=mixed.key_of(max(0, sent)))

    return one


def arrive(address: str) -> object:
    consumer, offset = Consumer(address), 0

    def some() -> mixed.Received:
        nonlocal offset
        batch = consumer.pull(figures.SINGLE_TOPIC, 0, offset, wait_ms=mixed.WAIT_MS)
        offset = batch.next_offset
        return batch.bodies()

    return some


def group(address: str) -> object:
    arrived: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def listen(message: StoredMessage) -> None:
        arrived.put(message.body)

    PushConsumer(address, mixed.GROUP, figures.SINGLE_TOPIC, listen, workers=1).start()

    def some() -> mixed.Received:
        try:
            return [arrived.get(timeout=mixed.WAIT_MS / 1000)]
        except queue.Empty:
            return []

    return some


if __name__ == "__main__":
    mixed.main({"send": send, "bulk": bulk, "read": read, "query": query}, {"arrive": arrive, "group": group})
