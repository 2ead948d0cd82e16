"""Moments: aware datetimes for callers, milliseconds since 1970 UTC on the wire."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

from ..errors import InvalidArgument, InvalidArgumentType

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_MILLIS_MAX = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND
_MILLIS_MIN = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND


def now_millis() -> int:
    """This machine's clock, ms since 1970 UTC."""
    return time.time_ns() // 1_000_000


def from_millis(millis: int) -> datetime:
    """The moment in UTC; what no datetime can hold becomes the first or last that one can."""
    return _EPOCH + timedelta(milliseconds=min(max(millis, _MILLIS_MIN), _MILLIS_MAX))


def to_millis(what: str, moment: Any) -> int:
    """An aware datetime as ms since 1970 UTC (rounded down), 0 where it is earlier.

    Raises ``InvalidArgument``, beginning with ``what``, for a naive one: nobody knows which moment it means.
    """
    if not isinstance(moment, datetime):
        raise InvalidArgumentType(f"{what} must be a datetime, not {type(moment).__name__}")
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise InvalidArgument(
            f"{what}={moment!r} has no time zone; give one, such as datetime(…, tzinfo=timezone.utc) or "
            "datetime.now().astimezone()"
        )
    return max(0, (moment - _EPOCH) // _MILLISECOND)
