"""Spark reads stored messages: as a batch, as a stream, and as they arrive."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from flintmq.client.core.consume.batch import EVERYTHING

from ..bench import Bench
from ..load import BODY_BYTES, TOPIC
from ..measure import BenchFailed, Case, Measure, Sample, Samples, percentile
from ..paced_sender import MESSAGES_A_SECOND, send_paced
from ..raw import RawClient
from ..spark import driver
from ..spark.sides import KAFKA, RATIO, Side, SideBySide, compared, measures, side_by_side

if TYPE_CHECKING:
    from flintmq.client.arrow.stream import PulledRows

# ---- spark-batch: to a no-op sink, to Parquet, and directly from the files.

BATCH_MESSAGES = 2_000_000


def _batch_samples(bench: Bench) -> Samples:
    """Yield one sample per run for reads through the brokers, then one per run for reads from FlintMQ's files."""
    with side_by_side(bench, bench.count(BATCH_MESSAGES)) as both:
        _batch_run(both)  # warm up Java's JIT compiler
        for _ in range(bench.runs):
            yield _batch_run(both)
        both.stop_flintmq()
        archive = Side("", driver.Source("flintmq-store", path=str(both.store)))
        both.check(archive.source)
        for _ in range(bench.runs):
            yield both.run("archive", archive, driver.to_noop)
        both.end()


def _batch_run(both: SideBySide) -> Sample:
    """Read each side into the no-op sink, then each into Parquet."""
    sample: Sample = {}
    for side in both.sides:
        sample |= both.run("noop", side, driver.to_noop)
    for side in both.sides:
        sample |= both.run("parquet", side, driver.to_parquet, both.folder / "parquet")
    return sample | compared(sample, "noop") | compared(sample, "parquet")


SPARK_BATCH = Case(
    "spark-batch",
    "Spark, batch: 2 M rows, all columns, local[2] and the broker on the same cores",
    (
        *measures("noop", "→ noop", 1_000_000, ratio=1.5),
        *measures("parquet", f"→ Parquet ({driver.PARQUET_CODEC})", 350_000, ratio=1.2),
        *measures("archive", "from the store's files, no broker → noop", 1_200_000),
    ),
    _batch_samples,
)

# ---- spark-stream: from an empty checkpoint to the end of the topic.

STREAM_MESSAGES = 3_000_000


def _stream_samples(bench: Bench) -> Samples:
    with side_by_side(bench, bench.count(STREAM_MESSAGES)) as both:
        _stream_run(both)  # warm up Java's JIT compiler
        for _ in range(bench.runs):
            yield _stream_run(both)
        both.end()


def _stream_run(both: SideBySide) -> Sample:
    """Stream each side into the no-op sink, with a new checkpoint for each query."""
    sample: Sample = {}
    for side in both.sides:
        sample |= both.run("stream", side, driver.stream_to_noop, both.folder)
    return sample | compared(sample, "stream")


SPARK_STREAM = Case(
    "spark-stream",
    "Spark, Structured Streaming, AvailableNow: 3 M rows, all columns, local[2] and the broker on the same cores",
    measures("stream", "→ noop", 600_000, ratio=1.5),
    _stream_samples,
)

# ---- spark-latency: from ``send`` to a sink at 500 messages per second, one micro-batch after another.

WARM_UP_SECONDS = 10
MEASURED_SECONDS = 20
LATE_SECONDS_MAX = 60.0
"""Seconds to wait for the last messages after the last send."""

_QUICK_SECONDS = 1


def _latency_samples(bench: Bench) -> Samples:
    """Yield one sample per run: FlintMQ, then Kafka, each with its own query."""
    warm_up, measured = (_QUICK_SECONDS, _QUICK_SECONDS) if bench.quick else (WARM_UP_SECONDS, MEASURED_SECONDS)
    with side_by_side(bench, 0) as both:
        for _ in range(bench.runs):
            sample: Sample = {}
            for side in both.sides:
                taken = _latencies(both, side, warm_up, measured)
                sample[f"p50{side.suffix}"] = percentile(taken, 0.50)
                sample[f"p99{side.suffix}"] = percentile(taken, 0.99)
            if f"p50{KAFKA}" in sample:
                sample[f"p50{RATIO}"] = sample[f"p50{KAFKA}"] / sample["p50"]
            yield sample
        both.end()


def stamp_micros() -> bytes:
    """Return the present time as the start of a body, as Kafka's producer writes it."""
    return driver.STAMP.pack(time.time_ns() // 1000)


def _latencies(both: SideBySide, side: Side, warm_up: int, measured: int) -> list[float]:
    """Return the milliseconds from the creation of each message until the sink had it, without the warm-up."""
    both.driver.call(driver.start_noting, side.source, both.folder)
    count = (warm_up + measured) * MESSAGES_A_SECOND
    began = time.time_ns() // 1000
    if side.suffix == KAFKA:
        assert both.kafka is not None
        with both.kafka.pace(count, BODY_BYTES, MESSAGES_A_SECOND) as sender:
            noted = both.driver.call(driver.stop_noting, began, count, warm_up + measured + LATE_SECONDS_MAX)
            if sender.wait(LATE_SECONDS_MAX):
                raise BenchFailed(f"Kafka's producer ended with {sender.returncode}")
    else:
        thread = threading.Thread(
            target=send_paced, args=(both.flintmq.address, count, None, stamp_micros), daemon=True
        )
        thread.start()
        noted = both.driver.call(driver.stop_noting, began, count, warm_up + measured + LATE_SECONDS_MAX)
        thread.join()
    first = noted[0][0] + warm_up * 1_000_000
    return [(arrived - made) / 1000 for made, arrived in noted if made >= first]


SPARK_LATENCY = Case(
    "spark-latency",
    f"Spark, micro-batches without a pause: message → sink at {MESSAGES_A_SECOND} msg/s",
    (
        Measure("p50", "p50", "ms", 400),
        Measure("p99", "p99", "ms"),
        Measure(f"p50{KAFKA}", "p50: Spark's Kafka connector", "ms"),
        Measure(f"p99{KAFKA}", "p99: Spark's Kafka connector", "ms"),
        Measure(f"p50{RATIO}", "p50: Kafka takes times as long", "×", 1.0),
    ),
    _latency_samples,
)

# ---- spark-decode: pull responses to record batches with all columns, on one core, without Spark or broker load.

DECODED_MESSAGES = 1_000_000
PULL_TIMEOUT_SECONDS = 30.0


def _decode_samples(bench: Bench) -> Samples:
    """Yield one sample per run. The responses are in memory; only the work of a Spark task is measured."""
    driver.spark_version()  # the extra installs Arrow as well
    count = bench.count(DECODED_MESSAGES)
    with bench.filled(count) as (broker, _):
        answers = list(pull_all(broker.address))
    decode(answers[:1])  # let Numba compile
    for _ in range(bench.runs):
        began = time.perf_counter()
        rows = decode(answers)
        took = time.perf_counter() - began
        if rows != count:
            raise BenchFailed(f"{rows:,} rows were decoded, stored were {count:,}")
        yield {"decode": rows / took}


def pull_all(address: str) -> Iterator[PulledRows]:
    """Return the responses to pulls of all messages, of the size that a task requests."""
    from flintmq.client.arrow.stream import PULL_COUNT, pull
    from flintmq.client.spark.brokers import call, parse_bootstrap

    (broker,) = parse_bootstrap(address)
    with RawClient(address) as client:
        lengths = client.queue_lengths(TOPIC)
    for number, length in lengths.items():
        offset = 0
        while offset < length:
            asked = pull(TOPIC, number, offset, PULL_COUNT, EVERYTHING)
            pulled = call(broker, asked, PULL_TIMEOUT_SECONDS)
            offset = pulled.next_offset
            yield pulled


def decode(answers: list[PulledRows]) -> int:
    """Convert each response to a record batch with all columns; return the rows."""
    from flintmq.client.arrow.decoder import COLUMNS, Decoder
    from flintmq.client.arrow.records import RecordBlock

    decoder = Decoder(COLUMNS)
    rows = 0
    for answer in answers:
        block = RecordBlock(answer.body, answer.starts, answer.sizes, topic=TOPIC)
        rows += decoder.batch(block, TOPIC).num_rows
    return rows


SPARK_DECODE = Case(
    "spark-decode",
    "answers to pulls → Arrow, all columns, checksums verified, one core",
    (Measure("decode", "all columns", "rows/s", 3_000_000),),
    _decode_samples,
)
