"""Leadership of one epoch: the followers, what they have reported, and what that confirms."""

from __future__ import annotations

from dataclasses import dataclass

from .configuration import Epochs, Proposal, SetConfig
from .log_state import LogState
from .messages import Close, Confirm, Hello, LogPiece, PositionReport, Refusal, SendMessage, Welcome
from .rules import Limits, Rules


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
        # The first report comes after the cut, exactly at the start of the stream; later ones grow, up to what was
        # sent. A position outside, or a disk that goes back, would make the confirmed offset wrong.
        lowest = follower.begin if first else follower.written
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
        follower.written, follower.complete, follower.heard_at = report.written, report.complete, now
        follower.stops = report.stops
        self.flushed[member] = report.flushed
        # After the report is noted, which the measurement looks at.
        self._measure_lag(member, now)
        self._stream(follower, now)

    def alive(self, connection: int, now: float) -> None:
        """Note that a follower takes what is sent to it."""
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
        """Return the member that a connection belongs to."""
        return next((name for name, each in self.followers.items() if each.connection == connection), None)

    # ---- the own log ----

    def written(self, now: float) -> None:
        """Stream what is new in the own log."""
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
        """True if enough members are in sync."""
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
