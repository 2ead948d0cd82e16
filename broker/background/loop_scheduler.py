"""Work on the event loop in steps, so that no connection waits long for another, and the type of the loop's timers.

In each iteration of the loop all steps together have one time slice. The remaining steps run in the next iteration,
after the I/O that arrived meanwhile; steps run in FIFO order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias

SLICE_S = 0.0005
"""Time slice of the steps in one iteration. Everything else on the loop waits at most this long, plus the rest of the
running step."""


class LoopTimer(Protocol):
    """A call that the loop makes later: an ``asyncio.TimerHandle``, or that of a test's clock."""

    def cancel(self) -> None:
        """Cancel the call."""


CallAt: TypeAlias = Callable[[float, Callable[[], None]], LoopTimer]
"""``loop.call_at`` or ``loop.call_later``: calls a function at a time of the loop's clock, or after some seconds."""


class StepScheduler:
    """Scheduler of steps. ``clock``: monotonic, in seconds; ``call_soon``: calls a function in the loop's next
    iteration."""

    def __init__(self, clock: Callable[[], float], call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._clock = clock
        self._call_soon = call_soon
        self._steps: deque[Callable[[], None]] = deque()
        self._due = False

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, step: Callable[[], None]) -> None:
        """Schedule ``step`` after those already waiting. It must not raise, and may add its next step."""
        self._steps.append(step)
        if not self._due:
            self._due = True
            self._call_soon(self._run)

    def _run(self) -> None:
        end = self._clock() + SLICE_S
        while self._steps:
            self._steps.popleft()()
            if self._clock() >= end:
                break
        self._due = bool(self._steps)
        if self._due:
            self._call_soon(self._run)
