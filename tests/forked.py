"""``flintmq-broker`` as processes that start in a twentieth of a second: forked by ``tests.fork_server``."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from flintmq.testing.started_broker import broker_environment

ROOT = Path(__file__).resolve().parents[1]


class ForkedProcess:
    """The part of ``subprocess.Popen`` that tests use, for a process that is not a child of this one."""

    def __init__(self, server: ForkServer, pid: int, arguments: list[str], life: int, output: TextIO | None) -> None:
        self.pid = pid
        self.args = arguments
        self.stdout = output
        self.returncode: int | None = None
        self._server = server
        self._life = life
        """End of a pipe without a writer: readable once the process has ended."""
        self._ending = threading.Lock()

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the process runs."""
        return self.returncode if self._gone(0) else None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process to end; return the exit code. Raises ``subprocess.TimeoutExpired``."""
        if not self._gone(timeout):
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        assert self.returncode is not None
        return self.returncode

    def _gone(self, timeout: float | None) -> bool:
        with self._ending:
            if self.returncode is None:
                poller = select.poll()  # not select.select: tests have more open descriptors than it accepts
                poller.register(self._life, select.POLLIN | select.POLLHUP)
                if poller.poll(None if timeout is None else timeout * 1000):
                    os.close(self._life)
                    self.returncode = self._server.wait(self.pid)
            return self.returncode is not None

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """Client of the fork server, which starts with the first process requested. ``close`` it.

    ``prefix``: words before its command, which start it elsewhere, such as in a network namespace.
    """

    def __init__(self, prefix: Sequence[str] = ()) -> None:
        self._prefix = prefix
        self._asking = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._orders: socket.socket

    def start(self, arguments: list[str], errors: int, output: int | None = None) -> ForkedProcess:
        """Fork ``flintmq-broker`` with these arguments. ``errors``, ``output``: descriptors; None: a pipe."""
        if output is not None:
            return self._start(arguments, output, errors, None)
        mine, theirs = os.pipe()
        try:
            return self._start(arguments, theirs, errors, os.fdopen(mine))
        finally:
            os.close(theirs)

    def run(self, arguments: list[str], timeout: float) -> subprocess.CompletedProcess[str]:
        """Run ``flintmq-broker`` with these arguments to its end. Raises ``subprocess.TimeoutExpired``."""
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
            process = self._start(arguments, output.fileno(), errors.fileno(), None)
            try:
                code = process.wait(timeout)
            finally:
                process.kill()
            for file in (output, errors):
                file.seek(0)
            return subprocess.CompletedProcess(arguments, code, output.read(), errors.read())

    def _start(self, arguments: list[str], output: int, errors: int, reads: TextIO | None) -> ForkedProcess:
        life, theirs = os.pipe()
        try:
            pid = self._ask({"arguments": arguments}, [output, errors, theirs])["pid"]
        finally:
            os.close(theirs)
        return ForkedProcess(self, pid, arguments, life, reads)

    def wait(self, pid: int) -> int:
        """Return the exit code of a process that has ended or is about to."""
        code: int = self._ask({"wait": pid}, [])["status"]
        return code

    def _ask(self, order: dict[str, Any], descriptors: list[int]) -> Any:
        with self._asking:
            if self._process is None:
                self._launch()
            socket.send_fds(self._orders, [json.dumps(order).encode()], descriptors)
            answer = self._orders.recv(4096)
        assert answer, "the process that forks ended; its output is above"
        return json.loads(answer)

    def _launch(self) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [*self._prefix, sys.executable, "-m", "tests.fork_server", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                cwd=ROOT,
                env=broker_environment(),
            )

    def close(self) -> None:
        """End the server. Its forks continue."""
        if self._process is not None:
            self._orders.close()
            self._process.wait()
            self._process = None


FORKS = ForkServer()
"""Fork server of this process; closed at the end of the tests."""
