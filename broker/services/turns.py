"""Work on the event loop that is done in steps, so that it holds up nobody for long.

Each turn of the loop has a slice of time for all steps together. What does not fit goes on in the next turn, behind
what arrived meanwhile; steps are called in the order in which they came.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

SLICE_S = 0.0005
"""Steps of one turn end after this time: what else the loop does waits so long at most, and for the step that runs."""


SHARED_S = 0.05
"""Who was served within this time is still there."""


class Sharing:
    """Whether more than one is served: that a turn is somebody else's than the last one was. Times: seconds, never
    going back."""

    def __init__(self) -> None:
        self.last: object = None
        """Whose turn it was last."""
        self._changed = -SHARED_S

    def turn(self, whose: object, now: float) -> None:
        """It is somebody's turn."""
        if self.last is not whose:
            self.last = whose
            self._changed = now

    def forget(self, who: object) -> None:
        """This one is gone."""
        if self.last is who:
            self.last = None

    def is_shared(self, now: float) -> bool:
        """Whether turns changed hands within the last ``SHARED_S``."""
        return now < self._changed + SHARED_S


class Turns:
    """``clock``: seconds, never going back; ``call_soon``: calls a function in the loop's next turn."""

    def __init__(self, clock: Callable[[], float], call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._clock = clock
        self._call_soon = call_soon
        self._steps: deque[Callable[[], None]] = deque()
        self._due = False

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, step: Callable[[], None]) -> None:
        """Call ``step`` when it is its turn. It must not raise, and may add the step that follows."""
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
