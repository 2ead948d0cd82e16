"""The batch source through a real Spark and a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from flintmq.client import Admin, Consumer, Message, Producer
from flintmq.client.arrow import read_store
from flintmq.protocol.commands import UPDATE_AND_CREATE_TOPIC
from tests.conftest import BrokerFactory, ConnectionFactory, RunningBroker
from tests.group_tools import until
from tests.time_tools import check_bounds, numbers, store

QUEUES = 3
TAGS = ("eu", "us", None)
COUNT = 300


def messages(topic: str) -> list[Message]:
    """Return messages of every kind: with and without tags, keys and properties; long ones are stored compressed."""
    return [
        Message(
            topic,
            f"body {number} ".encode() * (1 if number % 10 else 900),
            keys=[f"k-{number}", f"group-{number % 7}"][: number % 3],
            tags=TAGS[number % 3],
            properties={"number": str(number), "who": "é"} if number % 2 else {},
        )
        for number in range(COUNT)
    ]


@pytest.fixture(scope="module")
def orders(shared_broker: RunningBroker) -> str:
    """Create a topic that holds ``messages``, spread over its queues."""
    name = "spark-batch-orders"
    with Admin(shared_broker.address) as admin, Producer(shared_broker.address) as producer:
        admin.create_topic(name, queues=QUEUES)
        for number, message in enumerate(messages(name)):
            producer.send_async(
                Message(
                    name,
                    message.body,
                    keys=message.keys,
                    tags=message.tags,
                    properties=message.properties,
                    sharding_key=str(number % 11),
                )
            )
        producer.flush()
    return name


@pytest.fixture
def read(spark: Any, shared_broker: RunningBroker, orders: str) -> Callable[..., Any]:
    """Return ``read(option=value, …)``: a frame over the topic."""

    def frame(schema: str | None = None, **options: Any) -> Any:
        reader = spark.read.format("flintmq").option("bootstrap", shared_broker.address)
        if "subscribePattern" not in options:
            reader = reader.option("subscribe", orders)
        if schema is not None:
            reader = reader.schema(schema)
        return reader.options(**options).load()

    return frame


def stored(broker: RunningBroker, topic: str) -> dict[tuple[int, int], Any]:
    """Return the messages that the client sees, by queue and offset."""
    with Consumer(broker.address) as consumer:
        found = consumer.iter(topic, from_="earliest", until="latest")
        return {(message.queue, message.queue_offset): message for message in found}


def places(frame: Any) -> set[tuple[int, int]]:
    rows = [(row.queue, row.queue_offset) for row in frame.select("queue", "queue_offset").collect()]
    assert len(rows) == len(set(rows))
    return set(rows)


def test_every_row_equals_a_consumers_message(read: Any, shared_broker: RunningBroker, orders: str) -> None:
    frame = read(includeProperties="true", includeHeaders="true")
    assert (
        frame.columns
        == (
            "topic queue queue_offset physical_offset body tags keys message_id born_at stored_at "
            "reconsume_times properties headers"
        ).split()
    )
    rows = {(row.queue, row.queue_offset): row for row in frame.collect()}
    expected = stored(shared_broker, orders)
    assert len(rows) == len(expected) == COUNT
    for place, message in expected.items():
        row = rows[place]
        for name in ("topic", "queue", "queue_offset", "physical_offset", "tags", "message_id", "reconsume_times"):
            assert getattr(row, name) == getattr(message, name), name
        assert bytes(row.body) == message.body
        assert row["keys"] == list(message.keys)
        assert row.born_at.astimezone(UTC) == message.born_at
        assert row.stored_at.astimezone(UTC) == message.stored_at
        assert row.properties == dict(message.properties)
        assert {header.key: bytes(header.value).decode() for header in row.headers} == dict(message.user_properties)


def test_a_schema_chooses_columns_and_their_order(read: Any) -> None:
    frame = read("tags string, body binary")
    assert frame.columns == ["tags", "body"]
    counts = {row.tags: row["count"] for row in frame.groupBy("tags").count().collect()}
    assert counts == {"eu": 100, "us": 100, None: 100}


@pytest.mark.parametrize("parts", [1, 2, 7, 50])
def test_any_number_of_partitions_returns_each_message_once(read: Any, parts: int) -> None:
    frame = read(minPartitions=parts)
    assert len(places(frame)) == COUNT
    assert max(parts, QUEUES) <= frame.rdd.getNumPartitions() <= parts + QUEUES


def test_offsets_limit_the_read(read: Any, shared_broker: RunningBroker, orders: str) -> None:
    everything = set(stored(shared_broker, orders))
    ends = {queue: max(offset for q, offset in everything if q == queue) + 1 for queue in range(QUEUES)}
    found = places(
        read(
            startingOffsets=json.dumps({orders: {"0": 10, "1": ends[1], "2": -2}}),
            endingOffsets=json.dumps({f"{orders}/0": 25, f"{orders}/1": -1, f"{orders}/2": -1}),
        )
    )
    assert found == {(0, offset) for offset in range(10, 25)} | {(2, offset) for offset in range(ends[2])}


def test_times_limit_the_read(read: Any, shared_broker: RunningBroker, orders: str) -> None:
    by_place = stored(shared_broker, orders)
    times = sorted(message.stored_ms for message in by_place.values())
    since, until = times[COUNT // 3], times[2 * COUNT // 3]
    found = places(read(startingTimestamp=since, endingTimestamp=until))
    assert found == {place for place, message in by_place.items() if since <= message.stored_ms < until}
    moment = datetime.fromtimestamp(since / 1000, UTC).isoformat()
    later = {place for place, message in by_place.items() if message.stored_ms >= since}
    assert places(read(startingTimestamp=moment)) == later


def test_tags_are_filtered_by_the_broker(read: Any) -> None:
    assert {row.tags for row in read(tags="eu").collect()} == {"eu"}
    assert len(places(read(tags="eu || us"))) == 200
    assert places(read(tags="nobody")) == set()


def test_tags_with_equal_hashes_are_distinguished(spark: Any, shared_broker: RunningBroker, topic: str) -> None:
    with Producer(shared_broker.address) as producer:  # Java's hashCode of "Aa" is that of "BB"
        producer.send_many([Message(topic, str(n).encode(), tags="Aa" if n % 3 else "BB") for n in range(30)])
    frame = spark.read.format("flintmq").option("bootstrap", shared_broker.address).option("subscribe", topic)
    assert sorted(int(row.body) for row in frame.option("tags", "BB").load().collect()) == list(range(0, 30, 3))


def test_a_key_is_answered_from_the_index(read: Any, shared_broker: RunningBroker, orders: str) -> None:
    by_place = stored(shared_broker, orders)
    expected = {place for place, message in by_place.items() if "group-3" in message.keys}
    assert len(expected) > 10
    assert places(read(key="group-3")) == expected
    assert places(read(key="no such key")) == set()
    one = next(iter(by_place.values()))
    assert [row.queue_offset for row in read(key=one.message_id).collect()] == [one.queue_offset]
    newest = max(by_place[place].stored_ms for place in expected)
    assert places(read(key="group-3", startingTimestamp=newest + 1)) == set()
    until = {place for place in expected if by_place[place].stored_ms < newest}
    assert places(read(key="group-3", endingTimestamp=newest)) == until


def test_a_key_of_many_messages_is_found_page_by_page(spark: Any, shared_broker: RunningBroker, topic: str) -> None:
    with Producer(shared_broker.address) as producer:
        producer.send_bulk(topic, [b"%d" % n for n in range(500)], keys=["same"] * 500)
    frame = spark.read.format("flintmq").options(bootstrap=shared_broker.address, subscribe=topic, key="same").load()
    assert sorted(int(row.body) for row in frame.collect()) == list(range(500))


@pytest.mark.parametrize(
    "condition",
    [
        "queue = 1",
        "queue IN (0, 2) AND queue_offset >= 5 AND queue_offset < 40",
        "queue_offset = 7",
        "tags = 'eu'",
        "tags IN ('eu', 'us') AND queue <> 0",
        "topic = 'another'",
        "tags = 'eu' AND tags = 'us'",
        "tags IS NULL",
        "queue_offset > 20 AND tags LIKE 'e%'",
    ],
)
def test_pushed_filters_return_the_same_as_spark(read: Any, condition: str) -> None:
    assert places(read(pushFilters="true").where(condition)) == places(read().where(condition))


def test_pushed_filters_on_time_return_the_same_as_spark(read: Any, shared_broker: RunningBroker, orders: str) -> None:
    from pyspark.sql.functions import col, lit

    times = sorted(message.stored_at for message in stored(shared_broker, orders).values())
    middle = times[COUNT // 2]
    for moment in (middle, middle + timedelta(microseconds=500), times[0] - timedelta(days=1)):
        for condition in (
            col("stored_at") >= lit(moment),
            col("stored_at") > lit(moment),
            col("stored_at") < lit(moment),
            col("stored_at") <= lit(moment),
            col("stored_at") == lit(moment),
        ):
            assert places(read(pushFilters="true").where(condition)) == places(read().where(condition))


def test_pushed_filters_reduce_the_pulled_messages(read: Any, shared_broker: RunningBroker) -> None:
    def pulled() -> int:
        with Admin(shared_broker.address) as admin:
            return int(admin.status()["pulled_messages"])

    before = pulled()
    rows = read(pushFilters="true").where("queue = 1 AND queue_offset BETWEEN 10 AND 14 AND tags = 'eu'").collect()
    assert len(rows) <= pulled() - before <= 5


def test_patterns_select_ordinary_topics_that_match_completely(read: Any, orders: str) -> None:
    frame = read(subscribePattern="spark-batch-.*")
    assert {row.topic for row in frame.select("topic").distinct().collect()} == {orders}
    assert read(subscribePattern="spark-batch").count() == 0


def test_a_pattern_skips_forbidden_topics_and_their_names_are_refused(
    read: Any, orders: str, shared_broker: RunningBroker, connect: ConnectionFactory
) -> None:
    closed = f"{orders}-write-only"
    connect(shared_broker).call(UPDATE_AND_CREATE_TOPIC, {"topic": closed, "perm": 2}).raise_for_error()
    frame = read(subscribePattern=f"{orders}.*")
    assert {row.topic for row in frame.select("topic").distinct().collect()} == {orders}
    with pytest.raises(Exception, match=f"NoPermission: option 'subscribe': topic '{closed}' cannot be read"):
        read(subscribe=closed)


def test_several_brokers_and_topics_are_read_as_one(spark: Any, broker: BrokerFactory) -> None:
    east, west = broker(), broker()
    for running, names in ((east, ("both", "mine")), (west, ("both",))):
        with Producer(running.address) as producer:
            for name in names:
                producer.send_bulk(name, [f"{running.port} {name} {n}".encode() for n in range(20)], queue=1)
    bootstrap = f"east={east.address},west={west.address}"
    reader = spark.read.format("flintmq").option("bootstrap", bootstrap).option("subscribe", "both,mine")
    expected = {f"{east.port} both {n}" for n in range(20)} | {f"{east.port} mine {n}" for n in range(20)}
    expected |= {f"{west.port} both {n}" for n in range(20)}
    assert {bytes(row.body).decode() for row in reader.load().collect()} == expected
    given = {"both@east": {"1": 19}, "both@west": {"1": 18}, "mine": {"1": 20}}
    offsets = json.dumps({name: {"0": 0, "2": -2, "3": -2} | queues for name, queues in given.items()})
    found = {bytes(row.body).decode() for row in reader.option("startingOffsets", offsets).load().collect()}
    assert found == {f"{east.port} both 19", f"{west.port} both 18", f"{west.port} both 19"}


def test_an_empty_topic_is_an_empty_frame(spark: Any, shared_broker: RunningBroker, topic: str) -> None:
    with Admin(shared_broker.address) as admin:
        admin.create_topic(topic)
    frame = spark.read.format("flintmq").options(bootstrap=shared_broker.address, subscribe=topic).load()
    assert frame.count() == 0


def test_a_broker_may_restart_while_it_is_read(spark: Any, broker: BrokerFactory) -> None:
    running = broker()
    with Producer(running.address) as producer:
        producer.send_bulk("orders", [b"%d" % n for n in range(5000)], queue=0)
    options = {"bootstrap": running.address, "subscribe": "orders"}
    spark.read.format("flintmq").options(**options).load().count()  # the workers have connections now
    frame = spark.read.format("flintmq").options(**options).load()
    plan = frame.rdd  # planned: from now on only the tasks send requests to the broker
    assert running.stop() == 0
    again = broker("--listen", running.address, store=running.store)
    assert again.port == running.port
    assert plan.count() == 5000


# ---- schemas ----


def test_the_arrow_schema_equals_the_one_that_spark_expects(spark: Any) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    from flintmq.client.arrow.decoder import arrow_schema
    from flintmq.client.spark.columns import columns_of, ddl, offered

    columns = offered(properties=True, headers=True)
    schema = StructType.fromDDL(ddl(columns))
    assert isinstance(schema, StructType)
    assert columns_of(schema) == columns
    assert arrow_schema(columns) == to_arrow_schema(schema, timezone="UTC")


def test_each_message_is_on_its_side_of_a_time(spark: Any, broker: BrokerFactory) -> None:
    running = broker()
    found = store(running, "timed")
    until(lambda: pa.table(read_store(running.store, "timed")).num_rows == len(found.at), "the files")  # they lag

    def of_broker(**options: Any) -> list[int]:
        reader = spark.read.format("flintmq").options(bootstrap=running.address, subscribe="timed", **options)
        return numbers(row.body for row in reader.load().select("body").collect())

    def of_files(**options: Any) -> list[int]:
        rows = spark.read.format("flintmq-store").options(subscribe="timed", **options).load(str(running.store))
        return numbers(row.body for row in rows.select("body").collect())

    check_bounds(
        found,
        2,
        from_={
            "source": lambda t: of_broker(startingTimestamp=t.isoformat()),
            "source by key": lambda t: of_broker(startingTimestamp=t.isoformat(), key="k"),
            "store": lambda t: of_files(startingTimestamp=t.isoformat()),
        },
        end={
            "source": lambda t: of_broker(endingTimestamp=t.isoformat()),
            "source by key": lambda t: of_broker(endingTimestamp=t.isoformat(), key="k"),
            "store": lambda t: of_files(endingTimestamp=t.isoformat()),
        },
        inclusive={},
    )
