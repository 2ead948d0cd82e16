"""Milliseconds since 1970 UTC as times, and from finer times; and the longest timeout."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_MILLIS_MAX = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND
_MILLIS_MIN = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND
SECONDS_MAX = 1e9
"""Maximum length of a timeout, more than 31 years: the system's own waits fail for far longer ones."""


def from_millis(millis: int) -> datetime:
    """Return a time in UTC; a value outside a datetime's range becomes the first or last datetime."""
    return _EPOCH + timedelta(milliseconds=min(max(millis, _MILLIS_MIN), _MILLIS_MAX))


def first_millis(moment: datetime) -> int:
    """Return the first millisecond that is not before an aware ``moment``: where what begins at it begins, and what
    ends before it ends. 0 for a time before 1970."""
    return max(0, -((_EPOCH - moment) // _MILLISECOND))


def last_millis(moment: datetime) -> int:
    """Return the last millisecond that is not after an aware ``moment``: the last of what ends with it. 0 for a time
    before 1970."""
    return max(0, (moment - _EPOCH) // _MILLISECOND)


def duration_millis(seconds: float) -> int:
    """Return the least number of milliseconds that is not shorter than ``seconds``, except by an error of rounding."""
    return math.ceil(round(seconds * 1000, 6))
