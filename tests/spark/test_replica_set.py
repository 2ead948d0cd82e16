"""Spark copies a topic exactly once while the primary of a replica set is killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flintmq.client import Admin, Consumer, Producer
from tests.conftest import Brokers
from tests.etcd_server import etcd_cluster
from tests.group_tools import until
from tests.replica_set import ReplicaSet
from tests.spark.sink_tools import NEVER_S

pytest.importorskip("pyspark")

ROWS, ROWS_A_BATCH = 18_000, 3_000


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[ReplicaSet]:
    """Yield a set with three members in sync."""
    brokers = Brokers(tmp_path)
    with etcd_cluster(tmp_path) as (etcd,):
        replicas = ReplicaSet(tmp_path, brokers, etcd)
        replicas.begin()
        replicas.wait_in_sync("a", "b", "c")
        yield replicas
        brokers.stop_all()


@pytest.mark.long(seconds=30)
def test_a_copy_is_there_exactly_once_after_a_failover(spark: Any, replicas: ReplicaSet, tmp_path: Path) -> None:
    with Admin(replicas.bootstrap) as admin, Producer(replicas.bootstrap) as producer:
        for topic in ("in", "out"):
            admin.create_topic(topic, queues=3)
        producer.send_bulk("in", [b"%d" % number for number in range(ROWS)])
    members = "set=" + replicas.bootstrap.replace(",", ";")
    source = {"bootstrap": members, "subscribe": "in", "startingOffsets": "earliest"}
    frame = spark.readStream.format("flintmq").options(**source, maxOffsetsPerTrigger=ROWS_A_BATCH).load()
    writer = frame.select("body").writeStream.format("flintmq").trigger(availableNow=True)
    target = {"bootstrap": members, "topic": "out", "delivery": "exactly-once"}
    query = writer.options(**target, checkpointLocation=str(tmp_path / "checkpoint")).start()
    try:
        until(lambda: query.lastProgress is not None or not query.isActive, "the first micro-batch")
        killed = replicas.leader()
        assert query.isActive
        replicas.kill(killed)
        assert query.awaitTermination(NEVER_S)
    finally:
        query.stop()
    assert replicas.leader() != killed
    with Consumer(replicas.bootstrap) as consumer:
        copied = Counter(int(message.body) for message in consumer.iter("out", from_="earliest", until="latest"))
    assert copied == Counter(range(ROWS))
