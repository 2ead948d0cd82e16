"""Messages between a follower and its primary, actions that the core asks its driver for, and the state of the log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from .configuration import Epochs, Proposal

# ---- Messages. One connection carries them in order; an epoch ends all connections.


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


# ---- Actions that the core asks its driver for. The driver carries them out in order; an action with an
# answer names the input by which the driver gives it.


@dataclass(frozen=True, slots=True)
class ReadRegistry:
    """Read configuration and lease, linearizably. Answer: ``registry_state``, or nothing if no answer came."""


@dataclass(frozen=True, slots=True)
class Propose:
    """Change the configuration by compare-and-set. Answer: ``proposal_answered``."""

    proposal: Proposal


@dataclass(frozen=True, slots=True)
class HoldLease:
    """Take or renew the lease: allowed if the configuration names this member and epoch. Answer: ``lease_answered``,
    even if no answer came; until then the core asks for no other renewal in this epoch."""

    epoch: int
    number: int


@dataclass(frozen=True, slots=True)
class ReleaseLease:
    """Give the lease back, so that another member can lead at once."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a connection to the primary. Answer: ``connected``, or ``closed`` with whether the host refused it."""

    connection: int
    member: str


@dataclass(frozen=True, slots=True)
class Close:
    """Close a connection; the core has forgotten it already."""

    connection: int


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Send a message. For a ``LogPiece`` the driver adds the log's bytes from ``offset`` to ``end``."""

    connection: int
    message: Message


@dataclass(frozen=True, slots=True)
class Append:
    """Write the records of the piece that was just received, and flush them. Answer: ``flushed``."""

    offset: int
    end: int


@dataclass(frozen=True, slots=True)
class Cut:
    """Cut the log at ``to``, and keep what is removed in the folder for diverged bytes. After a crash it is either not
    begun, or the next start continues it. The driver forgets flushes that began before. Answer: ``disk_done``."""

    to: int


@dataclass(frozen=True, slots=True)
class Restart:
    """Remove the whole log and begin an empty one at ``begin`` that has these epochs and is not complete. After a crash
    it is either not begun, or the next start continues it. Answer: ``disk_done``."""

    begin: int
    cluster_id: str
    epochs: Epochs


@dataclass(frozen=True, slots=True)
class SaveState:
    """Put all three on disk, or none. Answer: ``disk_done``."""

    cluster_id: str
    epochs: Epochs
    complete: bool


@dataclass(frozen=True, slots=True)
class Lead:
    """Serve clients: this member is the primary."""

    epoch: int


@dataclass(frozen=True, slots=True)
class StepDown:
    """Stop serving clients at once. Requests that wait get an error whose outcome is unknown and that is safe to
    repeat; what they stored may survive."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Confirm:
    """Everything below ``offset`` is safe: acknowledge it if this member is the primary, and show it to consumers."""

    offset: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Take no further part in the set: a person must decide."""

    reason: str


Action = (
    ReadRegistry
    | Propose
    | HoldLease
    | ReleaseLease
    | Connect
    | Close
    | SendMessage
    | Append
    | Cut
    | Restart
    | SaveState
    | Lead
    | StepDown
    | Confirm
    | Stop
)


# ---- State of a member's own log: its ends, its epochs, and the disk's work on it that is not done.


@dataclass(slots=True)
class LogState:
    """A log and what belongs to it on disk."""

    cluster_id: str
    """Identity of the set that the store belongs to; empty until it has joined one."""
    epochs: Epochs
    complete: bool
    """True if nothing is missing since this member was last in sync; false for an empty disk that joins."""
    begin: int
    """Physical offset of the oldest record; retention raises it."""
    end: int
    flushed: int
    confirmed: int
    """Physical offset below which the log is known to be confirmed, as of a moment in the past."""
    piece_end: Callable[[int, int], int]
    """Called with an offset and a greater limit: returns where the last record ends that begins at the offset or later
    and ends at or before the limit; if the first record is longer, where that ends."""
    actions: list[Action] = field(default_factory=list)
    has_tables: Callable[[str], bool] = field(default=lambda member: True)
    """Called by a primary: returns whether a follower has every confirmed change of the tables on disk, and those that
    it needs to take over."""
    need_tables: Callable[[], None] = field(default=lambda: None)
    """Called by a primary: from now on ``has_tables`` requires the tables as they are now."""
    has_all_tables: Callable[[], bool] = field(default=lambda: True)
    """Called by a follower: returns whether each table of its primary is on its disk as it came on this connection."""
    tables_behind_s: Callable[[str], float] = field(default=lambda member: 0.0)
    """Called by a primary: returns for how many seconds a follower has lacked a change of the tables."""
    _work: list[Action] = field(default_factory=list)

    @property
    def busy(self) -> bool:
        return bool(self._work)

    def begin_work(self, *steps: Action) -> None:
        """Ask the disk for steps, each after the one before is done."""
        begin = not self._work
        self._work += steps
        if begin:
            self.actions.append(self._work[0])

    def step_done(self) -> bool:
        """Note that the disk has done the first step, and ask for the next. Return whether it was the last."""
        match self._work.pop(0):
            case Cut(to):
                self.end, self.flushed = to, min(self.flushed, to)
                self.confirmed = min(self.confirmed, to)
            case Restart(begin, cluster_id, epochs):
                self.begin = self.end = self.flushed = begin
                self.confirmed = min(self.confirmed, begin)
                self.cluster_id, self.epochs, self.complete = cluster_id, epochs, False
            case SaveState(cluster_id, epochs, complete):
                self.cluster_id, self.epochs, self.complete = cluster_id, epochs, complete
        if self._work:
            self.actions.append(self._work[0])
        return not self._work

    def confirm(self, offset: int, actions: list[Action]) -> None:
        if offset > self.confirmed:
            self.confirmed = offset
            actions.append(Confirm(offset))
