"""A rate limit for one kind of log line of a client."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

LINES_MAX = 10
SECONDS = 10.0
"""A client may log ``LINES_MAX`` lines at once, then as many again per ``SECONDS``, spread evenly."""


class LogRate:
    """Token bucket: admits ``lines`` at once and then one every ``seconds`` / ``lines``. Thread-safe."""

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
        """Return a suffix for the line to be logged now, which says how many lines before it were left out (empty if
        none); None: leave this line out too."""
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
