"""One Python process pulls a million stored messages."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from typing import TypeAlias

import msgpack

from flintmq.client import Batch, Consumer
from flintmq.protocol.commands import PULL
from flintmq.protocol.errors import SUCCESS, error_from_answer
from flintmq.protocol.frames import REQUEST, encode_frame

from ..bench import Bench
from ..broker import Broker
from ..load import BODY_BYTES, TOPIC, fill
from ..measure import BenchFailed, Case, Measure, Sample, Samples
from ..raw import RawClient

MESSAGES = 1_000_000
PULL_BYTES = 2 << 20
RAW_PULL_BYTES = 4 << 20
PULL_COUNT = 100_000
FRAME_BYTES_MAX = 16 << 20

_LENGTHS = struct.Struct(">II")

Read: TypeAlias = Callable[[Batch], tuple[int, int]]
"""Function that reads every body of a batch and returns their number and bytes."""


def samples(bench: Bench) -> Samples:
    """Yield one sample per run."""
    count = bench.count(MESSAGES)
    stored = count, count * BODY_BYTES
    with bench.broker() as broker:
        fill(broker.address, count)
        broker.wait_until_caught_up()
        with RawClient(broker.address) as client:
            lengths = {queue: length for queue, length in client.queue_lengths(TOPIC).items() if length}
        for _ in range(bench.runs):
            sample: Sample = {}
            for name, read in (("body", read_each), ("bodies", read_all)):
                began = time.perf_counter()
                pulled = pull(broker, lengths, read)
                sample[name] = count / (time.perf_counter() - began)
                check(pulled, stored)
            began = time.perf_counter()
            pulled = iterate(broker)
            sample["iter"] = count / (time.perf_counter() - began)
            check(pulled, stored)
            began = time.perf_counter()
            received_bytes = receive(broker, lengths)
            sample["raw"] = received_bytes / (time.perf_counter() - began) / 1e9
            yield sample


def check(pulled: tuple[int, int], stored: tuple[int, int]) -> None:
    """Raise ``BenchFailed`` unless the messages read are the stored ones."""
    if pulled != stored:
        raise BenchFailed(f"{pulled[0]:,} messages of {pulled[1]:,} bytes came back, stored were {stored}")


# ---- the SDK ----


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


def iterate(broker: Broker) -> tuple[int, int]:
    """Read every message of every queue with ``Consumer.iter``; return their number and bytes."""
    count = body_bytes = 0
    with Consumer(broker.address) as consumer:
        for message in consumer.iter(TOPIC, from_="earliest", until="latest"):
            body_bytes += len(message.body)
            count += 1
    return count, body_bytes


# ---- answers received and not looked into ----


def receive(broker: Broker, lengths: dict[int, int]) -> int:
    """Return the bytes of the responses to pulls of every message. It sends the next pull as soon as the head of a
    response has arrived."""
    received_bytes = 0
    buffer = memoryview(bytearray(4 + FRAME_BYTES_MAX))
    with RawClient(broker.address) as client:
        sock = client.sock
        for queue, length in lengths.items():
            offset = 0
            sock.sendall(pull_frame(queue, offset))
            while offset < length:
                got = receive_more(sock, buffer, 0, _LENGTHS.size)
                frame_length, header_length = _LENGTHS.unpack_from(buffer)
                body_at = _LENGTHS.size + header_length
                got = receive_more(sock, buffer, got, body_at)
                offset = next_offset(buffer[_LENGTHS.size : body_at])
                if offset < length:
                    sock.sendall(pull_frame(queue, offset))
                received_bytes += receive_more(sock, buffer[: 4 + frame_length], got, 4 + frame_length)
    return received_bytes


def pull_frame(queue: int, offset: int) -> bytes:
    """Send one request."""
    fields = {"topic": TOPIC, "queue": queue, "offset": offset, "max_count": PULL_COUNT, "max_bytes": RAW_PULL_BYTES}
    return encode_frame(REQUEST, PULL.code, 1, fields)


def receive_more(sock: socket.socket, buffer: memoryview, got: int, wanted: int) -> int:
    """Receive after the first ``got`` bytes until there are at least ``wanted``; return their number."""
    while got < wanted:
        count = sock.recv_into(buffer[got:])
        if not count:
            raise BenchFailed("the broker closed the connection")
        got += count
    return got


def next_offset(header: memoryview) -> int:
    """Return the offset for the next pull; raise the broker's error if the response is one."""
    _, code, _, fields = msgpack.unpackb(header)
    if code != SUCCESS:
        raise error_from_answer(code, fields)
    offset: int = fields["next_offset"]
    return offset


CASE = Case(
    "pull",
    "pull 1 M stored messages into one Python process",
    (
        Measure("body", "`body` of each message", "msg/s", 800_000),
        Measure("bodies", "`batch.bodies()`", "msg/s", 1_500_000),
        Measure("raw", "answers only received", "GB/s", 1.6),
        Measure("iter", "`Consumer.iter`, `body` of each message", "msg/s"),
    ),
    samples,
)
