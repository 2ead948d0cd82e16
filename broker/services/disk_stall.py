"""Whether the disk keeps up: a flush of the log that takes too long is noticed while it runs.

Nothing of this touches the flush itself. While it hangs new messages are refused, because each would wait behind it and
hold memory. Who has waited too long is told that the flush did not finish in time, as RocketMQ does: see
``Connection.sweep``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from .flush import FlushService
from .long_polling import Timer

log = logging.getLogger(__name__)

LOOKS = 5
"""How often it looks within the time that counts as a stall, so that one is noticed soon after it is one."""


class DiskStall:
    """Belongs to the event loop. ``clock``: the monotonic seconds that ``flush`` counts in; ``call_later``: the loop's.

    ``stall_s``: a flush that takes longer is a stall, and ``on_change`` is called when one begins and when it is over.
    """

    def __init__(
        self,
        flush: FlushService,
        *,
        stall_s: float,
        clock: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], Timer],
        on_change: Callable[[], None],
    ) -> None:
        self._flush = flush
        self._stall_s = stall_s
        self._clock = clock
        self._call_later = call_later
        self._on_change = on_change
        self._timer: Timer | None = None
        self._began = 0.0
        """When the flush began that is a stall; 0: there is none."""

    def start(self) -> None:
        """Look from now on."""
        self._timer = self._call_later(self._stall_s / LOOKS, self._look)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def seconds(self) -> float:
        """How long the flush that hangs has taken so far; 0.0 where none does. Any thread."""
        began = self._began
        return self._clock() - began if began else 0.0

    def refusal(self) -> str:
        """Why no message is taken; empty where the disk keeps up. Any thread."""
        seconds = self.seconds()
        if not seconds:
            return ""
        return (
            f"the disk has not finished a flush of the log for {seconds:.1f} s (flush.stall_ms is "
            f"{self._stall_s * 1000:.0f}): no message is taken until it has; look at the disk of the store"
        )

    def flushed(self) -> None:
        """A flush is over."""
        if self._began:
            log.warning("the disk finished the flush that hung, after %.1f s: messages are taken again", self.seconds())
            self._began = 0.0
            self._on_change()

    def _look(self) -> None:
        self.start()
        began = self._flush.began
        if began and not self._began and self._clock() - began > self._stall_s:
            self._began = began
            log.error("%s; %d bytes of the log wait for it", self.refusal(), self._flush.behind())
            self._on_change()
