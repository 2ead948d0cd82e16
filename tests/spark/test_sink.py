"""The sink through a real Spark and a real broker."""

from __future__ import annotations

import json
import pickle
import signal
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from flintmq.client import Admin, ConnectionFailed, Consumer, Message, Producer
from tests.conftest import BrokerFactory, RunningBroker
from tests.spark.sink_tools import NEVER_S, Copy, bodies, send, stored

pytest.importorskip("pyspark")

from pyspark.sql.types import BinaryType, StructType

from flintmq.client.spark.sink_delivery import Written
from flintmq.client.spark.source import FlintSource

# ---- batches ----


def test_every_column_sets_its_part_of_the_message(
    spark: Any, write: Any, shared_broker: RunningBroker, name: str
) -> None:
    rows = [
        (b"\x00\xff", "a", ["k1", "k2"], "eu", {"p": "é"}, "s1", None),
        (b"", "b", [], None, {}, None, 2),
        (b"x" * 10_000, "a", None, "us", None, None, 1),
    ]
    schema = (
        "body binary, suffix string, keys array<string>, tags string, properties map<string,string>, "
        "sharding_key string, queue int"
    )
    frame = spark.createDataFrame(rows, schema).selectExpr("*", f"concat('{name}-', suffix) AS topic").drop("suffix")
    write(frame, topic=None)
    found = {
        (message.topic, message.body): message for topic in "ab" for message in stored(shared_broker, f"{name}-{topic}")
    }
    assert len(found) == len(rows)
    for body, suffix, keys, tags, properties, sharding_key, queue in rows:
        message = found[f"{name}-{suffix}", body]
        assert message.keys == tuple(keys or ())
        assert message.tags == tags
        assert message.user_properties.get("p") == (properties or {}).get("p")
        assert message.properties.get("__SHARDINGKEY") == sharding_key
        assert queue in (None, message.queue)


def test_a_large_frame_is_stored_once_with_its_keys(
    write: Any, bodies_of_range: Any, shared_broker: RunningBroker, name: str
) -> None:
    count = 25_000
    write(bodies_of_range(0, count, keys="concat('k', id)", tags="concat('t', id % 3)"))
    found = stored(shared_broker, name)
    assert len(found) == count
    assert {message.body: (message.keys, message.tags) for message in found} == {
        str(number).encode(): ((f"k{number}",), f"t{number % 3}") for number in range(count)
    }


def test_rows_of_a_queue_and_of_a_sharding_key_stay_in_order(
    write: Any, bodies_of_range: Any, shared_broker: RunningBroker, name: str
) -> None:
    with Admin(shared_broker.address) as admin:
        admin.create_topic(name, queues=4)
    write(bodies_of_range(0, 12_000, 1, queue="CAST(id % 4 AS int)", tags="concat('t', id % 3)"))
    write(bodies_of_range(12_000, 24_000, 1, sharding_key="concat('s', id % 4)", tags="concat('t', id % 3)"))
    found = stored(shared_broker, name)
    assert len(found) == 24_000
    for queue in range(4):
        numbers = [int(message.body) for message in found if message.queue == queue]
        assert [number for number in numbers if number < 12_000] == list(range(queue, 12_000, 4))
    for remainder in range(4):
        mine = [message for message in found if int(message.body) % 4 == remainder and int(message.body) >= 12_000]
        assert len({message.queue for message in mine}) == 1
        assert [int(message.body) for message in mine] == list(range(12_000 + remainder, 24_000, 4))


def test_rows_that_were_read_can_be_written_unchanged(
    spark: Any, write: Any, shared_broker: RunningBroker, name: str
) -> None:
    original = f"{name}-original"
    with Admin(shared_broker.address) as admin, Producer(shared_broker.address) as producer:
        for topic in (original, name):
            admin.create_topic(topic, queues=3)
        for number in range(60):
            message = Message(
                original,
                f"body {number} ".encode() * (1 if number % 10 else 900),
                keys=[f"k-{number}", f"group-{number % 7}"][: number % 3],
                tags=("eu", "us", None)[number % 3],
                properties={"number": str(number), "who": "é"} if number % 2 else None,
            )
            producer.send_async(message, queue=number % 3)
        producer.flush()

    def read(topic: str) -> Any:
        reader = spark.read.format("flintmq").option("bootstrap", shared_broker.address)
        return reader.option("subscribe", topic).option("includeHeaders", "true").load()

    write(read(original))
    before, after = (
        sorted((row.asDict() for row in read(topic).collect()), key=lambda row: (row["queue"], row["queue_offset"]))
        for topic in (original, name)
    )
    assert len(before) == len(after) == 60
    for old, new in zip(before, after, strict=True):
        assert new["topic"] == name
        assert new["message_id"] != old["message_id"]
        for column in ("queue", "queue_offset", "body", "tags", "keys", "headers"):
            assert new[column] == old[column]


def test_an_empty_frame_is_no_error(write: Any, bodies_of_range: Any, shared_broker: RunningBroker, name: str) -> None:
    write(bodies_of_range(0, 0))
    with Admin(shared_broker.address) as admin:
        assert name not in admin.topics()


# ---- writes refused before a task runs ----


@pytest.mark.parametrize(
    ("mode", "options", "columns", "words"),
    [
        ("append", {"bootstrap": "127.0.0.1:1"}, {}, ["ConnectionFailed: option 'bootstrap': no broker answers at"]),
        ("append", {}, {"price": "id"}, ["IncompatibleSchema: column 'price' (bigint) is not a column of the sink"]),
        ("overwrite", {}, {}, ['InvalidOption: mode("overwrite")', '"append"']),
    ],
)
def test_an_impossible_write_is_refused_at_once(
    write: Any,
    bodies_of_range: Any,
    shared_broker: RunningBroker,
    name: str,
    mode: str,
    options: dict[str, Any],
    columns: dict[str, str],
    words: list[str],
) -> None:
    with pytest.raises(Exception) as raised:
        write(bodies_of_range(0, 3, **columns), mode, **options)
    for word in words:
        assert word in str(raised.value)
    assert "Traceback" not in str(raised.value)
    with Admin(shared_broker.address) as admin:
        assert name not in admin.topics()


def test_a_missing_topic_is_reported_at_once(broker: BrokerFactory, write: Any, bodies_of_range: Any) -> None:
    address = broker(settings={"topics.auto_create": False}).address
    with pytest.raises(Exception, match=r"TopicNotExist: option 'topic': topic 'nowhere' does not .*create it"):
        write(bodies_of_range(0, 3), bootstrap=address, topic="nowhere")
    # Only the tasks know the topics that a column names.
    with pytest.raises(Exception, match=r"WriteFailed: partition 0: 3 rows .*rows 0, 1, 2: TopicNotExist"):
        write(bodies_of_range(0, 3, 1, topic="'nowhere'"), bootstrap=address, topic=None)


# ---- rows that cannot be sent ----


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (
            {"keys": "IF(id = 7, 'a b', 'a')"},
            ["InvalidMessage: partition 0, row 7: column 'keys'", "'a b' has a space"],
        ),
        ({"tags": "IF(id = 7, 'a||b', 'a')"}, ["InvalidMessage: partition 0, row 7: column 'tags'"]),
        ({"properties": "map(IF(id = 7, 'TAGS', 'a'), 'b')"}, ["partition 0, row 7: column 'properties'", "TAGS"]),
    ],
)
def test_an_invalid_row_is_named_and_nothing_of_its_batch_is_sent(
    write: Any, bodies_of_range: Any, shared_broker: RunningBroker, name: str, columns: dict[str, str], words: list[str]
) -> None:
    with pytest.raises(Exception) as raised:
        write(bodies_of_range(0, 9, 1, **columns))
    for word in words:
        assert word in str(raised.value)
    with Admin(shared_broker.address) as admin:
        assert name not in admin.topics()


def test_a_null_body_is_named(spark: Any, write: Any) -> None:
    frame = spark.range(0, 9, 1, 1).selectExpr("IF(id = 7, NULL, CAST(id AS string)) AS body")
    with pytest.raises(Exception, match="InvalidMessage: partition 0, row 7: column 'body': it is null"):
        write(frame)


def test_a_message_that_is_too_long_is_named_and_the_others_are_stored(
    spark: Any, write: Any, shared_broker: RunningBroker, name: str
) -> None:
    frame = spark.range(0, 9, 1, 1).selectExpr("IF(id = 7, repeat('x', 600000), CAST(id AS string)) AS body")
    with pytest.raises(
        Exception, match="WriteFailed: partition 0: 1 rows were not acknowledged: row 7: MessageIllegal"
    ):
        write(frame, compressOver="never")
    assert bodies(shared_broker, name) == Counter(str(number) for number in range(9) if number != 7)


# ---- brokers that restart or hang ----


def pause_when_written_to(running: RunningBroker, topic: str, writing: Future[None]) -> None:
    """Wait until the broker has stored some of the topic's messages, then pause it."""
    with Consumer(running.address) as consumer:
        while not consumer.pull(topic, queue=0, offset=0, wait_ms=1000).messages:
            assert not writing.done(), str(writing.exception())
    running.process.send_signal(signal.SIGSTOP)
    assert not writing.done(), "it had no time to be interrupted"


def test_a_write_survives_a_restart_of_the_broker(
    broker: BrokerFactory, write: Any, bodies_of_range: Any, name: str
) -> None:
    first = broker()
    with Admin(first.address) as admin:
        admin.create_topic(name)
    with ThreadPoolExecutor(1) as other:
        writing = other.submit(write, bodies_of_range(0, 300_000), bootstrap=first.address)
        pause_when_written_to(first, name, writing)
        first.kill()
        second = broker("--listen", first.address, store=first.store)
        writing.result(NEVER_S)
    assert set(bodies(second, name)) == {str(number) for number in range(300_000)}


def test_a_cancelled_write_ends_although_the_broker_does_not_respond(
    spark: Any, broker: BrokerFactory, write: Any, bodies_of_range: Any, name: str
) -> None:
    running = broker()
    with Admin(running.address) as admin:
        admin.create_topic(name)

    def run() -> None:
        spark.sparkContext.setJobGroup("sink", "to be cancelled", interruptOnCancel=True)
        write(bodies_of_range(0, 300_000), bootstrap=running.address, timeoutMs=10 * NEVER_S * 1000)

    with ThreadPoolExecutor(1) as other:
        writing = other.submit(run)
        pause_when_written_to(running, name, writing)
        try:
            spark.sparkContext.cancelJobGroup("sink")
            assert "cancelled" in str(writing.exception(NEVER_S))
        finally:
            running.process.send_signal(signal.SIGCONT)
    write(bodies_of_range(300_000, 300_001), bootstrap=running.address)
    assert bodies(running, name)["300000"] == 1


# ---- streams ----


def test_a_stream_continues_from_its_checkpoint_and_writes_each_row_once(
    copy: Copy, shared_broker: RunningBroker, name: str
) -> None:
    sent = send(shared_broker, f"{name}-source", range(1000))
    copy.run()
    assert bodies(shared_broker, name) == sent
    sent += send(shared_broker, f"{name}-source", range(1000, 1500))
    copy.run()
    assert bodies(shared_broker, name) == sent


def test_a_micro_batch_that_was_not_committed_is_written_again_and_nothing_is_lost(
    copy: Copy, shared_broker: RunningBroker, name: str
) -> None:
    first = send(shared_broker, f"{name}-source", range(100))
    copy.run()
    second = send(shared_broker, f"{name}-source", range(100, 150))
    copy.run()
    last = max((copy.checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for path in (last, last.with_name(f".{last.name}.crc")):  # as if Spark had ended before it noted the commit
        path.unlink()
    third = send(shared_broker, f"{name}-source", range(150, 170))
    copy.run()
    assert bodies(shared_broker, name) == first + second + second + third


def test_a_stream_survives_a_restart_of_the_broker(
    spark: Any, broker: BrokerFactory, name: str, tmp_path: Path
) -> None:
    first = broker()
    source = f"{name}-source"
    sent = send(first, source, range(100))
    query = Copy(spark, first, source, name, tmp_path / "checkpoint").start(available_now=False)
    try:
        query.processAllAvailable()
        first.kill()
        second = broker("--listen", first.address, store=first.store)
        sent += send(second, source, range(100, 200))
        while set(bodies(second, name)) != set(sent):  # each round waits for the messages that the query knows so far
            query.processAllAvailable()
            assert query.exception() is None
    finally:
        query.stop()
    assert set(bodies(second, name)) == set(sent)


def test_output_mode_complete_sends_the_whole_result_again(
    spark: Any, shared_broker: RunningBroker, name: str, tmp_path: Path
) -> None:
    source = f"{name}-source"
    send(shared_broker, source, range(6))

    def run() -> None:
        reader = spark.readStream.format("flintmq").options(bootstrap=shared_broker.address, subscribe=source)
        counts = reader.option("startingOffsets", "earliest").load().groupBy("topic").count()
        frame = counts.selectExpr("to_json(struct(*)) AS body", "topic AS keys")
        writer = frame.writeStream.format("flintmq").outputMode("complete").trigger(availableNow=True)
        writer = writer.options(bootstrap=shared_broker.address, topic=name, checkpointLocation=tmp_path / "checkpoint")
        assert writer.start().awaitTermination(NEVER_S)

    run()
    send(shared_broker, source, range(4))
    run()
    found = sorted((json.loads(message.body)["count"], message.keys) for message in stored(shared_broker, name))
    assert found == [(6, (source,)), (10, (source,))]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bootstrap": "127.0.0.1:1"}, "ConnectionFailed: option 'bootstrap': no broker answers at"),
        ({"delivery": "twice"}, "'at-least-once' or 'exactly-once'"),
    ],
)
def test_a_stream_that_cannot_be_written_ends_at_once(
    copy: Copy, shared_broker: RunningBroker, name: str, options: dict[str, str], words: str
) -> None:
    send(shared_broker, f"{name}-source", range(3))
    with pytest.raises(Exception) as raised:
        copy.run(**options)
    assert words in str(raised.value)
    with Admin(shared_broker.address) as admin:
        assert name not in admin.topics()


def test_the_sink_checks_the_broker_only_when_a_query_begins(
    broker: BrokerFactory, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark creates a writer for each micro-batch, and one from a pickled source for each commit."""
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "1")  # an error sets it, which elsewhere happens in a worker's process
    running = broker()
    source = FlintSource({"bootstrap": running.address, "topic": name})
    schema = StructType().add("body", BinaryType())
    source.streamWriter(schema, False)
    running.kill()
    FlintSource(source.options).streamWriter(schema, False)
    other = FlintSource({"bootstrap": running.address, "topic": f"{name}-other"})
    with pytest.raises(ConnectionFailed, match="option 'bootstrap'"):
        other.streamWriter(schema, False)
    pickle.loads(pickle.dumps(other)).streamWriter(schema, False).commit([], 0)


def test_a_failed_write_logs_that_it_cannot_be_undone(
    shared_broker: RunningBroker, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    source = FlintSource({"bootstrap": shared_broker.address, "topic": name})
    schema = StructType().add("body", BinaryType())
    source.writer(schema, False).abort([Written(20), None, Written(3)])
    source.streamWriter(schema, False).abort([None], 7)
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("the write failed; 23 messages of finished tasks stay stored")
    assert second.startswith("micro-batch 7 failed; 0 messages")
