"""Polars, DuckDB and pandas over topics and stores: right results, and filters and columns that lower what is read."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from flintmq.client import Admin, Consumer, FilterIllegal, InvalidArgument, Message, Producer, TopicNotExist
from tests.conftest import Brokers, RunningBroker
from tests.store_tools import SERVED, open_store, overwrite, plain, put

pl = pytest.importorskip("polars")
duckdb = pytest.importorskip("duckdb")
pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")

from flintmq.client.arrow import CorruptLog, InvalidOption, read_store  # noqa: E402 - PyArrow may be missing
from flintmq.client.polars import scan, scan_store  # noqa: E402

QUEUES = 4
COUNT = 400
TAGS = ("eu", "us", None)


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """Start a broker with the topic ``orders``: a hundred messages in each of four queues."""
    brokers = Brokers(tmp_path_factory.mktemp("orders"))
    running = brokers.start()
    with Admin(running.address) as admin, Producer(running.address) as producer:
        admin.create_topic("orders", QUEUES)
        for queue in range(QUEUES):
            numbers = range(queue, COUNT, QUEUES)
            producer.send_many([order(number) for number in numbers], queue=queue)
    yield running
    brokers.stop_all()


def order(number: int) -> Message:
    body = b'{"order": %d, "amount": %d}' % (number, number * 10)
    return Message("orders", body, tags=TAGS[number % 3], keys=[f"o-{number}"], properties={"amount": str(number)})


def pulled(running: RunningBroker) -> int:
    """Return the broker's own count of the messages that it put into responses to pulls."""
    with Admin(running.address) as admin:
        return next(each.pulled_messages for each in admin.topics_stats() if each.topic == "orders")


@pytest.fixture
def everything(orders: RunningBroker) -> Any:
    with Consumer(orders.address) as consumer:
        return pl.DataFrame(consumer.arrow("orders"))


# ---- Polars


PREDICATES = {
    "queue": (pl.col("queue") == 1, COUNT // QUEUES),
    "queues": (pl.col("queue").is_in([0, 3]), COUNT // 2),
    "offset": (pl.col("queue_offset") >= 90, 10 * QUEUES),
    "mirrored": (pl.lit(90) <= pl.col("queue_offset"), 10 * QUEUES),
    "between": (pl.col("queue_offset").is_between(10, 20, closed="left"), 10 * QUEUES),
    "tag": (pl.col("tags") == "eu", 134),
    "tags": (pl.col("tags").is_in(["us", "eu"]), 267),
    "both": ((pl.col("queue") == 2) & (pl.col("queue_offset") < 5) & (pl.col("reconsume_times") == 0), 5),
    "later": (pl.col("stored_at") > datetime.now(UTC) + timedelta(hours=1), 0),
    "earlier": (pl.col("stored_at") < datetime(2020, 1, 1, tzinfo=UTC), 0),
    "nothing": ((pl.col("tags") == "eu") & (pl.col("tags") == "us"), 0),
    "topic": (pl.col("topic") == "payments", 0),
}
"""Predicates, and how many messages the broker has to send for them."""


@pytest.mark.parametrize("name", PREDICATES)
def test_a_predicate_lowers_what_is_pulled_and_filters_in_full(
    orders: RunningBroker, everything: Any, name: str
) -> None:
    predicate, sent = PREDICATES[name]
    before = pulled(orders)
    found = scan(orders.address, "orders").filter(predicate).collect()
    assert pulled(orders) - before == sent
    assert found.equals(everything.filter(predicate))


@pytest.mark.parametrize(
    "predicate",
    [
        (pl.col("queue") == 1) | (pl.col("queue_offset") == 5),
        pl.col("tags").is_null(),
        pl.col("tags").is_in(["eu", None], nulls_equal=True),
        pl.col("tags") != "eu",
        ~(pl.col("queue") == 1),
        pl.col("queue") * 2 == 4,
        pl.col("queue") == pl.col("queue_offset"),
        pl.col("keys").list.contains("o-7"),
        pl.col("tags").is_in(["eu || us", "us"]),
        pl.col("queue").is_not_null() & (pl.col("queue") > 1),
        pl.col("queue_offset") > 10.5,
        pl.col("queue_offset").is_in([3, 4]),
    ],
    ids=str,
)
def test_a_predicate_that_no_pull_can_express_still_filters(
    orders: RunningBroker, everything: Any, predicate: Any
) -> None:
    found = scan(orders.address, "orders").filter(predicate).collect()
    assert found.equals(everything.filter(predicate))


def test_only_columns_that_are_needed_are_made(orders: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    from flintmq.client.arrow import decoder

    made: list[tuple[str, ...]] = []
    build = decoder.Decoder.__init__

    def recorded(self: Any, columns: Any) -> None:
        made.append(tuple(column.name for column in columns))
        build(self, columns)

    frame = scan(orders.address, "orders")
    monkeypatch.setattr(decoder.Decoder, "__init__", recorded)
    assert frame.select("body").collect().columns == ["body"]
    assert frame.filter(pl.col("queue") == 1).select("tags").collect().columns == ["tags"]
    assert frame.select(pl.len()).collect().item() == COUNT
    assert frame.select("body", "queue").collect().columns == ["body", "queue"]
    assert [set(names) for names in made] == [{"body"}, {"queue", "tags"}, {"queue"}, {"body", "queue"}]


def test_the_first_rows_are_read_without_the_rest(orders: RunningBroker, everything: Any) -> None:
    before = pulled(orders)
    assert scan(orders.address, "orders").head(3).collect().equals(everything.head(3))
    assert pulled(orders) - before < COUNT / 2
    assert len(scan(orders.address, "orders").filter(pl.col("queue") == 2).head(3).collect()) == 3
    assert len(scan(orders.address, "orders").head(0).collect()) == 0


def test_options_and_predicates_add_up(orders: RunningBroker) -> None:
    frame = scan(orders.address, "orders", {0: 50, 1: 100, 2: 100, 3: 100}, tags="eu || us", filter="amount > 100")
    offsets = frame.filter(pl.col("tags") == "eu").collect()["queue_offset"].to_list()
    assert offsets == [n // QUEUES for n in range(0, COUNT, QUEUES) if n // QUEUES >= 50 and n % 3 == 0 and n > 100]
    assert frame.filter(pl.col("tags") == "asia").collect().is_empty()


def test_a_scan_is_read_again_by_each_collect_and_joined_in_a_query(orders: RunningBroker) -> None:
    frame = scan(orders.address, "orders", columns=("queue", "tags"))
    by_tag = frame.group_by("tags").len().sort("tags", nulls_last=True)
    assert by_tag.collect().rows() == by_tag.collect().rows() == [("eu", 134), ("us", 133), (None, 133)]
    assert frame.join(by_tag, on="tags", nulls_equal=True).collect(engine="streaming").height == COUNT


def test_properties_reach_polars(orders: RunningBroker) -> None:
    found = scan(orders.address, "orders", columns=("queue_offset", "properties", "headers")).collect()
    assert found["headers"][1].to_list() == [{"key": "amount", "value": b"4"}]
    assert "amount" in str(found["properties"][1])


@pytest.mark.parametrize(
    ("topic", "options", "error", "said"),
    [
        ("missing", {}, TopicNotExist, "missing"),
        ("orders", {"columns": ["bodi"]}, InvalidArgument, "did you mean 'body'"),
        ("orders", {"filter": "amount >"}, FilterIllegal, "filter"),
    ],
)
def test_a_scan_refuses_wrong_arguments_at_once(
    orders: RunningBroker, topic: str, options: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        scan(orders.address, topic, **options)


# ---- DuckDB and pandas


def test_duckdb_queries_a_stream_again_and_again(orders: RunningBroker) -> None:
    with Consumer(orders.address) as consumer, duckdb.connect() as connection:
        stream = consumer.arrow("orders", columns=("queue", "tags", "stored_at", "body"))
        assert stream.schema.names  # DuckDB finds the stream by the name of this variable
        query = "SELECT tags, count(*), max(queue) FROM stream GROUP BY tags ORDER BY tags NULLS LAST"
        for _ in range(2):
            assert connection.sql(query).fetchall() == [("eu", 134, 3), ("us", 133, 3), (None, 133, 3)]
        amounts = "SELECT sum((decode(body)::JSON->>'amount')::INT) FROM stream"
        assert connection.sql(amounts).fetchall() == [(sum(range(COUNT)) * 10,)]


def test_pandas_has_the_same_rows(orders: RunningBroker, everything: Any) -> None:
    with Consumer(orders.address) as consumer:
        stream = consumer.arrow("orders", columns=("queue", "queue_offset", "body"))
        frame = stream.table().to_pandas(types_mapper=pd.ArrowDtype)
        assert list(frame["body"]) == everything["body"].to_list()
        assert frame.groupby("queue")["queue_offset"].max().to_dict() == dict.fromkeys(range(QUEUES), 99)
        if hasattr(pd.DataFrame, "from_arrow"):  # pandas 3
            assert list(pd.DataFrame.from_arrow(stream)["body"]) == everything["body"].to_list()


# ---- stores without a broker


def test_a_store_that_a_broker_has_open_is_scanned_without_it(
    orders: RunningBroker, everything: Any, tmp_path: Path
) -> None:
    found = scan_store(orders.store, "orders").collect()
    order_of_all = ["queue", "queue_offset"]
    assert found.sort(order_of_all).equals(everything.sort(order_of_all))
    assert found["physical_offset"].is_sorted()
    before = pulled(orders)
    some = scan_store(orders.store, "orders", columns=("tags", "queue")).filter(pl.col("tags") == "eu").select("queue")
    assert some.collect().height == 134
    assert pulled(orders) == before
    assert pa.table(read_store(orders.store, "orders")).num_rows == COUNT


def test_times_select_from_a_store(orders: RunningBroker) -> None:
    now = datetime.now(UTC)
    future = now + timedelta(hours=1)
    assert scan_store(orders.store, "orders").filter(pl.col("stored_at") > future).collect().is_empty()
    assert scan_store(orders.store, "orders").filter(pl.col("topic") == "x").collect().is_empty()
    assert read_store(orders.store, "orders", since=now - timedelta(hours=1), until=future).table().num_rows == COUNT
    assert read_store(orders.store, "orders", since=future).table().num_rows == 0
    assert read_store(orders.store, "orders", until=now - timedelta(hours=1)).table().num_rows == 0


@pytest.mark.parametrize(
    ("folder", "topic", "options", "error", "said"),
    [
        ("missing", "orders", {}, InvalidOption, "is not a store: it does not exist"),
        ("missing", "orders", {}, InvalidOption, "with Spark, one that the driver"),
        ("store-0", "order", {}, InvalidOption, r"did you mean 'orders'.* With Spark, option\('subscribePattern'"),
        ("store-0", "orders", {"columns": ["x"]}, InvalidArgument, "columns has 'x'"),
        ("store-0", "orders", {"on_loss": "no"}, InvalidArgument, "on_loss is 'no'"),
        ("store-0", "orders", {"since": datetime(2026, 1, 1)}, InvalidArgument, "no time zone"),  # noqa: DTZ001
    ],
)
def test_a_store_scan_refuses_wrong_arguments_at_once(
    orders: RunningBroker, folder: str, topic: str, options: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        scan_store(orders.store.parent / folder, topic, **options)


def test_damage_of_a_store_is_an_error_or_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = open_store(path, SERVED)
    sent = put(store, "orders", 0, plain(20))
    store.close()
    overwrite(path / "commitlog" / f"{0:020d}", sent[7].physical_offset, bytes(60))
    stream = read_store(path, "orders", columns=["queue_offset"])
    with pytest.raises(CorruptLog, match='on_loss="report"'):
        stream.table()
    lenient = read_store(path, "orders", columns=["queue_offset"], on_loss="report")
    assert lenient.table()["queue_offset"].to_pylist() == [number for number in range(20) if number != 7]
    assert [type(each) for each in lenient.losses] == [CorruptLog]
