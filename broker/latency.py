"""Latency histogram with fixed buckets, cheap enough for every request."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

_MANTISSAS = (10, 15, 20, 30, 50, 70)

BOUNDS_S = (
    *(mantissa * decade / 1_000_000 for decade in (1, 10, 100, 1_000, 10_000, 100_000) for mantissa in _MANTISSAS),
    10.0,
)
"""Upper bounds of the buckets, 10 µs to 10 s, in seconds: six per decade, so that a quantile is accurate to a quarter.
One more bucket after them counts everything that took longer."""


class Latencies:
    """A histogram for one writer and any number of readers: ``counts`` by bucket, and ``seconds`` in total."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.seconds = 0.0

    def observe(self, seconds: float, count: int = 1) -> None:
        """Count ``count`` events that took ``seconds`` each."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += count
        self.seconds += seconds * count


def quantile(counts: Sequence[int], share: float) -> float:
    """Return the quantile ``share`` (0 to 1) in seconds, interpolated linearly within its bucket.

    0.0 if nothing was counted; values above the last bound count as the last bound.
    """
    wanted = share * sum(counts)
    below = 0
    for number, count in enumerate(counts):
        if count and below + count >= wanted:
            if number == len(BOUNDS_S):
                return BOUNDS_S[-1]
            lower = BOUNDS_S[number - 1] if number else 0.0
            return lower + (BOUNDS_S[number] - lower) * (wanted - below) / count
        below += count
    return 0.0
