"""Limit of login attempts.

The broker slows an address down after wrong passwords, and to the broker everyone who uses the console has the
console's address. So the console refuses a guesser itself, before the broker hears of it. As at the broker, an IPv6
network counts as one address.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator

from ...protocol.errors import AuthenticationFailed
from ...protocol.hosts import network_of
from .failures import Refused

FREE_FAILURES = 5
"""Number of wrong passwords that a network may send without waiting."""
WAIT_SECONDS = 30.0
"""Seconds between further attempts of such a network."""
FORGET_SECONDS = 600.0
"""Seconds without a failure after which a network starts again without a wait."""
CONCURRENT_MAX = 4
"""Maximum number of attempts of a network in progress."""
ALL_CONCURRENT_MAX = 100
"""Maximum number of attempts in progress, over all networks."""
NETWORKS_MAX = 10_000
"""Maximum number of networks with failures to remember; the one that failed least recently is forgotten first."""


class LoginAttempts:
    """Failures by network and user. ``clock``: monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # Number of failures by user, and the time of the last one; the latest network is at the end.
        self._failures: dict[str, tuple[Counter[str], float]] = {}
        self._in_progress: Counter[str] = Counter()

    @contextlib.contextmanager
    def attempt(self, address: str, user: str) -> Iterator[None]:
        """Judge the attempt that the block makes. Raises ``Refused`` if it must wait.

        Another attempt of the same network counts as failed until it is over, so many at once gain nothing.
        """
        network = network_of(address)
        others = self._in_progress.get(network, 0)
        if self._in_progress.total() >= ALL_CONCURRENT_MAX or others >= CONCURRENT_MAX:
            raise Refused(429, "too many logins at the same time; try again in a second")
        failures, last = self._of(network)
        if failures.total() + others >= FREE_FAILURES:
            seconds = last + WAIT_SECONDS - self._clock() if failures.total() >= FREE_FAILURES else 0.0
            if others or seconds > 0:
                raise Refused(429, f"too many failed logins from {address}; try again in {max(1.0, seconds):.0f} s")
        self._in_progress[network] += 1
        try:
            yield
        except AuthenticationFailed:
            self._failed(network, user)
            raise
        finally:
            self._in_progress[network] -= 1
            if not self._in_progress[network]:
                del self._in_progress[network]
        self._succeeded(network, user)

    def _of(self, network: str) -> tuple[Counter[str], float]:
        failures, last = self._failures.get(network, (Counter[str](), self._clock()))
        return (failures, last) if self._clock() - last <= FORGET_SECONDS else (Counter[str](), last)

    def _failed(self, network: str, user: str) -> None:
        failures, _ = self._of(network)
        # Names take memory, so only some are kept.
        failures[user if user in failures or len(failures) < FREE_FAILURES else ""] += 1
        self._failures.pop(network, None)
        if len(self._failures) >= NETWORKS_MAX:
            del self._failures[next(iter(self._failures))]
        self._failures[network] = failures, self._clock()

    def _succeeded(self, network: str, user: str) -> None:
        """Forget the failures of this user from there: who has one password does not guess others faster."""
        failures, last = self._of(network)
        failures.pop(user, None)
        if failures:
            self._failures[network] = failures, last
        else:
            self._failures.pop(network, None)
