"""The operations of the mixed load with confluent-kafka: see ``mixed.py``. Kafka cannot find a message by its key."""

from __future__ import annotations

import random
import time

import figures
import mixed
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

ACKNOWLEDGED_S_MAX = 30.0
LOOK_S = 0.02


def producer(address: str) -> Producer:
    return Producer({"bootstrap.servers": address, "linger.ms": 0, "acks": "all"})


def create_bulk_topic(address: str) -> None:
    """Create the topic of the bulks, unless another process has done so, and wait until it is served."""
    admin = AdminClient({"bootstrap.servers": address})
    (created,) = admin.create_topics([NewTopic(figures.BULK_TOPIC, 1)]).values()
    try:
        created.result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
    deadline = time.monotonic() + ACKNOWLEDGED_S_MAX
    while True:
        topic = admin.list_topics(figures.BULK_TOPIC, ACKNOWLEDGED_S_MAX).topics[figures.BULK_TOPIC]
        if any(partition.leader >= 0 for partition in topic.partitions.values()):
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"Kafka did not serve a new topic within {ACKNOWLEDGED_S_MAX:.0f} s")
        time.sleep(LOOK_S)


def acknowledged(client: Producer) -> None:
    """Wait for the acknowledgements of everything that was handed to the client."""
    if client.flush(ACKNOWLEDGED_S_MAX):
        raise TimeoutError(f"Kafka did not acknowledge a message within {ACKNOWLEDGED_S_MAX:.0f} s")


def send(address: str) -> mixed.Operation:
    client = producer(address)

    def one(number: int) -> None:
        client.produce(figures.SINGLE_TOPIC, figures.stamped_body(), key=mixed.key_of(number), partition=0)
        acknowledged(client)

    return one


def bulk(address: str) -> mixed.Operation:
    create_bulk_topic(address)
    client, bodies = producer(address), mixed.bulk_bodies()

    def one(number: int) -> None:
        for body, key in zip(bodies, mixed.bulk_keys(number), strict=True):
            client.produce(figures.BULK_TOPIC, body, key=key, partition=0)
        acknowledged(client)

    return one


def read(address: str) -> mixed.Operation:
    """Read the next messages of a place; the client neither fetches much more than it is asked for, nor pauses."""
    create_bulk_topic(address)
    limits = {"queued.min.messages": 1, "fetch.message.max.bytes": 8_192, "fetch.queue.backoff.ms": 1}
    client, choose = consumer(address, **limits), random.Random(1)
    partition = TopicPartition(figures.BULK_TOPIC, 0)

    def one(number: int) -> None:
        lowest, highest = client.get_watermark_offsets(partition, ACKNOWLEDGED_S_MAX)
        offset = choose.randint(max(lowest, highest - mixed.READ_BEHIND), highest)
        client.assign([TopicPartition(figures.BULK_TOPIC, 0, min(offset, max(lowest, highest - mixed.READ_MESSAGES)))])
        wanted = min(mixed.READ_MESSAGES, highest - lowest)
        while wanted > 0:
            wanted -= len(client.consume(wanted, ACKNOWLEDGED_S_MAX))

    return one


def consumer(address: str, **settings: object) -> Consumer:
    usual = {"bootstrap.servers": address, "group.id": mixed.GROUP, "enable.auto.commit": False}
    return Consumer({**usual, "auto.offset.reset": "earliest", **settings})


def arrive(address: str) -> object:
    client = consumer(address)
    client.assign([TopicPartition(figures.SINGLE_TOPIC, 0, 0)])
    return lambda: polled(client)


def group(address: str) -> object:
    client = consumer(address, **{"enable.auto.commit": True, "auto.commit.interval.ms": 1_000})
    client.subscribe([figures.SINGLE_TOPIC])
    return lambda: polled(client)


def polled(client: Consumer) -> list[bytes]:
    """Return the body of the next message, if one arrives in time."""
    record = client.poll(mixed.WAIT_MS / 1000)
    return [record.value()] if record is not None and record.error() is None else []


if __name__ == "__main__":
    mixed.main({"send": send, "bulk": bulk, "read": read}, {"arrive": arrive, "group": group})
