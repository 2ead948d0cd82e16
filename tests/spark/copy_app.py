"""A Spark application that copies a topic into Parquet, as a stream, and prints its progress after each micro-batch.

    python -m tests.spark.copy_app MASTER BOOTSTRAP TOPIC FOLDER ROWS_A_BATCH

It ends when it has copied the messages that were there at its start.
"""

from __future__ import annotations

import sys
from pathlib import Path

from flintmq.client.spark import session
from tests.spark.conftest import SETTINGS
from tests.spark.progress import print_batches


def main(master: str, bootstrap: str, topic: str, folder: str, rows_a_batch: str) -> None:
    """Run the query, and print ``batch N`` after each micro-batch."""
    spark = session("copy", master=master, settings=SETTINGS)
    frame = (
        spark.readStream.format("flintmq")
        .options(bootstrap=bootstrap, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=rows_a_batch)
        .load()
        .selectExpr("queue", "queue_offset", "cast(body AS string) AS body")
    )
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(Path(folder, "checkpoint")))
    query = writer.trigger(availableNow=True).start(str(Path(folder, "output")))
    print_batches(query)
    print("done", flush=True)  # noqa: T201 - the test waits for this line
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
