"""Progress of a Spark application's query, printed for the test that runs the application."""

from __future__ import annotations

import json

from pyspark.sql.streaming.query import StreamingQuery


def print_batches(query: StreamingQuery) -> None:
    """Wait for the query's end, and print ``batch N`` after each micro-batch."""
    said = -1
    while not query.awaitTermination(0.02):  # type: ignore[arg-type]  # fractions work, too
        progress = query.lastProgress
        batch = json.loads(progress.json)["batchId"] if progress is not None else -1
        if batch > said:
            said = batch
            print(f"batch {batch}", flush=True)  # noqa: T201 - the test waits for this line
