"""FlintMQ and Kafka side by side: a broker of each with the same messages, and one Spark that reads both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..bench import Bench
from ..broker import Broker
from ..kafka.server import ALONE, Kafka, get_jars
from ..load import BODY_BYTES, QUEUES, TOPIC, blocks, fill
from ..machine import cpu_seconds, touch_memory
from ..measure import BenchFailed, Measure, Sample, Skipped
from ..raw import RawClient
from .driver import MASTER, Driver, Source, Work, count_rows, spark_version

KAFKA = "_kafka"
RATIO = "_ratio"


@dataclass(frozen=True, slots=True)
class Side:
    """The source of a job. ``suffix``: end of its figures' keys; ``pid``: the broker that serves it, if any."""

    suffix: str
    source: Source
    pid: int | None = None


@dataclass(slots=True)
class SideBySide:
    """The environment of a case: brokers that hold ``count`` messages each, and Spark.

    ``store``: FlintMQ's store; ``folder``: for Spark's output; ``kafka``: None for the reason ``without_kafka``.
    """

    count: int
    driver: Driver
    folder: Path
    store: Path
    flintmq: Broker
    kafka: Kafka | None
    without_kafka: str
    _flintmq_life: ExitStack

    @property
    def sides(self) -> list[Side]:
        """Yield FlintMQ, and Kafka if it is available; a run measures them in turn."""
        flintmq = {"bootstrap": self.flintmq.address, "subscribe": TOPIC}
        sides = [Side("", Source("flintmq", flintmq), self.flintmq.pid)]
        if self.kafka is not None:
            kafka = {"kafka.bootstrap.servers": self.kafka.address, "subscribe": TOPIC}
            sides.append(Side(KAFKA, Source("kafka", kafka, body="value"), self.kafka.pid))
        return sides

    def stop_flintmq(self) -> None:
        """Stop FlintMQ's broker gracefully; its store stays."""
        self._flintmq_life.close()

    def check(self, source: Source) -> None:
        """Raise ``BenchFailed`` unless Spark finds exactly the stored messages with all their bytes."""
        rows, body_bytes = self.driver.call(count_rows, source)
        if (rows, body_bytes) != (self.count, self.count * BODY_BYTES):
            raise BenchFailed(f"{source.format} gave {rows:,} messages of {body_bytes:,} bytes; stored: {self.count:,}")

    def run(self, name: str, side: Side, job: Callable[..., Work], *arguments: Any) -> Sample:
        """Run ``job(spark, the side's source, …)`` once. The figures' keys begin with ``name`` and the side's suffix.

        Return rows per second, and the CPU time per row of all processes involved.
        """
        name += side.suffix
        broker = cpu_seconds(side.pid) if side.pid else 0.0
        work = self.driver.call(job, side.source, *arguments)
        broker = (cpu_seconds(side.pid) if side.pid else 0.0) - broker
        if work.rows not in (-1, self.count):
            raise BenchFailed(f"{name}: {work.rows:,} rows came, stored were {self.count:,}")
        parts = {"java": work.cpu.java, "python": work.cpu.python, "broker": broker}
        micros = {f"{name}_cpu_{part}": seconds * 1e6 / self.count for part, seconds in parts.items()}
        return {name: self.count / work.seconds, f"{name}_cpu": sum(micros.values()), **micros}

    def end(self) -> None:
        """Raise ``Skipped`` if Kafka's figures could not be measured. Call it after the last run."""
        if self.without_kafka:
            raise Skipped(f"Kafka's figures: {self.without_kafka}")


@contextmanager
def side_by_side(bench: Bench, count: int) -> Iterator[SideBySide]:
    """Yield both brokers, each with the same ``count`` messages, and a Spark session that has read them once.

    Raises ``Skipped`` if Spark is not installed.
    """
    version = spark_version()
    jars, without_kafka = None, ALONE
    if not bench.alone:
        try:
            jars, without_kafka = get_jars(version), ""
        except Skipped as reason:
            without_kafka = str(reason)
    compared_with = "no Kafka" if jars is None else f"Kafka {jars.kafka_version}, connector {jars.connector_version}"
    bench.note(f"Spark {version}, {MASTER}, {compared_with}, both with their defaults")
    with ExitStack() as stack:
        store, folder = stack.enter_context(bench.store()), stack.enter_context(bench.store())
        flintmq_life = stack.enter_context(ExitStack())
        flintmq = flintmq_life.enter_context(Broker(store, "async"))
        with RawClient(flintmq.address) as client:
            client.create_topic(TOPIC, QUEUES)
        touch_memory(bench.touched_gib, bench.folder)
        fill(flintmq.address, count)
        flintmq.wait_until_caught_up()
        kafka = None
        if jars is not None:
            kafka = stack.enter_context(Kafka(jars, folder / "kafka", TOPIC, QUEUES))
            if count:
                kafka.fill((b"".join(block.bodies) for block in blocks(count)), count, BODY_BYTES)
        driver = stack.enter_context(Driver(folder, jars.connector if jars else ""))
        both = SideBySide(count, driver, folder, store, flintmq, kafka, without_kafka, flintmq_life)
        for side in both.sides:
            both.check(side.source)
        yield both


def compared(sample: Sample, name: str) -> Sample:
    """Return the ratio of FlintMQ's figure to Kafka's; empty without Kafka's."""
    return {name + RATIO: sample[name] / sample[name + KAFKA]} if name + KAFKA in sample else {}


def measures(name: str, title: str, target: float, ratio: float | None = None) -> tuple[Measure, ...]:
    """Return the measures of ``run`` and ``compared``: FlintMQ's rows per second, and with ``ratio`` also Kafka's."""
    own = [Measure(name, title, "rows/s", target), *_cpu(name, title)]
    if ratio is None:
        return tuple(own)
    of_kafka = f"{title}: Spark's Kafka connector"
    kafka = [Measure(name + KAFKA, of_kafka, "rows/s"), *_cpu(name + KAFKA, of_kafka)]
    return (*own, *kafka, Measure(name + RATIO, f"{title}: × Kafka", "×", ratio))


def _cpu(name: str, title: str) -> list[Measure]:
    whole = Measure(f"{name}_cpu", f"{title}: CPU a row, Spark and broker", "µs/row")
    parts = (("java", "Spark's Java"), ("python", "Python"), ("broker", "the broker"))
    return [whole, *(Measure(f"{name}_cpu_{key}", f"of it {who}", "µs/row", in_table=False) for key, who in parts)]
