"""One Python process reads a million stored messages as Arrow record batches."""

from __future__ import annotations

import importlib.util
import time

from flintmq.client import Consumer

from ..bench import Bench
from ..load import TOPIC, fill
from ..measure import BenchFailed, Case, Measure, Sample, Samples, Skipped

MESSAGES = 1_000_000
COLUMNS = ("body", "stored_at")


def samples(bench: Bench) -> Samples:
    """Yield one sample per run: all columns, two columns, and the CPU time of the reading process alone."""
    for library in ("pyarrow", "numba"):
        if importlib.util.find_spec(library) is None:
            raise Skipped("the extra `arrow` is not installed")
    count = bench.count(MESSAGES)
    with bench.broker() as broker, Consumer(broker.address) as consumer:
        fill(broker.address, count)
        broker.wait_until_caught_up()
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


CASE = Case(
    "arrow",
    "a running broker → Arrow, `Consumer.arrow`, checksums verified, one reading process with Numba",
    (
        Measure("two", "`body` and `stored_at`", "rows/s", 2_500_000),
        Measure("all", "all columns", "rows/s"),
        Measure("two_cpu", "`body` and `stored_at`, per second of the reader's CPU time", "rows/s"),
        Measure("all_cpu", "all columns, per second of the reader's CPU time", "rows/s"),
    ),
    samples,
)
