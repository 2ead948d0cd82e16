"""Spark streams three million stored messages, from an empty checkpoint to the end of the topic."""

from __future__ import annotations

from ..bench import Bench
from ..measure import Case, Sample, Samples
from ..spark import jobs
from ..spark.sides import SideBySide, compared, measures, side_by_side

MESSAGES = 3_000_000


def samples(bench: Bench) -> Samples:
    """Yield one sample per run."""
    with side_by_side(bench, bench.count(MESSAGES)) as both:
        one_run(both)  # warm up Java's JIT compiler
        for _ in range(bench.runs):
            yield one_run(both)
        both.end()


def one_run(both: SideBySide) -> Sample:
    """Stream each side into the no-op sink, with a new checkpoint for each query."""
    sample: Sample = {}
    for side in both.sides:
        sample |= both.run("stream", side, jobs.stream_to_noop, both.folder)
    return sample | compared(sample, "stream")


CASE = Case(
    "spark-stream",
    "Spark, Structured Streaming, AvailableNow: 3 M rows, all columns, local[2] and the broker on the same cores",
    measures("stream", "→ noop", 600_000, ratio=1.5),
    samples,
)
