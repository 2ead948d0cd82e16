"""A clock for code that gets its time, and the calls that it schedules, from outside."""

from __future__ import annotations

from collections.abc import Callable


class ManualClock:
    """A clock that the test advances, and the calls scheduled on it."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self._calls: list[tuple[float, Callable[[], None]]] = []

    def __call__(self) -> float:
        return self.now

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        self._calls.append((self.now + seconds, call))

    def advance(self, seconds: float) -> None:
        """Advance the clock, and make each call at its time."""
        end = self.now + seconds
        while due := sorted((each for each in self._calls if each[0] <= end), key=lambda each: each[0]):
            self._calls.remove(due[0])
            self.now = max(self.now, due[0][0])
            due[0][1]()
        self.now = end

    @property
    def pending(self) -> int:
        return len(self._calls)
