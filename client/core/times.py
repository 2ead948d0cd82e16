"""Times: aware datetimes for callers, milliseconds since 1970 UTC on the wire."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

from ...protocol.times import first_millis
from ..errors import InvalidArgument, InvalidArgumentType


def now_millis() -> int:
    """Return this machine's clock in ms since 1970 UTC."""
    return time.time_ns() // 1_000_000


def to_millis(what: str, moment: Any) -> int:
    """Convert an aware datetime to ms since 1970 UTC: the first that is not before it, 0 if it is before 1970.

    So messages of a time between two milliseconds are on their right side of a beginning, which is inclusive, and of an
    end that is exclusive. Raises as ``check_moment``.
    """
    return first_millis(check_moment(what, moment))


def check_moment(what: str, moment: Any) -> datetime:
    """Return an aware datetime; raise ``InvalidArgument``, beginning with ``what``, for a naive one, because it is
    ambiguous."""
    if not isinstance(moment, datetime):
        raise InvalidArgumentType(f"{what} must be a datetime, not {type(moment).__name__}")
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise InvalidArgument(
            f"{what}={moment!r} has no time zone; pass one, such as datetime(…, tzinfo=timezone.utc) or "
            "datetime.now().astimezone()"
        )
    return moment
