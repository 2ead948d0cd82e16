"""A running ``follow-rocketmq``, and comparisons of a follower's log with its master's."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.forked import broker_environment
from tests.group_tools import until
from tests.tools_runs import TIMEOUT_S, command


class Following:
    """A ``flintmq-broker follow-rocketmq`` process."""

    def __init__(self, master: str, store: Path, settings: Mapping[str, object], log: Path) -> None:
        options = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        self._log = log
        with log.open("w") as output:
            self.process = subprocess.Popen(
                command("follow-rocketmq", master, "--store", store, *options),
                stdout=output,
                stderr=subprocess.STDOUT,
                env=broker_environment(PYTHONUNBUFFERED="1"),
            )

    @property
    def said(self) -> str:
        """Return its output so far."""
        return self._log.read_text()

    def wait_for(self, text: str) -> None:
        """Wait until it has printed a text."""
        until(lambda: text in self.said or self.process.poll() is not None, f"{text!r} in {self.said}")
        assert text in self.said, self.said

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(TIMEOUT_S)

    def ended(self) -> tuple[int, str]:
        """Wait until it ends by itself; return exit code and output."""
        return self.process.wait(TIMEOUT_S), self.said


@contextmanager
def following(master: str, store: Path, settings: Mapping[str, object], log: Path) -> Iterator[Following]:
    """Run ``follow-rocketmq``; kill it at the end if it still runs."""
    running = Following(master, store, settings, log)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait()


def log_content(store: Path) -> bytes:
    """Return the bytes of a store's log, without the zeros that were never written."""
    files = sorted(path for path in (store / "commitlog").glob("*") if path.name.isdecimal())
    return b"".join(path.read_bytes() for path in files).rstrip(b"\0")


def until_equal(master: Path, follower: Path) -> None:
    """Wait until both logs have the same bytes."""
    until(lambda: log_content(follower) == log_content(master), f"{follower} has the log of {master}")
