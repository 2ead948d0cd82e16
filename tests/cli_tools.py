"""Runners of ``flintmq`` for tests: in this process, or in one of its own, with or without a terminal."""

from __future__ import annotations

import codecs
import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from flintmq.client.cli.main import root

PROGRAM = [sys.executable, "-m", "flintmq.client.cli.main"]
END_TIMEOUT_S = 120.0


@dataclass
class Done:
    """Result of a command line."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """Return the lines of standard output."""
        return self.out.splitlines()

    @property
    def rows(self) -> list[Any]:
        """Return standard output, parsed as JSON lines."""
        return [json.loads(line) for line in self.lines]


@dataclass
class Cli:
    """``flintmq`` with its own configuration folder and, unless told otherwise, one broker."""

    folder: Path
    broker: str = ""
    variables: dict[str, str] = field(default_factory=dict)
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __enter__(self) -> Cli:
        return self

    def __exit__(self, *raised: object) -> None:
        """Kill processes that a failed test left running."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
            with process:
                pass

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables of the command."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("FLINTMQ_")}
        clean |= {"XDG_CONFIG_HOME": str(self.folder), "TERM": "xterm-256color", "TZ": "UTC"}
        clean.pop("COLUMNS", None)
        clean.pop("NO_COLOR", None)
        return clean | ({"FLINTMQ_BROKER": self.broker} if self.broker else {}) | self.variables

    def run(self, *args: str, stdin: str | bytes | None = None) -> Done:
        """Run a command line in this process."""
        clean: dict[str, str | None] = dict.fromkeys(os.environ)
        result = CliRunner(env=clean | self.environment).invoke(root, args, input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Done(result.exit_code, result.stdout, result.stderr)

    def start(self, *args: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start a command line as a process, with pipes for its streams unless ``options`` says otherwise."""
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen([*PROGRAM, *args], env=self.environment, **(pipes | options))
        self.started.append(process)
        return process

    def spawn(self, *args: str, stdin: bytes | None = None) -> Done:
        """Run a command line in a process to its end. ``stdin``: its piped input; None: no input."""
        process = self.start(*args, stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE)
        out, err = process.communicate(stdin, END_TIMEOUT_S)
        return Done(process.returncode, out.decode(), err.decode())


class Terminal:
    """A process on a pseudo-terminal of a given size."""

    def __init__(self, cli: Cli, args: Sequence[str], columns: int, lines: int = 24) -> None:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self._ours = ours
        self.process = cli.start(
            *args, stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=lambda: os.login_tty(theirs)
        )
        os.close(theirs)
        self.text = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        """Keeps the beginning of a character whose rest the next read returns."""

    def read_until(self, wanted: str) -> str:
        """Read until ``wanted`` appears; return everything shown so far."""
        deadline = time.monotonic() + END_TIMEOUT_S
        while wanted not in self.text:
            assert time.monotonic() < deadline, f"{wanted!r} did not appear: {self.text!r}"
            if not self._read(0.5) and self.process.poll() is not None:
                assert wanted in self.text, f"ended without {wanted!r}: {self.text!r}"
        return self.text

    def type(self, keys: str) -> None:
        """Type keys."""
        os.write(self._ours, keys.encode())

    def finish(self) -> int:
        """Read to the end; return the exit code."""
        deadline = time.monotonic() + END_TIMEOUT_S
        while self._read(0.5) or self.process.poll() is None:
            assert time.monotonic() < deadline, f"the command does not end: {self.text!r}"
        os.close(self._ours)
        return self.process.wait()

    def _read(self, seconds: float) -> bool:
        if not select.select([self._ours], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self._ours, 65536)
        except OSError:  # the other end is closed
            return False
        self.text += self._decoder.decode(data)
        return bool(data)
