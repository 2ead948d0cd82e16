"""What the pipeline computes, as anyone would write it with Spark: read this first.

``messages`` reads a topic, ``flights`` takes the messages apart, ``departures`` counts by hour and origin, ``alerts``
picks out long delays. All are plain DataFrames: what follows ``messages`` does the same to a batch (``spark.read``).
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FLIGHT = (
    "time_hour string, carrier string, flight int, tailnum string, origin string, dest string, "
    "dep_time int, dep_delay int"
)
"""The JSON in a message's body: ``flights.FIELDS`` of this package."""

LATENESS = timedelta(days=2)
"""How long after the newest flight that was seen an hour stays open, in event time. Micro-batches read the queues not
quite in step, and in a replay a day of flights passes in milliseconds. Live, an hour or two would do."""
ALERT_MINUTES = 120
"""A flight that leaves later than that is an alert."""
ROWS_A_BATCH = 50_000


def messages(spark: SparkSession, broker: str, topic: str, rows_a_batch: int = ROWS_A_BATCH) -> DataFrame:
    """The bodies of a topic as a stream, from its beginning on; at most ``rows_a_batch`` in a micro-batch."""
    return (
        spark.readStream.format("flintmq")
        .schema("body binary")  # of a message nothing else is needed, so nothing else is decoded
        .option("bootstrap", broker)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", rows_a_batch)
        .load()
    )


def flights(messages: DataFrame) -> DataFrame:
    """The columns of ``FLIGHT``, and ``event_time``.

    A body that is no such JSON is left out, and counted: the metric ``unreadable`` of the observation ``messages`` in
    the query's progress. A heartbeat, which has a time and is no flight, stays: it moves the watermark.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    corrupt = "_corrupt"  # what from_json puts there of a body that does not fit
    options = {"columnNameOfCorruptRecord": corrupt}
    body = F.col("body").cast("string")
    read = messages.select(F.from_json(body, f"{FLIGHT}, {corrupt} string", options).alias("flight")).select("flight.*")
    read = read.withColumn("event_time", F.try_to_timestamp("time_hour"))
    is_flight = F.col("origin").isNotNull() & F.col("carrier").isNotNull() & F.col("flight").isNotNull()
    is_heartbeat = F.col("origin").isNull() & F.col("dep_time").isNull() & F.col("dep_delay").isNull()
    readable = F.col(corrupt).isNull() & F.col("event_time").isNotNull() & (is_flight | is_heartbeat)
    return read.observe("messages", F.count_if(~readable).alias("unreadable")).where(readable).drop(corrupt)


def departures(flights: DataFrame, lateness: timedelta = LATENESS) -> DataFrame:
    """Departures and their mean delay in minutes, by hour (its beginning, UTC) and origin.

    An hour comes out once, when the watermark has passed its end: ``lateness`` behind the newest event time. Cancelled
    flights have no ``dep_time``: they do not count, and an hour of nothing else has no row.
    """
    from pyspark.sql import functions as F  # noqa: N812

    return (
        flights.withWatermark("event_time", f"{lateness // timedelta(milliseconds=1)} milliseconds")
        .groupBy(F.window("event_time", "1 hour").alias("hours"), "origin")
        .agg(F.count("dep_time").alias("departures"), F.avg("dep_delay").alias("mean_delay_minutes"))
        # Not before: Spark would move a filter on `dep_time` in front of the watermark, which then saw no heartbeat.
        .where("departures > 0")
        .select(F.col("hours.start").alias("hour"), "origin", "departures", "mean_delay_minutes")
    )


def alerts(flights: DataFrame) -> DataFrame:
    """A message for each flight that left more than ``ALERT_MINUTES`` late: body, key and tag as the sink takes them.

    The key tells a flight from every other, so that an alert that was sent twice is known for the same.
    """
    from pyspark.sql import functions as F  # noqa: N812

    identity = F.concat("carrier", "flight", F.lit("@"), "time_hour")
    columns = ("time_hour", "carrier", "flight", "tailnum", "origin", "dest", "dep_delay")
    return flights.where(F.col("dep_delay") > ALERT_MINUTES).select(
        F.to_json(F.struct(*columns)).alias("body"), F.array(identity).alias("keys"), F.col("origin").alias("tags")
    )
