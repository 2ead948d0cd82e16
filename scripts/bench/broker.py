"""The broker to measure: a separate process with RocketMQ's default file sizes."""

from __future__ import annotations

import re
import time
from pathlib import Path

from flintmq.testing import StartedBroker

from .measure import BenchFailed
from .raw import RawClient

_RECOVERY = re.compile(r"recovery: ([\d.]+) s")
_POLL_SECONDS = 0.001
CAUGHT_UP_SECONDS_MAX = 120.0


class Broker(StartedBroker):
    """A context manager for a broker that can also be killed. ``start_seconds``: time from the process's start until
    its port is open."""

    def __init__(self, store: Path, flush: str, *options: str) -> None:
        super().__init__(store, "--flush", flush, *options)
        self.start_seconds = 0.0

    def start(self) -> None:
        """Start the broker and measure how long it takes."""
        began = time.perf_counter()
        super().start()
        self.start_seconds = time.perf_counter() - began

    @property
    def recovery_seconds(self) -> float:
        """Seconds that opening the store took, according to the broker's banner."""
        match = _RECOVERY.search(self.output)
        if not match:
            raise BenchFailed("the broker's banner does not mention its recovery")
        return float(match[1])

    def wait_until_caught_up(self) -> None:
        """Wait until every record of the log has been dispatched to queues and index."""
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
        """Raise ``BenchFailed`` unless the topic's queues hold exactly ``count`` messages."""
        with RawClient(self.address) as client:
            stored = sum(client.queue_lengths(topic).values())
        if stored != count:
            raise BenchFailed(f"the queues of {topic} hold {stored:,} messages; expected {count:,}")
