"""An etcd and the brokers of one replica set, as processes on loopback in a temporary folder, and a producer that
records what they acknowledged."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from flintmq.client import Admin, FlintError, Message, Producer

ROOT = Path(__file__).resolve().parents[2]
UNPACKED_ETCD = ROOT / ".venv" / "etcd" / "usr" / "bin" / "etcd"
START_S = 60.0
STOP_S = 15.0
POLL_S = 0.02


class SetFailed(Exception):
    """Error: a server did not start, or the set has no primary."""


def etcd_program() -> str:
    """Return the path of etcd. Raises ``SetFailed`` if there is none."""
    unpacked = str(UNPACKED_ETCD) if UNPACKED_ETCD.exists() else None
    found = os.environ.get("FLINTMQ_ETCD") or shutil.which("etcd") or unpacked
    if not found:
        raise SetFailed("there is no etcd: install it (Debian: etcd-server), or set FLINTMQ_ETCD to its path")
    return found


def free_ports(count: int) -> list[int]:
    """Return free ports of loopback."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class ReplicaServers:
    """The servers; ``stop`` ends all that run. ``addresses``: HOST:PORT by member. ``settings``: of the brokers."""

    def __init__(self, folder: Path, members: str, settings: Mapping[str, str | int]) -> None:
        self._folder = folder
        self._more = settings
        self._client_port, self._peer_port, *ports = free_ports(2 + len(members))
        self.addresses = {member: f"127.0.0.1:{port}" for member, port in zip(members, ports, strict=True)}
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def bootstrap(self) -> str:
        """Addresses of all members, as clients expect them."""
        return ",".join(self.addresses.values())

    def start_etcd(self) -> None:
        """Start etcd and wait for its port."""
        client, peer = (f"http://127.0.0.1:{port}" for port in (self._client_port, self._peer_port))
        options = {
            "data-dir": self._folder / "etcd",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
        }
        self._launch("etcd", [etcd_program(), *(f"--{name}={value}" for name, value in options.items())])
        self._wait_for_port("etcd", self._client_port)

    def _settings(self, member: str) -> list[str]:
        values = {
            "store.path": self.store(member),
            "server.listen": self.addresses[member],
            "metrics.listen": "off",
            "replication.set": "loopback",
            "replication.member": member,
            "replication.etcd": f"http://127.0.0.1:{self._client_port}",
            **self._more,
        }
        return [part for name, value in values.items() for part in ("--set", f"{name}={value}")]

    def store(self, member: str) -> Path:
        return self._folder / member

    def pid(self, name: str) -> int:
        return self._running[name].pid

    def begin(self) -> None:
        """Begin the set, and start all brokers."""
        members = [f"{member}={address}" for member, address in self.addresses.items()]
        first = next(iter(self.addresses))
        command = [*_broker("replica", "init", *members), *self._settings(first)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SetFailed(done.stderr.strip())
        for member in self.addresses:
            self.start(member)

    def start(self, member: str) -> None:
        """Start a broker and wait for its port."""
        self._launch(member, [*_broker("serve"), *self._settings(member)])
        self._wait_for_port(member, int(self.addresses[member].rpartition(":")[2]))

    def kill(self, member: str) -> None:
        process = self._running.pop(member)
        process.kill()
        process.wait()

    def primary(self) -> str:
        """Wait until all members are in sync; return the primary's id."""
        found = ""
        end = time.monotonic() + START_S
        with Admin(self.bootstrap) as admin:
            while time.monotonic() < end:
                try:
                    status = admin.replica_status(timeout=1.0)
                except FlintError as error:
                    found = str(error)
                else:
                    if status.role == "primary" and all(each.in_sync for each in status.members):
                        return status.member
                    found = f"{status.member} is {status.role} of {status.members}"
                time.sleep(POLL_S)
        raise SetFailed(f"not all members are in sync after {START_S:g} s: {found}")

    def stop(self) -> None:
        """Stop all servers: brokers first, because they give their lease back."""
        for name in sorted(self._running, key=lambda name: name == "etcd"):
            process = self._running[name]
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running.clear()

    def _launch(self, name: str, command: list[str]) -> None:
        with (self._folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def _wait_for_port(self, name: str, port: int) -> None:
        end = time.monotonic() + START_S
        while time.monotonic() < end and self._running[name].poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), 1.0).close()
            except OSError:
                time.sleep(POLL_S)
            else:
                return
        raise SetFailed(f"{name} did not start:\n{(self._folder / f'{name}.log').read_text()[-2000:]}")


def _broker(*arguments: str) -> list[str]:
    return [str(Path(sys.executable).parent / "flintmq-broker"), *arguments]


@dataclass
class Ledger:
    """A producer's record of its messages, numbered from 0, each sent after the one before was acknowledged."""

    address: str
    topic: str
    acknowledged: int = 0
    slowest_s: float = 0.0
    """Longest time that a message took since the last ``take_slowest``."""
    failure: FlintError | None = None
    _stopping: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Send until ``stop``."""
        try:
            with Producer(self.address) as producer:
                while not self._stopping.is_set():
                    began = time.monotonic()
                    producer.send(Message(self.topic, b"%d" % self.acknowledged), queue=0)
                    self.slowest_s = max(self.slowest_s, time.monotonic() - began)
                    self.acknowledged += 1
        except FlintError as error:
            self.failure = error

    def take_slowest(self) -> float:
        """Return the longest time that a message took, and begin again."""
        slowest, self.slowest_s = self.slowest_s, 0.0
        return slowest

    def wait_beyond(self, number: int) -> None:
        """Wait until a message after ``number`` is acknowledged, or the producer fails."""
        while self.acknowledged <= number and self.failure is None:
            time.sleep(POLL_S)

    def stop(self) -> None:
        self._stopping.set()
