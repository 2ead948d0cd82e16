"""Jobs of a Spark driver, and their cost; the same code for every source."""

from __future__ import annotations

import os
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..measure import BenchFailed
from .driver import CpuSeconds, cpu_of_tree

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STAMP = struct.Struct(">q")
"""Start of the body of a message whose latency is measured: its creation time in µs since 1970."""
PARQUET_CODEC = "snappy"


@dataclass(frozen=True, slots=True)
class Source:
    """A source for Spark. ``body``: name of the column with the messages' bytes; ``path``: argument for ``load``."""

    format: str
    options: dict[str, str] = field(default_factory=dict)
    body: str = "body"
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """Cost of a job: elapsed time, CPU time of Spark, and the number of rows if Spark counts them (else -1)."""

    seconds: float
    cpu: CpuSeconds
    rows: int = -1


def count(spark: SparkSession, source: Source) -> tuple[int, int]:
    """Return the number of rows of a source, and the bytes of all bodies."""
    from pyspark.sql import functions

    rows, body_bytes = (
        _batch(spark, source).agg(functions.count("*"), functions.sum(functions.octet_length(source.body))).collect()[0]
    )
    return rows, body_bytes or 0


def to_noop(spark: SparkSession, source: Source) -> Work:
    """Read all rows and columns into Spark's no-op sink."""
    return _timed(lambda: _batch(spark, source).write.format("noop").mode("overwrite").save())


def to_parquet(spark: SparkSession, source: Source, folder: Path) -> Work:
    """Read all rows and columns into Parquet files below ``folder``."""
    write = _batch(spark, source).write.mode("overwrite").option("compression", PARQUET_CODEC)
    return _timed(lambda: write.parquet(str(folder)))


def stream_to_noop(spark: SparkSession, source: Source, folder: Path) -> Work:
    """Stream all stored rows into the no-op sink, with a new checkpoint below ``folder``."""
    checkpoint = tempfile.mkdtemp(prefix="checkpoint-", dir=folder)

    def run() -> int:
        query = (
            _stream(spark, source)
            .writeStream.format("noop")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sum(progress["numInputRows"] for progress in query.recentProgress)

    return _timed(run)


def _batch(spark: SparkSession, source: Source) -> DataFrame:
    return spark.read.format(source.format).options(**source.options).load(source.path)


def _stream(spark: SparkSession, source: Source) -> DataFrame:
    options = {**source.options, "startingOffsets": "earliest"}
    return spark.readStream.format(source.format).options(**options).load()


def _timed(action: Callable[[], int | None]) -> Work:
    cpu, began = cpu_of_tree(os.getpid()), time.perf_counter()
    rows = action()
    seconds = time.perf_counter() - began
    return Work(seconds, cpu_of_tree(os.getpid()) - cpu, -1 if rows is None else rows)


# ---- how long a message takes to the sink ----


class _Arrivals:
    """A streaming query whose sink records the arrival of each message: trigger 0, ``foreachBatch``."""

    def __init__(self, spark: SparkSession, source: Source, folder: Path) -> None:
        self.taken: list[tuple[int, int]] = []  # creation and arrival, µs since 1970
        self._changed = threading.Condition()
        self._body = source.body
        self.query = (
            _stream(spark, source)
            .writeStream.foreachBatch(self._note)
            .option("checkpointLocation", tempfile.mkdtemp(prefix="checkpoint-", dir=folder))
            .trigger(processingTime="0 seconds")
            .start()
        )

    def _note(self, batch: DataFrame, number: int) -> None:
        made = [STAMP.unpack_from(body)[0] for (body,) in batch.select(self._body).collect()]
        now = time.time_ns() // 1000
        with self._changed:
            self.taken += [(stamp, now) for stamp in made]
            self._changed.notify_all()

    def wait(self, since: int, expected: int, seconds: float) -> None:
        """Wait for ``expected`` messages that were created at ``since`` or later."""
        deadline = time.monotonic() + seconds

        def arrived() -> int:
            return sum(stamp >= since for stamp, _ in self.taken)

        with self._changed:
            while arrived() < expected:
                self._changed.wait(1.0)
                if (failure := self.query.exception()) is not None:
                    raise failure
                if time.monotonic() > deadline:
                    raise BenchFailed(f"{arrived()} of {expected} messages reached the sink within {seconds:.0f} s")


_running: list[Any] = []


def start_noting(spark: SparkSession, source: Source, folder: Path) -> None:
    """Start a query over ``source`` whose sink records the arrival of each message."""
    _running.append(_Arrivals(spark, source, folder))


def stop_noting(spark: SparkSession, since: int, expected: int, seconds: float) -> list[tuple[int, int]]:
    """Wait for the query's messages created since then and stop it; return (creation, arrival) in µs since 1970."""
    arrivals = _running.pop()
    try:
        arrivals.wait(since, expected, seconds)
    finally:
        arrivals.query.stop()
    return sorted(pair for pair in arrivals.taken if pair[0] >= since)
