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

from confluent_kafka import Consumer, Producer, TopicPartition
from figures import BODY_BYTES, WINDOW, end_to_end_figures, seconds_since, seconds_until, single_figures, stamped_body

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
    """Send one message at a time."""
    client, body, taken = producer(address), bytes(BODY_BYTES), []
    for number in range(count + warm_up):
        began = time.perf_counter()
        send(client, 1, number, body)
        taken.append(time.perf_counter() - began)
    del taken[:warm_up]
    return single_figures(taken)


def batch(address: str, count: int, warm_up: int) -> dict[str, float]:
    """Send 64 messages, wait for all acknowledgements, and repeat."""
    client, body = producer(address), bytes(BODY_BYTES)
    for first in range(0, warm_up, WINDOW):
        send(client, WINDOW, first, body)
    began = time.perf_counter()
    for first in range(0, count, WINDOW):
        send(client, WINDOW, first, body)
    return {"rate": count / (time.perf_counter() - began)}


def end_to_end(address: str, count: int, warm_up: int, per_second: int) -> dict[str, float]:
    """Send at a steady rate from one thread and read in another."""
    taken: list[float] = []
    expected = count + warm_up
    client = producer(address)

    def pace() -> None:
        begin = time.monotonic()
        for number in range(expected):
            time.sleep(seconds_until(begin, number, per_second))
            send(client, 1, number, stamped_body())

    reader = Consumer({"bootstrap.servers": address, "group.id": "bench", "enable.auto.commit": False})
    reader.assign([TopicPartition(TOPIC, 0, 0)])
    sender = threading.Thread(target=pace, daemon=True)
    sender.start()
    while len(taken) < expected:
        record = reader.poll(5)
        if record is not None and record.error() is None:
            taken.append(seconds_since(record.value()))
    sender.join()
    reader.close()
    del taken[:warm_up]
    return end_to_end_figures(taken)


if __name__ == "__main__":
    command, address, *numbers = sys.argv[1:]
    print(
        json.dumps({"single": single, "batch": batch, "end_to_end": end_to_end}[command](address, *map(int, numbers)))
    )
