"""A group with one push consumer handles a million stored messages and commits its progress."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from flintmq.client import Admin, Batch, PushConsumer, StoredMessage

from ..bench import Bench
from ..broker import Broker
from ..kafka.aio import KAFKA, AioKafka, aiokafka
from ..kafka.server import Kafka
from ..load import BODY_BYTES, QUEUES, TOPIC, blocks, fill
from ..machine import Stopwatch
from ..measure import BenchFailed, Case, Measure, Sample, Samples

MESSAGES = 1_000_000
BATCH = 4_096
TIMEOUT_SECONDS = 120.0


def samples(bench: Bench) -> Samples:
    """Yield one sample per run, with each listener in its own group."""
    count = bench.count(MESSAGES)
    with aiokafka(bench) as peer, bench.broker() as broker, peer.broker(QUEUES) as kafka:
        fill(broker.address, count)
        broker.wait_until_caught_up()
        if kafka is not None:
            kafka.fill((b"".join(block.bodies) for block in blocks(count)), count, BODY_BYTES)
        for number in range(bench.runs):
            sample: Sample = {}
            for name, batch in (("batch", BATCH), ("message", None)):
                group = f"{name}-{number}"
                watch = Stopwatch(broker.pid)
                consume(broker, group, count, batch)
                sample[name] = count / watch.seconds()
                sample[f"{name}_cpu"] = watch.broker_cpu_seconds() * 1e6 / count
                check_committed(broker, group, count)
                if kafka is not None:
                    sample[name + KAFKA] = consume_from_kafka(peer, kafka, group, count, batch)
            yield sample
        peer.end()


class Counted:
    """Counter of the messages of listeners in several threads. ``complete`` is set after ``expected`` messages."""

    def __init__(self, expected: int) -> None:
        self.complete = threading.Event()
        self.messages = self.body_bytes = 0
        self._expected = expected
        self._lock = threading.Lock()

    def add(self, messages: int, body_bytes: int) -> None:
        """Add to the count."""
        with self._lock:
            self.messages += messages
            self.body_bytes += body_bytes
            if self.messages >= self._expected:
                self.complete.set()

    def batch(self, batch: Batch) -> None:
        """Handle a batch: read every body."""
        bodies = batch.bodies()
        self.add(len(bodies), sum(map(len, bodies)))

    def message(self, message: StoredMessage) -> None:
        """Handle a message."""
        self.add(1, len(message.body))


def consume(broker: Broker, group: str, count: int, batch: int | None) -> None:
    """Join ``group``, deliver every message to the listener, commit and leave."""
    seen = Counted(count)
    listener: Callable[[Any], None] = seen.message if batch is None else seen.batch
    with PushConsumer(broker.address, group, TOPIC, listener, batch=batch, start="first"):
        if not seen.complete.wait(TIMEOUT_SECONDS):
            raise BenchFailed(f"{seen.messages:,} of {count:,} messages came within {TIMEOUT_SECONDS:.0f} s")
    if (seen.messages, seen.body_bytes) != (count, count * BODY_BYTES):
        raise BenchFailed(f"{seen.messages:,} messages of {seen.body_bytes:,} bytes came; stored: {count:,}")


def consume_from_kafka(peer: AioKafka, kafka: Kafka, group: str, count: int, batch: int | None) -> float:
    """Measure the same with a group consumer of aiokafka; return messages per second."""
    done = peer.run(kafka, "consume", group, count, batch is not None)
    if (done["messages"], done["bytes"]) != (count, count * BODY_BYTES):
        raise BenchFailed(f"aiokafka got {done}; stored: {count:,} messages")
    return count / float(done["seconds"])


def check_committed(broker: Broker, group: str, count: int) -> None:
    """Raise ``BenchFailed`` unless the group has committed everything."""
    with Admin(broker.address) as admin:
        queues = [queue for queue in admin.group(group).queues if queue.topic == TOPIC]
    committed = sum(queue.committed for queue in queues)
    if committed != count:
        raise BenchFailed(f"group {group} saw all {count:,} messages and left with {committed:,} committed: {queues}")


CASE = Case(
    "group-consume",
    "a group of one push consumer, 1 M stored messages, from joining to having left, auto-commit",
    (
        Measure("batch", f"listener of batches of {BATCH:,}: every body", "msg/s", 400_000),
        Measure("batch_cpu", "listener of batches: broker CPU per million", "s"),
        Measure("message", "listener of messages: `body` of each", "msg/s"),
        Measure("message_cpu", "listener of messages: broker CPU per million", "s"),
        Measure(f"batch{KAFKA}", "aiokafka: `getmany`", "msg/s"),
        Measure(f"message{KAFKA}", "aiokafka: `getone`", "msg/s"),
    ),
    samples,
)
