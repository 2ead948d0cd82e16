"""One Python process produces through the SDK, everything acknowledged, queues and index caught up at the end."""

from __future__ import annotations

from collections.abc import Callable

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

Send = Callable[[Producer, Columns], int]


def send_bulk(producer: Producer, load: Columns) -> int:
    """As columns."""
    return len(producer.send_bulk(TOPIC, bodies=load.bodies, keys=load.keys))


def send_many(producer: Producer, load: Columns) -> int:
    """As Messages, which are made here: nobody has them before he sends them."""
    messages = [Message(TOPIC, body, keys=(key,)) for body, key in zip(load.bodies, load.keys, strict=True)]
    return len(producer.send_many(messages))


def samples(bench: Bench) -> Samples:
    """One a run."""
    for _ in range(bench.runs):
        sample: Sample = {}
        for name, send, count in (("bulk", send_bulk, BULK_MESSAGES), ("many", send_many, MANY_MESSAGES)):
            with bench.broker() as broker:
                rate, cpu = measure(broker, send, bench.count(count), bench.count(WARM_UP_MESSAGES))
            sample[name] = rate
            sample[f"{name}_cpu"] = cpu
        yield sample


def measure(broker: Broker, send: Send, count: int, warm_up: int) -> tuple[float, float]:
    """Messages a second, and processor seconds of the broker for a million of them."""
    load = columns(count)
    with Producer(broker.address) as producer:
        send(producer, columns(warm_up))
        broker.wait_until_caught_up()
        watch = Stopwatch(broker.pid)
        acknowledged = sum(send(producer, chunk) for chunk in load.chunks(MESSAGES_A_CALL))
        broker.wait_until_caught_up()
        seconds, cpu = watch.seconds(), watch.broker_cpu_seconds()
    if acknowledged != count:
        raise BenchFailed(f"{acknowledged:,} receipts for {count:,} messages")
    broker.check_stored(TOPIC, count + warm_up)
    return count / seconds, cpu * 1e6 / count


CASE = Case(
    "produce",
    "one Python process, acknowledged, async flush, index keeping up",
    (
        Measure("bulk", "`send_bulk`", "msg/s", 900_000),
        Measure("bulk_cpu", "`send_bulk`: broker CPU per million", "s"),
        Measure("many", "`send_many`, making the `Message`s included", "msg/s", 450_000),
        Measure("many_cpu", "`send_many`: broker CPU per million", "s"),
    ),
    samples,
)
