"""Conversion of pull responses to Arrow record batches with all columns, on one core, without Spark or broker load."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from flintmq.client.core.consume.batch import EVERYTHING

from ..bench import Bench
from ..load import TOPIC, fill
from ..measure import BenchFailed, Case, Measure, Samples
from ..raw import RawClient
from ..spark.driver import spark_version

if TYPE_CHECKING:
    from flintmq.client.arrow.stream import PulledRows

MESSAGES = 1_000_000
PULL_TIMEOUT_SECONDS = 30.0


def samples(bench: Bench) -> Samples:
    """Yield one sample per run. The responses are in memory; only the work of a Spark task is measured."""
    spark_version()  # the extra installs Arrow as well
    count = bench.count(MESSAGES)
    with bench.broker() as broker:
        fill(broker.address, count)
        broker.wait_until_caught_up()
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


CASE = Case(
    "spark-decode",
    "answers to pulls → Arrow, all columns, checksums verified, one core",
    (Measure("decode", "all columns", "rows/s", 3_000_000),),
    samples,
)
