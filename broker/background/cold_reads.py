"""Scheduling of reads that may wait for the disk: at most one per reader thread at a time.

Each may return a large response. A read starts only after the loop has taken over and counted the result of an earlier
one (``requests/request.py``); otherwise the threads would read faster than responses are sent, and results would
pile up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class ColdReads:
    """The queue of cold reads. Belongs to the event loop. ``threads``: maximum number of concurrent reads."""

    def __init__(self, threads: int) -> None:
        self._free = threads
        self._waiting: deque[Callable[[], bool]] = deque()

    def __len__(self) -> int:
        """Return the number of waiting reads."""
        return len(self._waiting)

    def when_free(self, start: Callable[[], bool]) -> None:
        """Call ``start`` when a thread is free.

        ``start`` returns whether it uses the thread; if it does, ``release`` must be called afterwards.
        """
        self._waiting.append(start)
        self._start()

    def release(self) -> None:
        """Free the thread of a read that is done and whose response has been counted."""
        self._free += 1
        self._start()

    def _start(self) -> None:
        while self._free and self._waiting:
            start = self._waiting.popleft()
            self._free -= 1  # before the call, because ``start`` may call ``when_free`` again
            if not start():
                self._free += 1
