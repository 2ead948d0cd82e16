"""Limit of login attempts.

The broker slows an address down after wrong passwords, and to the broker everyone who uses the console has the
console's address. So the console refuses a guesser itself, before the broker hears of it.
"""

from __future__ import annotations

from collections.abc import Callable

FREE_FAILURES = 5
"""Number of wrong passwords that an address may send without waiting."""
WAIT_SECONDS = 30.0
"""Seconds between further attempts of such an address."""
CONCURRENT_MAX = 4
"""Maximum number of attempts in progress, over all addresses."""
ADDRESSES_MAX = 10_000
"""Maximum number of addresses with failures to remember; the one that failed least recently is forgotten first."""


class LoginAttempts:
    """Failures by address. ``clock``: monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures: dict[str, tuple[int, float]] = {}  # count, time of the last one; the latest is at the end
        self.in_progress = 0

    def wait_seconds(self, address: str) -> float:
        """Return the seconds that this address must wait before the next attempt; 0: none."""
        if self.in_progress >= CONCURRENT_MAX:
            return 1.0
        count, last = self._failures.get(address, (0, 0.0))
        return max(0.0, last + WAIT_SECONDS - self._clock()) if count >= FREE_FAILURES else 0.0

    def failed(self, address: str) -> None:
        """Count a wrong password."""
        count, _ = self._failures.pop(address, (0, 0.0))
        if len(self._failures) >= ADDRESSES_MAX:
            del self._failures[next(iter(self._failures))]
        self._failures[address] = count + 1, self._clock()

    def succeeded(self, address: str) -> None:
        """Forget the failures of an address."""
        self._failures.pop(address, None)
