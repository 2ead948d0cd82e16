"""A producer and a reader of a Kafka topic with the C client; runs in an environment of its own with confluent-kafka.

kafka_load.py single ADDRESS COUNT WARM_UP             {"p50": µs, "p99": µs, "rate": messages/s}
kafka_load.py batch ADDRESS COUNT WARM_UP              {"rate": messages/s}, 64 acknowledgements awaited at a time
kafka_load.py end_to_end ADDRESS COUNT WARM_UP RATE    {"p50": ms, "p99": ms}
"""

from __future__ import annotations

import json
import sys
import threading
import time

import figures
from confluent_kafka import Consumer, Producer, TopicPartition

TOPIC = "bench"


def producer(address: str) -> Producer:
    return Producer({"bootstrap.servers": address, "linger.ms": 0, "acks": "all"})


def send(client: Producer, count: int, number: int, body: bytes) -> None:
    """Send ``count`` messages and wait for their acknowledgements."""
    for each in range(count):
        client.produce(TOPIC, body, key=f"order-{number + each:08}", partition=0)
    if client.flush(30):
        raise TimeoutError("Kafka did not acknowledge a message within 30 s")


def single(address: str, count: int, warm_up: int) -> dict[str, float]:
    client, body = producer(address), bytes(figures.BODY_BYTES)
    return figures.single_sends(lambda number: send(client, 1, number, body), count, warm_up)


def batch(address: str, count: int, warm_up: int) -> dict[str, float]:
    """Send 64 messages, wait for all acknowledgements, and repeat."""
    client, body = producer(address), bytes(figures.BODY_BYTES)
    return figures.batch_sends(lambda first: send(client, figures.WINDOW, first, body), count, warm_up)


def end_to_end(address: str, count: int, warm_up: int, per_second: int) -> dict[str, float]:
    """Send at a steady rate from one thread and read in another."""
    taken: list[float] = []
    expected = count + warm_up
    client = producer(address)

    def pace() -> None:
        begin = time.monotonic()
        for number in range(expected):
            time.sleep(figures.seconds_until(begin, number, per_second))
            send(client, 1, number, figures.stamped_body())

    reader = Consumer({"bootstrap.servers": address, "group.id": "bench", "enable.auto.commit": False})
    reader.assign([TopicPartition(TOPIC, 0, 0)])
    sender = threading.Thread(target=pace, daemon=True)
    sender.start()
    while len(taken) < expected:
        record = reader.poll(5)
        if record is not None and record.error() is None:
            taken.append(figures.seconds_since(record.value()))
    sender.join()
    reader.close()
    del taken[:warm_up]
    return figures.end_to_end_figures(taken)


if __name__ == "__main__":
    command, address, *numbers = sys.argv[1:]
    found = {"single": single, "batch": batch, "end_to_end": end_to_end}[command](address, *map(int, numbers))
    print(json.dumps(found))
