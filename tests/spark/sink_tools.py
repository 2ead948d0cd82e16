"""Writes to the sink and reads them back: batches, and queries that copy a topic."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from flintmq.client import Consumer, Producer
from tests.conftest import RunningBroker

NEVER_S = 120
"""Timeout; longer than any operation here takes."""


def stored(broker: RunningBroker, topic: str) -> list[Any]:
    """Return the messages of a topic, queue by queue."""
    with Consumer(broker.address) as consumer:
        found = list(consumer.iter(topic, from_="earliest", until="latest"))
    return sorted(found, key=lambda message: (message.queue, message.queue_offset))


def bodies(broker: RunningBroker, topic: str) -> Counter[str]:
    return Counter(message.body.decode() for message in stored(broker, topic))


def send(broker: RunningBroker, topic: str, numbers: range) -> Counter[str]:
    with Producer(broker.address) as producer:
        producer.send_bulk(topic, [str(number).encode() for number in numbers])
    return Counter(map(str, numbers))


class Copy:
    """A query that copies the topic ``source`` of a broker to ``target``."""

    def __init__(self, spark: Any, broker: RunningBroker, source: str, target: str, checkpoint: Path) -> None:
        self._spark = spark
        self._broker = broker
        self._source = source
        self._target = target
        self.checkpoint = checkpoint

    def start(self, *, available_now: bool = True, **options: Any) -> Any:
        """Start the query and return it."""
        reader = self._spark.readStream.format("flintmq").option("bootstrap", self._broker.address)
        frame = reader.option("subscribe", self._source).option("startingOffsets", "earliest").load()
        writer = frame.drop("queue").writeStream.format("flintmq").queryName(f"copy to {self._target}")
        writer = writer.options(bootstrap=self._broker.address, topic=self._target, checkpointLocation=self.checkpoint)
        writer = writer.options(**options)
        writer = writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime="0 seconds")
        return writer.start()

    def run(self, **options: Any) -> None:
        """Copy the messages that are there."""
        assert self.start(**options).awaitTermination(NEVER_S)
