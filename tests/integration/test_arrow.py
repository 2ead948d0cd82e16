"""``Consumer.arrow`` over a real broker: the same messages as ``Consumer.iter``, again with each use, with typed
errors."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from flintmq.client import (
    Admin,
    Consumer,
    CorruptMessage,
    FilterIllegal,
    InvalidArgument,
    InvalidArgumentType,
    Message,
    OffsetOutOfRange,
    Producer,
    StoredMessage,
    TopicNotExist,
)
from tests.conftest import Brokers, RunningBroker
from tests.store_tools import SERVED, open_store, overwrite, plain, put

pa = pytest.importorskip("pyarrow")

from flintmq.client.arrow import DataLoss  # noqa: E402 - PyArrow may be missing
from flintmq.client.arrow.decoder import ALL_COLUMNS, COLUMNS, HEADERS  # noqa: E402

COUNT = 40
BODY_AT = 88
"""Offset of the body in a record, with IPv4 hosts."""
OWN_PROPERTIES = {"KEYS", "TAGS", "UNIQ_KEY", "__SHARDINGKEY"}


@pytest.fixture
def filled(shared_broker: RunningBroker, topic: str) -> Iterator[Consumer]:
    """Fill the topic's four queues with messages of every kind; return a consumer."""
    with Producer(shared_broker.address, compress_over=500) as producer:
        producer.send_many([kind(topic, number) for number in range(COUNT)])
    with Consumer(shared_broker.address) as consumer:
        yield consumer


def kind(topic: str, number: int) -> Message:
    """Return a message whose parts depend on its number: some long enough to be compressed, some without anything."""
    body = b"" if number % 10 == 9 else b"%d " % number * (400 if number % 7 == 3 else 1)
    if number % 5 == 4:
        return Message(topic, body)
    tags = "odd" if number % 2 else "even"
    properties = {"amount": str(number), "ключ": "значение"} if number % 3 == 0 else None
    return Message(topic, body, tags=tags, keys=[f"k-{number}", f"third-{number % 3}"], properties=properties)


def rows_of(messages: Any) -> list[dict[str, Any]]:
    """Return the rows that a stream with all columns should have for messages of ``Consumer.iter``."""
    return [row_of(message) for message in messages]


def row_of(message: StoredMessage) -> dict[str, Any]:
    own = [(name, value) for name, value in message.properties.items() if name not in OWN_PROPERTIES]
    return {
        "topic": message.topic,
        "queue": message.queue,
        "queue_offset": message.queue_offset,
        "physical_offset": message.physical_offset,
        "body": bytes(message.body),
        "tags": message.tags,
        "keys": list(message.keys),
        "message_id": message.message_id,
        "born_at": message.born_at,
        "stored_at": message.stored_at,
        "reconsume_times": message.reconsume_times,
        "properties": sorted(message.properties.items()),
        HEADERS.name: [{"key": name, "value": value.encode()} for name, value in own],
    }


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows by queue and offset, with their properties sorted."""
    for row in rows:
        if "properties" in row:
            row["properties"] = sorted(row["properties"])
    return sorted(rows, key=lambda row: (row["queue"], row["queue_offset"]))


def bodies(stream: Any) -> list[bytes]:
    return sorted(stream.table()["body"].to_pylist())


# ---- rows


@pytest.mark.parametrize("batch_rows", [1, 3, 65_536])
def test_every_column_is_that_of_the_plain_consumer(filled: Consumer, topic: str, batch_rows: int) -> None:
    stream = filled.arrow(topic, columns=ALL_COLUMNS, batch_rows=batch_rows)
    batches = list(stream)
    assert all(0 < batch.num_rows <= batch_rows for batch in batches)
    assert {batch.schema for batch in batches} == {stream.schema}
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert in_order(rows) == in_order(rows_of(filled.iter(topic, until="latest")))
    assert len(rows) == COUNT


def test_columns_are_those_asked_for_in_that_order(filled: Consumer, topic: str) -> None:
    assert filled.arrow(topic).schema.names == [column.name for column in COLUMNS]
    stream = filled.arrow(topic, columns=("stored_at", "body"))
    assert stream.schema.names == ["stored_at", "body"]
    assert stream.table().num_rows == COUNT


def test_a_stream_can_be_used_again_and_sees_what_came_since(
    filled: Consumer, shared_broker: RunningBroker, topic: str
) -> None:
    stream = filled.arrow(topic, columns=["body"])
    first = pa.table(stream)
    assert first.num_rows == COUNT
    assert pa.table(stream) == first
    assert stream.reader().read_all() == first
    with Producer(shared_broker.address) as producer:
        producer.send(Message(topic, b"later"))
    assert b"later" in bodies(stream)
    assert pa.table(stream).num_rows == COUNT + 1


@pytest.mark.parametrize(
    "options", [{"tags": "odd"}, {"tags": "odd || even"}, {"filter": "amount > 10"}, {"tags": "nothing"}]
)
def test_tags_and_filters_are_those_of_the_plain_consumer(
    filled: Consumer, topic: str, options: dict[str, Any]
) -> None:
    expected = sorted(bytes(each.body) for each in filled.iter(topic, until="latest", **options))
    assert bodies(filled.arrow(topic, batch_rows=2, **options)) == expected
    assert bool(expected) == (options != {"tags": "nothing"})


def test_positions_are_those_of_the_plain_consumer(filled: Consumer, topic: str) -> None:
    spans: list[tuple[Any, Any]] = [
        (-7, "latest"),
        ({0: 2, 3: 1}, "latest"),
        ("earliest", {0: 3, 1: 0}),
        ("latest", "latest"),
        (datetime.now(UTC) - timedelta(hours=1), datetime.now(UTC) - timedelta(minutes=30)),
    ]
    for from_, until in spans:
        expected = sorted(bytes(each.body) for each in filled.iter(topic, from_, until))
        assert bodies(filled.arrow(topic, from_, until)) == expected, (from_, until)
    assert len(bodies(filled.arrow(topic, until=datetime.now(UTC) + timedelta(days=1)))) == COUNT
    assert len(bodies(filled.arrow(topic, until={0: 1_000_000, 3: 1_000_000}))) == COUNT


def test_a_key_reads_the_index_alone(filled: Consumer, shared_broker: RunningBroker, topic: str) -> None:
    expected = sorted(bytes(each.body) for each in filled.query_iter(topic, "third-1"))
    before = pulled_messages(shared_broker, topic)
    assert bodies(filled.arrow(topic, key="third-1")) == expected
    assert len(expected) > 5
    odd = bodies(filled.arrow(topic, key="third-1", tags="odd"))
    assert set(odd) < set(expected)
    assert not bodies(filled.arrow(topic, "latest", key="third-1"))
    assert not bodies(filled.arrow(topic, key="third-1", until=datetime.now(UTC) - timedelta(hours=1)))
    assert pulled_messages(shared_broker, topic) == before


def pulled_messages(running: RunningBroker, topic: str) -> int:
    """Return the broker's own count of the messages in responses to pulls of the topic."""
    with Admin(running.address) as admin:
        return next(each.pulled_messages for each in admin.topics_stats() if each.topic == topic)


def test_an_abandoned_reader_gives_its_connection_back(filled: Consumer, topic: str) -> None:
    reader = filled.arrow(topic, columns=["body"], batch_rows=1).reader()
    assert reader.read_next_batch().num_rows == 1
    del reader
    assert not filled._caller.pool._busy
    assert filled.arrow(topic, columns=["body"]).table().num_rows == COUNT


# ---- refusals


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"columns": ["bodi"]}, InvalidArgument, r"columns has 'bodi' \(did you mean 'body'\?\); messages have topic"),
        ({"columns": "body"}, InvalidArgumentType, "use \\('body',\\)"),
        ({"columns": []}, InvalidArgument, "at least one column"),
        ({"columns": ["body", "body"]}, InvalidArgument, "none twice"),
        ({"filter": "amount >"}, FilterIllegal, "filter"),
        ({"filter": 5}, InvalidArgumentType, "filter must be a str"),
        ({"batch_rows": 0}, InvalidArgument, "batch_rows is 0; .* from 1 to 65,536"),
        ({"on_loss": "skip"}, InvalidArgument, "on_loss is 'skip'"),
        ({"key": "a", "filter": "b > 1"}, InvalidArgument, "key and filter exclude each other"),
        ({"key": "a", "from_": -3}, InvalidArgument, "with a key, from_ must be a datetime, 'earliest' or"),
        ({"colums": ["body"]}, InvalidArgumentType, "no argument 'colums'"),
        ({"timeout": -1}, InvalidArgument, "timeout is -1"),
        ({"until": None}, InvalidArgumentType, "until must be"),
    ],
)
def test_wrong_arguments_are_refused_at_once(
    filled: Consumer, topic: str, options: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        filled.arrow(topic, **options)


def test_a_missing_topic_is_refused_at_once_and_one_that_goes_away_by_the_read(
    filled: Consumer, shared_broker: RunningBroker, topic: str
) -> None:
    with pytest.raises(TopicNotExist, match="missing"):
        filled.arrow("missing")
    stream = filled.arrow(topic)
    with Admin(shared_broker.address) as admin:
        admin.delete_topic(topic)
    with pytest.raises(TopicNotExist, match=topic):
        stream.table()
    assert isinstance(stream.error, TopicNotExist)


def test_an_explicit_start_that_expired_is_an_error(filled: Consumer, topic: str) -> None:
    with pytest.raises(OffsetOutOfRange):
        filled.arrow(topic, {0: COUNT + 1}).table()


# ---- damage


@dataclass(frozen=True)
class Case:
    """A topic with damaged messages, and the error of a read that meets them."""

    topic: str
    lost: range
    error: type[Exception]
    said: str


CONTAINED = Case("contained", range(5, 9), DataLoss, r"messages \[5, 9\) of queue 0 of topic 'contained'")
RECORD = Case("record", range(7, 8), DataLoss, r"message 7 of queue 0 of topic 'record'")
BODY = Case("body", range(3, 4), CorruptMessage, r"offset 3 of queue 0 of topic 'body'")
CASES = [CONTAINED, RECORD, BODY]


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """Start a broker with the topics of the cases: one with a hole that a start has contained, two with unchecked
    damage."""
    path = tmp_path_factory.mktemp("damaged") / "store"
    store = open_store(path, SERVED)
    sent = {case: put(store, case.topic, 0, plain(COUNT)) for case in CASES}
    store.close()
    log = path / "commitlog" / f"{0:020d}"
    begin, end = (sent[CONTAINED][number].physical_offset for number in (5, 9))
    overwrite(log, begin, bytes(end - begin))
    open_store(path, SERVED).close()
    overwrite(log, sent[RECORD][7].physical_offset, bytes(60))
    overwrite(log, sent[BODY][3].physical_offset + BODY_AT, b"X")
    brokers = Brokers(tmp_path_factory.mktemp("brokers"))
    yield brokers.start(store=path, settings={"store.verify_at_start_bytes": 0})
    brokers.stop_all()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.topic)
def test_a_read_fails_at_damage_or_reports_it_and_reads_the_others(
    damaged: RunningBroker, case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    with Consumer(damaged.address) as consumer:
        stream = consumer.arrow(case.topic)
        with pytest.raises(case.error, match=case.said) as caught:
            stream.table()
        assert stream.error is caught.value
        with pytest.raises(pa.ArrowInvalid, match=f"{case.error.__name__}: .*{case.said}"):
            pa.table(stream)
        assert isinstance(stream.error, case.error)
        duckdb = pytest.importorskip("duckdb")
        with duckdb.connect() as connection, pytest.raises(duckdb.Error, match=f"{case.error.__name__}: .*{case.said}"):
            connection.sql("SELECT count(*) FROM stream").fetchall()
        assert isinstance(stream.error, case.error)
        pl = pytest.importorskip("polars")
        from flintmq.client.polars import scan

        with pytest.raises(pl.exceptions.PolarsError, match=f"{case.error.__name__}: .*{case.said}"):
            pl.DataFrame(stream)
        with pytest.raises(case.error, match=case.said):
            scan(damaged.address, case.topic).collect()
        lenient = consumer.arrow(case.topic, on_loss="report")
        with caplog.at_level(logging.WARNING, "flintmq.client"):
            for _ in range(2):
                offsets = pa.table(lenient)["queue_offset"].to_pylist()
                assert offsets == [n for n in range(COUNT) if n not in case.lost]
                assert [type(each) for each in lenient.losses] == [case.error]
                assert lenient.loss_count == 1
        assert case.topic in caplog.text
        assert lenient.error is None
