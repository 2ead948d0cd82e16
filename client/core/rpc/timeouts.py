"""Timeouts, in seconds."""

from __future__ import annotations

from math import inf
from typing import Any

from ....protocol.times import SECONDS_MAX
from ...errors import InvalidArgument, InvalidArgumentType

TIMEOUT_SECONDS = 10.0
"""Default timeout of a call of a consumer or an admin."""
DELIVERY_SECONDS = 10.0
"""Default time for which a producer tries a message."""
CONNECT_SECONDS_MAX = 5.0
"""Maximum time for one address before the next one is tried."""
CONNECT_SECONDS_MIN = 1.0
"""Minimum time for one of several addresses, as long as the request has it."""
SILENCE_SECONDS_MAX = 15
"""A connection that owes a response, and from which nothing comes for this long, is replaced by a new one, even if the
call has more time."""
SET_SILENCE_SECONDS_MAX = 3
"""The same for a producer's connection to a member of a replica set: by now, another one may lead."""


def silence_seconds_max(role: str) -> float:
    """Return for how long a broker may be silent. ``role``: for a producer, the broker's, from HELLO; else empty."""
    return min(SET_SILENCE_SECONDS_MAX, SILENCE_SECONDS_MAX) if role else SILENCE_SECONDS_MAX


def check_timeout(what: str, timeout: Any, *, unlimited: bool = False) -> float:
    """Return ``timeout`` in seconds; raises if it is not valid. ``unlimited``: infinity is."""
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise InvalidArgumentType(f"{what} must be a number of seconds, not {type(timeout).__name__}")
    if not timeout > 0:
        raise InvalidArgument(f"{what} is {timeout}; it must be more than 0 seconds")
    if timeout > SECONDS_MAX and not (unlimited and timeout == inf):
        more = ", or math.inf for no limit" if unlimited else ""
        raise InvalidArgument(f"{what} is too long; it must be at most {SECONDS_MAX:,.0f} seconds{more}")
    return float(timeout)


def wait_seconds(timeout: Any) -> float:
    """Return a ``timeout`` that may be 0, which means not to wait; raises if it is not valid."""
    if type(timeout) in (int, float) and timeout == 0:
        return 0.0
    return check_timeout("timeout", timeout)
