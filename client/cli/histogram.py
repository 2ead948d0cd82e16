"""Latencies: percentiles and distribution."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from typing import NamedTuple

PERCENTILES = (50.0, 90.0, 99.0, 99.9)
_STEPS = (1, 2, 5)


class Bucket(NamedTuple):
    """Number of latencies below ``below`` seconds that are in no earlier bucket."""

    below: float
    latencies: int


class LatencyHistogram:
    """Latencies in seconds. All are kept, in eight bytes each, so percentiles are exact."""

    def __init__(self, seconds: Iterable[float] = ()) -> None:
        self._seconds = array("d", seconds)
        self._sorted = False

    def add(self, seconds: float) -> None:
        """Add one latency."""
        self._seconds.append(seconds)
        self._sorted = False

    def extend(self, others: LatencyHistogram) -> None:
        """Add all latencies of ``others``."""
        self._seconds.extend(others._seconds)
        self._sorted = False

    def __len__(self) -> int:
        return len(self._seconds)

    def _in_order(self) -> array[float]:
        if not self._sorted:
            self._seconds = array("d", sorted(self._seconds))
            self._sorted = True
        return self._seconds

    def percentile(self, percent: float) -> float | None:
        """Return the latency that ``percent`` of all do not exceed; None if there are none."""
        ordered = self._in_order()
        if not ordered:
            return None
        return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]

    @property
    def greatest(self) -> float | None:
        """Maximum, or None if there are no latencies."""
        return self.percentile(100)

    def summary(self) -> dict[str, float | None]:
        """Return ``p50``, ``p90``, ``p99``, ``p99_9`` and ``max`` in seconds."""
        named = {f"p{percent:g}".replace(".", "_"): self.percentile(percent) for percent in PERCENTILES}
        return {**named, "max": self.greatest}

    def buckets(self) -> list[Bucket]:
        """Return buckets that end at 1, 2 and 5 times powers of ten, from the first that is not empty."""
        ordered = self._in_order()
        if not ordered:
            return []
        buckets: list[Bucket] = []
        exponent, step, at = math.floor(math.log10(max(ordered[0], 1e-9))), 0, 0
        while at < len(ordered):
            below = _STEPS[step] * 10.0**exponent
            first = at
            while at < len(ordered) and ordered[at] < below:
                at += 1
            if at > first or buckets:
                buckets.append(Bucket(below, at - first))
            step += 1
            if step == len(_STEPS):
                exponent, step = exponent + 1, 0
        return buckets
