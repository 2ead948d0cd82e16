"""Responses that wait for the disk: each request gets one, sends get them in order, and acknowledged messages are
visible."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from typing import Any

import pytest

from flintmq.protocol.commands import PRODUCE, PULL
from flintmq.protocol.errors import SUCCESS
from tests.conftest import rows

Broker = Any
Connect = Callable[..., Any]
Factory = Callable[..., Broker]


def test_an_acknowledged_message_is_visible_to_every_client_at_once(broker: Factory, connect: Connect) -> None:
    running = broker("--flush", "sync")
    producer, consumer = connect(running), connect(running)
    producer.produce("orders", b"first", queue=0).raise_for_error()
    for number in range(1, 300):
        producer.produce("orders", b"%d" % number, queue=0).raise_for_error()
        answer = consumer.pull("orders", 0, number)
        assert (answer.code, answer.fields.get("count")) == (SUCCESS, 1), number


@pytest.mark.parametrize("seed", range(4))
def test_each_request_is_answered_once_and_sends_in_order(broker: Factory, connect: Connect, seed: int) -> None:
    chosen = random.Random(seed)
    running = broker("--flush", "sync")
    connections = [connect(running) for _ in range(3)]
    connections[0].produce("orders", b"first", queue=0).raise_for_error()
    sent = acknowledged = 1
    for _ in range(150):
        connection = chosen.choice(connections)
        produced, others = [], []
        for _ in range(chosen.choice((1, 1, 1, 2, 5))):
            if chosen.random() < 0.7:
                fields = {"topic": "orders", "queue": 0, "count": 1}
                produced.append(connection.send(PRODUCE, fields, rows([b"x", {}])))
                sent += 1
            else:
                offset = chosen.randrange(acknowledged + 1)
                wait_ms = chosen.choice((0, 30))
                fields = {"topic": "orders", "queue": 0, "offset": offset, "wait_ms": wait_ms, "max_count": 3}
                others.append(connection.send(PULL, fields))
        answers = [connection.receive().raise_for_error() for _ in produced + others]
        assert [each.request_id for each in answers if each.request_id in produced] == produced
        assert sorted(each.request_id for each in answers) == sorted(produced + others)
        acknowledged = sent
    assert connections[1].pull("orders", 0, sent - 1).fields["max_offset"] == sent


def test_a_client_that_closes_during_its_flush_disturbs_no_one(broker: Factory, connect: Connect) -> None:
    running = broker("--flush", "sync")
    staying = connect(running)
    staying.produce("orders", b"first", queue=0).raise_for_error()
    sent = 1
    for _ in range(100):
        leaving = connect(running)
        leaving.send(PRODUCE, {"topic": "orders", "queue": 0, "count": 1}, rows([b"x", {}]))
        leaving.sock.close()
        staying.produce("orders", b"y", queue=0).raise_for_error()
        sent += 1
    stored = staying.pull("orders", 0, sent - 1, wait_ms=10_000).fields["max_offset"]
    assert sent <= stored <= sent + 100
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(60) == 0
