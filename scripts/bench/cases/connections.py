"""64 connections, each with one message in flight."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack

from flintmq.client import Message, Producer

from ..bench import Bench
from ..broker import Broker
from ..closed_loop import closed_loop, connected
from ..load import TOPIC, Columns, FramePacker, columns
from ..machine import Stopwatch
from ..measure import BenchFailed, Case, Measure, Sample, Samples
from ..raw import TIMEOUT_SECONDS

CONNECTIONS = 64
ASYNC_MESSAGES = 200_000
SYNC_MESSAGES = 100_000
SDK_MESSAGES = 20_000
WARM_UP_MESSAGES = 5_000


def samples(bench: Bench) -> Samples:
    """Yield one sample per run."""
    for _ in range(bench.runs):
        sample: Sample = {}
        for flush, count in (("async", ASYNC_MESSAGES), ("sync", SYNC_MESSAGES)):
            with bench.broker(flush) as broker:
                send_all(broker, packed(bench.count(WARM_UP_MESSAGES), "warm-up"))
                frames = packed(bench.count(count), flush)
                watch = Stopwatch(broker.pid)
                sample[flush] = send_all(broker, frames)
                sample[f"{flush}_cpu"] = watch.broker_cpu_seconds() * 1e6 / sum(map(len, frames))
                sample[f"{flush}_sdk"] = sdk_threads(broker, columns(bench.count(SDK_MESSAGES)), producers=CONNECTIONS)
                sample[f"{flush}_shared"] = sdk_threads(broker, columns(bench.count(SDK_MESSAGES)), producers=1)
        yield sample


# ---- one thread, 64 sockets ----


def packed(count: int, seed: str) -> list[list[bytes]]:
    """Return the frames for each connection, with one message each; about ``count`` in all."""
    packer = FramePacker(seed)
    frames = [packer.columns(message) for message in columns(count).chunks(1)]
    return [frames[number::CONNECTIONS] for number in range(CONNECTIONS)]


def send_all(broker: Broker, frames: list[list[bytes]]) -> float:
    """Return the messages per second of connections that each send one message at a time."""
    with connected(broker.address, len(frames)) as clients:
        return closed_loop(clients, frames).rate


# ---- the SDK ----


def sdk_threads(broker: Broker, load: Columns, producers: int) -> float:
    """Return the messages per second of 64 threads that call ``send``, each with its own Producer or a shared one."""
    with ExitStack() as stack:
        open_producers = [stack.enter_context(Producer(broker.address)) for _ in range(producers)]
        barrier = threading.Barrier(CONNECTIONS + 1)
        failures: list[BaseException] = []

        def send_share(number: int) -> None:
            producer = open_producers[number % producers]
            try:
                producer.send(Message(TOPIC, b"connects"))
                barrier.wait(TIMEOUT_SECONDS)
                for body, key in zip(load.bodies[number::CONNECTIONS], load.keys[number::CONNECTIONS], strict=True):
                    producer.send(Message(TOPIC, body, keys=(key,)))
            except BaseException as failure:  # noqa: BLE001 - the thread that joins this one raises it again
                failures.append(failure)
                barrier.abort()

        threads = [threading.Thread(target=send_share, args=(number,), daemon=True) for number in range(CONNECTIONS)]
        for thread in threads:
            thread.start()
        barrier.wait(TIMEOUT_SECONDS)
        began = time.perf_counter()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - began
    if failures:
        raise BenchFailed(f"a thread that sends failed: {failures[0]!r}") from failures[0]
    return len(load) / seconds


CASE = Case(
    "connections",
    "64 connections, one send at a time each",
    (
        Measure("async", "async flush", "msg/s", 30_000),
        Measure("async_cpu", "async flush: broker CPU per million", "s"),
        Measure("sync", "sync flush (group commit)", "msg/s", 25_000),
        Measure("sync_cpu", "sync flush: broker CPU per million", "s"),
        Measure("async_sdk", "async flush, SDK: 64 threads with a Producer each", "msg/s"),
        Measure("sync_sdk", "sync flush, SDK: 64 threads with a Producer each", "msg/s"),
        Measure("async_shared", "async flush, SDK: 64 threads share a Producer", "msg/s"),
        Measure("sync_shared", "sync flush, SDK: 64 threads share a Producer", "msg/s"),
    ),
    samples,
)
