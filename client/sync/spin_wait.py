"""Decides when polling in a loop for a response is cheaper than sleeping until it arrives.

An idle CPU halts, and waking it takes tens of microseconds; in a virtual machine that is longer than the broker takes
to respond. So a waiting thread polls for a short while before it sleeps. It does so only where it can pay off: if there
is a second CPU for the broker, if no other thread of the process has much to do (the polling thread occupies the
interpreter), and, after polling in vain, only once in a number of waits.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Protocol

LOOK_SECONDS = 250e-6
"""Maximum time of polling: several times the latency of a broker that answers from memory, about that of a disk."""
LOOK_USUAL = 2.0
"""Polling ends after this multiple of the usual wait: what takes longer is probably not a matter of microseconds."""
LOOK_SECONDS_MIN = 50e-6
"""Minimum time of polling, however short the usual wait is."""
SKIPPED_MAX = 256
"""Maximum number of consecutive waits that sleep at once after polling was in vain."""
JUDGED_EVERY = 64
"""Number of waits after which the load of the other threads is measured again."""
OTHERS_SHARE_MAX = 0.02
"""Maximum share of a CPU that the other threads may use together while this one polls."""


class Pollable(Protocol):
    """What ``select.poll()`` returns."""

    def poll(self, timeout: int, /) -> object:
        """Return whether there is an event, after at most ``timeout`` milliseconds."""


class SpinWait:
    """The polling policy of one connection: learns from each wait whether polling is worth it for the next.

    ``clock``: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._alone = False
        self._judge_in = 1
        """Waits until the load of the other threads is measured again."""
        self._judged_at = clock()
        self._others_before = _cpu_of_other_threads()
        self._usual_seconds = LOOK_SECONDS
        """Moving average of the waits that polling ended."""
        self._skip = 0
        """Number of waits still to skip."""
        self._skips = 1
        """Number of waits to skip after the next poll in vain; doubles each time."""

    def worthwhile(self) -> bool:
        """Return whether to poll before sleeping this time."""
        self._judge_in -= 1
        if not self._judge_in:
            self._judge()
        if self._skip:
            self._skip -= 1
            return False
        return self._alone

    def _judge(self) -> None:
        """Measure whether other threads have been busy since the last time."""
        self._judge_in = JUDGED_EVERY
        now, others = self._clock(), _cpu_of_other_threads()
        busy = others - self._others_before > OTHERS_SHARE_MAX * (now - self._judged_at)
        self._alone = not busy and processors() > 1
        self._judged_at, self._others_before = now, others

    def look(self, reads: Pollable) -> bool:
        """Poll until there is something to read or the time is over; returns whether there is something."""
        clock, poll = self._clock, reads.poll
        began = now = clock()
        end = began + min(LOOK_SECONDS, max(LOOK_SECONDS_MIN, LOOK_USUAL * self._usual_seconds))
        while now < end:
            if poll(0):
                self._skips = 1
                self._usual_seconds += (now - began - self._usual_seconds) / 8
                return True
            now = clock()
        self._usual_seconds = LOOK_SECONDS
        self._skip = self._skips
        self._skips = min(self._skips * 2, SKIPPED_MAX)
        return False


def processors() -> int:
    """Return the number of CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_of_other_threads() -> float:
    """Return the seconds of CPU time that all threads except the calling one have used so far."""
    return time.process_time() - time.thread_time()
