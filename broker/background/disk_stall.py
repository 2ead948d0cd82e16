"""Detection of disk stalls: flushes of the log that take too long are noticed while they run.

The detection does not touch the flush itself. While a flush hangs, the broker refuses new messages, because each would
wait for it and occupy memory. As in RocketMQ, a producer that has waited too long gets FLUSH_DISK_TIMEOUT: see
``Connection.sweep``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .flush import FlushService
    from .loop_scheduler import CallAt, LoopTimer

log = logging.getLogger(__name__)

LOOKS = 5
"""Number of checks within the time that counts as a stall, so that a stall is noticed soon."""


class DiskStall:
    """Watcher of the flush service. Runs on the event loop.

    ``stall_s``: a flush that takes longer is a stall; ``on_change`` is called when a stall begins and when it ends.
    ``clock``: monotonic, in seconds, the same as that of ``flush``; ``call_later``: that of the loop.
    """

    def __init__(
        self,
        flush: FlushService,
        *,
        stall_s: float,
        clock: Callable[[], float],
        call_later: CallAt,
        on_change: Callable[[], None],
    ) -> None:
        self._flush = flush
        self._stall_s = stall_s
        self._clock = clock
        self._call_later = call_later
        self._on_change = on_change
        self._timer: LoopTimer | None = None
        self._began = 0.0
        """Start of the flush that has become a stall, or 0."""

    def start(self) -> None:
        """Start watching."""
        self._timer = self._call_later(self._stall_s / LOOKS, self._look)

    def stop(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()

    def seconds(self) -> float:
        """Return how long the hanging flush has taken so far, or 0.0. Any thread."""
        began = self._began
        return self._clock() - began if began else 0.0

    def refusal(self) -> str:
        """Return why the broker refuses messages; empty if the disk keeps up. Any thread."""
        seconds = self.seconds()
        if not seconds:
            return ""
        return (
            f"the disk has not finished a flush of the log for {seconds:.1f} s (flush.stall_ms is "
            f"{self._stall_s * 1000:.0f}): the broker refuses messages until it has; check the disk of the store"
        )

    def flushed(self) -> None:
        """End the stall, if there is one, after a flush."""
        if self._began:
            log.warning("the hanging flush finished after %.1f s: accepting messages again", self.seconds())
            self._began = 0.0
            self._on_change()

    def _look(self) -> None:
        # First, so that the watch continues, whatever the rest does.
        self.start()
        began = self._flush.began
        if began and not self._began and self._clock() - began > self._stall_s:
            self._began = began
            log.error("%s; %d bytes of the log wait for it", self.refusal(), self._flush.backlog())
            self._on_change()
