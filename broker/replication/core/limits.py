"""Limits of the core: times in seconds of the member's own monotonic clock, and sizes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits. The driver calls ``tick`` at least every ``tick_s``."""

    lease_s: float = 5.0
    """Time for which the registry keeps a lease that is not renewed."""
    margin_s: float = 0.5
    """Time before the end of the lease at which a primary stops, for clocks that differ in speed."""
    lag_s: float = 5.0
    """Time that a member in sync may stay behind before the primary takes it out."""
    heartbeat_s: float = 0.5
    """Maximum time between two messages of a connection."""
    silence_s: float = 2.0
    """Time without a message after which a connection is closed."""
    turn_s: float = 0.15
    """Time between the attempts of two members to become primary, so that they do not disturb each other."""
    begin_s: float = 1.0
    """Time that the primary of a new epoch has to take the lease before others propose themselves."""
    retry_s: float = 0.2
    """Time between two attempts to reach the primary or the registry."""
    read_s: float = 1.0
    """Time between two reads of the registry while there is no stream, because a watch may have missed a change."""
    tick_s: float = 0.05
    window_bytes: int = 8 << 20
    """Maximum number of bytes that were sent to a follower and that it has not reported as written."""
    piece_bytes: int = 1 << 20
    """Maximum number of bytes of a piece; a record is never divided, so one record may be longer."""
    join_gap_bytes: int = 1 << 20
    """Maximum number of bytes that a follower may be behind when it joins the members in sync."""
    quick_takeover: bool = True
    """True if a follower proposes to lead before the lease ends when the primary's host refuses its connections."""
