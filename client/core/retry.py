"""How long to wait before a request is tried again."""

from __future__ import annotations

import random

from ...protocol.errors import FlintError

FIRST_BACKOFF_SECONDS = 0.02
BACKOFF_SECONDS_MAX = 1.0
_DOUBLINGS_MAX = 10
_JITTER = 0.2


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
