"""Messages between a follower and its primary. One connection carries them in order; an epoch ends all connections."""

from __future__ import annotations

from dataclasses import dataclass

from .epochs import Epochs


@dataclass(frozen=True, slots=True)
class Hello:
    """A follower's first message: which set, epoch and member it is, and its history."""

    cluster_id: str
    epoch: int
    member: str
    end: int
    epochs: Epochs


@dataclass(frozen=True, slots=True)
class Welcome:
    """The primary's response: where the follower must cut its log, and the history that it then has."""

    epoch: int
    begin: int
    """Physical offset at which the stream begins: the follower's log ends there after it was cut."""
    restart: bool
    """True if the follower must begin its log from scratch at ``begin``, because the primary no longer has what follows
    the follower's end."""
    epochs: Epochs


@dataclass(frozen=True, slots=True)
class Refusal:
    """The primary's response to a follower that it cannot serve."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Whole records of the log. Without records it is the primary's heartbeat."""

    epoch: int
    offset: int
    end: int
    confirmed: int
    """Physical offset below which every required member has the log on disk."""


@dataclass(frozen=True, slots=True)
class PositionReport:
    """A follower's position; its first one says that it has cut its log and can take pieces."""

    epoch: int
    written: int
    flushed: int
    complete: bool
    """True if, according to its disk, it has every message that was acknowledged when it was last in sync, or since."""
    stops: bool = False
    """True if the member is about to stop in order, and should leave the members in sync before."""


Message = Hello | Welcome | Refusal | LogPiece | PositionReport
