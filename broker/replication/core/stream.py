"""The stream of the log in one epoch: the primary's side and a follower's side."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .configuration import Epochs, Proposal, SetConfig, adopted
from .messages import (
    Action,
    Append,
    Close,
    Confirm,
    Connect,
    Cut,
    Hello,
    LogPiece,
    LogState,
    Message,
    PositionReport,
    Refusal,
    Restart,
    SaveState,
    SendMessage,
    Welcome,
)
from .rules import Limits, Rules

# ---- The primary: its followers, what they have reported, and what that confirms.


@dataclass(slots=True)
class FollowerState:
    """A primary's knowledge of one member in its epoch."""

    behind_since: float
    """Time at which the log had everything that the member has reported since, or the epoch began."""
    connection: int | None = None
    streaming: bool = False
    """True if its first report has come on this connection, so that it takes pieces."""
    begin: int = 0
    """Physical offset at which the stream of the connection begins."""
    complete: bool = False
    stops: bool = False
    """True if the member has said that it is about to stop."""
    sent: int = 0
    written: int = 0
    behind_end: int = 0
    """Physical offset that the member must report before ``behind_since`` moves."""
    heard_at: float = 0.0
    sent_at: float = 0.0


class Primary:
    """A primary in its epoch. ``log`` is the log of the member to which this leadership belongs."""

    def __init__(
        self, member: str, config: SetConfig, epochs: Epochs, log: LogState, limits: Limits, rules: Rules
    ) -> None:
        self._member = member
        self._log = log
        self._limits = limits
        self._rules = rules
        self._actions = log.actions
        self.config = config
        self.epochs = epochs
        self.flushed: dict[str, int] = {}
        """For each member with a report in this epoch, this one included, where its log on disk ends."""
        self.confirmed = 0
        self.followers: dict[str, FollowerState] = {}
        self._disk_since, self._disk_end = 0.0, 0
        """A time, and the log's end at that time, which this member's own disk has not reached yet."""
        self._alone_since: float | None = None
        self._suspect: str | None = None
        """Primary of the epoch before, which probably failed: it is taken out of sync as soon as the rules allow."""

    def begin(self, flushed: int, confirmed: int, suspect: str, now: float) -> None:
        """Begin with what this member had on disk and had seen confirmed as a follower.

        ``suspect``: primary of the epoch before, if this one was taken over from it.
        """
        self.flushed[self._member] = flushed
        self._disk_since, self._disk_end = now, self._log.end
        # Perhaps less than the epoch before had confirmed: the reports of the followers raise it.
        self.confirmed = confirmed
        self._suspect = suspect if suspect != self._member else None
        # Each follower has the whole lag limit from here on to connect and to report.
        for member in sorted(self.config.members - {self._member}):
            self.followers[member] = FollowerState(behind_since=now)

    def config_changed(self, config: SetConfig, now: float) -> None:
        """Take over a configuration of the same epoch."""
        self.config = config
        for member in sorted(config.members - {self._member} - self.followers.keys()):
            self.followers[member] = FollowerState(behind_since=now)
        for member in sorted(self.followers.keys() - config.members):
            self._disconnect(member)
            del self.followers[member]
            self.flushed.pop(member, None)

    # ---- messages ----

    def hello(self, connection: int, hello: Hello, now: float) -> None:
        """Compare a follower's history with this one and say where it must cut its log."""
        follower = self.followers.get(hello.member)
        # An empty id is that of a new store, which joins the set with this connection.
        if hello.cluster_id not in ("", self.config.cluster_id):
            reason = f"the store belongs to the set {hello.cluster_id}, not to {self.config.cluster_id}"
        elif follower is None:
            reason = f"{hello.member} is not a member of the set; add it first"
        elif not self._rules.is_current(hello.epoch, self.config.epoch):
            reason = f"the epoch is {self.config.epoch}, not {hello.epoch}"
        # A follower that has missed two heartbeats may have lost its connection and come back.
        elif follower.streaming and now - follower.heard_at < 2 * self._limits.heartbeat_s:
            reason = f"{hello.member} follows already on another connection; give each broker an id of its own"
        else:
            self._welcome(connection, follower, hello, now)
            return
        self._actions += [SendMessage(connection, Refusal(self.config.epoch, reason)), Close(connection)]

    def _welcome(self, connection: int, follower: FollowerState, hello: Hello, now: float) -> None:
        begin = self._log.begin
        cut = self._rules.cut_point(self.epochs, self._log.end, hello.epochs, hello.end)
        # Retention has deleted records that the follower would need after its cut.
        restart = cut < begin
        if follower.connection is not None:
            self._disconnect(hello.member)
        report = self._rules.report_at_hello(self.flushed.pop(hello.member, None))
        if report is not None:
            self.flushed[hello.member] = report
        follower.connection, follower.streaming = connection, False
        follower.begin = max(cut, begin)
        follower.heard_at = follower.sent_at = now
        follower.stops = False
        welcome = Welcome(self.config.epoch, follower.begin, restart, self.epochs)
        self._actions.append(SendMessage(connection, welcome))

    def report(self, connection: int, report: PositionReport, now: float) -> None:
        """Take a follower's position, and send what its window allows."""
        member = self.member_of(connection)
        if member is None or not self._rules.is_current(report.epoch, self.config.epoch):
            return
        follower = self.followers[member]
        first = not follower.streaming
        # The first report comes after the cut, exactly at the start of the stream; later ones say up to what was sent.
        # A position outside, or a disk that goes back, would make the confirmed offset wrong. Less may be written than
        # the last one said: the disk's own report may have been made before it, and sent after it.
        lowest = follower.begin
        highest = follower.begin if first else follower.sent
        if (
            not lowest <= report.written <= highest
            or not self.flushed.get(member, 0) <= report.flushed <= report.written
        ):
            self.closed(connection)
            self._actions.append(Close(connection))
            return
        if first:
            follower.streaming, follower.sent = True, follower.begin
            follower.sent_at = now - self._limits.heartbeat_s  # it learns soon from where on it is complete
        follower.written = report.written if first else max(follower.written, report.written)
        follower.complete, follower.heard_at = report.complete, now
        follower.stops |= report.stops
        self.flushed[member] = report.flushed
        # After the report is noted, which the measurement looks at.
        self._measure_lag(member, now)
        self._stream(follower, now)

    def alive(self, connection: int, now: float) -> None:
        member = self.member_of(connection)
        if member is not None:
            self.followers[member].heard_at = now

    def closed(self, connection: int) -> None:
        """Forget a connection; what the member reported on it stays valid until it greets again."""
        member = self.member_of(connection)
        if member is not None:
            self.followers[member].connection = None
            self.followers[member].streaming = False

    def member_of(self, connection: int) -> str | None:
        return next((name for name, each in self.followers.items() if each.connection == connection), None)

    # ---- the own log ----

    def written(self, now: float) -> None:
        for follower in self.followers.values():
            self._stream(follower, now)

    def deleted(self) -> None:
        """Disconnect followers that need records which retention has deleted: they begin from scratch."""
        for member, follower in self.followers.items():
            if (follower.sent if follower.streaming else follower.begin) < self._log.begin:
                self._disconnect(member)

    def _measure_lag(self, member: str, now: float) -> None:
        """Begin a new measurement if the member has what the log had when the last one began.

        A member keeps up if one measurement follows another, although the log never stops growing.
        """
        follower = self.followers[member]
        if self.flushed.get(member, -1) >= follower.behind_end:
            follower.behind_since, follower.behind_end = now, self._log.end

    def _stream(self, follower: FollowerState, now: float) -> None:
        while follower.streaming and follower.sent < self._log.end:
            # The own flush is not waited for: the disks of all members work at the same time.
            room = follower.written + self._limits.window_bytes - follower.sent
            if room <= 0 or follower.connection is None:
                return
            limit = min(self._log.end, follower.sent + min(room, self._limits.piece_bytes))
            end = self._log.piece_end(follower.sent, limit)
            self._send(follower, LogPiece(self.config.epoch, follower.sent, end, self.confirmed), now)
            follower.sent = end

    def _send(self, follower: FollowerState, message: LogPiece, now: float) -> None:
        assert follower.connection is not None
        follower.sent_at = now
        self._actions.append(SendMessage(follower.connection, message))

    # ---- time ----

    def tick(self, now: float) -> None:
        """Send heartbeats and close connections that are silent."""
        for name, follower in self.followers.items():
            if follower.connection is None:
                continue
            if now - follower.heard_at > self._limits.silence_s:
                self._disconnect(name)
            elif follower.streaming and now - follower.sent_at >= self._limits.heartbeat_s:
                self._send(follower, LogPiece(self.config.epoch, follower.sent, follower.sent, self.confirmed), now)

    def advance(self, proposals: list[Proposal]) -> None:
        """Confirm what every required member has on disk."""
        if not self.may_acknowledge:
            return
        confirmed = self._rules.confirmed(self.required(proposals), self.flushed)
        if confirmed > self.confirmed:
            self.confirmed = confirmed
            self._actions.append(Confirm(confirmed))

    @property
    def may_acknowledge(self) -> bool:
        return self._rules.may_acknowledge(self.config)

    def required(self, proposals: list[Proposal]) -> frozenset[str]:
        """Return the members whose disks a confirmation waits for."""
        return self._rules.required(self.config, proposals)

    def followers_to_have(self, proposals: list[Proposal]) -> frozenset[str] | None:
        """Return the followers whose disks the confirmation of a change of the tables waits for; None if no change can
        be confirmed."""
        return self.required(proposals) - {self._member} if self.may_acknowledge else None

    def next_in_sync(self, config: SetConfig, now: float) -> frozenset[str]:
        """Return the members that should be in sync now in ``config``, which may have other members than this epoch."""
        lagging = [
            member
            for member in config.in_sync - {self._member}
            if self._behind_s(member, now) > self._limits.lag_s or self._is_gone(member)
        ]
        # The worst first: the rule stops taking members out when it reaches the minimum.
        lagging.sort(key=lambda member: (not self._is_gone(member), -self._behind_s(member, now), member))
        own, start = self.flushed[self._member], self.epochs[-1].start
        joining = [
            member
            for member, follower in self.followers.items()
            if member in config.members - config.in_sync
            and follower.streaming
            and follower.complete
            and not follower.stops
            and self._log.has_tables(member)
            and self._log.tables_behind_s(member) <= self._limits.lag_s
            and self._rules.may_join(
                self.flushed.get(member, 0), self.confirmed, start, own, self._limits.join_gap_bytes
            )
        ]
        return self._rules.next_in_sync(config, lagging, joining)

    def _is_gone(self, member: str) -> bool:
        """Return whether the member led before and has not come back, or is about to stop."""
        follower = self.followers[member]
        return follower.stops or (member == self._suspect and not follower.streaming)

    def _behind_s(self, member: str, now: float) -> float:
        """Return for how many seconds a member has not had the whole log, or the newest tables."""
        return max(now - self.followers[member].behind_since, self._log.tables_behind_s(member))

    def current_members(self, now: float) -> int:
        """Return the number of members in sync, this one included, that are connected and not behind for too long."""
        return 1 + sum(
            self.followers[member].streaming and self._behind_s(member, now) <= self._limits.lag_s
            for member in self.config.in_sync - {self._member}
        )

    def weak_s(self, now: float, *, serves: bool) -> float:
        """Return for how many seconds this member has been unable to acknowledge although another one perhaps could.

        Either its disk has not finished the same work, or, if it ``serves``, it reaches too few members. Call it at
        each tick.
        """
        # A member that is elected takes no followers yet, so it cannot count them.
        if not serves or self.current_members(now) >= self.config.min_in_sync:
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = now
        alone_s = now - self._alone_since if self._alone_since is not None else 0.0
        weak_s = max(alone_s, self.disk_behind_s(now))
        # If this member alone is in sync, no other one may lead, and giving up would not help the set.
        return weak_s if len(self.config.in_sync) > 1 else 0.0

    def disk_behind_s(self, now: float) -> float:
        """Return for how many seconds this member's disk has not finished the same work. Call it at each flush too."""
        # The saving of the epoch is work of the disk too.
        if not self._log.busy and self.flushed[self._member] >= self._disk_end:
            self._disk_since, self._disk_end = now, self._log.end
        return now - self._disk_since

    def lag_of(self, member: str, now: float) -> tuple[bool, int, float]:
        """Return whether a member is connected, where its log on disk ends (-1: it has not reported), and for how many
        seconds it has not had everything (-1.0: it is not connected)."""
        flushed, follower = self.flushed.get(member, -1), self.followers.get(member)
        if follower is not None and not follower.streaming:
            return False, flushed, -1.0
        # A primary keeps no follower's state of itself: it is connected and not behind.
        behind = follower is not None and flushed < self._log.end
        return True, flushed, now - follower.behind_since if follower is not None and behind else 0.0

    def has_everything(self, member: str) -> bool:
        """Return whether a member reported the whole log and the tables, and everything in the log is confirmed."""
        return self.flushed.get(member, -1) == self._log.end == self.confirmed and self._log.has_tables(member)

    def disconnect_all(self) -> None:
        """Close every connection: they end with the epoch."""
        for member in self.followers:
            self._disconnect(member)

    def _disconnect(self, member: str) -> None:
        follower = self.followers[member]
        if follower.connection is not None:
            self._actions.append(Close(follower.connection))
            follower.connection, follower.streaming = None, False


# ---- Patience of a primary that reaches too few followers.


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


# ---- The follower: it connects, compares histories, cuts its log, and writes what the primary sends.


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
        return connection == self._connection

    def connected(self, connection: int, now: float) -> None:
        """Send the first message: set, epoch, member and history."""
        self.stage, self._heard_at, self._alive_at, self.refused = FollowerStage.COMPARING, now, now, 0
        hello = Hello(self._log.cluster_id, self.epoch, self._member, self._log.end, self._log.epochs)
        self._actions.append(SendMessage(connection, hello))

    def closed(self, refused: bool, now: float) -> None:
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
        # A table that was confirmed while the disk before this one was in sync is among those of each connection.
        if self._rules.is_complete(log.flushed, piece.confirmed, log.epochs[-1].start) and log.has_all_tables():
            log.complete = True
            log.begin_work(SaveState(log.cluster_id, log.epochs, True))
        return None

    def send_report(self, now: float) -> None:
        made = self.report_of(self._log.flushed)
        if made is not None:
            self._reported_at = now
            self._actions.append(SendMessage(*made))

    def report_of(self, flushed: int) -> tuple[int, PositionReport] | None:
        """Return the connection, and the report that is true once the log is on disk below ``flushed``; None if there
        is no stream."""
        if self.stage is not FollowerStage.STREAMING or self._connection is None:
            return None
        safe = self._rules.reported(self._log.end, flushed)
        # Complete only after the mark is on disk, so that it outlives a power failure.
        is_complete = self._log.complete and not self._log.busy
        return self._connection, PositionReport(self.epoch, self._log.end, safe, is_complete, self._stops)
