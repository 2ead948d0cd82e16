"""The store source on an archive, through a real Spark: planned from the manifest, read by tasks, without a broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flintmq.client.spark.store.source import StoreSource
from flintmq.protocol.storage.archive.objects import Objects
from tests.archive_tools import MadeArchive, make_archive, orders, placed
from tests.object_server import SECRET, ObjectServer


@pytest.fixture
def in_bucket(spark: Any, object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[MadeArchive]:
    """An archive of 25 fragments in a bucket, whose credentials are in the environment of driver and tasks."""
    variables = object_server.environment()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    environment = spark.sparkContext.environment
    environment.update(variables)
    spark.dataSource.register(StoreSource)  # which takes the environment of its tasks from there
    yield make_archive(
        Objects(object_server.bucket() + "/history"), placed(orders(5_000), hole_after=900), per_fragment=200
    )
    for name in variables:
        del environment[name]
    spark.dataSource.register(StoreSource)


def test_an_archive_in_a_bucket_is_counted_by_tasks(spark: Any, in_bucket: MadeArchive) -> None:
    frame = spark.read.format("flintmq-store").option("partitionBytes", 300_000).load(in_bucket.objects.url)
    counts = {row["topic"]: row["count"] for row in frame.groupBy("topic").count().collect()}
    assert counts == {"orders": 2_500, "payments": 2_500}
    assert frame.rdd.getNumPartitions() > 5
    assert SECRET not in frame._jdf.queryExecution().toString()
    rows = frame.where("topic = 'orders'").select("queue", "queue_offset", "physical_offset").collect()
    wanted = [each for each in in_bucket.records if each.topic == b"orders"]
    assert sorted(tuple(row) for row in rows) == sorted(
        (each.queue_id, each.queue_offset, each.physical_offset) for each in wanted
    )


def test_an_archive_in_a_folder_is_read_by_topic_and_time(spark: Any, tmp_path: Path) -> None:
    made = make_archive(Objects(tmp_path), placed(orders(1_000)), per_fragment=50, per_group=6)
    since = made.records[700].store_timestamp
    frame = (
        spark.read.format("flintmq-store")
        .options(topics="orders", startingTimestamp=str(since), partitionBytes="65536")
        .load(str(tmp_path))
    )
    assert sorted(row.physical_offset for row in frame.select("physical_offset").collect()) == [
        each.physical_offset for each in made.records[700:] if each.topic == b"orders"
    ]


def test_damage_of_an_archive_fails_the_read_unless_it_may_be_skipped(spark: Any, tmp_path: Path) -> None:
    made = make_archive(Objects(tmp_path), placed(orders(1_000)), per_fragment=100)
    name = made.manifest.entries[4].name.log
    content = bytearray(made.objects.get(name))
    content[100] ^= 1
    made.objects.put(name, bytes(content))
    reader = spark.read.format("flintmq-store")
    with pytest.raises(Exception, match=f"the object {name} of the archive is damaged"):
        reader.load(str(tmp_path)).count()
    assert reader.option("failOnCorruption", "false").load(str(tmp_path)).count() == 900
