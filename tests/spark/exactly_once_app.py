"""A Spark application that copies a topic into another one with the exactly-once sink, as a stream.

    python -m tests.spark.exactly_once_app MASTER BOOTSTRAP FROM_TOPIC TO_TOPIC CHECKPOINT ROWS_A_BATCH

It prints ``batch N`` after each micro-batch, and ``done`` when it has copied the messages that were there at its start.
"""

from __future__ import annotations

import sys

from flintmq.client.spark import session
from tests.spark.cluster_app import CLUSTER_SETTINGS
from tests.spark.conftest import SETTINGS
from tests.spark.progress import print_batches


def main(master: str, bootstrap: str, from_topic: str, to_topic: str, checkpoint: str, rows_a_batch: str) -> None:
    """Run the query to its end."""
    more = CLUSTER_SETTINGS if master.startswith("spark://") else {}
    spark = session("exactly-once", master=master, settings={**SETTINGS, **more})
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": rows_a_batch, "timeoutMs": "60000"}
    rows = spark.readStream.format("flintmq").options(bootstrap=bootstrap, subscribe=from_topic, **options).load()
    writer = rows.select("body", "keys").writeStream.format("flintmq").option("checkpointLocation", checkpoint)
    writer = writer.options(bootstrap=bootstrap, topic=to_topic, delivery="exactly-once", timeoutMs="60000")
    query = writer.trigger(availableNow=True).start()
    print_batches(query)
    print("done", flush=True)  # noqa: T201 - the test waits for this line
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
