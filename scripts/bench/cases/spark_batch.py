"""Spark reads two million stored messages as a batch: to a no-op sink, to Parquet, and directly from the files."""

from __future__ import annotations

from ..bench import Bench
from ..measure import Case, Sample, Samples
from ..spark import jobs
from ..spark.jobs import Source
from ..spark.sides import Side, SideBySide, compared, measures, side_by_side

MESSAGES = 2_000_000


def samples(bench: Bench) -> Samples:
    """Yield one sample per run for reads through the brokers, then one per run for reads from FlintMQ's files."""
    with side_by_side(bench, bench.count(MESSAGES)) as both:
        one_run(both)  # warm up Java's JIT compiler
        for _ in range(bench.runs):
            yield one_run(both)
        both.stop_flintmq()
        archive = Side("", Source("flintmq-store", path=str(both.store)))
        both.check(archive.source)
        for _ in range(bench.runs):
            yield both.run("archive", archive, jobs.to_noop)
        both.end()


def one_run(both: SideBySide) -> Sample:
    """Read each side into the no-op sink, then each into Parquet."""
    sample: Sample = {}
    for side in both.sides:
        sample |= both.run("noop", side, jobs.to_noop)
    for side in both.sides:
        sample |= both.run("parquet", side, jobs.to_parquet, both.folder / "parquet")
    return sample | compared(sample, "noop") | compared(sample, "parquet")


CASE = Case(
    "spark-batch",
    "Spark, batch: 2 M rows, all columns, local[2] and the broker on the same cores",
    (
        *measures("noop", "→ noop", 1_000_000, ratio=1.5),
        *measures("parquet", f"→ Parquet ({jobs.PARQUET_CODEC})", 350_000, ratio=1.2),
        *measures("archive", "from the store's files, no broker → noop", 1_200_000),
    ),
    samples,
)
