"""Pauses before requests are retried."""

from __future__ import annotations

import random
from typing import TypeVar

from ....protocol.errors import ConnectionFailed, FlintError, RequestTimeout

FIRST_BACKOFF_SECONDS = 0.02
BACKOFF_SECONDS_MAX = 1.0
_DOUBLINGS_MAX = 10
"""Keeps the power of two small; the maximum is reached before."""
_JITTER = 0.2
_CAUSES_MAX = 16

E = TypeVar("E", bound=BaseException)


def detached(error: E) -> E:
    """Return an error that is going to be kept, without its traceback and those of its causes.

    A traceback refers to every frame that the error passed through and to their callers, and so keeps their locals
    alive.
    """
    found: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        if found is None:
            break
        found.__traceback__ = None
        found = found.__cause__ or found.__context__
    return error


class Backoff:
    """The pause after consecutive failures. ``trouble``: the last failure, None after a success."""

    __slots__ = ("_failures", "trouble", "until")

    def __init__(self) -> None:
        self._failures = 0
        self.until = 0.0
        """End of the pause, monotonic seconds."""
        self.trouble: FlintError | None = None

    def seconds(self, now: float) -> float:
        """Return the seconds left to wait. ``now``: monotonic seconds."""
        return max(0.0, self.until - now)

    def record_failure(self, error: FlintError, now: float) -> None:
        """Record a retriable failure. After the first loss of a connection, the client reconnects without a pause."""
        if now >= self.until:  # count requests that failed together only once
            self._failures += 1
        self.trouble = detached(error)
        at_once = isinstance(error, ConnectionFailed) and self._failures == 1
        self.until = now if at_once else now + backoff_seconds(self._failures, error)

    def record_success(self) -> None:
        """Record a success."""
        self._failures = 0
        self.trouble = None

    def end_pause(self) -> None:
        """End the pause."""
        self.until = 0.0


class Retries:
    """Decides whether and when a failed call is retried. ``deadline``: end of the call, monotonic seconds."""

    __slots__ = ("_deadline", "_failures")

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._failures = 0

    def pause(self, error: FlintError, now: float) -> float | None:
        """Return the seconds to wait before the next attempt; None: do not retry, raise ``error``."""
        if not is_retriable(error) or isinstance(error, RequestTimeout):
            return None
        self._failures += 1
        # After the first loss of a connection, the call is repeated on a new one without a pause.
        at_once = isinstance(error, ConnectionFailed) and self._failures == 1
        seconds = 0.0 if at_once else backoff_seconds(self._failures, error)
        return None if now + seconds >= self._deadline else seconds


def is_retriable(error: FlintError) -> bool:
    """Return whether the same request can succeed later."""
    return bool(getattr(error, "retriable", False))


def backoff_seconds(failures: int, error: FlintError | None = None) -> float:
    """Return the pause after the ``failures``-th consecutive failure (from 1).

    It doubles from 20 ms to at most 1 s, with jitter so that many clients do not return at once; the pause that the
    broker asked for (``retry_after_ms``) is the minimum.
    """
    doubled = min(BACKOFF_SECONDS_MAX, FIRST_BACKOFF_SECONDS * 2 ** min(failures - 1, _DOUBLINGS_MAX))
    asked = getattr(error, "retry_after_ms", 0) / 1000
    return float(max(doubled, asked) * random.uniform(1.0, 1.0 + _JITTER))  # noqa: S311
