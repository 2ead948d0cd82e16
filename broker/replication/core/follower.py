"""A follower's side of the stream: connect, compare histories, cut, and write what the primary sends."""

from __future__ import annotations

from enum import Enum

from .configuration import adopted
from .log_state import LogState
from .messages import (
    Action,
    Append,
    Close,
    Connect,
    Cut,
    Hello,
    LogPiece,
    Message,
    PositionReport,
    Refusal,
    Restart,
    SaveState,
    SendMessage,
    Welcome,
)
from .rules import Limits, Rules


class FollowerStage(Enum):
    """How far a follower is with its primary."""

    APART = "apart"
    CONNECTING = "connecting"
    COMPARING = "comparing"
    """It has said its history and waits for the primary's."""
    CUTTING = "cutting"
    """The disk cuts the log or saves the primary's epochs."""
    STREAMING = "streaming"


class Follower:
    """A member that follows the primary of one epoch at a time. ``actions`` and ``log`` belong to the member."""

    def __init__(self, member: str, limits: Limits, rules: Rules, log: LogState, actions: list[Action]) -> None:
        self._member = member
        self._limits = limits
        self._rules = rules
        self._log = log
        self._actions = actions
        self.primary = ""
        self.epoch = 0
        self.cluster_id = ""
        self.stage = FollowerStage.APART
        self.refused = 0
        """Number of consecutive attempts to connect, since the stream ended, that the primary's host refused: the host
        is alive, the process is not."""
        self.refusal = ""
        """Reason of the primary's last refusal."""
        self._connection: int | None = None
        self._connections = 0
        self._retry_at = 0.0
        self._heard_at = 0.0
        self._reported_at = 0.0
        self._alive_at = 0.0
        """Time at which the last byte came: a long message on a slow line takes its time."""
        self._welcome: Welcome | None = None
        self._stops = False

    def follow(self, cluster_id: str, primary: str, epoch: int, now: float) -> None:
        """Follow the primary of an epoch from now on; the stream of an older epoch ends."""
        self.cluster_id = cluster_id
        if (primary, epoch) != (self.primary, self.epoch):
            self.leave(now)
            self.primary, self.epoch, self.refused, self.refusal = primary, epoch, 0, ""
            # The pause that ``leave`` sets is for a primary that failed; a new one is tried at once.
            self._retry_at = now

    def leave(self, now: float) -> None:
        """Close the connection. A cut that has begun continues; no connection learns of its end."""
        if self._connection is not None:
            self._actions.append(Close(self._connection))
        self._apart(now)

    def _apart(self, now: float) -> None:
        self._connection, self._welcome = None, None
        self.stage = FollowerStage.APART
        self._retry_at = now + self._limits.retry_s

    def tick(self, now: float) -> None:
        """Connect, report regularly, and leave a primary that is silent."""
        if self.stage is FollowerStage.APART:
            # The configuration names this member itself if it led before its restart. While the disk works, the end and
            # the epochs that the greeting would name are not settled.
            if self.primary and self.primary != self._member and now >= self._retry_at and not self._log.busy:
                self._connections += 1
                self._connection, self._heard_at = self._connections, now
                self._alive_at = now
                self.stage = FollowerStage.CONNECTING
                self._actions.append(Connect(self._connection, self.primary))
        # While this disk cuts, the primary is silent: it sends nothing before the first report.
        elif self.stage is not FollowerStage.CUTTING and now - self._alive_at > self._limits.silence_s:
            self.leave(now)
        elif self.stage is FollowerStage.STREAMING and now - self._reported_at >= self._limits.heartbeat_s:
            self.send_report(now)

    def hears(self, now: float) -> bool:
        """Return whether the stream runs, and the primary was not silent for too long."""
        return self.stage is FollowerStage.STREAMING and now - self._heard_at <= self._limits.silence_s

    def alive(self, now: float) -> None:
        """Note that bytes of the primary have come, perhaps not a whole message."""
        self._alive_at = now

    def stop(self, now: float) -> None:
        """Tell the primary that this member is about to stop."""
        self._stops = True
        self.send_report(now)

    def is_current(self, connection: int) -> bool:
        """Return whether a connection is the one in use."""
        return connection == self._connection

    def connected(self, connection: int, now: float) -> None:
        """Send the first message: set, epoch, member and history."""
        self.stage, self._heard_at, self._alive_at, self.refused = FollowerStage.COMPARING, now, now, 0
        hello = Hello(self._log.cluster_id, self.epoch, self._member, self._log.end, self._log.epochs)
        self._actions.append(SendMessage(connection, hello))

    def closed(self, refused: bool, now: float) -> None:
        """Try again later."""
        self.refused = self.refused + 1 if refused else 0
        self._apart(now)

    def receive(self, message: Message, now: float) -> str | None:
        """Take a message of the primary. Return a reason to stop if this log has a history that must not be cut."""
        self._heard_at = self._alive_at = now
        match message:
            case Welcome() if self.stage is FollowerStage.COMPARING and self._rules.is_current(
                message.epoch, self.epoch
            ):
                return self._compare(message, now)
            case LogPiece() if self.stage is FollowerStage.STREAMING and self._rules.is_current(
                message.epoch, self.epoch
            ):
                return self._piece(message, now)
            case Refusal():
                self.refusal = message.reason
                self.leave(now)
            # Anything else belongs to another epoch or stage: the next connection compares the histories again.
            case _:
                self.leave(now)
        return None

    def _compare(self, welcome: Welcome, now: float) -> str | None:
        # A correct primary never sends this; following it would leave a hole in the log.
        if welcome.begin > self._log.end and not welcome.restart:
            self.leave(now)
            return None
        if not self._rules.may_cut(welcome.begin, self._log.confirmed):
            return (
                f"the primary's history differs at {welcome.begin}, below {self._log.confirmed}, which was confirmed; "
                "keep this store, find out which of the two is right, and copy it again"
            )
        self._welcome, self.stage = welcome, FollowerStage.CUTTING
        # Before the disk begins: a log that is about to be removed must not lead.
        self._log.complete = self._log.complete and not welcome.restart
        self._log.begin_work(*self._steps(welcome))
        return None

    def _steps(self, welcome: Welcome) -> tuple[Action, ...]:
        """Return the disk's work before the stream begins."""
        # A damaged log is marked by having neither epochs nor completeness: a cut cannot mend it.
        is_worthless = not self._log.epochs and not self._log.complete and welcome.begin < self._log.end
        if welcome.restart or is_worthless:
            return (Restart(welcome.begin, self.cluster_id, welcome.epochs),)
        save = SaveState(self.cluster_id, adopted(self._log.epochs, welcome.epochs), self._log.complete)
        # Without a cut the store need not be opened again.
        if welcome.begin == self._log.end:
            return (save,)
        return self._rules.steps_to_adopt(Cut(welcome.begin), save)

    def disk_done(self, now: float) -> None:
        """Tell the primary that the log is as it said, or that it is complete."""
        # The connection may have ended during the work; then the next one begins with a greeting.
        if self.stage is FollowerStage.CUTTING and self._welcome is not None:
            self.stage, self._heard_at, self._alive_at = FollowerStage.STREAMING, now, now
        self.send_report(now)

    def _piece(self, piece: LogPiece, now: float) -> str | None:
        log = self._log
        # A piece that does not continue the log would leave a hole in it.
        if piece.offset != log.end or piece.end < piece.offset:
            self.leave(now)
            return None
        if piece.end > piece.offset:
            log.end = piece.end
            self._actions.append(Append(piece.offset, piece.end))
        # A follower that is not in sync may lack on its disk what is confirmed; a later piece shows it then.
        log.confirm(self._rules.visible(piece.confirmed, log.flushed), self._actions)
        # Busy: the work may be the saving of this very mark.
        if log.complete or log.busy:
            return None
        if self._rules.is_complete(log.flushed, piece.confirmed, log.epochs[-1].start):
            log.complete = True
            log.begin_work(SaveState(log.cluster_id, log.epochs, True))
        return None

    def send_report(self, now: float) -> None:
        """Report the position, if the stream runs."""
        if self.stage is FollowerStage.STREAMING and self._connection is not None:
            self._reported_at = now
            flushed = self._rules.reported(self._log.end, self._log.flushed)
            # Complete only after the mark is on disk, so that it outlives a power failure.
            is_complete = self._log.complete and not self._log.busy
            report = PositionReport(self.epoch, self._log.end, flushed, is_complete, self._stops)
            self._actions.append(SendMessage(self._connection, report))
