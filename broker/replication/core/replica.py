"""A member of a replica set: the roles that it takes, by what the registry says."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from .configuration import Proposal, ProposalOutcome, RegistryState, SetConfig, last_epoch, without_deleted
from .messages import (
    Action,
    Close,
    Hello,
    HoldLease,
    Lead,
    LogState,
    Message,
    PositionReport,
    Propose,
    ReadRegistry,
    Refusal,
    ReleaseLease,
    SaveState,
    SendMessage,
    StepDown,
    Stop,
)
from .rules import Limits, Rules
from .stream import Follower, FollowerStage, Patience, Primary


class Role(Enum):
    """Role of a member."""

    FOLLOWER = "follower"
    """Follows the primary, or looks for one."""
    ELECTED = "elected"
    """The configuration names it; it saves the epoch and takes the lease before it serves."""
    PRIMARY = "primary"
    STOPPED = "stopped"


class Replica:
    """The state machine of one member. Its inputs are the public methods; each may add to ``actions``, which the
    driver carries out in order and removes. ``now``: seconds of this member's monotonic clock."""

    def __init__(
        self,
        member: str,
        log: LogState,
        limits: Limits | None = None,
        rules: Rules | None = None,
        patience: Patience | None = None,
    ) -> None:
        self.member = member
        self.log = log
        self.actions: list[Action] = log.actions
        self.role = Role.FOLLOWER
        self.accepts = False
        """True if clients may produce now; false while the leadership is handed over."""
        self.config: SetConfig | None = None
        self.primary: Primary | None = None
        self.stop_reason = ""
        self._limits, self._rules = limits or Limits(), rules or Rules()
        self._follower = Follower(member, self._limits, self._rules, log, self.actions)
        self._version, self._numbers = -1, 0
        self._holder: str | None = ""
        self._in_flight: Proposal | None = None
        self.proposals: list[Proposal] = []
        """Proposals of this leadership whose outcome is not known, the one in flight included. Equal ones are listed
        once, so there are at most as many as there are sets of members."""
        self._predecessor = ""
        """Member that led the epoch before."""
        self._taken_epoch = 0
        """Epoch that this member proposed last because no member led; another one may have been handed over."""
        self._vacant_since: float | None = None
        self._epoch_at = float("-inf")
        self._lease_until = self._lease_at = 0.0
        self._lease_asked: tuple[int, float] | None = None
        """Number and time of the request for the lease that waits for its answer."""
        self._patience = patience or Patience(self._limits)
        self._target: str | None = None
        self._target_until = self._read_at = 0.0
        self._change: frozenset[str] | None = None
        """Members that an operator asked for last; None: no one did."""

    def follows(self, now: float) -> bool:
        """Return whether the stream of the primary runs, and something of it arrived lately."""
        return self._follower.hears(now)

    # ---- registry ----

    def registry_state(self, state: RegistryState, now: float) -> None:
        """Take what the registry holds, from a read or a watch."""
        if self.role is Role.STOPPED:
            return
        config = state.config
        if config is None:
            if self._version >= 0 or self.log.epochs:
                self._stop("the registry lost the set's configuration; restore it, or begin it from a chosen member")
            return
        if self.log.cluster_id not in ("", config.cluster_id):
            self._stop(f"this store belongs to the set {self.log.cluster_id}, the registry has {config.cluster_id}")
            return
        if state.version < self._version:
            return  # a watch that is late
        if config.epoch < last_epoch(self.log.epochs) or (self.config and config.epoch < self.config.epoch):
            self._stop(f"the registry is at epoch {config.epoch}, this store is further; was an old copy restored?")
            return
        self._holder = state.holder
        if state.version > self._version:
            if self.config is not None and config.epoch > self.config.epoch:
                self._predecessor, self._epoch_at = self.config.primary, now
            self._version, self.config = state.version, config
            # A compare-and-set on an older version was applied before this state, or never will be.
            self.proposals = [each for each in self.proposals if each.if_version >= state.version]
        self._settle(now)

    def proposal_answered(self, number: int, outcome: ProposalOutcome, version: int, now: float) -> None:
        """Take the outcome of a compare-and-set. ``version``: of the configuration, if it is done."""
        proposal = self._in_flight
        if proposal is None or proposal.number != number or self.role is Role.STOPPED:
            return
        self._in_flight = None
        if outcome is ProposalOutcome.DONE:
            self.registry_state(RegistryState(proposal.config, version, self._holder), now)
        else:
            # If it is lost, the read shows the newer version, which closes every proposal before it.
            self._read(now)

    def _propose(self, config: SetConfig, vacant: bool) -> None:
        if self._in_flight is not None:
            return
        self._numbers += 1
        proposal = Proposal(self._numbers, config, self._version, vacant)
        self._in_flight = proposal
        if self.primary is not None:
            self.proposals = [each for each in self.proposals if each.config != config] + [proposal]
        self.actions.append(Propose(proposal))

    def _read(self, now: float) -> None:
        self._read_at = now + (self._limits.retry_s if self.proposals else self._limits.read_s)
        self.actions.append(ReadRegistry())

    # ---- roles ----

    def _settle(self, now: float) -> None:
        """Take the role that the configuration gives."""
        config = self.config
        if config is None or self.role is Role.STOPPED:
            return
        if self.role is not Role.FOLLOWER and self.primary is not None:
            if (config.primary, config.epoch) == (self.member, self.primary.config.epoch):
                self.primary.config_changed(config, now)
                self._advance(now)
                return
            self._step_down(now)
        if self.member not in config.members:
            self._follower.leave(now)
            self._follower.primary = ""
        elif self._rules.begins_epoch(self.member, config, self.log.epochs, self.log.complete):
            self._take_over(config, now)
        else:
            self._follower.follow(config.cluster_id, config.primary, config.epoch, now)

    def _take_over(self, config: SetConfig, now: float) -> None:
        self._follower.leave(now)
        self._follower.primary = ""
        if self.log.busy:
            return  # the end of the log is not known before; ``disk_done`` comes back here
        self.role = Role.ELECTED
        epochs = without_deleted(self.log.epochs, self.log.begin)
        epochs = self._rules.epochs_to_lead(epochs, config.epoch, self.log.end)
        self.primary = Primary(self.member, config, epochs, self.log, self._limits, self._rules)
        suspect = self._predecessor if config.epoch == self._taken_epoch else self.member
        self.primary.begin(self.log.flushed, self.log.confirmed, suspect, now)
        self._lease_until, self._lease_asked, self._lease_at = 0.0, None, now
        self._target, self._change = None, None
        self.log.begin_work(SaveState(config.cluster_id, epochs, True))
        self._hold_lease(now)

    def _serve(self, now: float) -> None:
        """Begin to serve, if the epoch is saved and the lease is held."""
        saved = self._rules.may_serve(not self.log.busy)
        if self.role is Role.ELECTED and self.primary is not None and saved and self._leads(now):
            self.role, self.accepts = Role.PRIMARY, True
            self.actions.append(Lead(self.primary.config.epoch))
            self._advance(now)

    def may_answer(self, now: float) -> bool:
        """Return whether this member leads and its lease protects an answer that leaves now, such as that to a pull
        with a lock, from the answers of a successor. Call it directly before the answer leaves, after the last wait."""
        return self.role is Role.PRIMARY and self._rules.may_answer(self._leads(now), self._is_handing_over)

    def _leads(self, now: float) -> bool:
        return self._rules.serves(now, self._lease_until, self._limits.margin_s)

    def _step_down(self, now: float) -> None:
        """Stop leading; before anything else, stop answering clients."""
        assert self.primary is not None
        epoch = self.primary.config.epoch
        if self.role is Role.PRIMARY:
            self.actions.append(StepDown(epoch))
        self.primary.disconnect_all()
        self.role, self.primary, self.accepts = Role.FOLLOWER, None, False
        self._vacant_since, self.proposals = None, []
        self._read(now)

    def _stop(self, reason: str) -> None:
        if self.primary is not None:
            if self.role is Role.PRIMARY:
                self.actions.append(StepDown(self.primary.config.epoch))
            self.primary.disconnect_all()
        self._follower.leave(0.0)
        self.role, self.primary, self.accepts, self.stop_reason = Role.STOPPED, None, False, reason
        self.actions.append(Stop(reason))

    # ---- lease ----

    def _hold_lease(self, now: float) -> None:
        assert self.primary is not None
        self._numbers += 1
        self._lease_asked = self._numbers, now
        self._lease_at = now + self._limits.lease_s / 3
        self.actions.append(HoldLease(self.primary.config.epoch, self._numbers))

    def lease_answered(self, number: int, held: bool | None, now: float) -> None:
        """Take the answer to ``HoldLease``, None if none came. The lease lasts from *before* the request left."""
        if self.primary is None or self._lease_asked is None or self._lease_asked[0] != number:
            return
        asked = self._lease_asked[1]
        self._lease_asked = None
        if held is None:
            self._lease_at = now + self._limits.retry_s
            return
        if not held:
            self._step_down(now)
            return
        self._lease_until = asked + self._limits.lease_s
        self._serve(now)

    # ---- election ----

    def _consider_election(self, now: float) -> None:
        """Propose to lead, after a vacancy has lasted for this member's turn."""
        config = self.config
        if config is None or not self._rules.may_lead(self.member, config, self.log.complete):
            return
        # A host that refuses connections lives, and its broker does not, or cannot acknowledge without this member.
        quick = self._limits.quick_takeover and self._follower.refused >= 3
        if not quick and not self._rules.is_vacant(self.member, config, self._holder):
            self._vacant_since = None
            return
        self._vacant_since = now if self._vacant_since is None else self._vacant_since
        candidates = [*sorted(config.in_sync - {config.primary}), config.primary]
        turn = candidates.index(self.member) * self._limits.turn_s if self.member in candidates else 0.0
        begun = now if quick else self._epoch_at + self._limits.begin_s
        if now < max(self._vacant_since + turn, self._patience.stand_back_until, begun) or self.log.busy:
            return
        # Every member in sync has every acknowledged message, and needs to report before it counts in the new epoch;
        # so all stay but the old primary, which is probably gone.
        in_sync = self._rules.next_in_sync(config, [config.primary] if config.primary != self.member else [], ())
        self._taken_epoch = config.epoch + 1
        self._propose(config.led_by(self.member, in_sync), self._holder is None)

    # ---- connections ----

    def connected(self, connection: int, now: float) -> None:
        if self._follower.is_current(connection):
            self._follower.connected(connection, now)

    def alive(self, connection: int, now: float) -> None:
        """Note that the other end of a connection takes bytes, or sends some."""
        if self._follower.is_current(connection):
            self._follower.alive(now)
        elif self.primary is not None:
            self.primary.alive(connection, now)

    def closed(self, connection: int, refused: bool, now: float) -> None:
        """Note that a connection has ended; ``refused``: the other host said at once that no process listens."""
        if self._follower.is_current(connection):
            self._follower.closed(refused, now)
        elif self.primary is not None:
            self.primary.closed(connection)

    def received(self, connection: int, message: Message, now: float) -> None:
        if self.role is Role.STOPPED:
            return
        match message:
            case Hello() if self.role is Role.PRIMARY and self.primary is not None:
                if message.epoch > self.primary.config.epoch:
                    self._read(now)
                self.primary.hello(connection, message, now)
            case Hello():
                epoch = self.config.epoch if self.config else 0
                self.actions += [
                    SendMessage(connection, Refusal(epoch, "this member is not the primary")),
                    Close(connection),
                ]
                if message.epoch > epoch:
                    self._read(now)
            case PositionReport():
                if self.primary is not None:
                    self.primary.report(connection, message, now)
                    self._advance(now, is_usual=not message.stops)
            case _ if self._follower.is_current(connection):
                reason = self._follower.receive(message, now)
                if reason is not None:
                    self._stop(reason)

    # ---- the own disk ----

    def written(self, end: int, now: float) -> None:
        """Note that this primary's log now ends at ``end``."""
        if self.role is Role.PRIMARY and self.primary is not None:
            self.log.end = end
            self.primary.written(now)

    def flushed(self, end: int, now: float) -> None:
        """Note that the log is on disk below ``end``. The driver forgets flushes that began before a ``Cut``."""
        self.log.flushed = max(self.log.flushed, min(end, self.log.end))
        if self.primary is not None:
            self.primary.flushed[self.member] = self.log.flushed
            self.primary.disk_behind_s(now)
            self._advance(now, is_usual=True)
        else:
            self._follower.send_report(now)

    def report_of(self, flushed: int) -> tuple[int, PositionReport] | None:
        """Return the connection to the primary, and the report that the disk may send on it as soon as the log is on
        disk below ``flushed``, also before this member knows that; None if this member does not follow."""
        return self._follower.report_of(flushed) if self.role is Role.FOLLOWER else None

    def deleted(self, begin: int) -> None:
        """Note that retention deleted what is below ``begin``, which must be confirmed."""
        self.log.begin = begin
        if self.primary is not None:
            self.primary.deleted()

    def disk_done(self, now: float) -> None:
        """Note that the disk has done the oldest ``Cut``, ``Restart`` or ``SaveState``."""
        if self.role is Role.STOPPED or not self.log.step_done():
            return
        if self.role is Role.FOLLOWER:
            self._follower.disk_done(now)
            self._settle(now)
        else:
            self._serve(now)

    # ---- time ----

    def tick(self, now: float) -> None:
        """Do what is due. Called at least every ``Limits.tick_s``."""
        if self.role is Role.STOPPED:
            return
        if self.primary is not None:
            self._tick_primary(now)
        if self.role is Role.FOLLOWER:
            self._follower.tick(now)
            self._consider_election(now)
            if now >= self._read_at and self._follower.stage is not FollowerStage.STREAMING:
                self._read(now)
        if self.proposals and self._in_flight is None and now >= self._read_at:
            self._read(now)

    def _tick_primary(self, now: float) -> None:
        assert self.primary is not None
        if self.role is Role.PRIMARY and not self._leads(now):
            self._step_down(now)
            return
        if now >= self._lease_at and self._lease_asked is None:
            self._hold_lease(now)
        if self.role is Role.PRIMARY:
            self.primary.tick(now)
        self._give_up_if_weak(now)
        self._advance(now)

    def _advance(self, now: float, *, is_usual: bool = False) -> None:
        """Confirm what is safe, and propose what should change.

        ``is_usual``: a disk has written something, as happens for each message. In a settled set, that makes no change
        due, and what time makes due is found by the next tick.
        """
        if self.role is not Role.PRIMARY or self.primary is None:
            return
        if not self._leads(now):
            self._step_down(now)
            return
        self.primary.advance(self.proposals)
        self.log.confirmed = max(self.log.confirmed, self.primary.confirmed)
        if not (is_usual and self._is_settled):
            self._propose_change(now)

    @property
    def _is_settled(self) -> bool:
        """True if all members are in sync, and no change is asked for or on its way."""
        assert self.primary is not None
        config = self.primary.config
        return config.in_sync == config.members and not (self.proposals or self._target or self._is_changing)

    def _propose_change(self, now: float) -> None:
        assert self.primary is not None
        config = self.primary.config
        if self._in_flight is not None:
            return
        if self._target is not None:
            self._hand_over(config, self._target, now)
            return
        wanted = config
        if self._change is not None:
            # First, so that no member is taken out for its lag whom the change makes necessary for the minimum.
            wanted = replace(wanted, members=self._change, in_sync=wanted.in_sync & self._change)
        wanted = wanted.with_in_sync(self.primary.next_in_sync(wanted, now))
        # With an unknown outcome the same configuration is proposed again: once a version is newer, it is known.
        if wanted != config or (self.proposals and now >= self._read_at):
            self._propose(wanted, False)

    def _give_up_if_weak(self, now: float) -> None:
        """Release the lease if this member cannot acknowledge for too long: another one may be able to."""
        assert self.primary is not None
        serves = self.role is Role.PRIMARY
        weak_s = self.primary.weak_s(now, serves=serves)
        if self._patience.is_over(weak_s):
            epoch = self.primary.config.epoch
            self._patience.gave_up(now)
            self._step_down(now)
            self.actions.append(ReleaseLease(epoch))
        elif serves and weak_s == 0.0 and self.primary.confirmed == self.log.end:
            self._patience.restore()

    # ---- operators ----

    def switch(self, target: str, now: float, within: float) -> str | None:
        """Hand the leadership to ``target``. Return why not, None if it has begun; if the target does not have the
        whole log within ``within`` seconds, this member continues to lead."""
        if self.role is not Role.PRIMARY or self.primary is None:
            return "this member is not the primary"
        if target == self.member:
            return f"{target} is the primary already"
        if self._is_changing:
            return self._busy_with_members
        if target not in (in_sync := self.primary.config.in_sync):
            return f"{target!r} is not one of the members in sync: {', '.join(sorted(in_sync))}"
        self._target, self._target_until, self.accepts = target, now + within, False
        self.log.need_tables()
        self._advance(now)
        return None

    @property
    def _is_handing_over(self) -> bool:
        return any(each.config.primary != self.member for each in self.proposals)

    def _hand_over(self, config: SetConfig, target: str, now: float) -> None:
        assert self.primary is not None
        if target in config.in_sync and self.primary.has_everything(target):
            # This member opens its store again, and its successor need not wait for that if a third member has
            # everything. Otherwise this one stays in sync: if the target's disk is lost now, it alone can lead.
            others = self._rules.next_in_sync(config, [self.member], ())
            self._propose(config.led_by(target, others if len(others) > 1 else config.in_sync), False)
        elif now < self._target_until:
            return
        elif self._is_handing_over:
            self._propose(config, False)  # once it is done, the target can no longer become primary
        else:
            self._target, self.accepts = None, True

    def change_members(self, members: frozenset[str]) -> str | None:
        """Change the members of the set. Return why not, None if it will be proposed."""
        if self.role is not Role.PRIMARY or self.primary is None:
            return "this member is not the primary"
        if self.member not in members:
            return "the primary cannot be removed; switch to another member first"
        if self._target is not None:
            return f"the leadership is being handed over to {self._target}; ask the next primary"
        if self._is_changing and members != self._change:
            return self._busy_with_members
        # A proposal on its way may take a member out of sync that this change needs.
        for config in (self.primary.config, *(each.config for each in self.proposals)):
            if len(config.in_sync & members) < config.min_in_sync:
                return "too few members would be in sync; lower min_in_sync, or wait for others to join"
        self._change = members
        return None

    @property
    def _is_changing(self) -> bool:
        """True if a change of the members was accepted and is not done."""
        return self.primary is not None and self._change not in (None, self.primary.config.members)

    @property
    def _busy_with_members(self) -> str:
        wanted = ", ".join(sorted(self._change or ()))
        return f"the members are being changed to {wanted}; try again when `flintmq replica status` shows these"

    def has_members(self, members: frozenset[str]) -> bool:
        return self.primary is not None and self.primary.config.members == members

    def stop(self, now: float) -> bool:
        """Prepare an orderly stop: a follower in sync asks its primary to take it out, so that nothing waits for it.
        Return whether that is possible and not done yet."""
        config = self.config
        if self.role is not Role.FOLLOWER or config is None or self.member not in config.in_sync:
            return False
        if len(config.in_sync) <= config.min_in_sync or not self._follower.hears(now):
            return False
        self._follower.stop(now)
        return True
