"""Constants and figures that the load programs of all peers share. It needs only the standard library."""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Sequence

BODY_BYTES = 100
WINDOW = 64
"""Messages in flight."""

_STAMP = struct.Struct(">d")
_FILLER = bytes(BODY_BYTES - _STAMP.size)


def stamped_body() -> bytes:
    """Return a body that begins with the current time."""
    return _STAMP.pack(time.monotonic()) + _FILLER


def seconds_since(body: bytes) -> float:
    """Return the seconds since the time in a body."""
    began: float = _STAMP.unpack_from(body)[0]
    return time.monotonic() - began


def seconds_until(begin: float, number: int, per_second: int) -> float:
    """Return the seconds until message ``number`` of a steady rate that began at ``begin`` is due; 0 if it is late."""
    return max(0.0, begin + number / per_second - time.monotonic())


def percentile(taken: Sequence[float], share: float) -> float:
    """Return the value that ``share`` (0 to 1) of ``taken`` do not exceed, as FlintMQ's own cases do."""
    return sorted(taken)[max(0, math.ceil(share * len(taken)) - 1)]


def single_figures(taken: Sequence[float]) -> dict[str, float]:
    """Return p50 and p99 in µs and messages per second of sends that took ``taken`` seconds each."""
    rate = len(taken) / sum(taken)
    return {"p50": percentile(taken, 0.5) * 1e6, "p99": percentile(taken, 0.99) * 1e6, "rate": rate}


def end_to_end_figures(taken: Sequence[float]) -> dict[str, float]:
    """Return p50 and p99 in ms."""
    return {"p50": percentile(taken, 0.5) * 1e3, "p99": percentile(taken, 0.99) * 1e3}
