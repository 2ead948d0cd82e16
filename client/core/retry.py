"""How long to wait before a request is tried again."""

from __future__ import annotations

import random
from typing import TypeVar

from ...protocol.errors import ConnectionFailed, FlintError, RequestTimeout

FIRST_BACKOFF_SECONDS = 0.02
BACKOFF_SECONDS_MAX = 1.0
_DOUBLINGS_MAX = 10
_JITTER = 0.2
_CAUSES_MAX = 16

E = TypeVar("E", bound=BaseException)


def detached(error: E) -> E:
    """Return the error, which is going to be kept, without the tracebacks of it and of what caused it.

    They hold each frame through which it came and all those that called it, so that whatever is in them stays.
    """
    found: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        if found is None:
            break
        found.__traceback__ = None
        found = found.__cause__ or found.__context__
    return error


class Backoff:
    """The pause after failures in a row. ``trouble``: the last of them, None since something succeeded."""

    __slots__ = ("_failures", "trouble", "until")

    def __init__(self) -> None:
        self._failures = 0
        self.until = 0.0
        """When the pause is over, monotonic seconds."""
        self.trouble: FlintError | None = None

    def seconds(self, now: float) -> float:
        """How long to wait still. ``now``: monotonic seconds."""
        return max(0.0, self.until - now)

    def failed(self, error: FlintError, now: float) -> None:
        """Something failed that can be tried again; a lost connection is made again at once the first time."""
        if now >= self.until:  # not once for each of those that were on their way together
            self._failures += 1
        self.trouble = detached(error)
        at_once = isinstance(error, ConnectionFailed) and self._failures == 1
        self.until = now if at_once else now + backoff_seconds(self._failures, error)

    def succeeded(self) -> None:
        """Something went well."""
        self._failures = 0
        self.trouble = None

    def end(self) -> None:
        """There is nothing to wait for any more."""
        self.until = 0.0


class Retries:
    """Whether a call that failed is tried again, and when. ``deadline``: when it must be over, monotonic seconds."""

    __slots__ = ("_deadline", "_failures")

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._failures = 0

    def pause(self, error: FlintError, now: float) -> float | None:
        """Return the seconds to wait before the next attempt; None if there is none: ``error`` is to be raised."""
        if not is_retriable(error) or isinstance(error, RequestTimeout):
            return None
        self._failures += 1
        seconds = backoff_seconds(self._failures, error)
        return None if now + seconds >= self._deadline else seconds


def is_retriable(error: FlintError) -> bool:
    """Whether the same request can succeed later."""
    return bool(getattr(error, "retriable", False))


def backoff_seconds(failures: int, error: FlintError | None = None) -> float:
    """How long to wait after the ``failures``-th failure in a row (from 1).

    Doubles from 20 ms to at most 1 s, with jitter so that many clients do not return at once; what a broker asked for
    (``retry_after_ms``) is the least.
    """
    doubled = min(BACKOFF_SECONDS_MAX, FIRST_BACKOFF_SECONDS * 2 ** min(failures - 1, _DOUBLINGS_MAX))
    asked = getattr(error, "retry_after_ms", 0) / 1000
    return float(max(doubled, asked) * random.uniform(1.0, 1.0 + _JITTER))  # noqa: S311
