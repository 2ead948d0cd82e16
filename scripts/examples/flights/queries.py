"""The queries of the example, in plain Spark: read this first.

``messages`` reads a topic, ``flights`` parses the messages, ``departures`` counts by hour and origin, ``alerts``
selects long delays. All take and return plain DataFrames, so everything after ``messages`` also works on a batch
(``spark.read``).
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
"""Schema of the JSON in a message's body; its fields are ``flight.FIELDS``."""

LATENESS = timedelta(days=2)
"""Event time that an hour stays open after the newest flight seen. Micro-batches do not read the queues exactly in
step, and a replay passes a day of flights in milliseconds. For live flights an hour or two is enough."""
ALERT_MINUTES = 120
"""A flight that leaves later than this causes an alert."""
ROWS_A_BATCH = 50_000


def messages(spark: SparkSession, broker: str, topic: str, rows_a_batch: int = ROWS_A_BATCH) -> DataFrame:
    """Stream the bodies of a topic from its beginning, at most ``rows_a_batch`` in a micro-batch."""
    return (
        spark.readStream.format("flintmq")
        .schema("body binary")  # nothing else of a message is needed, so nothing else is decoded
        .option("bootstrap", broker)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", rows_a_batch)
        .load()
    )


def flights(messages: DataFrame) -> DataFrame:
    """Parse the bodies into the columns of ``FLIGHT`` and ``event_time``.

    A body that cannot be parsed is left out and counted: metric ``unreadable`` of the observation ``messages`` in the
    query's progress. A heartbeat, which has a time but no flight, is kept because it moves the watermark.
    """
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    corrupt = "_corrupt"  # from_json puts a body here that does not match the schema
    options = {"columnNameOfCorruptRecord": corrupt}
    body = F.col("body").cast("string")
    parsed = messages.select(F.from_json(body, f"{FLIGHT}, {corrupt} string", options).alias("flight"))
    parsed = parsed.select("flight.*").withColumn("event_time", F.try_to_timestamp("time_hour"))
    is_flight = F.col("origin").isNotNull() & F.col("carrier").isNotNull() & F.col("flight").isNotNull()
    is_heartbeat = F.col("origin").isNull() & F.col("dep_time").isNull() & F.col("dep_delay").isNull()
    readable = F.col(corrupt).isNull() & F.col("event_time").isNotNull() & (is_flight | is_heartbeat)
    return parsed.observe("messages", F.count_if(~readable).alias("unreadable")).where(readable).drop(corrupt)


def departures(flights: DataFrame, lateness: timedelta = LATENESS) -> DataFrame:
    """Count departures and average their delay in minutes, by hour (its beginning, UTC) and origin.

    The row of an hour is written once, after the watermark (``lateness`` before the newest event time) has passed its
    end. Cancelled flights have no ``dep_time`` and do not count; an hour with only cancelled flights has no row.
    """
    from pyspark.sql import functions as F  # noqa: N812

    return (
        flights.withWatermark("event_time", f"{lateness // timedelta(milliseconds=1)} milliseconds")
        .groupBy(F.window("event_time", "1 hour").alias("hours"), "origin")
        .agg(F.count("dep_time").alias("departures"), F.avg("dep_delay").alias("mean_delay_minutes"))
        # After the aggregation: Spark would push a filter on `dep_time` below the watermark, which would then see no
        # heartbeats.
        .where("departures > 0")
        .select(F.col("hours.start").alias("hour"), "origin", "departures", "mean_delay_minutes")
    )


def alerts(flights: DataFrame) -> DataFrame:
    """Make a message (body, keys and tag) for each flight that left more than ``ALERT_MINUTES`` late.

    The key identifies the flight, so that consumers can recognize an alert that was sent twice.
    """
    from pyspark.sql import functions as F  # noqa: N812

    identity = F.concat("carrier", "flight", F.lit("@"), "time_hour")
    columns = ("time_hour", "carrier", "flight", "tailnum", "origin", "dest", "dep_delay")
    return flights.where(F.col("dep_delay") > ALERT_MINUTES).select(
        F.to_json(F.struct(*columns)).alias("body"), F.array(identity).alias("keys"), F.col("origin").alias("tags")
    )
