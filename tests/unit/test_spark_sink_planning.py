"""Options and columns that the sink refuses on the driver."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from flintmq.client.spark.errors import IncompatibleSchema, InvalidOption
from flintmq.client.spark.sink_options import WRITE_OPTIONS, WriteOptions, write_options

LEAST = {"bootstrap": "localhost:10911", "topic": "orders"}


# ---- options ----


def test_options_not_given_have_their_defaults() -> None:
    options = write_options({"bootstrap": "localhost:10911"})
    assert options.broker.address == "localhost:10911"
    assert options.topic is options.flush is None
    assert (options.delivery, options.timeout, options.compress_over) == ("at-least-once", 60, 4096)


def test_every_option_is_understood_in_any_case() -> None:
    given = {
        "BOOTSTRAP": "east=h:1",
        "Topic": "orders",
        "flush": "sync",
        "delivery": "at-least-once",
        "timeoutMS": "1500",
        "compressover": "never",
        "USER": "spark",
        "password": "s3cret",
        "TLS": "true",
    }
    files = {"passwordfile", "tlscertificate", "tlskey"}  # required columns
    assert {name.lower() for name in given} == {option.name.lower() for option in WRITE_OPTIONS} - files
    options = write_options(given)
    assert (options.broker.name, options.broker.address) == ("east", "h:1")
    assert (options.topic, options.flush, options.timeout, options.compress_over) == ("orders", "sync", 1.5, None)
    assert options.broker.access.options == {"user": "spark", "password": "s3cret", "tls": True}


def test_options_go_to_executors_and_tell_producers_apart() -> None:
    options = write_options(LEAST)
    assert pickle.loads(pickle.dumps(options)) == options
    user = write_options({**LEAST, "user": "spark", "password": "s3cret"})
    assert pickle.loads(pickle.dumps(user)) == user != options
    assert "s3cret" not in repr(user)
    assert hash(options) == hash(write_options(LEAST)) != hash(write_options({**LEAST, "flush": "sync"}))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"bootstrap": ""}, ["'bootstrap'", "names no broker"]),
        ({"bootstrap": "a:1,b:2"}, ["'bootstrap'", "2 brokers"]),
        ({"bootstrap": "host:port"}, ["'bootstrap'", "host:port"]),
        ({"topic": "a b"}, ["'topic'", "not allowed"]),
        ({"topic": ""}, ["'topic'", "empty"]),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, ["'topic'", "the broker's own"]),
        ({"flush": "often"}, ["'flush'", "'sync'", "'async'"]),
        ({"delivery": "at-most-once"}, ["'delivery'", "'at-least-once'", "'exactly-once'"]),
        ({"timeoutMs": "0"}, ["'timeoutMs'", "at least 1"]),
        ({"compressOver": "much"}, ["'compressOver'", "'never'"]),
        ({"topics": "orders"}, ["no option 'topics'", "did you mean 'topic'?"]),
        ({"subscribe": "orders"}, ["no option 'subscribe'", "topic"]),
        ({"path": "orders"}, ["'path'", 'option("topic"']),
        ({"checkpointLocation": "/c"}, ["no option 'checkpointLocation'"]),
    ],
)
def test_an_option_that_cannot_be_kept_is_refused_by_its_name(given: dict[str, str], words: list[str]) -> None:
    with pytest.raises(InvalidOption) as raised:
        write_options({**LEAST, **given})
    for word in words:
        assert word in str(raised.value)


def test_the_broker_must_be_named() -> None:
    with pytest.raises(InvalidOption, match="option 'bootstrap' is missing"):
        write_options({"topic": "orders"})


def test_a_stream_accepts_the_options_that_spark_adds() -> None:
    given = {**LEAST, "checkpointlocation": "/c", "queryName": "q"}
    assert write_options(given, streaming=True) == write_options(LEAST)
    with pytest.raises(InvalidOption, match="no option 'triggers'"):
        write_options({**given, "triggers": "1"}, streaming=True)


# ---- columns ----


@pytest.fixture
def check() -> Any:
    """Return a function to be called like ``check("body binary, …", topic=None)``."""
    types = pytest.importorskip("pyspark.sql.types")
    pytest.importorskip("pyarrow")
    from flintmq.client.spark.sink_options import check_columns

    kinds = {
        "binary": types.BinaryType(),
        "string": types.StringType(),
        "collated": types.StringType("UTF8_LCASE"),
        "int": types.IntegerType(),
        "bigint": types.LongType(),
        "timestamp": types.TimestampType(),
        "void": types.NullType(),
        "strings": types.ArrayType(types.StringType(), False),
        "ints": types.ArrayType(types.IntegerType()),
        "map": types.MapType(types.StringType(), types.StringType()),
        "numbers": types.MapType(types.StringType(), types.IntegerType()),
        "headers": types.ArrayType(
            types.StructType().add("key", types.StringType()).add("value", types.BinaryType(), False)
        ),
    }

    def run(columns: str, topic: str | None = "orders") -> None:
        fields = [field.split() for field in columns.split(",") if field]
        check_columns(types.StructType([types.StructField(name, kinds[kind]) for name, kind in fields]), topic)

    return run


@pytest.mark.parametrize(
    "columns",
    [
        "body binary",
        "body string",
        "body collated,tags collated,keys collated",
        "body binary,topic string,keys strings,tags string,properties map,sharding_key string,queue int",
        "body binary,keys string,headers headers",
        "body binary,queue_offset bigint,physical_offset bigint,message_id string,born_at timestamp,"
        "stored_at timestamp,reconsume_times int",
    ],
)
def test_these_columns_can_be_written(check: Any, columns: str) -> None:
    check(columns)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("", ["no column 'body'"]),
        ("keys string", ["no column 'body' among keys"]),
        ("body int", ["'body' is int", "binary or string", "cast('string')"]),
        ("body void", ["'body' is void"]),
        ("body binary,queue bigint", ["'queue' is bigint", "cast('int')"]),
        ("body binary,keys ints", ["'keys' is array<int>", "array<string> or string"]),
        ("body binary,properties numbers", ["'properties' is map<string,int>", "map<string,string>"]),
        ("body binary,value string", ["'value' (string)", "did you mean 'body'?"]),
        ("body binary,Tags string", ["'Tags'", "did you mean 'tags'?"]),
        ("body binary,partition int", ["'partition'", "did you mean 'queue'?"]),
        ("body binary,price bigint", ["'price' (bigint)", "sharding_key", "drop it"]),
        ("body binary,message_id bigint", ["'message_id' is bigint", "string", "drop it"]),
        ("body binary,properties map,headers headers", ["'properties' and 'headers'"]),
        ("body binary,tags string,tags string", ["'tags' is in the schema twice"]),
    ],
)
def test_columns_that_cannot_be_written_are_refused_by_name(check: Any, columns: str, words: list[str]) -> None:
    with pytest.raises(IncompatibleSchema) as raised:
        check(columns)
    for word in words:
        assert word in str(raised.value)


def test_something_must_name_the_topic(check: Any) -> None:
    check("body binary,topic string", None)
    with pytest.raises(IncompatibleSchema, match="no topic is named"):
        check("body binary", None)


def test_the_defaults_of_write_options_are_those_of_the_table() -> None:
    least = write_options(LEAST)
    assert least == WriteOptions(broker=least.broker, topic="orders")
