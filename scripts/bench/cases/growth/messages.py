"""Growth of one store: 1 to 100 million messages of 100 bytes with one key each."""

from __future__ import annotations

import random
import shutil
import time

from flintmq.client import Consumer, Producer

from ...bench import Bench
from ...broker import Broker
from ...load import BODY_BYTES, QUEUES, TOPIC, columns
from ...machine import Stopwatch, anonymous_bytes, touch_memory
from ...measure import BenchFailed, Sample, Skipped, percentile
from ...raw import RawClient
from ..pull import pull, read_all
from .part import Figure, Part, Sized

SIZES = (1_000_000, 10_000_000, 100_000_000)
FULL_SIZE = 100_000_000
"""Size that is measured only on request: it takes 35 GB and several minutes."""
MESSAGES_A_CALL = 100_000
QUERIES = 5_000
WARM_UP_QUERIES = 200
UNSYNCED_MESSAGES = 200_000
"""Messages sent directly before the broker is killed."""
_MESSAGE_DISK_BYTES = 330
"""Disk space of a message with its queue unit, its index entries, and its share of preallocated files."""
_SPARE_BYTES = 4 << 30


def measure(bench: Bench) -> Sized:
    """Yield the figures of each size, each in an empty store."""
    for size in SIZES:
        if size == FULL_SIZE and not bench.full:
            yield Skipped(f"{size:,} messages: only with --full")
            continue
        count = bench.count(size)
        needed = count * _MESSAGE_DISK_BYTES + _SPARE_BYTES
        free = shutil.disk_usage(bench.folder).free
        if free < needed:
            yield Skipped(
                f"{size:,} messages need {needed / 1e9:.0f} GB in {bench.folder}, {free / 1e9:.0f} GB are free"
            )
            continue
        yield size, of_store(bench, count)


def of_store(bench: Bench, count: int) -> Sample:
    """Return the figures of a store with ``count`` messages: filled, read, started after a stop and after a kill."""
    sample: Sample = {}
    with bench.store() as store:
        with Broker(store, "async") as broker:
            with RawClient(broker.address) as client:
                client.create_topic(TOPIC, QUEUES)
            touch_memory(bench.touched_gib, bench.folder)
            watch = Stopwatch(broker.pid)
            send(broker, 0, count)
            broker.wait_until_caught_up()
            sample["rate"] = count / watch.seconds()
            sample["cpu"] = watch.broker_cpu_seconds() * 1e6 / count
            sample["query"] = percentile(query(broker, count, bench.count(QUERIES)), 0.99) * 1e3
            sample["pull"] = pull_all(broker, count)
            sample["memory"] = anonymous_bytes(broker.pid) / 1e6
        with Broker(store, "async") as broker:
            sample["start"] = broker.start_seconds
            broker.check_stored(TOPIC, count)
            unsynced = bench.count(UNSYNCED_MESSAGES)
            send(broker, count, unsynced)
            broker.kill()
        with Broker(store, "async") as broker:
            sample["start_killed"] = broker.start_seconds
            broker.check_stored(TOPIC, count + unsynced)
    return sample


def send(broker: Broker, first: int, count: int) -> None:
    """Send ``count`` messages, numbered by their keys from ``first``, with ``send_bulk``."""
    bodies = columns(min(count, MESSAGES_A_CALL)).bodies
    acknowledged = 0
    with Producer(broker.address) as producer:
        for begin in range(first, first + count, MESSAGES_A_CALL):
            keys = [key_of(number) for number in range(begin, min(begin + MESSAGES_A_CALL, first + count))]
            acknowledged += len(producer.send_bulk(TOPIC, bodies=bodies[: len(keys)], keys=keys))
    if acknowledged != count:
        raise BenchFailed(f"{acknowledged:,} receipts for {count:,} messages")


def key_of(number: int) -> str:
    """Return the key of message ``number``."""
    return f"order-{number:08}"


def query(broker: Broker, stored: int, queries: int) -> list[float]:
    """Return the seconds of each query by key for one of the stored messages."""
    choose = random.Random(stored)
    taken = []
    with Consumer(broker.address) as consumer:
        for _ in range(WARM_UP_QUERIES + queries):
            key = key_of(choose.randrange(stored))
            began = time.perf_counter()
            found = consumer.query(TOPIC, key=key)
            taken.append(time.perf_counter() - began)
            if len(found) != 1:
                raise BenchFailed(f"the query for key {key} found {len(found)} messages; expected 1")
    return taken[WARM_UP_QUERIES:]


def pull_all(broker: Broker, stored: int) -> float:
    """Return the messages per second of a consumer that pulls every queue from its start."""
    with RawClient(broker.address) as client:
        lengths = {queue: length for queue, length in client.queue_lengths(TOPIC).items() if length}
    began = time.perf_counter()
    pulled = pull(broker, lengths, read_all)
    seconds = time.perf_counter() - began
    if pulled != (stored, stored * BODY_BYTES):
        raise BenchFailed(f"{pulled[0]:,} messages of {pulled[1]:,} bytes came back; stored are {stored:,}")
    return stored / seconds


MESSAGES = Part(
    "messages",
    "messages stored",
    SIZES,
    (
        Figure("rate", "send_bulk", "msg/s"),
        Figure("cpu", "broker CPU a million", "s"),
        Figure("memory", "memory without file pages", "MB"),
        Figure("query", "query by key, p99", "ms"),
        Figure("pull", "pull from the start", "msg/s"),
        Figure("start", "start after a stop", "s"),
        Figure("start_killed", "start after kill −9", "s"),
    ),
    measure,
)
