"""One Python process produces with the SDK until all is acknowledged and queues and index have caught up."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from flintmq.client import Message, Producer

from ..bench import Bench
from ..broker import Broker
from ..load import TOPIC, Columns, columns
from ..machine import Stopwatch
from ..measure import BenchFailed, Case, Measure, Sample, Samples

BULK_MESSAGES = 1_000_000
MANY_MESSAGES = 500_000
MESSAGES_A_CALL = 100_000
WARM_UP_MESSAGES = 20_000

Call: TypeAlias = Callable[[Producer], int]
"""Function that makes one call of the SDK and returns its number of receipts."""


def bulk_calls(load: Columns) -> list[Call]:
    """Send columns unchanged."""

    def call(chunk: Columns) -> Call:
        return lambda producer: len(producer.send_bulk(TOPIC, bodies=chunk.bodies, keys=chunk.keys))

    return [call(chunk) for chunk in load.chunks(MESSAGES_A_CALL)]


def making_calls(load: Columns) -> list[Call]:
    """Send messages that are created during the measurement."""

    def call(chunk: Columns) -> Call:
        return lambda producer: len(producer.send_many(messages_of(chunk)))

    return [call(chunk) for chunk in load.chunks(MESSAGES_A_CALL)]


def made_calls(load: Columns) -> list[Call]:
    """Send messages that were created before the measurement."""

    def call(messages: list[Message]) -> Call:
        return lambda producer: len(producer.send_many(messages))

    return [call(messages_of(chunk)) for chunk in load.chunks(MESSAGES_A_CALL)]


def messages_of(load: Columns) -> list[Message]:
    """Return a Message for each body."""
    return [Message(TOPIC, body, keys=(key,)) for body, key in zip(load.bodies, load.keys, strict=True)]


def samples(bench: Bench) -> Samples:
    """Yield one sample per run."""
    ways = (
        ("bulk", bulk_calls, bench.count(BULK_MESSAGES)),
        ("many", making_calls, bench.count(MANY_MESSAGES)),
        ("made", made_calls, bench.count(MANY_MESSAGES)),
    )
    for _ in range(bench.runs):
        sample: Sample = {}
        for name, calls, count in ways:
            with bench.broker() as broker:
                rate, cpu = measure(broker, calls(columns(count)), calls(columns(bench.count(WARM_UP_MESSAGES))), count)
                broker.check_stored(TOPIC, count + bench.count(WARM_UP_MESSAGES))
            sample[name] = rate
            sample[f"{name}_cpu"] = cpu
        yield sample


def measure(broker: Broker, calls: list[Call], warm_up: list[Call], count: int) -> tuple[float, float]:
    """Return messages per second until all are acknowledged and dispatched, and broker CPU seconds per million."""
    with Producer(broker.address) as producer:
        for call in warm_up:
            call(producer)
        broker.wait_until_caught_up()
        watch = Stopwatch(broker.pid)
        acknowledged = sum(call(producer) for call in calls)
        broker.wait_until_caught_up()
        seconds, cpu = watch.seconds(), watch.broker_cpu_seconds()
    if acknowledged != count:
        raise BenchFailed(f"{acknowledged:,} receipts for {count:,} messages")
    return count / seconds, cpu * 1e6 / count


CASE = Case(
    "produce",
    "one Python process, acknowledged, async flush, index keeping up",
    (
        Measure("bulk", "`send_bulk`", "msg/s", 900_000),
        Measure("bulk_cpu", "`send_bulk`: broker CPU per million", "s"),
        Measure("many", "`send_many`, making the `Message`s included", "msg/s", 450_000),
        Measure("made", "`send_many` of `Message`s made before", "msg/s", 450_000),
        Measure("made_cpu", "`send_many`: broker CPU per million", "s"),
    ),
    samples,
)
