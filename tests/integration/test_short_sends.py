"""Connections with short sends, which a kernel reads and answers, over TCP."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from flintmq.broker.config import PRODUCER_RUNS_MAX
from flintmq.broker.requests.short_sends import ENTER_AFTER
from flintmq.protocol.commands import (
    GET_CONNECTIONS,
    GET_MAX_OFFSET,
    LAYOUT_ROWS,
    PULL,
    UPDATE_AND_CREATE_TOPIC,
    ConnectionInfo,
)
from flintmq.protocol.errors import SUCCESS
from flintmq.protocol.frames import ProduceHead
from tests.conftest import RawConnection

Connect = Callable[..., RawConnection]
PREFIX = "AB" * 10
CLIENTS = 50
WARM = ENTER_AFTER + 4


def frame(request_id: int, number: int, prefix: str = PREFIX, queue: int = 0) -> bytes:
    """Return a PRODUCE of one message, whose body is its number."""
    body: bytes = msgpack.packb([b"%08d" % number, {"KEYS": f"key-{number}"}])
    return ProduceHead("orders", queue, LAYOUT_ROWS, "", "", prefix).encode(request_id, 1, number, 0, len(body)) + body


def enter(connection: RawConnection, prefix: str = PREFIX) -> int:
    """Send messages one by one until the kernel reads the connection; return their number."""
    for number in range(WARM):
        connection.send_bytes(frame(1_000_000 + number, number, prefix))
        assert connection.receive().code == SUCCESS
    return WARM


def create(connection: RawConnection, queues: int = 1) -> None:
    """Create the topic."""
    connection.call(
        UPDATE_AND_CREATE_TOPIC, {"topic": "orders", "read_queues": queues, "write_queues": queues}
    ).raise_for_error()


@pytest.fixture(params=["async", "sync"])
def flush(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_answers_of_many_connections_name_the_places_of_their_messages(
    broker: Any, connect: Connect, flush: str
) -> None:
    running = broker("--flush", flush)
    clients = [connect(running) for _ in range(CLIENTS)]
    create(clients[0])
    offsets: dict[int, int] = {}
    for number in range(12):
        for client, connection in enumerate(clients):
            # Every third time, two frames and the beginning of a third, whose rest follows after the answers.
            connection.send_bytes(frame(number + 1, number * 10, f"{client:020X}"))
            if number % 3 == 2:
                rest = frame(number + 200, number * 10 + 2, f"{client:020X}")
                connection.send_bytes(frame(number + 100, number * 10 + 1, f"{client:020X}") + rest[:30])
        for client, connection in enumerate(clients):
            ids = [number + 1, number + 100] if number % 3 == 2 else [number + 1]
            for request_id in ids:
                answer = connection.receive_for(request_id)
                offsets[answer.fields["queue_offset"]] = client
            if number % 3 == 2:
                connection.send_bytes(frame(number + 200, number * 10 + 2, f"{client:020X}")[30:])
                offsets[connection.receive_for(number + 200).fields["queue_offset"]] = client
    assert sorted(offsets) == list(range(CLIENTS * (12 + 4 * 2)))
    assert clients[0].call(GET_MAX_OFFSET, {"topic": "orders", "queue": 0}).fields["offset"] == len(offsets)


def test_a_client_that_reads_its_answers_late_gets_all_of_them_in_order(
    broker: Any, connect: Connect, flush: str
) -> None:
    connection = connect(broker("--flush", flush))
    create(connection)
    began = enter(connection)
    count = 60_000
    blob = b"".join(frame(number, began + number) for number in range(count))
    sender = threading.Thread(target=connection.send_bytes, args=(blob,))
    sender.start()
    answers = [connection.receive() for _ in range(count)]
    sender.join()
    assert [answer.request_id for answer in answers] == list(range(count))
    assert [answer.fields["queue_offset"] for answer in answers] == list(range(began, began + count))


def test_a_pull_that_is_held_on_the_same_connection_is_answered_between_sends(broker: Any, connect: Connect) -> None:
    connection = connect(broker())
    create(connection)
    began = enter(connection)
    pull = connection.send(PULL, {"topic": "orders", "queue": 0, "offset": began, "wait_ms": 60_000, "max_count": 1})
    for number in range(WARM):
        connection.send_bytes(frame(100 + number, began + number))
        ids = {connection.receive().request_id for _ in range(1 if number else 2)}
        assert ids == ({100 + number} if number else {100, pull})


def test_a_message_sent_again_is_stored_once(broker: Any, connect: Connect, flush: str) -> None:
    connection = connect(broker("--flush", flush))
    create(connection)
    began = enter(connection)
    for _ in range(3):
        connection.send_bytes(frame(7, began))
        assert connection.receive_for(7).fields["queue_offset"] == began


def test_producers_whose_runs_are_more_than_the_broker_keeps_are_answered(broker: Any, connect: Connect) -> None:
    limit = PRODUCER_RUNS_MAX * 2
    running = broker("--set", f"limits.sequence_runs_max={limit}")
    clients = [connect(running) for _ in range(CLIENTS)]
    create(clients[0])
    rounds = limit // CLIENTS + 20  # between each other in one queue, every frame is a run
    for number in range(rounds):
        for client, connection in enumerate(clients):
            connection.send_bytes(frame(number + 1, number, f"{client:020X}"))
        for connection in clients:
            assert connection.receive_for(number + 1).code == SUCCESS
    for client, connection in enumerate(clients):
        connection.send_bytes(frame(rounds + 1, rounds - 1, f"{client:020X}"))  # the last one again
        assert connection.receive_for(rounds + 1).code == SUCCESS
    assert clients[0].call(GET_MAX_OFFSET, {"topic": "orders", "queue": 0}).fields["offset"] == CLIENTS * rounds


def test_the_list_of_connections_counts_what_the_kernel_has_read(broker: Any, connect: Connect) -> None:
    running = broker()
    connection, other = connect(running), connect(running)
    create(other)
    enter(connection)
    rows = [ConnectionInfo(*row) for row in msgpack.unpackb(other.call(GET_CONNECTIONS).body)]
    row = rows[0]
    assert row.frames_in == WARM + 1  # with HELLO
    assert row.bytes_in > WARM * len(frame(1, 1))
    assert row.bytes_out > WARM * 60


def test_a_connection_that_ends_gives_its_memory_back(broker: Any, connect: Connect, flush: str) -> None:
    running = broker("--flush", flush)
    other = connect(running)
    create(other)
    for _ in range(30):
        connection = connect(running)
        enter(connection, f"{id(connection):020X}")
        connection.sock.close()
    assert other.call(GET_MAX_OFFSET, {"topic": "orders", "queue": 0}).fields["offset"] == 30 * WARM
