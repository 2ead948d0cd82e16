"""Patience of a primary that reaches too few followers."""

from __future__ import annotations

from .limits import Limits


class Patience:
    """How long a primary leads without enough followers, and how long it stands aside afterwards.

    It outlives a ``Replica``, which ends with a leadership. The time doubles with each time that a primary gives up, so
    that a set with too few members alive does not change its primary without end.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._seconds = 2.0 * limits.lag_s
        self.stand_back_until = 0.0
        """Time until which this member does not propose itself, because it gave up."""

    def is_over(self, waited_s: float) -> bool:
        """Return whether the primary has waited long enough for its followers."""
        return waited_s > self._seconds

    def gave_up(self, now: float) -> None:
        """Stand aside, and be more patient next time."""
        # Bounded, or after a long outage of the others a primary whose disk hangs would keep the lease for hours.
        self._seconds = min(2.0 * self._seconds, 64 * self._limits.lag_s)
        self.stand_back_until = now + 2.0 * self._limits.lease_s

    def restore(self) -> None:
        """Forget the earlier failures: the set works."""
        self._seconds = 2.0 * self._limits.lag_s
