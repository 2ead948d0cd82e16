"""The cases, in the order of the table."""

from __future__ import annotations

from ..measure import Case
from . import (
    aio_consumer,
    aio_sends,
    broker_alone,
    bulks_sync,
    connections,
    console,
    delayed,
    end_to_end,
    fairness,
    footprint,
    group_consume,
    growth,
    idle,
    metrics,
    peers,
    produce,
    pull,
    push_latency,
    query,
    rebalance,
    record_checksum,
    single,
    spark_batch,
    spark_decode,
    spark_latency,
    spark_stream,
    start,
    tools,
)

ALL: tuple[Case, ...] = (
    produce.CASE,
    broker_alone.CASE,
    connections.CASE,
    single.CASE,
    aio_sends.CASE,
    bulks_sync.CASE,
    pull.CASE,
    aio_consumer.CASE,
    query.CASE,
    console.CASE,
    end_to_end.CASE,
    push_latency.CASE,
    group_consume.CASE,
    rebalance.CASE,
    delayed.CASE,
    start.CASE,
    tools.CASE,
    record_checksum.CASE,
    idle.CASE,
    footprint.CASE,
    metrics.CASE,
    fairness.CASE,
    growth.CASE,
    peers.CASE,
    spark_batch.CASE,
    spark_stream.CASE,
    spark_latency.CASE,
    spark_decode.CASE,
)

SPARK = tuple(case for case in ALL if case.name.startswith("spark-"))
"""Cases that need the extra ``spark``."""
