"""Memory of the subscriptions of all live members of groups, which the broker keeps as long as they live."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from ....protocol.errors import LimitReached

ENTRY_BYTES = 400
"""Memory of one subscription without its texts: the object, and its places in the tables."""


def memory_of(subscriptions: Iterable[tuple[str, ...]]) -> int:
    """Return the memory of subscriptions. Each is given by its texts."""
    return sum(ENTRY_BYTES + sum(map(sys.getsizeof, texts)) for texts in subscriptions)


class SubscriptionMemory:
    """The budget of all subscriptions. ``bytes``: what they take; ``bytes_max``: what they may take together."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self.bytes_max = bytes_max

    def check(self, member: str, more: int) -> None:
        """Raise ``LimitReached`` if a member, named for the error, cannot have ``more`` bytes."""
        if more > 0 and self.bytes + more > self.bytes_max:
            raise LimitReached(
                f"the subscriptions of {member} cannot be kept: those of all members take {self.bytes} bytes, and "
                f"limits.subscription_bytes_max is {self.bytes_max}; subscribe to less, stop other members, or raise "
                "the limit",
                subscription_bytes_max=self.bytes_max,
            )
