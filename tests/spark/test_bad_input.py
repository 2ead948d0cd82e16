"""A read with any mistake fails at once with an error that names the cause and the remedy, without a stack trace.

What no broker need be asked about is tested without Spark, in ``tests/unit/test_spark_options.py``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flintmq.client import Admin, Producer
from tests.conftest import RunningBroker

AT_ONCE_S = 30.0
"""Timeout; far more than a refusal takes, and far less than any query's own timeout."""


@pytest.fixture(scope="module")
def orders(shared_broker: RunningBroker) -> str:
    """Create a topic of one queue with ten messages."""
    name = "spark-bad-input"
    with Admin(shared_broker.address) as admin, Producer(shared_broker.address) as producer:
        admin.create_topic(name, queues=1)
        producer.send_bulk(name, [b"%d" % number for number in range(10)], queue=0)
    return name


def beyond(topic: str) -> str:
    return json.dumps({topic: {"0": 11}})


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "unknown option": (
        {"startingOffset": "latest"},
        "InvalidOption: the source 'flintmq' has no option 'startingoffset'",
    ),
    "beyond the log": ({"startingOffsets": beyond}, "begins queue 0 of topic 'spark-bad-input'"),
    "another topic's offsets": ({"startingOffsets": '{"x": {"0": 1}}'}, "names 'x', which is not read"),
    "a queue that is not named": ({"startingOffsets": "{}"}, "does not name queue 0 of topic 'spark-bad-input'"),
    "a start in the future": (
        {"startingTimestamp": "9000000000000"},
        "InvalidOption: option 'startingTimestamp' is 9000000000000",
    ),
    "a queue that is not there": ({"startingOffsets": '{"spark-bad-input": {"7": 1}}'}, "names queue 7 of topic"),
    "no such topic": ({"subscribe": "nowhere"}, "TopicNotExist: option 'subscribe': topic 'nowhere' does not exist at"),
    "an illegal topic name": ({"subscribe": "orders.v1"}, "; its name has characters that are not allowed; use % |"),
    "no broker": (
        {"bootstrap": "127.0.0.1:1"},
        "ConnectionFailed: option 'bootstrap': no broker answers at 127.0.0.1:1",
    ),
}


def options_of(case: dict[str, Any], broker: RunningBroker, topic: str) -> dict[str, str]:
    given = {"bootstrap": broker.address, "subscribe": topic, **case}
    return {name: value(topic) if callable(value) else value for name, value in given.items() if value is not None}


def fails_plainly(action: Callable[[], Any], says: str) -> None:
    began = time.monotonic()
    with pytest.raises(Exception) as failure:
        action()
    text = str(failure.value)
    assert says in text
    assert "Traceback" not in text
    assert "\tat org.apache" not in text
    assert time.monotonic() - began < AT_ONCE_S


@pytest.mark.parametrize("case", CASES)
def test_an_invalid_batch_read_fails_with_its_cause(
    spark: Any, shared_broker: RunningBroker, orders: str, case: str
) -> None:
    given, says = CASES[case]
    options = options_of(given, shared_broker, orders)
    fails_plainly(lambda: spark.read.format("flintmq").options(**options).load().count(), says)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"endingOffsets": beyond}, "InvalidOption: option 'endingOffsets' ends queue 0"),
        (
            {"endingOffsets": '{"spark-bad-input": {"0": 3}}', "startingOffsets": '{"spark-bad-input": {"0": 4}}'},
            "at 3, before 4, where it begins",
        ),
        ({"startingOffsets": "latest"}, "InvalidOption: option 'startingOffsets' begins it at the end"),
        (
            {"startingOffsets": '{"spark-bad-input": {"0": -1}}'},
            "InvalidOption: option 'startingOffsets' begins queue 0 of 'spark-bad-input' at the end",
        ),
        ({"endingOffsets": "{}"}, "option 'endingOffsets' does not name queue 0"),
        (
            {"endingOffsets": '{"spark-bad-input": {"0": -2}}'},
            "option 'endingOffsets' ends queue 0 of topic 'spark-bad-input'",
        ),
        ({"maxOffsetsPerTrigger": "5"}, "option 'maxOffsetsPerTrigger' is for streaming queries"),
    ],
)
def test_options_of_streams_fail_a_batch(
    spark: Any, shared_broker: RunningBroker, orders: str, given: dict[str, Any], says: str
) -> None:
    options = options_of(given, shared_broker, orders)
    fails_plainly(lambda: spark.read.format("flintmq").options(**options).load().count(), says)


@pytest.mark.parametrize("case", ["a queue that is not named", "batch only"])
def test_an_invalid_stream_fails_with_its_cause(
    spark: Any, shared_broker: RunningBroker, orders: str, tmp_path: Path, case: str
) -> None:
    cases = {**CASES, "batch only": ({"key": "k"}, "InvalidOption: option 'key' is for batch queries")}
    given, says = cases[case]
    options = options_of(given, shared_broker, orders)

    def run() -> None:
        frame = spark.readStream.format("flintmq").options(**options).load()
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
        query = writer.start()
        assert not query.awaitTermination(AT_ONCE_S)

    fails_plainly(run, says)


def test_a_schema_with_an_unknown_column_is_refused(spark: Any, shared_broker: RunningBroker, orders: str) -> None:
    reader = spark.read.format("flintmq").options(bootstrap=shared_broker.address, subscribe=orders)
    fails_plainly(
        lambda: reader.schema("bodi binary").load().count(), "IncompatibleSchema: the schema has a column 'bodi'"
    )
    fails_plainly(lambda: reader.schema("body string").load().count(), "the source has it as binary")
    fails_plainly(lambda: reader.schema("body binary NOT NULL").load().count(), "as NOT NULL")


def test_a_damaged_message_fails_its_task_and_is_named(spark: Any, broker: Any) -> None:
    running = broker()
    with Producer(running.address) as producer:
        receipts = producer.send_bulk("orders", [b"sound", b"to be damaged", b"sound"], queue=0)
    log = running.store / "commitlog" / "00000000000000000000"
    with log.open("r+b") as file:  # while the broker runs: a start would contain the damage
        file.seek(file.read(64 * 1024).index(b"to be damaged"))
        file.write(b"X")
    frame = spark.read.format("flintmq").options(bootstrap=running.address, subscribe="orders").load()
    with pytest.raises(Exception, match=r"CorruptMessage: message at offset 1 of queue 0 of topic 'orders'"):
        frame.collect()
    assert receipts[1].queue_offset == 1
