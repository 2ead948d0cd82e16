"""Budget of the bytes that have arrived on all connections and whose requests are not complete."""

from __future__ import annotations


class InFlightBudget:
    """The bytes in flight, which connections add and subtract, and their bounds."""

    __slots__ = ("bytes", "bytes_end", "bytes_max")

    def __init__(self) -> None:
        self.bytes = 0
        self.bytes_max = 0
        """Number of bytes above which PRODUCE is refused; -1 (always refuse) while the disk is stalled."""
        self.bytes_end = 0
        """Number of bytes above which connections that wait for a flush are no longer read: pending refusals count
        too."""

    def limit(self, bytes_max: int, *, stalled: bool) -> None:
        """Set the bounds. ``stalled``: whether the disk hangs."""
        self.bytes_max = -1 if stalled else bytes_max
        self.bytes_end = bytes_max + bytes_max // 8
