"""A producer that records what was acknowledged."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from flintmq.client import FlintError, Message, Producer

POLL_S = 0.02


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
        """Send nothing more."""
        self._stopping.set()
