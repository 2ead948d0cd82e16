"""The store source through a real Spark: stores of a real broker, while it runs and after it stopped, and RocketMQ's
own."""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from flintmq.client import Admin, Consumer, Message, Producer
from flintmq.client.arrow.decoder import COLUMNS
from flintmq.protocol.store_files import checkpoint_mark
from flintmq.testing import SMALL_FILES
from tests.conftest import BrokerFactory, Brokers, RunningBroker
from tests.store_tools import copy_store, unpack_rocketmq

COUNT = 12_000
TOPICS = ("orders", "payments", "mails")
MARK_TIMEOUT_S = 120.0
FILE_BYTES = SMALL_FILES["store.commitlog_file_bytes"]

Read = Callable[..., Any]


@pytest.fixture
def read(spark: Any) -> Read:
    """Return ``read(path, option=value, …)``: a frame over the store."""

    def frame(path: Path | str, **options: Any) -> Any:
        reader = spark.read.format("flintmq-store")
        for name, value in options.items():
            reader = reader.option(name, value)
        return reader.load(str(path))

    return frame


def body(number: int) -> bytes:
    """Return a body that begins with its number; one in a hundred is long enough to be compressed."""
    return f"{number:08d} ".encode() * (12 if number % 100 else 700)


def read_up_to_here(running: RunningBroker) -> None:
    """Wait until a read of the running broker's store includes everything written so far: see "how far" in the
    README."""
    with Admin(running.address) as admin:
        end_offset = admin.status()["write_offset"]
    checkpoint = running.store / "checkpoint"
    deadline = time.monotonic() + MARK_TIMEOUT_S
    while (mark := checkpoint_mark(checkpoint.read_bytes())) is None or mark.flushed_offset < end_offset:
        assert time.monotonic() < deadline, f"the checkpoint has {mark}, the log ends at {end_offset}"
        time.sleep(0.01)


def fill(address: str, first: int = 0, count: int = COUNT) -> None:
    """Send so many messages, to the topics in turn."""
    with Producer(address) as producer:
        for topic_number, topic in enumerate(TOPICS):
            numbers = range(first + topic_number, first + count, len(TOPICS))
            producer.send_bulk(
                topic,
                [body(number) for number in numbers],
                keys=[f"k-{number}" for number in numbers],
                tags="eu" if topic_number else None,
                properties={"source": topic},
            )


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a stopped store with ``COUNT`` messages of a broker."""
    brokers = Brokers(tmp_path_factory.mktemp("stores"))
    running = brokers.start("--flush", "async")
    fill(running.address)
    brokers.stop_all()
    return running.store


def test_a_store_is_read_completely_while_its_broker_runs_and_after_it_stopped(
    broker: BrokerFactory, read: Read
) -> None:
    running = broker("--flush", "sync")
    fill(running.address)
    read_up_to_here(running)
    beside = sorted(read(running.store, partitionBytes=400_000).collect())
    with Consumer(running.address) as consumer:
        consumed = [message for topic in TOPICS for message in consumer.iter(topic, until="latest")]
    expected = sorted(
        (
            message.topic,
            message.queue,
            message.queue_offset,
            message.physical_offset,
            message.body,
            message.tags,
            list(message.keys),
            message.message_id,
            message.born_at,
            message.stored_at,
            0,
        )
        for message in consumed
    )
    assert len(beside) == COUNT
    assert [(*row[:8], row[8].replace(tzinfo=UTC), row[9].replace(tzinfo=UTC), row[10]) for row in beside] == expected
    assert {int(bytes(row.body)[:8]) for row in beside} == set(range(COUNT))
    assert running.stop() == 0
    offsets = sorted(row.physical_offset for row in beside)
    for path in (f"{running.store}", f"file:{running.store}/commitlog"):
        after = read(path, partitionBytes=FILE_BYTES).select("physical_offset").collect()
        assert sorted(row.physical_offset for row in after) == offsets


def test_a_read_is_split_at_record_boundaries_for_every_core(filled: Path, read: Read) -> None:
    from pyspark.sql import functions

    frame = read(filled, partitionBytes=200_000)
    parts = frame.selectExpr("spark_partition_id() as part", "physical_offset as o").groupBy("part")
    bounds = parts.agg(functions.min("o"), functions.max("o"), functions.count("o")).drop("part")
    spans = sorted(tuple(row) for row in bounds.collect())
    assert len(spans) > 10
    assert sum(count for _, _, count in spans) == COUNT
    assert all(last < following for (_, last, _), (following, _, _) in itertools.pairwise(spans))


def test_options_choose_topics_times_columns_and_places(broker: BrokerFactory, read: Read, spark: Any) -> None:
    running = broker("--flush", "sync")
    fill(running.address, count=3000)
    between = datetime.now(UTC)
    with Producer(running.address) as producer:
        late = producer.send(Message("orders", b"late", properties={"who": "é"}))
    read_up_to_here(running)
    store = running.store
    third = 1000
    two = read(store, topics="payments, mails").groupBy("topic").count().collect()
    assert sorted(two) == [("mails", third), ("payments", third)]
    assert read(store, subscribe="orders").count() == third + 1
    assert read(store, subscribePattern="(pay|or).*s").count() == 2 * third + 1
    after = read(store, startingTimestamp=between.isoformat()).collect()
    assert [bytes(row.body) for row in after] == [b"late"]
    assert read(store, endingTimestamp=between.isoformat()).count() == 3 * third
    behind = read(store, startingPhysicalOffset=late.physical_offset, includeProperties="true", includeHeaders="true")
    assert behind.columns == [*(column.name for column in COLUMNS), "properties", "headers"]
    (row,) = behind.collect()
    assert row.properties["who"] == "é"
    assert [(header.key, bytes(header.value)) for header in row.headers] == [("who", "é".encode())]
    narrow = spark.read.format("flintmq-store").schema("body binary, queue int").load(str(store))
    assert narrow.columns == ["body", "queue"]
    assert narrow.count() == 3 * third + 1


def test_damage_fails_the_job_with_its_place_and_can_be_skipped(filled: Path, read: Read, tmp_path: Path) -> None:
    store = copy_store(filled, tmp_path / "store")
    rows = read(store).select("physical_offset").orderBy("physical_offset").collect()
    place = rows[COUNT // 2].physical_offset
    start = place - place % FILE_BYTES
    with (store / "commitlog" / f"{start:020d}").open("r+b") as file:
        file.seek(place - start + 100)
        file.write(b"\x00\xff\x00")
    with pytest.raises(Exception, match="checksum") as caught:
        read(store).count()
    assert f"{start:020d}, byte {place - start:,} (physical offset {place:,})" in str(caught.value)
    assert "failOnCorruption" in str(caught.value)
    assert read(store, failOnCorruption="false").count() == COUNT - 1
    assert read(store, verifyChecksums="false").count() == COUNT


def test_a_wrong_option_is_refused_at_load(read: Read, filled: Path) -> None:
    with pytest.raises(Exception, match="has no option 'topic'"):
        read(filled, topic="orders")


def test_the_archive_source_refuses_streams_and_writes(filled: Path, spark: Any, read: Read) -> None:
    with pytest.raises(Exception, match="is read as a batch"):
        spark.readStream.format("flintmq-store").load(str(filled)).writeStream.format(
            "noop"
        ).start().processAllAvailable()
    with pytest.raises(Exception, match="is only read"):
        read(filled).write.format("flintmq-store").mode("append").save(str(filled))


@pytest.fixture(scope="module")
def rocketmq(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_rocketmq(tmp_path_factory.mktemp("rocketmq"))


def test_rocketmqs_store_returns_the_messages_that_its_consumers_see(rocketmq: Path, read: Read) -> None:
    expected = [json.loads(line) for line in (rocketmq / "expected.jsonl").read_text().splitlines()]
    store = rocketmq / "store-pristine"
    rows = read(store, topics="CompatTopic").collect()
    assert Counter(
        (hashlib.sha1(row.body).hexdigest(), len(row.body), " ".join(row["keys"]), row.tags) for row in rows
    ) == Counter(
        (each["sha1"], each["bodyLen"], each["keys"] or "", each["tags"]) for each in expected if each["visible"]
    )
    assert len(rows) == 500
    assert read(store).filter("topic != 'CompatTopic'").count() == 0, "the broker's own topics are not asked for"
    assert read(store, topics="SCHEDULE_TOPIC_XXXX").count() > 0
