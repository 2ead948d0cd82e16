"""Sends: in bulk, one at a time, with many in flight; and the broker alone, with frames that were packed beforehand."""

from __future__ import annotations

import asyncio
import multiprocessing
import queue
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeAlias

from flintmq.client import Message, Producer
from flintmq.client.aio import Producer as AioProducer

from ..bench import Bench
from ..broker import Broker
from ..load import BODY_BYTES, TOPIC, Columns, FramePacker, columns, messages_a_frame
from ..machine import Stopwatch
from ..measure import BenchFailed, Case, Measure, Sample, Samples, p50_and_p99
from ..raw import TIMEOUT_SECONDS, RawClient, closed_loop, connected


def messages_of(load: Columns) -> list[Message]:
    return [Message(TOPIC, body, keys=(key,)) for body, key in zip(load.bodies, load.keys, strict=True)]


# ---- produce: one process sends with the SDK, until all is acknowledged and queues and index have caught up.

BULK_MESSAGES = 1_000_000
MANY_MESSAGES = 500_000
MESSAGES_A_CALL = 100_000
SDK_WARM_UP_MESSAGES = 20_000

Call: TypeAlias = Callable[[Producer], int]
"""Function that makes one call of the SDK and returns its number of receipts."""


def bulk_call(chunk: Columns) -> Call:
    """Send columns unchanged."""
    return lambda producer: len(producer.send_bulk(TOPIC, bodies=chunk.bodies, keys=chunk.keys))


def making_call(chunk: Columns) -> Call:
    """Send messages that are created during the measurement."""
    return lambda producer: len(producer.send_many(messages_of(chunk)))


def made_call(chunk: Columns) -> Call:
    """Send messages that were created before the measurement."""
    messages = messages_of(chunk)
    return lambda producer: len(producer.send_many(messages))


def _produce_samples(bench: Bench) -> Samples:
    ways = (
        ("bulk", bulk_call, BULK_MESSAGES),
        ("many", making_call, MANY_MESSAGES),
        ("made", made_call, MANY_MESSAGES),
    )
    warm_up = bench.count(SDK_WARM_UP_MESSAGES)
    for _ in range(bench.runs):
        sample: Sample = {}
        for name, call, messages in ways:
            count = bench.count(messages)
            with bench.broker() as broker:
                sample[name], sample[f"{name}_cpu"] = call_sdk(broker, call, count, warm_up)
                broker.check_stored(TOPIC, count + warm_up)
        yield sample


def call_sdk(broker: Broker, call: Callable[[Columns], Call], count: int, warm_up: int) -> tuple[float, float]:
    """Return messages per second until all are acknowledged and dispatched, and broker CPU seconds per million."""
    calls, warm_ups = ([call(chunk) for chunk in columns(each).chunks(MESSAGES_A_CALL)] for each in (count, warm_up))
    with Producer(broker.address) as producer:
        for each in warm_ups:
            each(producer)
        broker.wait_until_caught_up()
        watch = Stopwatch(broker.pid)
        acknowledged = sum(each(producer) for each in calls)
        broker.wait_until_caught_up()
        seconds, cpu = watch.seconds(), watch.broker_cpu_seconds()
    if acknowledged != count:
        raise BenchFailed(f"{acknowledged:,} receipts for {count:,} messages")
    return count / seconds, cpu * 1e6 / count


PRODUCE = Case(
    "produce",
    "one Python process, acknowledged, async flush, index keeping up",
    (
        Measure("bulk", "`send_bulk`", "msg/s", 900_000),
        Measure("bulk_cpu", "`send_bulk`: broker CPU per million", "s"),
        Measure("many", "`send_many`, making the `Message`s included", "msg/s", 450_000),
        Measure("made", "`send_many` of `Message`s made before", "msg/s", 450_000),
        Measure("made_cpu", "`send_many`: broker CPU per million", "s"),
    ),
    _produce_samples,
)

# ---- broker-alone: frames packed beforehand on one connection, until queues and index have caught up.

ALONE_MESSAGES = 2_000_000
ALONE_WARM_UP_MESSAGES = 50_000
LAYOUTS = ("columns", "rows")


def _alone_samples(bench: Bench) -> Samples:
    count, warm_up_count = bench.count(ALONE_MESSAGES), bench.count(ALONE_WARM_UP_MESSAGES)
    frames = {layout: pack(count, layout=layout) for layout in LAYOUTS}
    warm_up = {layout: pack(warm_up_count, layout=layout) for layout in LAYOUTS}
    for _ in range(bench.runs):
        sample: Sample = {}
        for layout in LAYOUTS:
            with bench.broker() as broker:
                seconds, cpu = stream(broker, frames[layout], warm_up[layout])
                broker.check_stored(TOPIC, count + warm_up_count)
            sample[layout] = count / seconds
            sample[f"{layout}_cpu"] = cpu * 1e6 / count
        yield sample


def pack(count: int, body_bytes: int = BODY_BYTES, layout: str = "columns") -> list[bytes]:
    """Return frames with ``count`` messages in all, as large as those of the SDK."""
    packer = FramePacker(f"{layout} {count} {body_bytes}")
    pack_frame = packer.columns if layout == "columns" else packer.rows
    return [pack_frame(chunk) for chunk in columns(count, body_bytes).chunks(messages_a_frame(body_bytes))]


def stream(broker: Broker, frames: list[bytes], warm_up: list[bytes]) -> tuple[float, float]:
    """Return the seconds until all ``frames`` are acknowledged and dispatched, and the broker's CPU seconds."""
    with RawClient(broker.address) as client:
        client.stream(warm_up)
        broker.wait_until_caught_up()
        watch = Stopwatch(broker.pid)
        client.stream(frames)
        broker.wait_until_caught_up()
        return watch.seconds(), watch.broker_cpu_seconds()


BROKER_ALONE = Case(
    "broker-alone",
    "broker alone: frames packed beforehand, unique keys, index keeping up",
    (
        Measure("columns", "columns", "msg/s", 1_500_000),
        Measure("columns_cpu", "columns: broker CPU per million", "s", 0.8),
        Measure("rows", "rows", "msg/s"),
        Measure("rows_cpu", "rows: broker CPU per million", "s"),
    ),
    _alone_samples,
)

# ---- record-checksum: brokers with and without a checksum over the whole record (``store.record_checksum``), in turn.

CHECKSUM_SIZES = ((BODY_BYTES, 2_000_000), (1_000, 250_000))
"""(Body size in bytes, number of messages) of each measurement."""
CHECKSUM_SDK_MESSAGES = 1_000_000
ON = ("--set", "store.record_checksum=true")


def _checksum_samples(bench: Bench) -> Samples:
    """Yield one sample per run; in every other run the broker with checksums comes first."""
    warm_up_count, sdk_count = bench.count(ALONE_WARM_UP_MESSAGES), bench.count(CHECKSUM_SDK_MESSAGES)
    for run in range(bench.runs):
        turns = (False, True) if run % 2 == 0 else (True, False)
        sample: Sample = {}
        for body_bytes, messages in CHECKSUM_SIZES:
            count = bench.count(messages)
            frames, warm_up = pack(count, body_bytes), pack(warm_up_count, body_bytes)
            seconds, cpu = {}, {}
            for on in turns:
                with bench.broker("async", *(ON if on else ())) as broker:
                    seconds[on], cpu[on] = stream(broker, frames, warm_up)
                    broker.check_stored(TOPIC, count + warm_up_count)
            sample[f"rate_{body_bytes}"] = count / seconds[True]
            sample[f"ratio_{body_bytes}"] = seconds[False] / seconds[True]
            sample[f"cpu_{body_bytes}"] = (cpu[True] - cpu[False]) / count * 1e9
        rates = {}
        for on in turns:
            with bench.broker("async", *(ON if on else ())) as broker:
                rates[on], _ = call_sdk(broker, bulk_call, sdk_count, warm_up_count)
        yield sample | {"sdk": rates[True], "sdk_ratio": rates[True] / rates[False]}


def _checksum_measures(body_bytes: int) -> tuple[Measure, ...]:
    return (
        Measure(f"rate_{body_bytes}", f"broker alone, {body_bytes:,}-byte bodies, with checksums", "msg/s"),
        Measure(f"ratio_{body_bytes}", f"broker alone, {body_bytes:,}-byte bodies: rate with / without", "×"),
        Measure(f"cpu_{body_bytes}", f"{body_bytes:,}-byte bodies: broker CPU more a message", "ns"),
    )


RECORD_CHECKSUM = Case(
    "record-checksum",
    "`store.record_checksum` on beside off, in turns",
    (
        *(measure for body_bytes, _ in CHECKSUM_SIZES for measure in _checksum_measures(body_bytes)),
        Measure("sdk", "`send_bulk`, with checksums", "msg/s"),
        Measure("sdk_ratio", "`send_bulk`: rate with / without", "×"),
    ),
    _checksum_samples,
)

# ---- connections: 64 connections or threads, each with one message in flight.

CONNECTIONS = 64
MESSAGES_BY_FLUSH = {"async": 200_000, "sync": 100_000}
THREADS_MESSAGES = 20_000
WARM_UP_MESSAGES = 5_000


def _connections_samples(bench: Bench) -> Samples:
    def measure(broker: Broker, flush: str) -> Sample:
        send_from_sockets(broker, _frames_of_each(bench.count(WARM_UP_MESSAGES), "warm-up"))
        frames = _frames_of_each(bench.count(MESSAGES_BY_FLUSH[flush]), flush)
        watch = Stopwatch(broker.pid)
        rate = send_from_sockets(broker, frames)
        cpu = watch.broker_cpu_seconds() * 1e6 / sum(map(len, frames))
        load = columns(bench.count(THREADS_MESSAGES))
        sdk, shared = (send_from_threads(broker, load, producers) for producers in (CONNECTIONS, 1))
        return {"": rate, "cpu": cpu, "sdk": sdk, "shared": shared}

    return bench.by_flush(measure)


def _frames_of_each(count: int, seed: str) -> list[list[bytes]]:
    """Return the frames for each connection, with one message each; about ``count`` in all."""
    packer = FramePacker(seed)
    frames = [packer.columns(message) for message in columns(count).chunks(1)]
    return [frames[number::CONNECTIONS] for number in range(CONNECTIONS)]


def send_from_sockets(broker: Broker, frames: list[list[bytes]]) -> float:
    """Return the messages per second of connections that each send one message at a time."""
    with connected(broker.address, len(frames)) as clients:
        return closed_loop(clients, frames).rate


def send_from_threads(broker: Broker, load: Columns, producers: int) -> float:
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


CONNECTIONS_CASE = Case(
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
    _connections_samples,
)

# ---- single: one producer that waits for each acknowledgement before it sends the next message.

SINGLE_MESSAGES = {"async": 20_000, "sync": 5_000}
SINGLE_WARM_UP_MESSAGES = 500


def _single_samples(bench: Bench) -> Samples:
    return bench.by_flush(
        lambda broker, flush: p50_and_p99(send_one_by_one(broker, bench.count(SINGLE_MESSAGES[flush])), "µs")
    )


def send_one_by_one(broker: Broker, count: int) -> list[float]:
    """Return the seconds of each ``send``, and check that all messages are stored."""
    taken = seconds_of_sends(broker.address, count, SINGLE_WARM_UP_MESSAGES)
    broker.wait_until_caught_up()
    broker.check_stored(TOPIC, count + SINGLE_WARM_UP_MESSAGES)
    return taken


def seconds_of_sends(address: str, count: int, warm_up: int) -> list[float]:
    """Return the seconds of each ``send`` after the first ``warm_up``."""
    taken = []
    with Producer(address) as producer:
        for message in messages_of(columns(count + warm_up)):
            began = time.perf_counter()
            producer.send(message)
            taken.append(time.perf_counter() - began)
    return taken[warm_up:]


SINGLE = Case(
    "single",
    "one send at a time",
    (
        Measure("async_p50", "async flush: p50", "µs", 80),
        Measure("async_p99", "async flush: p99", "µs"),
        Measure("sync_p50", "sync flush: p50", "µs", 350),
        Measure("sync_p99", "sync flush: p99", "µs"),
    ),
    _single_samples,
)

# ---- aio-sends: 64 tasks of one asyncio client, which batches their sends by itself.

TASKS = 64


def _aio_samples(bench: Bench) -> Samples:
    def measure(broker: Broker, flush: str) -> Sample:
        load = columns(bench.count(WARM_UP_MESSAGES) + bench.count(MESSAGES_BY_FLUSH[flush]))
        rate, client_cpu_seconds = asyncio.run(send_from_tasks(broker, load, bench.count(WARM_UP_MESSAGES)))
        broker.wait_until_caught_up()
        broker.check_stored(TOPIC, len(load))
        return {"": rate, "cpu": client_cpu_seconds * 1e6}

    return bench.by_flush(measure)


async def send_from_tasks(broker: Broker, load: Columns, warm_up: int) -> tuple[float, float]:
    """Return messages per second, and the client's CPU seconds per message, without the first ``warm_up`` messages.

    Each task repeatedly creates a message, sends it, and waits for its acknowledgement.
    """
    async with AioProducer(broker.address) as producer:

        async def send(start: int, end: int) -> None:
            for body, key in zip(load.bodies[start:end:TASKS], load.keys[start:end:TASKS], strict=True):
                await producer.send(Message(TOPIC, body, keys=(key,)))

        await asyncio.gather(*[send(number, warm_up) for number in range(TASKS)])
        cpu_before, began = time.process_time(), time.perf_counter()
        await asyncio.gather(*[send(warm_up + number, len(load)) for number in range(TASKS)])
        count = len(load) - warm_up
        return count / (time.perf_counter() - began), (time.process_time() - cpu_before) / count


AIO_SENDS = Case(
    "aio-sends",
    "64 sends in flight from one asyncio client",
    (
        Measure("async", "async flush", "msg/s", 100_000),
        Measure("async_cpu", "async flush: the client's CPU a message", "µs"),
        Measure("sync", "sync flush", "msg/s", 60_000),
        Measure("sync_cpu", "sync flush: the client's CPU a message", "µs"),
    ),
    _aio_samples,
)

# ---- bulks-sync: four producers; each waits until a bulk of 100 messages is on disk before it sends the next.

PRODUCERS = 4
MESSAGES_A_BULK = 100
MESSAGES_A_PRODUCER = 200_000
WARM_UP_BULKS = 20


def _bulks_samples(bench: Bench) -> Samples:
    for _ in range(bench.runs):
        count = bench.count(MESSAGES_A_PRODUCER) // MESSAGES_A_BULK * MESSAGES_A_BULK
        sample: Sample = {}
        for kind in ("processes", "threads"):
            with bench.broker("sync") as broker:
                sample[kind] = _bulks_a_second(broker.address, count, as_processes=kind == "processes")
                broker.wait_until_caught_up()
                broker.check_stored(TOPIC, PRODUCERS * (count + WARM_UP_BULKS * MESSAGES_A_BULK))
        yield sample


def _bulks_a_second(address: str, count: int, as_processes: bool) -> float:
    """Return the messages per second of all producers, from the start of the first to the end of the last."""
    barrier: Any
    spans: Any
    start: Any
    if as_processes:
        context = multiprocessing.get_context("spawn")
        barrier, spans, start = context.Barrier(PRODUCERS), context.Queue(), context.Process
    else:
        barrier, spans, start = threading.Barrier(PRODUCERS), queue.Queue(), threading.Thread
    workers = [start(target=_send_bulks, args=(address, count, barrier, spans), daemon=True) for _ in range(PRODUCERS)]
    for worker in workers:
        worker.start()
    try:
        begun, ended = zip(*(spans.get(timeout=2 * TIMEOUT_SECONDS) for _ in workers), strict=True)
    except queue.Empty:
        raise BenchFailed(f"a producer did not end within {2 * TIMEOUT_SECONDS:.0f} s") from None
    finally:
        for worker in workers:
            worker.join(1.0)
            if as_processes and worker.is_alive():
                worker.kill()
    rate: float = PRODUCERS * count / (max(ended) - min(begun))
    return rate


def _send_bulks(address: str, count: int, barrier: Any, spans: Any) -> None:
    """Run one producer, and put its start and end times, by the clock that all processes share."""
    bulks = list(columns(count).chunks(MESSAGES_A_BULK))
    with Producer(address) as producer:
        for _ in range(WARM_UP_BULKS):
            producer.send_bulk(TOPIC, bodies=bulks[0].bodies, keys=bulks[0].keys)
        barrier.wait(2 * TIMEOUT_SECONDS)
        began = time.monotonic()
        for bulk in bulks:
            producer.send_bulk(TOPIC, bodies=bulk.bodies, keys=bulk.keys)
        spans.put((began, time.monotonic()))


BULKS_SYNC = Case(
    "bulks-sync",
    "bulks of 100 from 4 producers, sync flush",
    (Measure("processes", "4 processes", "msg/s", 250_000), Measure("threads", "4 threads of one process", "msg/s")),
    _bulks_samples,
)
