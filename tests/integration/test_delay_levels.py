"""Delay levels through a real broker: when messages arrive, their contents then, and the effect of a restart."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgpack

from flintmq.protocol.commands import PRODUCE
from flintmq.protocol.storage.record import Record, decode_record
from tests.conftest import ConnectionFactory, RawConnection, RunningBroker
from tests.store_tools import split_answer

WAIT_MS = 60_000


def send(
    connection: RawConnection, topic: str, common: dict[str, str], *bodies: bytes, queue: int = 0
) -> dict[str, int]:
    """Produce bodies with these common properties; return the response's fields."""
    body = b"".join(msgpack.packb([each, {"KEYS": f"key-{each.decode()}"}]) for each in bodies)
    properties = "".join(f"{name}\x01{value}\x02" for name, value in common.items())
    fields = {"topic": topic, "count": len(bodies), "queue": queue, "common": properties}
    answer = connection.call(PRODUCE, fields, body)
    answer.raise_for_error()
    return answer.fields


def receive(connection: RawConnection, topic: str, count: int, queue: int = 0) -> list[Record]:
    """Wait for the first ``count`` messages of a queue and return them."""
    records: list[Record] = []
    while len(records) < count:
        answer = connection.pull(topic, queue, len(records), wait_ms=WAIT_MS, max_count=1000)
        records += [decode_record(blob) for blob in split_answer(answer.body, answer.fields.get("count", 0))]
    return records


def test_a_delayed_message_comes_after_its_delay_as_it_was_sent(
    broker: Callable[..., RunningBroker], connect: ConnectionFactory
) -> None:
    connection = connect(broker())
    connection.produce("delayed-1", b"first", queue=2)
    before_ms = time.time_ns() // 1_000_000
    sent = send(connection, "delayed-1", {"DELAY": "1", "TAGS": "t", "colour": "red"}, b"a", b"b", queue=2)
    assert (sent["queue"], sent["queue_offset"]) == (2, 0)
    first, *delayed = receive(connection, "delayed-1", 3, queue=2)
    assert [record.body for record in (first, *delayed)] == [b"first", b"a", b"b"]
    for record in delayed:
        assert record.store_timestamp >= before_ms + 1000
        properties = record.property_map()
        assert (properties["KEYS"], properties["TAGS"], properties["colour"]) == (
            f"key-{record.body.decode()}",
            "t",
            "red",
        )
        assert (properties["DELAY"], properties["REAL_TOPIC"], properties["REAL_QID"]) == ("1", "delayed-1", "2")


def test_a_message_comes_when_its_time_has_come_and_not_before(
    broker: Callable[..., RunningBroker], connect: ConnectionFactory
) -> None:
    running = broker()
    connection = connect(running)
    now_ms = time.time_ns() // 1_000_000
    for name, value, body in (
        ("TIMER_DELIVER_MS", now_ms + 2_500, b"c"),
        ("TIMER_DELAY_SEC", 1, b"b"),
        ("TIMER_DELIVER_MS", now_ms - 500, b"a"),
        ("TIMER_DELAY_MS", 86_400_000, b"tomorrow"),
    ):
        send(connection, "timed", {name: str(value)}, body)
    records = receive(connection, "timed", 3)
    assert [record.body for record in records] == [b"a", b"b", b"c"]
    assert records[0].property_map()["TIMER_DELIVER_MS"] == str(now_ms - 500)
    assert records[1].store_timestamp >= now_ms + 1000
    assert now_ms + 2_500 <= records[2].store_timestamp
    running.stop()
    connection = connect(broker(store=running.store))
    send(connection, "timed", {"TIMER_DELAY_SEC": "1"}, b"d")
    assert [record.body for record in receive(connection, "timed", 4)] == [b"a", b"b", b"c", b"d"]
