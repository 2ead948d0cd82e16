"""A broker as a process of its own, on a free port of loopback, and one for tests that leaves nothing behind."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..client import FlintError
from .broker_handle import BrokerHandle

DAEMON = ("-P", "-m", "flintmq.broker.app.daemon")
"""Python arguments that run ``flintmq-broker``, without the current folder among the places of modules."""
ANY_PORT = "127.0.0.1:0"
LISTENING = re.compile(r"listening on (\S+:\d+)")
"""The line of a broker's banner that says its address."""
OUTPUT_LINES_MAX = 100
"""Number of lines of the broker's output that an error shows."""
START_SECONDS_MAX = 300
"""Time to start: the first one on a machine compiles the kernels (``--warm``), and rebuilding a store takes a while."""
STOP_SECONDS_MAX = 30
"""Time to stop; the broker promises 10 s."""


class BrokerFailed(FlintError):
    """A broker did not start, or did not stop gracefully. The message has its output."""


def broker_environment(**variables: str) -> dict[str, str]:
    """Return the environment without broker settings (``FLINTMQ_SECTION__NAME``), plus ``variables``."""
    clean = {name: value for name, value in os.environ.items() if not (name.startswith("FLINTMQ_") and "__" in name)}
    return clean | variables


def serve_arguments(store: Path, listen: str, *options: str, settings: Mapping[str, Any] | None = None) -> list[str]:
    """Return the arguments of ``flintmq-broker`` that serve a store. ``options``: further ones; the last of several
    contradictory ones counts. ``settings``: values by their names."""
    arguments = ["serve", "--store", str(store), "--listen", listen]
    for name, value in (settings or {}).items():
        arguments += ["--set", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
    return [*arguments, *options]


class StartedBroker(BrokerHandle):
    """A broker with the default settings; a context manager that starts and stops it.

    ``options``: further arguments of ``flintmq-broker serve``; ``settings``: values by their names, such as
    ``{"flush.policy": "async"}``. It listens on a free port of loopback unless ``options`` says otherwise. Raises
    ``BrokerFailed`` if it does not start or stop.
    """

    first_arguments: Sequence[str] = ("--warm",)
    """A test or a script must not meet a broker that is slow for a minute."""

    def __init__(self, store: Path, *options: str, settings: Mapping[str, Any] | None = None) -> None:
        self.store = store
        self.address = ""
        self._options = options
        self._settings = dict(settings or {})
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread
        self._output: deque[str] = deque(maxlen=OUTPUT_LINES_MAX)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.stop()

    @property
    def pid(self) -> int:
        """Process id. Raises ``BrokerFailed`` if the broker does not run."""
        return self._running().pid

    @property
    def output(self) -> str:
        """The last lines of the output since the last start: the banner and the log."""
        return "\n".join(self._output)

    def start(self) -> None:
        """Start the broker and wait until it listens, which is after its recovery."""
        if self._process is not None:
            raise BrokerFailed(f"the broker on {self.address} runs already; stop or kill it before you start it again")
        self._output.clear()
        listening: Future[str | None] = Future()
        options = (*self.first_arguments, *self._options)
        arguments = serve_arguments(self.store, self.address or ANY_PORT, *options, settings=self._settings)
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, *self._program(), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=broker_environment(PYTHONUNBUFFERED="1"),
            start_new_session=True,  # Ctrl-C is for this process, which then stops the broker gracefully
        )
        # Always read to the end: a full pipe would block the broker.
        self._reader = threading.Thread(target=self._read_output, args=(self._process, listening), daemon=True)
        self._reader.start()
        try:
            address = listening.result(timeout=START_SECONDS_MAX)
        except TimeoutError:
            self._end()
            raise self._failed(f"the broker was not ready within {START_SECONDS_MAX} s") from None
        except BaseException:  # such as Ctrl-C: leave no broker running
            self._end()
            raise
        if address is None:
            raise self._failed(f"the broker did not start (exit {self._end()})")
        self.address = address

    def stop(self) -> None:
        self._running()
        exit_code = self._end()
        if exit_code is None:
            raise self._failed(f"the broker did not stop within {STOP_SECONDS_MAX} s and was killed")
        if exit_code != 0:
            raise self._failed(f"the broker ended with exit {exit_code}")

    def kill(self) -> None:
        """Kill the broker with SIGKILL, as a crash would end it."""
        self._running().kill()
        self._reap()

    def _program(self) -> Sequence[str]:
        """Return the Python arguments that run the broker."""
        return DAEMON

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise BrokerFailed("the broker does not run; start it first")
        return self._process

    def _end(self) -> int | None:
        """Stop the process; return its exit code, or None if it had to be killed."""
        process = self._running()
        process.terminate()
        try:
            process.wait(timeout=STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            self._reap()
            return None
        return self._reap()

    def _reap(self) -> int:
        """Wait for the process and for the end of its output; return the exit code."""
        code = self._running().wait()
        self._reader.join(timeout=1)
        self._process = None
        return code

    def _read_output(self, process: subprocess.Popen[str], listening: Future[str | None]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._output.append(line.rstrip())
                if not listening.done() and (match := LISTENING.search(line)):
                    listening.set_result(match[1])
        if not listening.done():
            listening.set_result(None)

    def _failed(self, problem: str) -> BrokerFailed:
        return BrokerFailed("\n".join([f"{problem}. Its output:", *(f"  {line}" for line in self._output)]))


# ---- A broker for tests: small files, a temporary store, and nothing left behind.

SMALL_FILES: Mapping[str, int] = {
    "store.commitlog_file_bytes": 4 * 1024 * 1024,
    "store.consumequeue_file_bytes": 20_000,
    "store.index_slots": 5_000,
    "store.index_entries": 20_000,
    "store.allocate_step_bytes": 1024 * 1024,
}
"""Settings of a store that needs little room on the disk, and whose files roll after a few messages."""
SETTINGS: Mapping[str, Any] = {**SMALL_FILES, "flush.policy": "async", "metrics.listen": "off"}
"""Settings of a broker for tests that differ from the defaults."""
ATTACHED = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv.pop(1)):
    sys.exit(1)
from flintmq.broker.app.daemon import main
main(prog_name="flintmq-broker")
"""
"""The broker as a program that Linux stops (``PR_SET_PDEATHSIG``) when its parent, whose pid is an argument, ends."""


class LocalBroker(StartedBroker):
    """A broker for tests; a context manager that starts and stops it.

    ``store``: its folder; None: a temporary one, which is removed when the context ends and so outlives ``stop`` and
    ``kill``. ``options``: further arguments of ``flintmq-broker serve``; ``settings``: values by name, added to
    ``SETTINGS`` or in place of them. On Linux the broker also ends if this process is killed.
    """

    def __init__(self, store: Path | None = None, *options: str, settings: Mapping[str, Any] | None = None) -> None:
        super().__init__(store or Path(), *options, settings={**SETTINGS, **(settings or {})})
        self._is_temporary = store is None
        self._made: Path | None = None

    def __enter__(self) -> Self:
        try:
            return super().__enter__()
        except BaseException:
            self._remove_temporary()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            super().__exit__(kind, error, traceback)
        finally:
            self._remove_temporary()

    def start(self) -> None:
        """Start the broker and wait until it listens; make the temporary store if there is none yet."""
        if self._is_temporary and self._made is None:
            self.store = self._made = Path(tempfile.mkdtemp(prefix="flintmq-test-"))
        super().start()

    def _remove_temporary(self) -> None:
        if self._made is not None:
            shutil.rmtree(self._made)
            self._made = None

    def _program(self) -> Sequence[str]:
        # Linux sends the signal when the thread that started the process ends, so only the main thread may ask for it.
        if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
            return super()._program()
        return ("-P", "-c", ATTACHED, str(os.getpid()))
