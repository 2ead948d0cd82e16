"""The soak: starts the broker and the clients, stops or kills the broker repeatedly, and checks the result."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flintmq.client import Admin
from flintmq.testing import StartedBroker
from lib.replica_servers import free_ports

TOPIC = "soak"
QUEUES = 8
FINISH_SECONDS_MAX = 240.0
"""Time to finish for a client whose loop has just been blocked, with a broker that has just been killed."""
GROWTH_BYTES_MAX = 32 * 1024 * 1024
"""Maximum growth of a process's memory after the first third of the time; Python itself grows a little."""
DOWN_SECONDS = (0.0, 8.0)


class Failed(Exception):
    """Error: a guarantee does not hold."""


@dataclass(frozen=True)
class Plan:
    """Options of a run, as in ``scripts/soak/run --help``."""

    seconds: float
    producers: int
    followers: int
    restarts: int
    block_seconds_max: float
    rate: int
    flush: str
    seed: int


class Broker(StartedBroker):
    """Broker on a port that stays the same over restarts."""

    def __init__(self, store: Path, port: int, flush: str) -> None:
        super().__init__(store, "--listen", f"127.0.0.1:{port}", "--flush", flush)

    @property
    def memory_bytes(self) -> int:
        """Return the resident memory, without the mapped files, which share it with the page cache."""
        fields = Path(f"/proc/{self.pid}/statm").read_text().split()
        return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGESIZE")


class Client:
    """Process of a client; ``said`` is its last report."""

    def __init__(self, name: str, **arguments: Any) -> None:
        self.name = name
        self.said: dict[str, Any] = {}
        self.early_bytes = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "soak.client", json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said = json.loads(line)

    def check_alive(self) -> None:
        """Raise ``Failed`` if the process ended without a request."""
        code = self._process.poll()
        if code is not None and not self.said.get("done"):
            raise Failed(f"{self.name} ended with exit {code}; its error is above. Its last report: {self.said}")

    def tell(self, order: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def finish(self, deadline: float) -> dict[str, Any]:
        """Wait for the end of the process; return its last report."""
        try:
            code = self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise Failed(f"{self.name} did not end; its last report: {self.said}") from None
        self._reader.join()
        if code != 0 or not self.said.get("done"):
            raise Failed(f"{self.name} ended with exit {code}; its last report: {self.said}")
        return self.said

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


def soak(plan: Plan, folder: Path) -> None:
    """Run the soak. Raises ``Failed`` if a guarantee does not hold."""
    source = random.Random(plan.seed)
    (port,) = free_ports(1)
    clients: list[Client] = []
    broker = Broker(folder / "store", port, plan.flush)
    broker.__enter__()
    try:
        with Admin(broker.address) as admin:
            admin.create_topic(TOPIC, queues=QUEUES)
        common = {"address": broker.address, "block_seconds_max": plan.block_seconds_max}
        producers = [
            Client(f"producer {n}", role="produce", number=n, rate=plan.rate, seed=source.random(), **common)
            for n in range(plan.producers)
        ]
        clients += producers
        messages_max = int((plan.seconds + FINISH_SECONDS_MAX) * plan.rate) + 10_000
        followers = [
            Client(
                f"follower {n}",
                role="follow",
                producers=plan.producers,
                messages_max=messages_max,
                seed=source.random(),
                **common,
            )
            for n in range(plan.followers)
        ]
        clients += followers
        broker = _through_restarts(plan, source, broker, folder, port, clients)
        _judge(broker, producers, followers)
    finally:
        for client in clients:
            client.end()
        broker.__exit__(None, None, None)


def _through_restarts(
    plan: Plan, source: random.Random, broker: Broker, folder: Path, port: int, clients: list[Client]
) -> Broker:
    began = time.monotonic()
    early = began + plan.seconds / 3
    moments = sorted(began + source.uniform(0.05, 0.9) * plan.seconds for _ in range(plan.restarts))
    shown = began
    while (now := time.monotonic()) < began + plan.seconds:
        for client in clients:
            client.check_alive()
        if early and now >= early:
            early = 0.0
            for client in clients:
                client.early_bytes = client.said.get("resident_bytes", 0)
        if now >= shown:
            shown = now + 30
            _show(now - began, broker, clients)
        if moments and now >= moments[0]:
            moments.pop(0)
            broker = _restart(source, broker, folder, port, plan.flush)
        time.sleep(0.2)
    return broker


def _restart(source: random.Random, broker: Broker, folder: Path, port: int, flush: str) -> Broker:
    kill = source.random() < 0.5
    if kill:
        broker.kill()
    else:
        broker.__exit__(None, None, None)
    seconds = source.uniform(*DOWN_SECONDS)
    print(f"  the broker was {'killed' if kill else 'stopped'}; back in {seconds:.1f} s", flush=True)
    time.sleep(seconds)
    broker = Broker(folder / "store", port, flush)
    broker.__enter__()
    return broker


def _show(seconds: float, broker: Broker, clients: list[Client]) -> None:
    acknowledged = sum(client.said.get("acknowledged", 0) for client in clients)
    seen = [client.said["seen"] for client in clients if "seen" in client.said]
    blocked = sum(client.said.get("blocked_seconds", 0) for client in clients)
    print(
        f"{seconds:5.0f} s  {acknowledged:,} acknowledged, {min(seen, default=0):,} to {max(seen, default=0):,} seen, "
        f"loops blocked for {blocked:,.0f} s, broker {broker.memory_bytes / 1e6:.0f} MB",
        flush=True,
    )


def _judge(broker: Broker, producers: list[Client], followers: list[Client]) -> None:
    deadline = time.monotonic() + FINISH_SECONDS_MAX
    for producer in producers:
        producer.tell("finish")
    ends = [producer.finish(deadline) for producer in producers]
    counts = [end["acknowledged"] for end in ends]
    if counts != [end["sent"] for end in ends]:
        raise Failed(f"sends failed: {ends}")
    deadline = time.monotonic() + FINISH_SECONDS_MAX
    for follower in followers:
        follower.tell(counts)
    seen = [follower.finish(deadline) for follower in followers]
    for client in (*producers, *followers):
        growth = client.said["resident_bytes"] - client.early_bytes
        if client.early_bytes and growth > GROWTH_BYTES_MAX:
            raise Failed(f"{client.name} grew by {growth:,} bytes")
    print(
        f"{sum(counts):,} messages acknowledged, every one seen by each of {len(followers)} followers "
        f"(at most {max(end['duplicates'] for end in seen)} of them twice); every process alive; broker "
        f"{broker.memory_bytes / 1e6:.0f} MB"
    )
