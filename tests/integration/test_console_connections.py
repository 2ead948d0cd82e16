"""Connections of browsers that wait for ever do not close the console to others, and are given up."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest

from flintmq.client import Message, Producer
from flintmq.client.console import server
from flintmq.client.console.policy import ConsoleOptions
from flintmq.client.console.server import CONNECTIONS_MAX, serve_on
from tests.conftest import RunningBroker
from tests.tls_tools import Authority


@pytest.fixture(scope="module")
def running(own_broker: RunningBroker) -> RunningBroker:
    return own_broker


class Served:
    """A console on a socket, in a thread of this process."""

    def __init__(self, running: RunningBroker, **options: Any) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port = self.listener.getsockname()[1]
        self._options = ConsoleOptions(broker=running.address, tls={}, **options)
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._loop.add_signal_handler = lambda *_: None  # type: ignore[method-assign]  # only the main thread may
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        serving = serve_on(self.listener, self._options, lambda url: self._ready.set())
        self._task = self._loop.create_task(serving)
        self._loop.run_until_complete(asyncio.wait([self._task]))
        self._loop.close()

    def __enter__(self) -> Served:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()
        self.listener.close()

    def connect(self) -> socket.socket:
        """Return a connection that says nothing."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)


def answer_of(connection: socket.socket) -> bytes:
    """Ask for a page without a login, and return the first line of the answer."""
    connection.sendall(b"GET /login HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    with connection.makefile("rb") as file:
        return file.readline()


HALF = (
    b"POST /login HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-www-form-urlencoded\r\n"
    b"content-length: 999\r\n\r\nuser="
)


@pytest.mark.parametrize("beginning", [b"", b"GET / HT", HALF], ids=["silent", "half a header", "half a form"])
def test_connections_that_wait_do_not_close_the_console_to_others(running: RunningBroker, beginning: bytes) -> None:
    with Served(running) as served:
        silent = [served.connect() for _ in range(CONNECTIONS_MAX + 20)]
        for each in silent:
            with contextlib.suppress(ConnectionError):  # it may be closed already
                each.sendall(beginning)
        with served.connect() as connection:
            assert answer_of(connection) == b"HTTP/1.1 200 OK\r\n"
        closed = sum(1 for each in silent[:19] if _is_closed(each))
        assert closed == 19  # the oldest made room
        for each in silent:
            each.close()


def _is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize(
    ("limit", "beginning"), [("HEADER_SECONDS", b""), ("HEADER_SECONDS", b"GET / HT"), ("BODY_SECONDS", HALF)]
)
def test_a_request_that_never_ends_is_given_up(
    running: RunningBroker, monkeypatch: pytest.MonkeyPatch, limit: str, beginning: bytes
) -> None:
    monkeypatch.setattr(server, limit, 0.05)
    with Served(running) as served, served.connect() as connection:
        with contextlib.suppress(ConnectionError):  # it may be closed already
            connection.sendall(beginning)
        assert _is_closed(connection)


def test_a_browser_that_takes_nothing_is_given_up(running: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "STUCK_SECONDS", 0)  # at once
    with Producer(running.address) as producer:
        receipt = producer.send(Message("orders", bytes(40_000_000)))
    with Served(running) as served, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(30)
        connection.connect(("127.0.0.1", served.port))
        path = f"/topics/orders/0/{receipt.queue_offset}/body"
        connection.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        taken = 0
        with contextlib.suppress(ConnectionError):
            while piece := connection.recv(1 << 20):
                taken += len(piece)
        assert taken < 40_000_000


def test_handshakes_that_never_end_do_not_close_the_console_to_others(running: RunningBroker, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("console", "localhost")
    context = ssl.create_default_context(cafile=authority.path)
    with Served(running, certificate=Path(issued.certificate), key=Path(issued.key)) as served:
        silent = [served.connect() for _ in range(CONNECTIONS_MAX + 20)]
        with context.wrap_socket(served.connect(), server_hostname="localhost") as connection:
            assert answer_of(connection) == b"HTTP/1.1 200 OK\r\n"
        assert all(_is_closed(each) for each in silent[:19])
        for each in silent:
            each.close()
