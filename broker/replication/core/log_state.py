"""State of a member's own log: its ends, its epochs, and the disk's work on it that is not done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from .configuration import Epochs
from .messages import Action, Confirm, Cut, Restart, SaveState


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
    tables_behind_s: Callable[[str], float] = field(default=lambda member: 0.0)
    """Called by a primary: returns for how many seconds a follower has lacked a change of the tables."""
    _work: list[Action] = field(default_factory=list)

    @property
    def busy(self) -> bool:
        """True while the disk still cuts the log or saves its state."""
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
        """Raise the confirmed offset, if ``offset`` is above it."""
        if offset > self.confirmed:
            self.confirmed = offset
            actions.append(Confirm(offset))
