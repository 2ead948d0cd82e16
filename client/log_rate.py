"""A bound on how many lines of one kind a client logs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

LINES_MAX = 10
SECONDS = 10.0
"""So many lines at once, and then as many again within so many seconds, spread evenly."""


class LogRate:
    """Admits ``lines`` at once and then one every ``seconds`` / ``lines``, as tokens in a bucket. Safe from threads."""

    __slots__ = ("_clock", "_left_out", "_lines", "_lock", "_refilled_at", "_seconds", "_tokens")

    def __init__(
        self, lines: int = LINES_MAX, seconds: float = SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lines = lines
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._tokens = float(lines)
        self._refilled_at = clock()
        self._left_out = 0

    def admit(self) -> str | None:
        """Return what to append to the line that is to be logged now: how many were left out before it, if any were;
        None: leave this one out, too."""
        now = self._clock()
        with self._lock:
            refill = (now - self._refilled_at) * self._lines / self._seconds
            self._tokens = min(float(self._lines), self._tokens + refill)
            self._refilled_at = now
            if self._tokens < 1.0:
                self._left_out += 1
                return None
            self._tokens -= 1.0
            left_out, self._left_out = self._left_out, 0
        return f" ({left_out} lines like this were left out)" if left_out else ""
