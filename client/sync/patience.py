"""When looking again and again for an answer is cheaper than sleeping until it comes.

A processor that has nothing to do halts, and to wake it costs tens of microseconds, in a virtual machine more than the
broker takes for an answer. So a thread that waits for one looks for it a little while before it sleeps. That time is
only spent where it can pay: where there is a second processor for the broker, while no other thread of the process has
much to do (who looks keeps the interpreter to itself), and, after it was in vain, only every so many waits.
"""

from __future__ import annotations

import os
import time
from typing import Protocol

LOOK_SECONDS = 200e-6
"""Several times what a broker takes that answers from memory, less than what a disk takes."""
SKIPPED_MAX = 256
"""Waits in a row that sleep at once, at most, where looking was in vain."""
JUDGED_EVERY = 64
"""Waits after which it is looked at again what else the process does."""
OTHERS_SHARE_MAX = 0.02
"""How much of a processor the other threads may use together while this one looks."""


class Pollable(Protocol):
    """What ``select.poll()`` returns."""

    def poll(self, timeout: int, /) -> object:
        """Whether there is something, after at most ``timeout`` milliseconds."""


class Patience:
    """One connection's: learns from each wait whether the next is worth it."""

    def __init__(self) -> None:
        self._alone = False
        self._judge_in = 1
        """Waits until it is looked at again what the other threads do."""
        self._judged_at = time.perf_counter()
        self._others_before = _cpu_of_other_threads()
        self._skip = 0
        """Waits that go by before it is tried again."""
        self._skips = 1
        """How many the next vain look costs."""

    def worthwhile(self) -> bool:
        """Whether to look before sleeping this time."""
        self._judge_in -= 1
        if not self._judge_in:
            self._judge()
        if self._skip:
            self._skip -= 1
            return False
        return self._alone

    def _judge(self) -> None:
        """Have other threads been busy since the last time?"""
        self._judge_in = JUDGED_EVERY
        now, others = time.perf_counter(), _cpu_of_other_threads()
        busy = others - self._others_before > OTHERS_SHARE_MAX * (now - self._judged_at)
        self._alone = not busy and processors() > 1
        self._judged_at, self._others_before = now, others

    def look(self, reads: Pollable) -> bool:
        """Look until there is something to read, or the time is over; whether there is."""
        clock, poll = time.perf_counter, reads.poll
        end = clock() + LOOK_SECONDS
        while clock() < end:
            if poll(0):
                self._skips = 1
                return True
        self._skip = self._skips
        self._skips = min(self._skips * 2, SKIPPED_MAX)
        return False


def processors() -> int:
    """How many this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_of_other_threads() -> float:
    """Seconds of processor time that the process has used so far, but for the calling thread."""
    return time.process_time() - time.thread_time()
