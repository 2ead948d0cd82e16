"""Environment of a case: number of runs and messages, and brokers to measure."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from .broker import Broker
from .load import BODY_BYTES, QUEUES, TOPIC, FramePacker, fill
from .machine import touch_memory
from .measure import Sample, Samples
from .raw import RawClient

_QUICK_SHARE = 1 / 500
_QUICK_COUNT_MIN = 200
_QUICK_SIZE_SHARE = 100

FLUSHES = ("async", "sync")


@dataclass(frozen=True, slots=True)
class Bench:
    """The environment of all cases: ``runs`` of each case, and stores under ``folder``. ``quick``: only check that
    every case works; ``alone``: without Kafka for comparison.

    ``full``: also measure what takes many gigabytes of disk and many minutes.

    ``seconds``: duration of a load that lasts for a time; None: the case's own. ``say``: prints a line of progress.
    ``touched_gib``: memory to touch before each run, see ``touch_memory``. ``notes``: remarks for the reader of the
    table, such as versions.
    """

    runs: int
    folder: Path
    quick: bool = False
    alone: bool = False
    full: bool = False
    touched_gib: float = 0.0
    seconds: float | None = None
    say: Callable[[str], object] = print
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Add ``text`` to the notes below the table, once."""
        if text not in self.notes:
            self.notes.append(text)

    def count(self, count: int) -> int:
        """Return ``count``, or a fraction of it with ``quick``."""
        return max(_QUICK_COUNT_MIN, int(count * _QUICK_SHARE)) if self.quick else count

    def size(self, size: int) -> int:
        """Return ``size``, such as a number of topics, or a fraction of it with ``quick``."""
        return max(1, size // _QUICK_SIZE_SHARE) if self.quick else size

    @contextmanager
    def store(self) -> Iterator[Path]:
        """Yield a folder for a store, and remove it afterwards."""
        store = Path(tempfile.mkdtemp(prefix="flintmq-bench-", dir=self.folder))
        try:
            yield store
        finally:
            shutil.rmtree(store)
            os.sync()  # the next run's writes must not wait for dirty pages of this one

    @contextmanager
    def broker(self, flush: str = "async", *options: str) -> Iterator[Broker]:
        """Yield a broker on a new store with the topic, and remove both afterwards; see ``broker_on``."""
        with self.store() as store, self.broker_on(store, flush, *options) as broker:
            yield broker

    @contextmanager
    def broker_on(self, store: Path, flush: str = "async", *options: str) -> Iterator[Broker]:
        """Yield a broker on an empty ``store`` with the topic. ``options``: further arguments of its command line."""
        with Broker(store, flush, *options) as broker:
            with RawClient(broker.address) as client:
                client.create_topic(TOPIC, QUEUES)
            touch_memory(self.touched_gib, self.folder)
            yield broker

    @contextmanager
    def filled(self, count: int, body_bytes: int = BODY_BYTES) -> Iterator[tuple[Broker, FramePacker]]:
        """Yield a broker with ``count`` dispatched messages in the topic, and the packer that knows their keys."""
        with self.broker() as broker:
            packer = fill(broker.address, count, body_bytes)
            broker.wait_until_caught_up()
            yield broker, packer

    def by_flush(self, measure: Callable[[Broker, str], Sample]) -> Samples:
        """Yield one sample per run: the figures of ``measure`` with a new broker of each flush policy.

        Their keys begin with the policy; the figure without a name has the policy itself as its key.
        """
        for _ in range(self.runs):
            sample: Sample = {}
            for flush in FLUSHES:
                with self.broker(flush) as broker:
                    sample |= {f"{flush}_{key}".rstrip("_"): figure for key, figure in measure(broker, flush).items()}
            yield sample
