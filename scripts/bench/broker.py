"""The broker that is measured: a process of its own with RocketMQ's default file sizes."""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from lib.local_broker import LocalBroker

from .measure import BenchFailed
from .raw import RawClient

_RECOVERY = re.compile(r"recovery: ([\d.]+) s")
_POLL_SECONDS = 0.001
CAUGHT_UP_SECONDS_MAX = 120.0


class Broker(LocalBroker):
    """Context manager; can also be killed. ``start_seconds``: from starting the process to its open port."""

    def __init__(self, store: Path, flush: str, *options: str) -> None:
        super().__init__(store, "--flush", flush, *options)
        self.start_seconds = 0.0
        self._killed = False

    def __enter__(self) -> Broker:
        began = time.perf_counter()
        super().__enter__()
        self.start_seconds = time.perf_counter() - began
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._killed:
            super().__exit__(kind, error, traceback)

    @property
    def pid(self) -> int:
        """The broker's process."""
        return self._process.pid

    @property
    def recovery_seconds(self) -> float:
        """What its banner says that opening the store took."""
        match = _RECOVERY.search("\n".join(self._output))
        if not match:
            raise BenchFailed("the broker's banner says nothing of its recovery")
        return float(match[1])

    def kill(self) -> None:
        """End the process with SIGKILL."""
        self._killed = True
        os.kill(self.pid, signal.SIGKILL)
        self._process.wait()

    def wait_until_caught_up(self) -> None:
        """Return when queues and index know every record of the log."""
        deadline = time.monotonic() + CAUGHT_UP_SECONDS_MAX
        with RawClient(self.address) as client:
            while True:
                info = client.runtime_info()
                if info["reput_offset"] == info["write_offset"]:
                    return
                if time.monotonic() > deadline:
                    raise BenchFailed(f"queues and index did not catch up within {CAUGHT_UP_SECONDS_MAX:.0f} s")
                time.sleep(_POLL_SECONDS)

    def check_stored(self, topic: str, count: int) -> None:
        """Raise unless the topic's queues hold exactly ``count`` messages."""
        with RawClient(self.address) as client:
            stored = sum(client.queue_lengths(topic).values())
        if stored != count:
            raise BenchFailed(f"the queues of {topic} hold {stored:,} messages, {count:,} were acknowledged")


@contextmanager
def temporary_store(folder: Path) -> Iterator[Path]:
    """A folder for a store, gone afterwards."""
    store = Path(tempfile.mkdtemp(prefix="flintmq-bench-", dir=folder))
    try:
        yield store
    finally:
        shutil.rmtree(store)
        os.sync()  # what the next run writes shall not wait for what this one left
