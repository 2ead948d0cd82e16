"""Reads of a million stored messages: pulls of both clients, Arrow, queries by key."""

from __future__ import annotations

import asyncio
import importlib.util
import random
import socket
import struct
import time
from collections.abc import Callable
from typing import TypeAlias

import msgpack

from flintmq.client import Batch, Consumer
from flintmq.client.aio import Consumer as AioConsumer
from flintmq.protocol.commands import PULL
from flintmq.protocol.errors import SUCCESS, error_from_answer
from flintmq.protocol.frames import REQUEST, encode_frame

from ..bench import Bench
from ..broker import Broker
from ..load import BODY_BYTES, TOPIC
from ..measure import BenchFailed, Case, Measure, Sample, Samples, Skipped, p50_and_p99
from ..raw import RawClient

MESSAGES = 1_000_000
PULL_BYTES = 2 << 20
PULL_COUNT = 100_000

Read: TypeAlias = Callable[[Batch], tuple[int, int]]
"""Function that reads every body of a batch and returns their number and bytes."""


def read_each(batch: Batch) -> tuple[int, int]:
    """Read the body of each message."""
    count = body_bytes = 0
    for message in batch.messages:
        body_bytes += len(message.body)
        count += 1
    return count, body_bytes


def read_all(batch: Batch) -> tuple[int, int]:
    """Read all bodies at once."""
    bodies = batch.bodies()
    return len(bodies), sum(map(len, bodies))


def rate_of(read: Callable[[], tuple[int, int]], count: int) -> float:
    """Return messages per second; raise ``BenchFailed`` unless the messages read are the stored ones."""
    began = time.perf_counter()
    pulled = read()
    rate = count / (time.perf_counter() - began)
    if pulled != (count, count * BODY_BYTES):
        raise BenchFailed(f"{pulled[0]:,} messages of {pulled[1]:,} bytes came back, stored were {count:,}")
    return rate


# ---- pull: one Python process with the sync client, and plain frames that are received and not looked into.

RAW_PULL_BYTES = 4 << 20
FRAME_BYTES_MAX = 16 << 20
_LENGTHS = struct.Struct(">II")


def _pull_samples(bench: Bench) -> Samples:
    count = bench.count(MESSAGES)
    with bench.filled(count) as (broker, _):
        with RawClient(broker.address) as client:
            lengths = {queue: length for queue, length in client.queue_lengths(TOPIC).items() if length}
        for _ in range(bench.runs):
            sample = {
                "body": rate_of(lambda: pull(broker, lengths, read_each), count),
                "bodies": rate_of(lambda: pull(broker, lengths, read_all), count),
                "iter": rate_of(lambda: _iterate(broker), count),
            }
            began = time.perf_counter()
            received_bytes = _receive(broker, lengths)
            sample["raw"] = received_bytes / (time.perf_counter() - began) / 1e9
            yield sample


def pull(broker: Broker, lengths: dict[int, int], read: Read) -> tuple[int, int]:
    """Read every message of every queue with ``Consumer.pull``; return their number and bytes."""
    count = body_bytes = 0
    with Consumer(broker.address) as consumer:
        for queue, length in lengths.items():
            offset = 0
            while offset < length:
                batch = consumer.pull(TOPIC, queue=queue, offset=offset, max_count=PULL_COUNT, max_bytes=PULL_BYTES)
                batch_count, batch_bytes = read(batch)
                count += batch_count
                body_bytes += batch_bytes
                offset = batch.next_offset
    return count, body_bytes


def _iterate(broker: Broker) -> tuple[int, int]:
    """Read every message of every queue with ``Consumer.iter``; return their number and bytes."""
    count = body_bytes = 0
    with Consumer(broker.address) as consumer:
        for message in consumer.iter(TOPIC, from_="earliest", until="latest"):
            body_bytes += len(message.body)
            count += 1
    return count, body_bytes


def _receive(broker: Broker, lengths: dict[int, int]) -> int:
    """Return the bytes of the responses to pulls of every message. It sends the next pull as soon as the head of a
    response has arrived."""
    received_bytes = 0
    buffer = memoryview(bytearray(4 + FRAME_BYTES_MAX))
    with RawClient(broker.address) as client:
        sock = client.sock
        for queue, length in lengths.items():
            offset = 0
            sock.sendall(_pull_frame(queue, offset))
            while offset < length:
                got = _receive_more(sock, buffer, 0, _LENGTHS.size)
                frame_length, header_length = _LENGTHS.unpack_from(buffer)
                body_at = _LENGTHS.size + header_length
                got = _receive_more(sock, buffer, got, body_at)
                _, code, _, fields = msgpack.unpackb(buffer[_LENGTHS.size : body_at])
                if code != SUCCESS:
                    raise error_from_answer(code, fields)
                offset = fields["next_offset"]
                if offset < length:
                    sock.sendall(_pull_frame(queue, offset))
                received_bytes += _receive_more(sock, buffer[: 4 + frame_length], got, 4 + frame_length)
    return received_bytes


def _pull_frame(queue: int, offset: int) -> bytes:
    fields = {"topic": TOPIC, "queue": queue, "offset": offset, "max_count": PULL_COUNT, "max_bytes": RAW_PULL_BYTES}
    return encode_frame(REQUEST, PULL.code, 1, fields)


def _receive_more(sock: socket.socket, buffer: memoryview, got: int, wanted: int) -> int:
    """Receive after the first ``got`` bytes until there are at least ``wanted``; return their number."""
    while got < wanted:
        count = sock.recv_into(buffer[got:])
        if not count:
            raise BenchFailed("the broker closed the connection")
        got += count
    return got


PULL_CASE = Case(
    "pull",
    "pull 1 M stored messages into one Python process",
    (
        Measure("body", "`body` of each message", "msg/s", 800_000),
        Measure("bodies", "`batch.bodies()`", "msg/s", 1_500_000),
        Measure("raw", "answers only received", "GB/s", 1.6),
        Measure("iter", "`Consumer.iter`, `body` of each message", "msg/s"),
    ),
    _pull_samples,
)

# ---- aio-consumer: one asyncio client.


def _aio_samples(bench: Bench) -> Samples:
    count = bench.count(MESSAGES)
    with bench.filled(count) as (broker, _):
        for _ in range(bench.runs):
            yield {
                "iter": rate_of(lambda: asyncio.run(_aio_iterate(broker)), count),
                "body": rate_of(lambda: asyncio.run(_aio_pull(broker, read_each)), count),
                "bodies": rate_of(lambda: asyncio.run(_aio_pull(broker, read_all)), count),
            }


async def _aio_iterate(broker: Broker) -> tuple[int, int]:
    """Read every message of every queue with ``Consumer.iter``; return their number and bytes."""
    count = body_bytes = 0
    async with AioConsumer(broker.address) as consumer:
        async for message in consumer.iter(TOPIC, from_="earliest", until="latest"):
            body_bytes += len(message.body)
            count += 1
    return count, body_bytes


async def _aio_pull(broker: Broker, read: Read) -> tuple[int, int]:
    """Read every message with ``Consumer.pull``, all queues at the same time; return their number and bytes."""
    async with AioConsumer(broker.address) as consumer:

        async def pull_queue(queue: int, end: int) -> tuple[int, int]:
            count = body_bytes = offset = 0
            while offset < end:
                batch = await consumer.pull(TOPIC, queue, offset, max_count=PULL_COUNT, max_bytes=PULL_BYTES)
                batch_count, batch_bytes = read(batch)
                count += batch_count
                body_bytes += batch_bytes
                offset = batch.next_offset
            return count, body_bytes

        queues = await consumer.topic_stats(TOPIC)
        pulled = await asyncio.gather(*[pull_queue(queue.queue, queue.max_offset) for queue in queues])
    return sum(count for count, _ in pulled), sum(body_bytes for _, body_bytes in pulled)


AIO_CONSUMER = Case(
    "aio-consumer",
    "1 M stored messages into one asyncio client",
    (
        Measure("iter", "`async for` over `Consumer.iter`, `body` of each message", "msg/s", 800_000),
        Measure("body", "`pull`, `body` of each message", "msg/s", 800_000),
        Measure("bodies", "`pull`, `batch.bodies()`", "msg/s"),
    ),
    _aio_samples,
)

# ---- arrow: one Python process reads record batches.

COLUMNS = ("body", "stored_at")


def _arrow_samples(bench: Bench) -> Samples:
    """Yield one sample per run: all columns, two columns, and the CPU time of the reading process alone."""
    for library in ("pyarrow", "numba"):
        if importlib.util.find_spec(library) is None:
            raise Skipped("the extra `arrow` is not installed")
    count = bench.count(MESSAGES)
    with bench.filled(count) as (broker, _), Consumer(broker.address) as consumer:
        streams = {"all": consumer.arrow(TOPIC), "two": consumer.arrow(TOPIC, columns=COLUMNS)}
        next(iter(streams["all"]))  # let Numba compile
        for _ in range(bench.runs):
            sample: Sample = {}
            for name, stream in streams.items():
                began, cpu_began = time.perf_counter(), time.process_time()
                rows = sum(batch.num_rows for batch in stream)
                sample[name] = rows / (time.perf_counter() - began)
                sample[f"{name}_cpu"] = rows / (time.process_time() - cpu_began)
                if rows != count:
                    raise BenchFailed(f"{rows:,} rows were read, stored were {count:,}")
            yield sample


ARROW = Case(
    "arrow",
    "a running broker → Arrow, `Consumer.arrow`, checksums verified, one reading process with Numba",
    (
        Measure("two", "`body` and `stored_at`", "rows/s", 2_500_000),
        Measure("all", "all columns", "rows/s"),
        Measure("two_cpu", "`body` and `stored_at`, per second of the reader's CPU time", "rows/s"),
        Measure("all_cpu", "all columns, per second of the reader's CPU time", "rows/s"),
    ),
    _arrow_samples,
)

# ---- query: one message found by its unique key.

QUERIES = 10_000
WARM_UP_QUERIES = 200


def _query_samples(bench: Bench) -> Samples:
    count = bench.count(MESSAGES)
    with bench.filled(count) as (broker, packer):
        for run in range(bench.runs):
            taken = query(broker, packer.unique_key, count, bench.count(QUERIES), seed=run)
            yield {"p50": p50_and_p99(taken, "µs")["p50"], "p99": p50_and_p99(taken, "ms")["p99"]}


def query(broker: Broker, key_of: Callable[[int], str], stored: int, queries: int, seed: int) -> list[float]:
    """Return the seconds of each query for one of the stored messages by its key, unique or not."""
    choose = random.Random(seed)
    taken = []
    with Consumer(broker.address) as consumer:
        for _ in range(WARM_UP_QUERIES + queries):
            key = key_of(choose.randrange(stored))
            began = time.perf_counter()
            found = consumer.query(TOPIC, key=key)
            taken.append(time.perf_counter() - began)
            if len(found) != 1 or key not in (found[0].message_id, *found[0].keys):
                raise BenchFailed(f"the query for {key} found {[message.message_id for message in found]}")
    return taken[WARM_UP_QUERIES:]


QUERY = Case(
    "query",
    "query by unique key among 1 M",
    (Measure("p50", "p50", "µs", 150), Measure("p99", "p99", "ms", 1.0)),
    _query_samples,
)
