"""``Producer.send_arrow``: every row of a data frame arrives as the message that its columns say."""

from __future__ import annotations

from typing import Any

import pytest

from flintmq.client import (
    Admin,
    Consumer,
    InvalidArgument,
    InvalidArgumentType,
    InvalidMessage,
    Producer,
    TopicNotExist,
)
from tests.conftest import BrokerFactory, RunningBroker

pa = pytest.importorskip("pyarrow")
pl = pytest.importorskip("polars")
pd = pytest.importorskip("pandas")

from flintmq.client.arrow import RowsNotSent, rows  # noqa: E402 - PyArrow may be missing

ROWS = {
    "payload": ["a", "b", "", "d"],
    "id": ["o-1", "o-2", None, "o-4"],
    "tag": ["eu", "us", "eu", None],
    "region": ["de", "", None, "fr"],
    "amount": [1, 2, None, 4],
    "shard": ["x", "y", "x", "y"],
    "to": [0, 1, None, 3],
}


def own(message: Any) -> dict[str, str]:
    return dict(message.user_properties)


def arrived(running: RunningBroker, topic: str) -> dict[bytes, Any]:
    with Consumer(running.address) as consumer:
        return {bytes(message.body): message for message in consumer.iter(topic, until="latest")}


@pytest.mark.parametrize(
    "data",
    [
        pa.table(ROWS),
        pl.DataFrame(ROWS),
        pd.DataFrame(ROWS),
        pl.DataFrame(ROWS).with_columns(
            pl.col("tag", "region").cast(pl.Categorical), pl.col("payload").cast(pl.Binary)
        ),
    ],
    ids=["arrow", "polars", "pandas", "categorical"],
)
def test_each_row_becomes_a_message(shared_broker: RunningBroker, topic: str, data: Any) -> None:
    with Producer(shared_broker.address) as producer:
        count = producer.send_arrow(topic, data, body="payload", keys="id", tags="tag", properties=["region", "amount"])
    assert count == 4
    found = arrived(shared_broker, topic)
    assert {body: tuple(message.keys) for body, message in found.items()} == {
        b"a": ("o-1",),
        b"b": ("o-2",),
        b"": (),
        b"d": ("o-4",),
    }
    assert {body: message.tags for body, message in found.items()} == {b"a": "eu", b"b": "us", b"": "eu", b"d": None}
    amounts = {body: own(message).get("amount", "nan") for body, message in found.items()}
    assert [float(amounts[body]) for body in (b"a", b"b", b"d")] == [1, 2, 4]
    assert {body: own(message).get("region") for body, message in found.items()} == {
        b"a": "de",
        b"b": None,
        b"": None,
        b"d": "fr",
    }


def test_a_large_table_goes_in_pieces_and_comes_back_as_it_was(
    shared_broker: RunningBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "PIECE_ROWS", 1000)
    with Admin(shared_broker.address) as admin:
        admin.create_topic(topic, 1)
    table = pa.table({"body": [b"%d" % number for number in range(5500)]})
    with Producer(shared_broker.address) as producer, Consumer(shared_broker.address) as consumer:
        assert producer.send_arrow(topic, table) == 5500
        stream = consumer.arrow(topic, columns=["body"])
        assert pa.table(stream)["body"].to_pylist() == table["body"].to_pylist()
        copy = f"{topic}-copy"
        admin_free = producer.send_arrow(copy, consumer.arrow(topic, columns=["body", "keys", "tags"]), keys="keys")
        assert admin_free == 5500
        assert sorted(consumer.arrow(copy).table()["body"].to_pylist()) == sorted(table["body"].to_pylist())


def test_queues_and_sharding_keys_are_columns(shared_broker: RunningBroker, topic: str) -> None:
    with Admin(shared_broker.address) as admin:
        admin.create_topic(topic, 4)
    with Producer(shared_broker.address) as producer:
        producer.send_arrow(topic, pa.table(ROWS), "payload", queue="to")
        found = arrived(shared_broker, topic)
        assert {body: found[body].queue for body in (b"a", b"b", b"d")} == {b"a": 0, b"b": 1, b"d": 3}
        producer.send_arrow(f"{topic}-s", pa.table(ROWS), "payload", sharding_key="shard")
    sharded = arrived(shared_broker, f"{topic}-s")
    assert sharded[b"a"].queue == sharded[b""].queue
    assert sharded[b"a"].sharding_key == "x"


@pytest.mark.parametrize(
    ("columns", "error", "said"),
    [
        ({"body": "paylod"}, InvalidArgument, r"body: column 'paylod' is not there \(did you mean 'payload'\?\)"),
        ({"body": "amount"}, InvalidArgumentType, "body: column 'amount' is int64; it must have bytes or text"),
        ({"body": "payload", "keys": "amount"}, InvalidArgumentType, "keys: .* texts or lists of texts"),
        ({"body": "payload", "tags": "amount"}, InvalidArgumentType, "tags: .* must have texts"),
        ({"body": "payload", "queue": "id"}, InvalidArgumentType, "queue: .* whole numbers"),
        ({"body": "payload", "properties": "region"}, InvalidArgumentType, "several names of columns"),
        ({"body": "payload", "properties": ["nested"]}, InvalidArgumentType, "'nested' is list"),
        ({"body": "payload", "properties": ["x"]}, InvalidArgument, "properties: column 'x' is not there"),
        ({"body": "id"}, InvalidMessage, "row 2: column 'id': it is null"),
        ({"body": "payload", "keys": "bad"}, InvalidMessage, "row 1: column 'bad'"),
        ({"body": "payload", "properties": ["KEYS"]}, InvalidMessage, "row 0: column 'KEYS'"),
        ({"body": "payload", "queue": "low"}, InvalidMessage, "row 3: column 'low': queue is -1"),
    ],
)
def test_columns_that_cannot_be_sent_are_refused_before_anything_is(
    shared_broker: RunningBroker, topic: str, columns: dict[str, Any], error: type[Exception], said: str
) -> None:
    more = {"nested": [[1]] * 4, "bad": ["a", "b\x02", "c", "d"], "KEYS": ["k"] * 4, "low": [0, 0, 0, -1]}
    with Producer(shared_broker.address) as producer, pytest.raises(error, match=said):
        producer.send_arrow(topic, pa.table(ROWS | more), **columns)
    with Consumer(shared_broker.address) as consumer, pytest.raises(TopicNotExist):
        consumer.topic_stats(topic)


def test_data_must_be_arrow(shared_broker: RunningBroker, topic: str) -> None:
    with Producer(shared_broker.address) as producer, pytest.raises(InvalidArgumentType, match="not list"):
        producer.send_arrow(topic, [{"body": b"x"}])  # type: ignore[arg-type]  # the mistake under test


def test_rows_that_the_broker_refuses_are_named_by_their_number(broker: BrokerFactory) -> None:
    running = broker(settings={"store.message_bytes_max": 1024})
    bodies = [b"x" * (2000 if number in (3, 5) else 10) for number in range(8)]
    with Producer(running.address, compress_over=None) as producer:
        with pytest.raises(RowsNotSent, match="row 3") as caught:
            producer.send_arrow("orders", pa.table({"body": bodies}))
        assert sorted(caught.value.errors) == [3, 5]
        assert caught.value.acknowledged == 6
    assert len(arrived_all(running)) == 6


def arrived_all(running: RunningBroker) -> list[bytes]:
    with Consumer(running.address) as consumer:
        return [bytes(message.body) for message in consumer.iter("orders", until="latest")]
