"""HTTP on the metrics port: bad requests, and clients that are silent or slow."""

from __future__ import annotations

import contextlib
import socket

import pytest

from flintmq.broker.metrics.endpoint import CONNECTIONS_MAX, HEAD_BYTES_MAX
from flintmq.protocol import commands
from flintmq.protocol.errors import SUCCESS
from tests.conftest import BrokerFactory, ConnectionFactory, RunningBroker
from tests.metrics_tools import TIMEOUT_S, Scrape, ask, metrics_port, page


def test_head_is_answered_without_a_body(shared_broker: RunningBroker) -> None:
    answer, body = ask(metrics_port(shared_broker), "/metrics", "HEAD")
    assert (answer.status, body) == (200, b"")
    assert int(answer.headers["Content-Length"]) > 1000
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 200),
        ("GET", "/healthz?verbose=1", 200),
        ("GET", "/nothing", 404),
        ("GET", "/../etc/passwd", 404),
        ("POST", "/metrics", 405),
        ("DELETE", "/metrics", 405),
    ],
)
def test_missing_paths_are_reported(shared_broker: RunningBroker, method: str, path: str, status: int) -> None:
    answer, _ = ask(metrics_port(shared_broker), path, method)
    assert answer.status == status
    if status == 405:
        assert answer.headers["Allow"] == "GET, HEAD"


def exchange(port: int, *parts: bytes, finish: bool = False) -> bytes:
    """Send bytes unchanged; return whatever arrives until the broker closes."""
    received = b""
    sock = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
    with sock, contextlib.suppress(ConnectionResetError, BrokenPipeError):
        for part in parts:
            sock.sendall(part)
        if finish:
            sock.shutdown(socket.SHUT_WR)
        while part := sock.recv(65536):
            received += part
    return received


@pytest.mark.parametrize(
    ("parts", "status"),
    [
        ([b"GET /healthz HTTP/1.1\r\nHost: localhost:1\r\n\r\n"], b"200"),
        ([b"GET /healthz HTTP/1.1\r\nHost: rebound.example\r\n\r\n"], b"421"),
        ([b"GET /metrics HTTP/1.1\nhost: rebound.example\n\n"], b"421"),
        ([b"GET /healthz HTTP/1.0\n\n"], b"200"),
        ([b"GET /hea", b"lthz HTTP/1.1\r", b"\n\r", b"\n"], b"200"),
        ([b"GET /healthz HTTP/1.1\r\n\r\nGET /metrics HTTP/1.1\r\n\r\n"], b"200"),
        ([b"\0\xff" * 100 + b"\r\n\r\n"], b"400"),
        ([b"GET /healthz\r\n\r\n"], b"400"),
        ([b"GET /a b HTTP/1.1\r\n\r\n"], b"400"),
        ([b"GET /healthz HTTP/2.0\r\n\r\n"], b"400"),
        ([b"GET /" + b"x" * 4000 + b" HTTP/1.1\r\n\r\n"], b"400"),
        ([b"\r\n\r\n"], b"400"),
        ([b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * HEAD_BYTES_MAX], b"431"),
        ([b"x" * 1_000_000], b"431"),
    ],
)
def test_any_bytes_get_one_answer(shared_broker: RunningBroker, parts: list[bytes], status: bytes) -> None:
    answer = exchange(metrics_port(shared_broker), *parts)
    assert answer.startswith(b"HTTP/1.1 " + status + b" ")
    assert answer.count(b"\r\nContent-Length: ") == 1
    assert page(shared_broker, "/healthz")[0] == 200


def test_a_client_that_closes_its_half_still_gets_its_answer(shared_broker: RunningBroker) -> None:
    answer = exchange(metrics_port(shared_broker), b"GET /metrics HTTP/1.1\r\n\r\n", finish=True)
    assert b"flintmq_build_info" in answer


def test_half_a_request_and_nothing_more_is_closed_without_an_answer(shared_broker: RunningBroker) -> None:
    assert exchange(metrics_port(shared_broker), b"GET /heal", finish=True) == b""


def test_silent_clients_keep_neither_the_port_nor_the_broker(broker: BrokerFactory, connect: ConnectionFactory) -> None:
    running = broker()
    port = metrics_port(running)
    with contextlib.ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S))
            for _ in range(CONNECTIONS_MAX + 20)
        ]
        for sock in silent:
            with contextlib.suppress(OSError):
                sock.sendall(b"GET /metrics HTT")
        connect(running).produce("orders", b"x").raise_for_error()
        assert page(running, "/healthz")[0] == 200, "a new connection takes the place of a silent one"
        answers = []
        for sock in silent:
            with contextlib.suppress(ConnectionResetError):
                answers.append(sock.recv(100))
        answered = [answer for answer in answers if answer]
        assert CONNECTIONS_MAX - 2 <= len(answered) <= CONNECTIONS_MAX
        assert all(answer.startswith(b"HTTP/1.1 408 ") for answer in answered)
    assert page(running, "/healthz")[0] == 200


def test_a_client_that_does_not_read_delays_no_other(broker: BrokerFactory, connect: ConnectionFactory) -> None:
    connection = connect(running := broker())
    for number in range(500):
        connection.send(commands.UPDATE_AND_CREATE_TOPIC, {"topic": f"{number}-{'x' * 100}"})
    assert {connection.receive().code for _ in range(500)} == {SUCCESS}
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", metrics_port(running)))
        deaf.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert Scrape(running)("flintmq_topics") == 500
        connection.produce("orders", b"x").raise_for_error()
