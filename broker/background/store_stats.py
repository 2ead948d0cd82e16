"""StoreStatsService: samples the store once a second, so that queries for rates and ages need not wait."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..latency import quantile
from .retention import Disk
from .service import Service

if TYPE_CHECKING:
    from ..config import RetentionSection
    from ..store import MessageStore
    from .checkpoint import CheckpointService
    from .flush import FlushService
    from .service import OnFatal, Post

WINDOW_S = 60
"""Period of rates and quantiles."""
AGES_KEPT = 3600
"""Maximum age of waiting bytes that is known, in seconds (approximate)."""


@dataclass(frozen=True, slots=True)
class _Sample:
    """Totals at one moment: bytes written to the store (log, queues and index), and the histogram of flush times."""

    at: float
    written_bytes: int
    flush_counts: list[int]


class StoreStatsService(Service):
    """Samples of the store. ``clock``: monotonic, in seconds; ``disk``: reads the usage of a folder's file system.

    All queries may be called from any thread.
    """

    name = "store-stats"
    interval_seconds = 1.0

    def __init__(
        self,
        store: MessageStore,
        retention: RetentionSection,
        flush: FlushService,
        checkpoint: CheckpointService,
        post: Post,
        on_fatal: OnFatal,
        *,
        clock: Callable[[], float] = time.monotonic,
        disk: Callable[[Path], Disk] = Disk.of,
    ) -> None:
        super().__init__(post, on_fatal)
        self._store = store
        self.retention = retention
        """Settings that decide when messages are refused; may be replaced at any time."""
        self._flush_latencies = flush.latencies
        self._checkpoint = checkpoint
        self._clock = clock
        self._look = disk
        self.disk = disk(store.path)
        """Disk usage of the newest sample, at most a second old."""
        self._samples: deque[_Sample] = deque(maxlen=WINDOW_S + 1)
        self._ends: deque[tuple[float, int]] = deque(maxlen=AGES_KEPT)
        """Pairs of (time, end of the log at that time) for the part of the log that a stage has not processed yet."""

    def do_once(self) -> bool:
        """Take a sample."""
        store, now = self._store, self._clock()
        self.disk = self._look(store.path)
        written_bytes = store.write_offset + store.dispatcher.derived_bytes
        self._samples.append(_Sample(now, written_bytes, list(self._flush_latencies.counts)))
        done = min(self._done().values())
        while self._ends and self._ends[0][1] <= done:
            self._ends.popleft()
        end = store.write_offset
        # Bytes that an earlier sample has are as old as that sample, so only further bytes are noted.
        if end > done and (not self._ends or self._ends[-1][1] < end):
            self._ends.append((now, end))
        return False

    def _done(self) -> dict[str, int]:
        store = self._store
        return {"flush": store.flushed_offset, "reput": store.reput_offset, "checkpoint": self.checkpoint_offset}

    @property
    def checkpoint_offset(self) -> int:
        """Physical offset up to which queues and index are on disk."""
        return self._checkpoint.synced_offset

    def lags(self) -> dict[str, tuple[int, float]]:
        """Return the lag by stage (``flush``, ``reput``, ``checkpoint``): (bytes, seconds).

        ``bytes``: size of the log that the stage has not processed; ``seconds``: how long the oldest of these bytes has
        waited, 0.0 if it is newer than the last sample.
        """
        done = self._done()
        end = self._store.write_offset
        return {stage: (max(end - offset, 0), self._seconds_behind(offset)) for stage, offset in done.items()}

    def _seconds_behind(self, physical_offset: int) -> float:
        # A copy, because the service's thread changes it while others look.
        for at, end in list(self._ends):
            if end > physical_offset:
                return max(self._clock() - at, 0.0)
        return 0.0

    def room_bytes(self) -> int:
        """Return the number of bytes that the store accepts before it refuses messages; 0 while it refuses them.

        Retention lifts a refusal up to one check after the disk or the settings change. Until then no byte is accepted,
        however much room the newest sample shows.
        """
        if self._store.refusal is not None:
            return 0
        disk, rules = self.disk, self.retention
        allowed = (disk.used_bytes + disk.free_bytes) * rules.disk_refuse_percent // 100
        # Messages are refused only if both bounds are passed, so the one that leaves more room counts.
        return min(max(allowed - disk.used_bytes, disk.free_bytes - rules.headroom_bytes, 0), disk.free_bytes)

    def write_rate(self) -> float:
        """Return the growth of the store in bytes a second over the last minute; 0.0 if it is not known yet."""
        samples = list(self._samples)
        if len(samples) < 2:
            return 0.0
        first, last = samples[0], samples[-1]
        return (last.written_bytes - first.written_bytes) / max(last.at - first.at, 1e-3)

    def runway_seconds(self) -> float:
        """Return how long the room lasts at the current write rate; infinite if nothing is written."""
        room, rate = self.room_bytes(), self.write_rate()
        if not room:
            return 0.0
        return room / rate if rate > 0 else math.inf

    def flush_quantiles(self, *shares: float) -> list[float]:
        """Return, for each of ``shares`` (0 to 1), that quantile of the last minute's flush times, in seconds."""
        counts = list(self._flush_latencies.counts)
        samples = list(self._samples)
        if samples:
            counts = [now - before for now, before in zip(counts, samples[0].flush_counts, strict=True)]
        return [quantile(counts, share) for share in shares]
