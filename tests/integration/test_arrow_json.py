"""JSON bodies as columns, over a real broker: by a schema or an inferred one, in Arrow and in Polars."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from flintmq.client import Admin, Consumer, InvalidArgument, Message, Producer
from tests.conftest import RunningBroker

pa = pytest.importorskip("pyarrow")
pl = pytest.importorskip("polars")

from flintmq.client.polars import scan  # noqa: E402 - Polars may be missing

SCHEMA = pa.schema([("order", pa.int64()), ("city", pa.string()), ("at", pa.timestamp("ms", "UTC"))])
BAD = {3: b"no JSON", 7: b'{"order": "seven"}'}
COUNT = 20


@pytest.fixture
def orders(shared_broker: RunningBroker, topic: str) -> Iterator[Consumer]:
    """Send JSON objects, two of them bad, to one queue; return a consumer."""
    with Admin(shared_broker.address) as admin, Producer(shared_broker.address, compress_over=20) as producer:
        admin.create_topic(topic, 1)
        producer.send_many(
            [Message(topic, BAD.get(number) or body(number), keys=str(number)) for number in range(COUNT)]
        )
    with Consumer(shared_broker.address) as consumer:
        yield consumer


def body(number: int) -> bytes:
    value = {"order": number, "city": "Zürich", "at": "2026-01-01T00:00:00Z", "lines": [{"sku": "a", "count": number}]}
    return json.dumps(value, indent=number % 2 or None).encode()


def check(rows: list[dict[str, Any]]) -> None:
    """Check the fields and errors of all rows."""
    for number, row in enumerate(rows):
        if number in BAD:
            assert (row["order"], row["city"], row["at"]) == (None, None, None)
            assert row["error"]
        else:
            assert (row["order"], row["city"], row["error"]) == (number, "Zürich", None)
            assert row["at"] == datetime(2026, 1, 1, tzinfo=UTC)


def test_fields_of_a_schema_are_columns_and_bad_bodies_say_why(orders: Consumer, topic: str) -> None:
    stream = orders.arrow(topic, json_schema=SCHEMA, batch_rows=6)
    assert "body" not in stream.schema.names
    assert stream.schema.names[-4:] == ["order", "city", "at", "error"]
    table = pa.table(stream)
    check(table.to_pylist())
    assert table["error"][3].as_py().startswith("not JSON")
    assert "changed from number to string" in table["error"][7].as_py()
    some = orders.arrow(topic, json_schema=SCHEMA, columns=("city", "body", "order", "queue_offset"))
    assert some.schema.names == ["city", "body", "order", "queue_offset"]
    rows = some.table().to_pylist()
    assert rows[3] == {"city": None, "body": BAD[3], "order": None, "queue_offset": 3}
    assert rows[4]["body"] == body(4)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"l": [None, 1]}, pa.struct([("l", pa.list_(pa.int64()))])),
        ({"l": [None, {"a": [None, "x"]}]}, pa.struct([("l", pa.list_(pa.struct([("a", pa.list_(pa.string()))])))])),
        ({"m": {"l": [None, [None, 1.5]]}}, pa.struct([("m", pa.struct([("l", pa.list_(pa.list_(pa.float64())))]))])),
    ],
)
def test_a_list_that_begins_with_null_is_inferred_by_its_values(
    shared_broker: RunningBroker, topic: str, body: dict[str, object], kind: Any
) -> None:
    with Producer(shared_broker.address) as producer, Consumer(shared_broker.address) as consumer:
        producer.send_many([Message(topic, json.dumps(each).encode()) for each in (body, {"other": 1})])
        stream = consumer.arrow(topic, infer=2)
        assert [stream.schema.field(field.name).type for field in kind] == [field.type for field in kind]
        rows = pa.Table.from_batches(stream).to_pylist()
    assert [row[name] for row in rows for name in body if row[name] is not None] == list(body.values())


def test_a_schema_is_inferred_from_the_first_messages(orders: Consumer, topic: str) -> None:
    stream = orders.arrow(topic, infer=3)
    check([row | {"at": row["at"] and row["at"].replace(tzinfo=UTC)} for row in stream.table().to_pylist()])
    lines = stream.schema.field("lines").type
    assert lines.value_type == pa.struct([("sku", pa.string()), ("count", pa.int64())])


def test_polars_reads_only_the_fields_that_it_needs(orders: Consumer, shared_broker: RunningBroker, topic: str) -> None:
    for options in ({"json_schema": SCHEMA}, {"infer": 100}):
        frame = scan(shared_broker.address, topic, **options)
        assert frame.filter(pl.col("order") > 15).select("city", "order").collect().rows() == [
            ("Zürich", number) for number in range(16, COUNT)
        ]
        assert frame.filter(pl.col("error").is_not_null()).select("queue_offset").collect()[
            "queue_offset"
        ].to_list() == [3, 7]
        assert frame.select("queue").collect().height == COUNT


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"json_schema": SCHEMA, "columns": ["oder"]}, "columns has 'oder' .did you mean 'order'"),
        ({"json_schema": SCHEMA, "infer": 5}, "exclude each other"),
        ({"infer": 0}, "infer is 0"),
        ({"infer": 3, "tags": "none"}, "none of the 0 messages"),
        ({"json_schema": SCHEMA, "columns": "order"}, "must be several names"),
    ],
)
def test_wrong_arguments_are_refused(orders: Consumer, topic: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        orders.arrow(topic, **options)
