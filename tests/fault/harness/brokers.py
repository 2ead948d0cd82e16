"""Brokers forked from a prepared process, and the control that the harness has over them."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[3]
END_S_MAX = 120.0
"""Longest time that a broker may take to start or to end; far more than it needs."""
PORTS = range(15_000, 30_000)
"""Ports below the system's ephemeral range, so that a port is still free when the broker comes back."""

SMALL_FILES = {
    "store.commitlog_file_bytes": 4 << 20,
    "store.consumequeue_file_bytes": 2_000,
    "store.index_slots": 500,
    "store.index_entries": 500,
    "store.allocate_step_bytes": 1 << 20,
    "background.services:CHECKPOINT_S": 0.04,
    "flush.interval_ms": 20,
    "background.flush:LEAST_PAGES": 0,
    "retention.headroom_bytes": 0,
    "metrics.listen": "off",
}
"""Settings that make files roll within a second and keep the services busy."""


class HarnessError(Exception):
    """The harness itself failed: a fault did not happen, or a process did not end."""


class BrokerEnded(Exception):
    """A broker ended before it listened. ``code``: its exit code, negative for a signal."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the broker ended with {code} before it listened")
        self.code = code


class ForkedBroker:
    """One broker process. ``witness``: the lines that its faults wrote when they happened."""

    def __init__(self, prepared: PreparedParent, pid: int, output: int, witness: Path, log: Path) -> None:
        self.pid = pid
        self._prepared = prepared
        self._output = output
        self._witness = witness
        self.log = log
        self._code: int | None = None
        self._heard = b""

    def wait_until_listening(self) -> None:
        """Wait until the broker listens. Raises ``BrokerEnded`` if it ended instead."""
        while b"listening on " not in self._heard:
            if not self._hear(END_S_MAX):
                raise BrokerEnded(self.wait())

    def _hear(self, timeout_s: float) -> bool:
        """Read more of the broker's output; return False at its end, that is when the process has ended."""
        if not select.select([self._output], [], [], timeout_s)[0]:
            self.kill()
            raise HarnessError(f"the broker neither listened nor ended in {END_S_MAX:.0f} s; its log: {self.log}")
        blob = os.read(self._output, 65536)
        self._heard += blob
        return bool(blob)

    @property
    def ended(self) -> bool:
        while self._code is None and select.select([self._output], [], [], 0)[0]:
            if not self._hear(0):
                self.wait()
        return self._code is not None

    def wait(self) -> int:
        """Wait for the process to end and return its exit code, negative for a signal."""
        if self._code is None:
            deadline = time.monotonic() + END_S_MAX
            while self._hear(max(deadline - time.monotonic(), 0)):
                pass
            os.close(self._output)
            self._code = self._prepared.wait(self.pid)
        return self._code

    def kill(self) -> int:
        """Send SIGKILL and return the exit code."""
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)
        return self.wait()

    def terminate(self) -> None:
        """Send SIGTERM: an orderly stop begins."""
        if self._code is None:
            os.kill(self.pid, signal.SIGTERM)

    def fault_output(self, word: str) -> str | None:
        """Return what a fault wrote after ``word`` when it happened, None if it did not happen."""
        for line in self._witness.read_text().splitlines() if self._witness.exists() else ():
            first, _, rest = line.partition(" ")
            if first == word:
                return rest
        return None


class PreparedParent:
    """Context manager: the process that forks brokers. ``folder``: for logs and the faults' output."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0
        self._asking = threading.Lock()
        self._started: list[ForkedBroker] = []

    def __enter__(self) -> Self:
        self._orders, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {
            name: value for name, value in os.environ.items() if not (name.startswith("FLINTMQ_") and "__" in name)
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fault.harness.prepared", str(child_end.fileno())],
            pass_fds=[child_end.fileno()],
            cwd=ROOT,
            env=environment,
        )
        child_end.close()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.kill_all()
        finally:
            self._orders.close()
            self._process.wait()

    def kill_all(self) -> None:
        """Send SIGKILL to every broker that still runs."""
        for broker in self._started:
            broker.kill()

    @property
    def pid(self) -> int:
        """Process id of the brokers' parent."""
        return self._process.pid

    def _ask(self, order: dict[str, Any], descriptors: list[int]) -> Any:
        with self._asking:
            socket.send_fds(self._orders, [json.dumps(order).encode()], descriptors)
            answer = self._orders.recv(65536)
        if not answer:
            raise HarnessError("the process that forks brokers ended; its output is above")
        return json.loads(answer)

    def start(
        self, store: Path, port: int, settings: dict[str, Any] | None = None, faults: dict[str, Any] | None = None
    ) -> ForkedBroker:
        """Fork a broker without waiting for it to listen. ``faults``: see ``prepared.equip``."""
        self._started = [broker for broker in self._started if not broker.ended]
        self._number += 1
        witness, log = self._folder / f"witness-{self._number}", self._folder / f"broker-{self._number}.log"
        witness.unlink(missing_ok=True)
        arguments = ["--listen", f"127.0.0.1:{port}"]
        for name, value in {**SMALL_FILES, **(settings or {})}.items():
            arguments += ["--set", f"{name}={value}"]
        output, child_end = os.pipe()
        with log.open("wb") as errors:
            order = {"store": str(store), "arguments": arguments, "faults": faults or {}, "witness": str(witness)}
            pid = self._ask(order, [child_end, errors.fileno()])["pid"]
        os.close(child_end)
        broker = ForkedBroker(self, pid, output, witness, log)
        self._started.append(broker)
        return broker

    def wait(self, pid: int) -> int:
        """Return the exit code of a process that has ended or is about to."""
        code: int = self._ask({"wait": pid}, [])["status"]
        return code


def free_port(source: random.Random) -> int:
    """Return a port on loopback that is not in use."""
    for port in source.sample(PORTS, 200):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise HarnessError(f"no port in {PORTS} is free")
