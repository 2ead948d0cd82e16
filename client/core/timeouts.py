"""How long things may take, in seconds."""

from __future__ import annotations

from typing import Any

from ..errors import InvalidArgument, InvalidArgumentType

TIMEOUT_SECONDS = 10.0
"""A call of a consumer or an admin, unless it is given a time of its own."""
DELIVERY_SECONDS = 10.0
"""How long a producer tries a message, unless it is given another time."""
CONNECT_SECONDS_MAX = 5.0
"""How long one address may take before the next one is tried."""
SILENCE_SECONDS_MAX = 15
"""A connection on which something was sent and nothing was answered for this long is given up for a new one."""


def check_timeout(what: str, timeout: Any) -> float:
    """``timeout`` in seconds; raises where it is none."""
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise InvalidArgumentType(f"{what} must be a number of seconds, not {type(timeout).__name__}")
    if not timeout > 0:
        raise InvalidArgument(f"{what} is {timeout}; it must be more than 0 seconds")
    return float(timeout)
