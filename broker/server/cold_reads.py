"""Reads that may wait for the disk: as many at a time as there are threads for them.

Each may come back with a large answer. The next one starts when the loop has taken the last one's, and has counted it
(``sending.py``): else threads would read answers faster than they are sent, and pile them up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class ColdReads:
    """Belongs to the event loop. ``threads``: as many reads may be under way."""

    def __init__(self, threads: int) -> None:
        self._free = threads
        self._waiting: deque[Callable[[], bool]] = deque()

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def when_free(self, start: Callable[[], bool]) -> None:
        """Call when there is a thread; it says whether it took it, and ``over`` must follow if it did."""
        self._waiting.append(start)
        self._start()

    def over(self) -> None:
        """A read is over, and its answer is counted."""
        self._free += 1
        self._start()

    def _start(self) -> None:
        while self._free and self._waiting:
            start = self._waiting.popleft()
            self._free -= 1  # before it is called: it may come back here
            if not start():
                self._free += 1
