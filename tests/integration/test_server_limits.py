"""Connections that are slow, silent or too many: the broker closes or refuses them, and serves the others."""

from __future__ import annotations

import itertools
import os
import resource
import time
from typing import Any

import pytest

from flintmq.protocol.commands import HELLO, PRODUCE, PULL
from flintmq.protocol.errors import BrokerError, FrameIllegal, SystemBusy
from flintmq.protocol.frames import REQUEST, encode_frame
from tests.conftest import BrokerFactory, ConnectionFactory, rows
from tests.overload_tools import soon


def test_half_a_frame_is_closed_after_its_time(broker: BrokerFactory, connect: ConnectionFactory) -> None:
    running = broker(settings={"net.server:HALF_FRAME_S": 0.3})
    connection = connect(running)
    began = time.monotonic()
    frame = encode_frame(REQUEST, PRODUCE.code, 1, {"topic": "orders", "count": 1}, rows([b"x", {}]))
    connection.send_bytes(frame[:-1])
    answer = connection.receive()
    assert time.monotonic() - began >= 0.3
    assert answer.code == FrameIllegal.code
    assert "longer than 0.3 s" in answer.fields["message"]
    assert connection.is_closed()
    assert connect(running).produce("orders", b"x").code == 0


def test_an_idle_connection_is_closed_unless_it_waits(broker: BrokerFactory, connect: ConnectionFactory) -> None:
    running = broker(settings={"limits.idle_timeout_ms": 300})
    waiting, idle = connect(running), connect(running)
    waiting.produce("orders", b"x", queue=0)
    waiting.send(PULL, {"topic": "orders", "queue": 0, "offset": 1, "wait_ms": 1000})
    assert idle.is_closed()
    assert waiting.receive().code == 19


def test_a_reader_that_takes_nothing_is_closed(broker: BrokerFactory, connect: ConnectionFactory) -> None:
    running = broker(settings={"limits.slow_reader_timeout_ms": 300, "net.connection:WRITE_BUFFER_BYTES_MAX": 100_000})
    connection, bystander = connect(running), connect(running)
    connection.produce("orders", *[bytes(10_000)] * 50, queue=0)
    for _ in range(100):
        connection.send(PULL, {"topic": "orders", "queue": 0, "offset": 0})
    while bystander.runtime_info()["connections"] != 1:
        pass
    assert "client did not read" in running.log


def test_connections_beyond_the_limit_get_an_error(broker: BrokerFactory, connect: ConnectionFactory) -> None:
    running = broker(settings={"limits.connections_max": 3, "limits.connections_per_address_max": 1})
    first, second, third = connect(running), connect(running), connect(running)
    fourth = connect(running, hello=False)
    answer = fourth.receive()
    assert answer.code == SystemBusy.code
    assert answer.fields["retry_after_ms"] > 0
    assert "limits.connections_max" in answer.fields["message"]
    assert fourth.is_closed()
    third.close()
    while first.runtime_info()["connections"] != 2:
        pass
    assert connect(running).produce("orders", b"x").code == 0
    assert second.runtime_info()["connections_refused"] == 1


def test_a_lack_of_descriptors_is_logged_and_waiting_clients_are_served_later(
    broker: BrokerFactory, connect: ConnectionFactory
) -> None:
    running = broker(settings={"background.services:CHECKPOINT_S": 3_600})
    first = connect(running)
    first.produce("orders", b"x", queue=0).raise_for_error()
    assert first.pull("orders").fields["count"] == 1  # the message is dispatched: the files that it needs are open
    pid = running.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    taken = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    lowest_free = next(number for number in itertools.count() if number not in taken)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (lowest_free, before[1]))
    waiting = connect(running, hello=False)
    soon(lambda: "cannot accept connections: Too many open files" in running.log)
    assert first.produce("orders", b"y", queue=0).code == 0
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    assert waiting.call(HELLO, {"protocol": 1}).code == 0


def test_too_many_held_pulls_get_an_error(broker: BrokerFactory, connect: ConnectionFactory) -> None:
    running = broker(settings={"limits.held_pulls_per_connection_max": 2})
    connection = connect(running)
    connection.produce("orders", b"x", queue=0)
    for _ in range(3):
        connection.send(PULL, {"topic": "orders", "queue": 0, "offset": 1, "wait_ms": 500})
    answers = [connection.receive() for _ in range(3)]
    assert [answer.code for answer in answers] == [SystemBusy.code, 19, 19]
    assert isinstance(_raised(answers[0]), SystemBusy)


def _raised(answer: Any) -> BrokerError:
    with pytest.raises(BrokerError) as raised:
        answer.raise_for_error()
    return raised.value


def test_connections_that_say_nothing_are_no_errors(broker: BrokerFactory, connect: ConnectionFactory) -> None:
    running = broker()
    for _ in range(5):
        connect(running, hello=False).close()
    bystander = connect(running)
    while bystander.runtime_info()["connections"] != 1:
        pass
    running.stop()
    assert not [line for line in running.log.splitlines() if "ERROR" in line or "WARNING" in line]
