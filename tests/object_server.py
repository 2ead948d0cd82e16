"""A real S3 server for tests (moto, a process on loopback), and a proxy in front of it whose answers go wrong."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import itertools
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import free_port
from tests.tcp_proxy import Link, TcpProxy

START_S = 100.0
SECRET = "a-key-that-nobody-may-see"


class ObjectServer:
    """A running S3 server, with as many buckets as tests ask for. It keeps them in memory."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._log = folder / "moto.log"
        self._numbers = itertools.count()
        with self._log.open("wb") as log:
            command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        self._wait()

    def environment(self, port: int | None = None) -> dict[str, str]:
        """Return the variables with which a client finds the server, or a proxy of it, and may write to it."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port or self.port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }

    def bucket(self) -> str:
        """Create a bucket, and return its URL."""
        name = f"bucket-{os.getpid()}-{next(self._numbers)}"
        assert self._ask("PUT", f"/{name}") == 200
        return f"s3://{name}"

    def _wait(self) -> None:
        end = time.monotonic() + START_S
        while time.monotonic() < end and self._process.poll() is None:
            with contextlib.suppress(OSError):
                if self._ask("GET", "/moto-api/") == 200:
                    return
            time.sleep(0.05)
        raise AssertionError(f"moto did not start:\n{self._log.read_text()[-3000:]}")

    def _ask(self, method: str, path: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=START_S)
        try:
            connection.request(method, path)
            response = connection.getresponse()
            response.read()
            return response.status
        finally:
            connection.close()

    def end(self) -> None:
        """Kill the process and wait for its end."""
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def running_object_server(folder: Path) -> Iterator[ObjectServer]:
    """Run an S3 server, or skip the test if moto is not installed."""
    if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask") is None:
        pytest.skip("needs moto[server], of the dependency group `test`")
    server = ObjectServer(folder)
    try:
        yield server
    finally:
        server.end()


_UNAVAILABLE = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class FaultyStore(TcpProxy):
    """A proxy of an object server. Each of ``faults`` is for one answer, after the server has done what it was asked:

    ``ok``: carried as it is; ``lost``: the connection ends instead; ``503``: the client gets this instead; ``cut``: the
    connection ends before the answer's last byte; ``stalled``: nothing comes, and the connection stays.
    """

    def __init__(self, server: ObjectServer) -> None:
        self.faults: deque[str] = deque()
        super().__init__("127.0.0.1", server.port)
        self.port = int(self.address.rpartition(":")[2])

    def _carry_requests(self, link: Link) -> None:
        with contextlib.suppress(OSError):
            while data := link.client.recv(65_536):
                link.broker.sendall(data)
        link.end()

    def _carry_answers(self, link: Link) -> None:
        with contextlib.suppress(OSError):
            while data := link.broker.recv(65_536):
                fault = self.faults.popleft() if self.faults else "ok"
                if fault == "stalled":
                    return
                if fault == "503":
                    link.send(_UNAVAILABLE)
                elif fault == "cut":
                    while more := link.broker.recv(65_536):  # the server ends the connection after each answer
                        data += more
                    link.send(data[:-1])
                elif fault == "ok":
                    link.send(data)
                    continue
                break
        link.end()
