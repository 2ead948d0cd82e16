"""A Spark application for a cluster: the flights example's queries, from several brokers into Parquet and to a broker.

    python -m tests.spark.cluster_app MASTER BOOTSTRAP ALERTS_BOOTSTRAP FOLDER ROWS_A_BATCH

Prints ``batch N`` whenever a micro-batch of the departures is done, and ``done`` at the end.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from flintmq.client.spark import session
from flintmq.scripts.examples.flights import queries
from tests.spark.conftest import SETTINGS
from tests.spark.progress import print_batches

CLUSTER_SETTINGS = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.task.maxFailures": "8",
}


def started(name: str, frame: Any, sink: str, folder: str, **options: str) -> Any:
    """Start the query, which ends with the rows that are there now."""
    writer = frame.writeStream.queryName(name).format(sink).options(**options)
    return writer.option("checkpointLocation", str(Path(folder, "checkpoint", name))).trigger(availableNow=True).start()


def main(master: str, bootstrap: str, alerts_bootstrap: str, folder: str, rows_a_batch: str) -> None:
    """Run both queries to their end."""
    spark = session("cluster", master=master, settings={**SETTINGS, **CLUSTER_SETTINGS})
    flights = queries.flights(queries.messages(spark, bootstrap, "flights", int(rows_a_batch)))
    departures = started(
        "departures", queries.departures(flights), "parquet", folder, path=str(Path(folder, "results"))
    )
    sink = {"bootstrap": alerts_bootstrap, "topic": "alerts", "delivery": "exactly-once", "timeoutMs": "60000"}
    alerts = started("alerts", queries.alerts(flights), "flintmq", folder, **sink)
    print_batches(departures)
    alerts.awaitTermination()
    print("done", flush=True)  # noqa: T201 - the test waits for this line
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
