"""A broker process of this checkout for scripts: it starts on a free port and stops gracefully."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections import deque
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType

EXECUTABLE = Path(sys.executable).parent / "flintmq-broker"
LISTENING = re.compile(r"listening on (127\.0\.0\.1:\d+)")
OUTPUT_LINES_MAX = 100  # of the broker's output, kept for an error message
START_SECONDS_MAX = 300  # rebuilding a store takes a while
STOP_SECONDS_MAX = 30  # the broker promises 10


class BrokerFailed(Exception):
    """Error: the broker did not start, or did not stop gracefully. The message contains its output."""


def settings_free_environment() -> dict[str, str]:
    """Return the environment without broker settings (``FLINTMQ_SECTION__NAME``): the store gets the default sizes."""
    return {name: value for name, value in os.environ.items() if not (name.startswith("FLINTMQ_") and "__" in name)}


class LocalBroker:
    """A context manager that starts a broker and waits for its recovery; then it listens on ``address``.

    ``options`` are further arguments of ``flintmq-broker serve``.
    """

    def __init__(self, store: Path, *options: str) -> None:
        self.store = store
        self._options = options
        self.address = ""
        self._output: deque[str] = deque(maxlen=OUTPUT_LINES_MAX)
        self._listening: Future[str | None] = Future()

    def __enter__(self) -> LocalBroker:
        self._process = subprocess.Popen(
            [str(EXECUTABLE), "serve", "--store", str(self.store), "--listen", "127.0.0.1:0", *self._options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=settings_free_environment() | {"PYTHONUNBUFFERED": "1"},
            start_new_session=True,  # Ctrl-C is for the script, which then stops the broker gracefully
        )
        # Always read to the end: a full pipe would block the broker.
        self._reader = threading.Thread(target=self._read_output, daemon=True)
        self._reader.start()
        try:
            address = self._listening.result(timeout=START_SECONDS_MAX)
        except TimeoutError:
            self._stop()
            raise self._failed(f"the broker was not ready within {START_SECONDS_MAX} s") from None
        except BaseException:  # such as Ctrl-C: leave no broker running
            self._stop()
            raise
        if address is None:
            raise self._failed(f"the broker did not start (exit {self._process.wait()})")
        self.address = address
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        exit_code = self._stop()
        if exit_code is None:
            raise self._failed(f"the broker did not stop within {STOP_SECONDS_MAX} s and was killed") from error
        if exit_code != 0:
            raise self._failed(f"the broker ended with exit {exit_code}") from error

    def _stop(self) -> int | None:
        """Stop the process; return its exit code, or None if it had to be killed."""
        self._process.terminate()
        try:
            return self._process.wait(timeout=STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return None

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._output.append(line.rstrip())
                if not self._listening.done() and (match := LISTENING.search(line)):
                    self._listening.set_result(match[1])
        if not self._listening.done():
            self._listening.set_result(None)

    def _failed(self, problem: str) -> BrokerFailed:
        self._reader.join(timeout=1)
        return BrokerFailed("\n".join([f"{problem}. Its output:", *(f"  {line}" for line in self._output)]))
