"""Constants and figures that the load programs of all peers share. It needs only the standard library."""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Callable, Sequence

BODY_BYTES = 100
WINDOW = 64
"""Messages in flight."""
SINGLE_TOPIC, BULK_TOPIC = "single", "bulk"
"""Topics of a mixed load."""
KEPT_MESSAGES = 100_000
KEPT_BYTES = 128 << 20
"""Messages of a stream of Redis, and bytes of a file of the others, after which the oldest are deleted meanwhile."""

_STAMP = struct.Struct(">d")
_FILLER = bytes(BODY_BYTES - _STAMP.size)


def stamped_body() -> bytes:
    return _STAMP.pack(time.monotonic()) + _FILLER


def seconds_since(body: bytes) -> float:
    began: float = _STAMP.unpack_from(body)[0]
    return time.monotonic() - began


def seconds_until(begin: float, number: int, per_second: int) -> float:
    """Return the seconds until message ``number`` of a steady rate that began at ``begin`` is due; 0 if it is late."""
    return max(0.0, begin + number / per_second - time.monotonic())


def percentile(taken: Sequence[float], share: float) -> float:
    """Return the value that ``share`` (0 to 1) of ``taken`` do not exceed, as FlintMQ's own cases do."""
    return sorted(taken)[max(0, math.ceil(share * len(taken)) - 1)]


def single_sends(send: Callable[[int], object], count: int, warm_up: int) -> dict[str, float]:
    """Return what ``single_figures`` says of ``send``, called with one number after the other."""
    taken = []
    for number in range(count + warm_up):
        began = time.perf_counter()
        send(number)
        taken.append(time.perf_counter() - began)
    return single_figures(taken[warm_up:])


def batch_sends(send: Callable[[int], object], count: int, warm_up: int) -> dict[str, float]:
    """Return the messages per second of ``send``, which sends 64 messages from a number on."""
    for first in range(0, warm_up, WINDOW):
        send(first)
    began = time.perf_counter()
    for first in range(0, count, WINDOW):
        send(first)
    return {"rate": count / (time.perf_counter() - began)}


def single_figures(taken: Sequence[float]) -> dict[str, float]:
    """Return p50 and p99 in µs and messages per second of sends that took ``taken`` seconds each."""
    rate = len(taken) / sum(taken)
    return {"p50": percentile(taken, 0.5) * 1e6, "p99": percentile(taken, 0.99) * 1e6, "rate": rate}


def end_to_end_figures(taken: Sequence[float]) -> dict[str, float]:
    """Return p50 and p99 in ms."""
    return {"p50": percentile(taken, 0.5) * 1e3, "p99": percentile(taken, 0.99) * 1e3}
