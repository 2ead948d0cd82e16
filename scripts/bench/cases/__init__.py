"""The cases, in the order of the table."""

from __future__ import annotations

from ..measure import Case
from . import (
    archive,
    beside,
    console,
    groups,
    growth,
    latency,
    many,
    peers,
    process,
    reads,
    remoting,
    replication,
    sends,
    tail,
    traces,
    ways,
)
from .spark import SPARK_BATCH, SPARK_DECODE, SPARK_LATENCY, SPARK_STREAM

SPARK = (SPARK_BATCH, SPARK_STREAM, SPARK_LATENCY, SPARK_DECODE)
"""Cases that need the extra ``spark``."""

ALL: tuple[Case, ...] = (
    sends.PRODUCE,
    sends.BROKER_ALONE,
    sends.CONNECTIONS_CASE,
    sends.SINGLE,
    sends.AIO_SENDS,
    sends.BULKS_SYNC,
    reads.PULL_CASE,
    reads.ARROW,
    reads.AIO_CONSUMER,
    reads.QUERY,
    console.CASE,
    latency.END_TO_END,
    latency.PUSH_LATENCY,
    groups.GROUP_CONSUME,
    groups.WORK_QUEUE,
    traces.CASE,
    groups.REBALANCE,
    latency.DELAYED,
    process.START,
    process.TOOLS,
    replication.CASE,
    sends.RECORD_CHECKSUM,
    archive.CASE,
    process.IDLE,
    process.FIRST_START,
    process.FOOTPRINT,
    beside.METRICS,
    beside.FAIRNESS,
    growth.CASE,
    many.CASE,
    ways.CASE,
    peers.CASE,
    tail.CASE,
    remoting.CASE,
    *SPARK,
)
