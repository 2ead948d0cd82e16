"""64 connections, each with one message in flight."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import deque
from contextlib import ExitStack

from flintmq.client import Message, Producer

from ..bench import Bench
from ..broker import Broker
from ..load import TOPIC, Columns, FramePacker, columns
from ..machine import Stopwatch
from ..measure import BenchFailed, Case, Measure, Sample, Samples
from ..raw import TIMEOUT_SECONDS, RawClient

CONNECTIONS = 64
ASYNC_MESSAGES = 200_000
SYNC_MESSAGES = 100_000
SDK_MESSAGES = 20_000
WARM_UP_MESSAGES = 5_000

_ANSWER_BYTES_MAX = 4096
_SUCCESS = b"\x94\x01\x00"
"""First bytes of the header of a successful response: an array of 4, kind 1, code 0."""


def samples(bench: Bench) -> Samples:
    """Yield one sample per run."""
    for _ in range(bench.runs):
        sample: Sample = {}
        for flush, count in (("async", ASYNC_MESSAGES), ("sync", SYNC_MESSAGES)):
            with bench.broker(flush) as broker:
                closed_loop(broker, packed(bench.count(WARM_UP_MESSAGES), "warm-up"))
                frames = packed(bench.count(count), flush)
                watch = Stopwatch(broker.pid)
                sample[flush] = closed_loop(broker, frames)
                sample[f"{flush}_cpu"] = watch.broker_cpu_seconds() * 1e6 / sum(map(len, frames))
                sample[f"{flush}_sdk"] = sdk_threads(broker, columns(bench.count(SDK_MESSAGES)), producers=CONNECTIONS)
                sample[f"{flush}_shared"] = sdk_threads(broker, columns(bench.count(SDK_MESSAGES)), producers=1)
        yield sample


# ---- one thread, 64 sockets ----


def packed(count: int, seed: str) -> list[deque[bytes]]:
    """Return the frames for each connection, with one message each; about ``count`` in all."""
    packer = FramePacker(seed)
    frames = [packer.columns(message) for message in columns(count).chunks(1)]
    return [deque(frames[number::CONNECTIONS]) for number in range(CONNECTIONS)]


def closed_loop(broker: Broker, frames: list[deque[bytes]]) -> float:
    """Return the messages per second if each connection sends its next frame after the acknowledgement of the last.

    It uses one thread, one ``epoll`` and two system calls per message, because the client competes with the broker for
    the machine's cores.
    """
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(broker.address)) for _ in frames]
        poller = stack.enter_context(select.epoll())
        waiting: dict[int, tuple[socket.socket, deque[bytes]]] = {}
        for client, own_frames in zip(clients, frames, strict=True):
            waiting[client.sock.fileno()] = client.sock, deque(own_frames)
            poller.register(client.sock, select.EPOLLIN)
        began = time.perf_counter()
        for sock, own_frames in waiting.values():
            sock.send(own_frames.popleft())
        while waiting:
            events = poller.poll(TIMEOUT_SECONDS)
            if not events:
                raise BenchFailed(f"no answer to a PRODUCE within {TIMEOUT_SECONDS:.0f} s")
            for descriptor, _ in events:
                sock, own_frames = waiting[descriptor]
                check_answer(sock.recv(_ANSWER_BYTES_MAX))
                if own_frames:
                    sock.send(own_frames.popleft())
                else:
                    poller.unregister(descriptor)
                    del waiting[descriptor]
        seconds = time.perf_counter() - began
    return sum(map(len, frames)) / seconds


def check_answer(answer: bytes) -> None:
    """Raise ``BenchFailed`` unless the bytes are one complete successful response."""
    if len(answer) != 4 + int.from_bytes(answer[:4], "big") or answer[8:11] != _SUCCESS:
        raise BenchFailed(f"a PRODUCE was not answered with success: {answer[:200]!r}")


# ---- the SDK ----


def sdk_threads(broker: Broker, load: Columns, producers: int) -> float:
    """Return the messages per second of 64 threads that call ``send``, each with its own Producer or a shared one."""
    with ExitStack() as stack:
        open_producers = [stack.enter_context(Producer(broker.address)) for _ in range(producers)]
        barrier = threading.Barrier(CONNECTIONS + 1)
        failures: list[BaseException] = []

        def send_all(number: int) -> None:
            producer = open_producers[number % producers]
            try:
                producer.send(Message(TOPIC, b"connects"))
                barrier.wait(TIMEOUT_SECONDS)
                for body, key in zip(load.bodies[number::CONNECTIONS], load.keys[number::CONNECTIONS], strict=True):
                    producer.send(Message(TOPIC, body, keys=(key,)))
            except BaseException as failure:  # noqa: BLE001 - the thread that joins this one raises it again
                failures.append(failure)
                barrier.abort()

        threads = [threading.Thread(target=send_all, args=(number,), daemon=True) for number in range(CONNECTIONS)]
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
