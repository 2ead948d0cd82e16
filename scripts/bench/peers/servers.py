"""Servers of other brokers on loopback: Redis, NATS and Kafka, each with its defaults except for the flush policy."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from lib.replica_servers import free_ports

from ..kafka.server import Kafka, get_jars
from ..measure import BenchFailed, Skipped

START_SECONDS_MAX = 20.0
STOP_SECONDS_MAX = 20.0
TOPIC = "bench"

_POLL_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Server:
    """A running server: its address and its process."""

    address: str
    pid: int


Start = Callable[[Path, str], AbstractContextManager[Server]]
"""Context manager of a server with its files in a folder; the flush policy is ``async`` or ``sync``."""


@contextmanager
def redis(folder: Path, flush: str) -> Iterator[Server]:
    """Run Redis with an append-only file: ``everysec`` for async, ``always`` for sync."""
    (port,) = free_ports(1)
    policy = {"async": "everysec", "sync": "always"}[flush]
    options = f"--port {port} --bind 127.0.0.1 --appendonly yes --appendfsync {policy}".split()
    command = [_installed("redis-server"), *options, "--dir", str(folder), "--save", ""]
    with _process(command, folder, port) as server:
        yield server


@contextmanager
def nats(folder: Path, flush: str) -> Iterator[Server]:
    """Run NATS with JetStream: the default interval for async, ``sync_interval: always`` for sync."""
    (port,) = free_ports(1)
    interval = ", sync_interval: always" if flush == "sync" else ""
    settings = folder / "nats.conf"
    settings.write_text(f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{folder}"{interval} }}\n')
    with _process([_installed("nats-server"), "--config", str(settings)], folder, port) as server:
        yield server


@contextmanager
def kafka(folder: Path, flush: str) -> Iterator[Server]:
    """Run Kafka: no flush for async, ``log.flush.interval.messages=1`` for sync."""
    settings = {"log.flush.interval.messages": 1} if flush == "sync" else {}
    with Kafka(get_jars(None), folder, TOPIC, 1, settings) as server:
        yield Server(server.address, server.pid)


@contextmanager
def _process(command: list[str], folder: Path, port: int) -> Iterator[Server]:
    """Run ``command`` until the context ends; the body begins when its port accepts connections."""
    output = folder / "output"
    with output.open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    said = output.read_text(errors="replace")[-2000:]
                    raise BenchFailed(f"{command[0]} did not start: {said}") from None
                time.sleep(_POLL_SECONDS)
        yield Server(f"127.0.0.1:{port}", process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _installed(program: str) -> str:
    """Return the path of a program; raise ``Skipped`` if it is not installed."""
    path = shutil.which(program)
    if path is None:
        raise Skipped(f"{program} is not installed: install it with the system's packages")
    return path
