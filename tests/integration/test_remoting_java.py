"""RocketMQ's own producers in Java against the gateway: sends, batches, transactions, delays and queries.

``scripts/rocketmq-suite`` runs the tests that RocketMQ's authors wrote; this is a short part for the test command.
Optional: skipped without a JDK or Maven, or if Maven cannot fetch RocketMQ's jars.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import Brokers
from tests.integration.rocketmq.harness import JavaDriver, class_path
from tests.remoting_tools import RemotingBroker

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

SETTINGS = {"transactions.timeout_ms": 500, "transactions.check_interval_ms": 500}


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaDriver]:
    """Return RocketMQ's client, connected to a gateway that is its name server, too."""
    classes = class_path()
    brokers = Brokers(tmp_path_factory.mktemp("broker"))
    try:
        address = "{}:{}".format(*RemotingBroker(brokers.start, SETTINGS).address)
        driver = JavaDriver(classes, tmp_path_factory.mktemp("java"), "ProducerDriver", address)
        try:
            assert driver.answer() == {"started": True}
            yield driver
        finally:
            driver.kill()
    finally:
        brokers.stop_all()


def _send(java: JavaDriver, topic: str, *messages: dict[str, Any], command: str = "send") -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = java.call(command, topic=topic, messages=messages)["results"]
    assert {result["status"] for result in results} == {"SEND_OK"}
    return results


def _consume(java: JavaDriver, topic: str, count: int, tags: str = "*") -> list[dict[str, Any]]:
    """Start a consumer in a group of its own, and return its messages after so many arrived."""
    group = f"{topic}-group"
    java.call("consume", topic=topic, group=group, tags=tags)
    messages: list[dict[str, Any]] = java.call("received", group=group, count=count)["messages"]
    return messages


def test_a_consumer_receives_what_was_sent(java: JavaDriver, topic: str) -> None:
    sent = [{"body": f"body {n}", "tag": "AB"[n % 2], "keys": f"key-{n}"} for n in range(20)]
    results = _send(java, topic, *sent)
    assert {result["queue"] for result in results} == {0, 1, 2, 3}
    received = _consume(java, topic, 10, tags="A")
    assert sorted(message["body"] for message in received) == sorted(m["body"] for m in sent if m["tag"] == "A")
    ids = {result["id"] for result, message in zip(results, sent, strict=True) if message["tag"] == "A"}
    assert {message["id"] for message in received} == ids


def test_a_batch_has_one_result_with_consecutive_offsets(java: JavaDriver, topic: str) -> None:
    (first,) = _send(java, topic, *({"body": f"body {n}"} for n in range(5)), command="batch")
    assert first["queue_offset"] == 0
    assert len(set(first["id"].split(","))) == len(set(first["offset_id"].split(","))) == 5
    received = _consume(java, topic, 5)
    assert sorted(message["body"] for message in received) == [f"body {n}" for n in range(5)]
    assert {message["queue"] for message in received} == {first["queue"]}


def test_transactions_end_as_the_producer_says(java: JavaDriver, topic: str) -> None:
    outcomes = {
        "committed": "commit",
        "rolled back": "rollback",
        "committed by a check": "check commit",
        "rolled back by a check": "check rollback",
    }
    results = java.call("transactions", topic=topic, outcomes=outcomes)["results"]
    assert [result["status"] for result in results] == ["SEND_OK"] * 4
    _send(java, topic, {"body": "sent after them"})
    received = _consume(java, topic, 3)
    assert sorted(message["body"] for message in received) == ["committed", "committed by a check", "sent after them"]


def test_a_delayed_message_arrives_when_it_is_due(java: JavaDriver, topic: str) -> None:
    _send(java, topic, {"body": "later", "delayLevel": 1}, {"body": "now"})
    received = {message["body"]: message for message in _consume(java, topic, 2)}
    assert set(received) == {"later", "now"}
    assert received["later"]["waited_ms"] >= 1000 > received["now"]["waited_ms"]


def test_messages_are_found_by_key_and_by_id(java: JavaDriver, topic: str) -> None:
    sent = [{"body": f"body {n}", "keys": "even" if n % 2 == 0 else "odd"} for n in range(6)]
    results = _send(java, topic, *sent)
    for number, result in enumerate(results):
        for id_ in (result["id"], result["offset_id"]):
            found = java.call("query", topic=topic, key=sent[number]["keys"], id=id_)
            assert found["by_id"]["body"] == f"body {number}"
            assert sorted(message["body"] for message in found["by_key"]) == [
                f"body {n}" for n in range(number % 2, 6, 2)
            ]
