"""The driver of the core: it tells the core what happened, and carries out what the core asks for.

A member lives from one opening of the store to the next. A cut of the log, a restart of it, and the end of a leadership
end the life: the store is closed and opened again, in the same process, by the same steps as after a crash.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import ssl
from collections.abc import Callable, Coroutine, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ....protocol.commands import TABLE_BYTES_MAX, ReplicaStatusAnswer, SetMember
from ....protocol.errors import BrokerError, ConfigurationError, NotEnoughReplicas, NotPrimary, ReplicationRefused
from ...background.flush import FlushService, Notice
from ...config import Settings
from ...store import LogCopyRefused, MessageStore
from ...store.tables.clock import elapsed_ns
from ...store.tables.store_state import ReplicaRecord
from ..core.configuration import Epoch, Proposal, ProposalOutcome
from ..core.messages import (
    Action,
    Append,
    Close,
    Confirm,
    Connect,
    Cut,
    Hello,
    HoldLease,
    Lead,
    LogState,
    Message,
    PositionReport,
    Propose,
    ReadRegistry,
    ReleaseLease,
    Restart,
    SaveState,
    SendMessage,
    StepDown,
    Stop,
    Welcome,
)
from ..core.replica import Replica, Role
from ..core.rules import Limits
from ..core.stream import Patience
from ..registry.interface import LeaseAnswer, Registry, RegistryError, RegistryView
from .links import AcceptedLinks, FollowedPrimary, FollowerHandle, LinkAccess, TableSender
from .tables import Table, TableCopy

if TYPE_CHECKING:
    from ..registry.etcd import EtcdRegistry


BUSY_RETRY_MS = 100
"""Time after which a client should ask again while there is no primary, or while it reaches too few members."""


@dataclass(frozen=True, slots=True)
class MemberIdentity:
    """A member's set and id, and how it connects to the others."""

    replica_set: str
    member: str
    access: LinkAccess
    limits: Limits

    def not_primary(self, leader: str, stop_reason: str) -> NotPrimary:
        """Return the error for a request that only the primary answers. ``leader``: its address, empty if unknown."""
        if stop_reason:
            why = f", and takes no part in it: {stop_reason}"
        else:
            why = f"; that is at {leader}" if leader else "; it has none at the moment"
        return NotPrimary(
            f"{self.member} is not the primary of replica set {self.replica_set}{why}",
            retry_after_ms=0 if leader else BUSY_RETRY_MS,
            primary=leader,
        )

    def not_enough(self, needed: int) -> NotEnoughReplicas:
        """Return the error for a message that could not be acknowledged."""
        return NotEnoughReplicas(
            f"the primary {self.member} of replica set {self.replica_set} reaches fewer than {needed} members, itself "
            "included, so nothing can be acknowledged; nothing was written. Start the other members",
            retry_after_ms=BUSY_RETRY_MS,
        )


def member_rows(replica: Replica, addresses: Mapping[str, str], now: float) -> list[SetMember]:
    """Return what a member knows of each member of its set. ``now``: see ``Replica``."""
    config, primary = replica.config, replica.primary
    rows = []
    for member in sorted(config.members) if config is not None else ():
        connected, flushed, behind_s = primary.lag_of(member, now) if primary is not None else (False, -1, -1.0)
        in_sync = config is not None and member in config.in_sync
        rows.append(SetMember(member, addresses.get(member, ""), in_sync, connected, flushed, int(behind_s * 1000)))
    return rows


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """A set as one member sees it. ``follows``: the stream of the primary runs here."""

    answer: ReplicaStatusAnswer
    rows: list[SetMember]
    follows: bool

    def standby_problem(self) -> str:
        """Return why this member, which does not lead, could not take over; "" if it is in sync."""
        seen = self.answer
        why = f": {seen.reason}" if seen.reason else ""
        if seen.role == Role.STOPPED.value:
            return f"stopped{why}"
        if not self.rows:
            return f"{seen.role}: the registry has not answered yet{why}"
        if seen.role != Role.FOLLOWER.value:
            return f"{seen.role}: it begins to lead epoch {seen.epoch}"
        if not self.follows:
            return f"follower: it has no connection to the primary {seen.primary}{why}"
        if not any(row.in_sync for row in self.rows if row.member == seen.member):
            return f"follower: it is not in sync with the primary {seen.primary} yet{why}"
        return ""


class MemberOwner(Protocol):
    """The broker around a member. All methods are called on the loop."""

    def lead(self) -> None:
        """Begin to serve clients: everything in the log is confirmed."""

    def step_down(self, error: BrokerError) -> None:
        """Serve no client any more, at once: every request that waits gets ``error``, and connections end."""

    def reopen(self, reason: str) -> None:
        """End this life: close the store, and open it again."""

    def fatal(self, part: str, error: BaseException) -> None:
        """End the process."""


# ---- A member and its registry, as ``[replication]`` of the settings names them.


def identity_of(settings: Settings) -> MemberIdentity:
    """Return this broker's place in its set. Raises ``ConfigurationError`` if a certificate cannot be used."""
    replication = settings.replication
    access = LinkAccess(f"member {replication.member}", replication.user, replication.password_file, _tls_of(settings))
    limits = Limits(lease_s=replication.lease_ms / 1000, lag_s=replication.lag_max_ms / 1000)
    return MemberIdentity(replication.set, replication.member, access, limits)


def _tls_of(settings: Settings) -> ssl.SSLContext | None:
    """Return the TLS settings with which members connect to each other; None if they do not use TLS."""
    security, ca = settings.security, settings.replication.tls_ca
    if not security.tls_certificate:
        return None
    try:
        context = ssl.create_default_context(cafile=ca or None)
        # The member's own certificate, for brokers that require one of every client.
        context.load_cert_chain(security.tls_certificate, security.tls_key)
    except OSError as error:
        raise ConfigurationError(
            f"replication.tls_ca = {ca!r}: cannot set up TLS to the other members: {error}"
        ) from error
    return context


def registry_of(settings: Settings) -> EtcdRegistry:
    """Return the registry of the set. Raises ``ConfigurationError``."""
    try:
        # Imported here, because a broker without a set needs no h11.
        from ..registry.etcd import EtcdRegistry, EtcdSettings
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "replication.set is set, but h11 is missing: install the extra, pip install 'flintmq[broker,replication]'"
        ) from error
    replication = settings.replication
    try:
        return EtcdRegistry(
            EtcdSettings(
                tuple(url.strip() for url in replication.etcd.split(",") if url.strip()),
                replication.cluster,
                replication.set,
                lease_s=replication.lease_ms // 1000,
                ca_file=replication.etcd_ca or None,
                certificate_file=replication.etcd_certificate or None,
                key_file=replication.etcd_key or None,
                user=replication.etcd_user or None,
                password_file=replication.etcd_password_file or None,
            )
        )
    except (ValueError, OSError) as error:
        raise ConfigurationError(f"[replication]: {error}") from error


# ---- The member's calls to the registry, as tasks whose answers go to the core.

log = logging.getLogger(__name__)

RETRY_S = 0.2
"""Pause after a read of the registry that failed."""

_HELD = {LeaseAnswer.HELD: True, LeaseAnswer.REFUSED: False, LeaseAnswer.UNKNOWN: None}


class RegistryCalls:
    """The calls of one member. ``on_view`` is called with each state of the registry that is read, ``fatal`` with what
    failed and an error that is not the registry's: the core would wait for its answer for ever."""

    def __init__(
        self,
        registry: Registry,
        member: str,
        on_view: Callable[[RegistryView], None],
        fatal: Callable[[str, BaseException], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._registry = registry
        self._member = member
        self._on_view = on_view
        self._fatal = fatal
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()
        self._reading: asyncio.Task[None] | None = None
        self._lease = asyncio.Lock()
        self._watch: asyncio.Task[None] | None = None
        self.problem = ""
        """Why the last read failed; empty if it did not."""

    def start(self) -> None:
        self._watch = self._spawn(self._follow())

    async def _follow(self) -> None:
        async with aclosing(self._registry.watch()) as views:
            async for view in views:
                self.problem = ""
                self._on_view(view)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        # The loop itself refers to tasks only weakly.
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fatal("a call to the registry of the replica set", error)

    def read(self) -> None:
        """Read the registry, unless a read runs."""
        if self._reading is None or self._reading.done():
            self._reading = self._spawn(self._read())

    async def _read(self) -> None:
        """Read until an answer comes, so that ``problem`` is not shown longer than it lasts."""
        while True:
            try:
                view = await self._registry.read()
            except RegistryError as error:
                if str(error) != self.problem:
                    self.problem = str(error)
                    log.warning("cannot read the registry of the replica set: %s", error)
                await asyncio.sleep(RETRY_S)
            else:
                self.problem = ""
                self._on_view(view)
                return

    def propose(
        self, proposal: Proposal, addresses: Mapping[str, str], answered: Callable[[int, ProposalOutcome, int], None]
    ) -> None:
        """Send a proposal; ``answered`` is called with its number, its outcome and the new version."""

        async def run() -> None:
            try:
                answer = await self._registry.propose(proposal, addresses)
            except RegistryError as error:
                log.warning("a change of the replica set was not made: %s", error)
                # By the registry's contract, a change that raises this was not applied and never will be.
                answered(proposal.number, ProposalOutcome.LOST, 0)
                return
            if answer.outcome is ProposalOutcome.UNKNOWN:
                log.warning("the registry may have made a change of the replica set: %s", answer.reason)
            answered(proposal.number, answer.outcome, answer.version)

        self._spawn(run())

    def hold_lease(self, epoch: int, number: int, answered: Callable[[int, bool | None], None]) -> None:
        """Take or renew the lease; ``answered`` is called with the number and whether it is held, None: unknown."""

        async def run() -> None:
            try:
                # The registry's contract: one call for the lease at a time.
                async with self._lease:
                    answer = await self._registry.hold_lease(self._member, epoch)
            except RegistryError as error:
                log.error("the registry does not give the lease: %s", error)
                answer = LeaseAnswer.UNKNOWN
            answered(number, _HELD[answer])

        self._spawn(run())

    def release_lease(self) -> None:
        """Give the lease back."""

        async def run() -> None:
            async with self._lease:
                await self._registry.release_lease()

        self._spawn(run())

    async def stop(self, timeout_s: float) -> None:
        """End the watch, and wait for the other calls at most this time."""
        endless = [task for task in (self._watch, self._reading) if task is not None]
        for task in endless:
            task.cancel()
        await asyncio.gather(*endless, return_exceptions=True)
        if self._tasks:
            # The lease may be among them: if it is not given back, the others wait for its end.
            await asyncio.wait(set(self._tasks), timeout=timeout_s)
        for task in self._tasks:
            task.cancel()


# ---- A member's own small files on a disk that may be full for a while.

ROOM_PAUSE_S = 0.5
"""Pause between two attempts to write to a full disk."""


async def write_when_room(write: Callable[[], None], waits: Callable[[], bool], pause_s: float = ROOM_PAUSE_S) -> None:
    """Call ``write`` on a thread, and again after ``pause_s`` seconds as long as the disk is full and ``waits`` agrees.

    Raises the error of ``write``.
    """
    reported = False
    while True:
        try:
            return await asyncio.get_running_loop().run_in_executor(None, write)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not waits():
                raise
            if not reported:
                reported = True
                log.error("no space for the state of the replica set: %s; retrying", error)
        await asyncio.sleep(pause_s)


STOP_S = 1.0
"""Maximum time that a member waits for the registry when it ends."""
LEAVE_S = 1.0
"""Maximum time that a follower which stops waits until it is not in sync any more."""
HAND_OVER_S = 2.0
"""Maximum time that a primary which stops waits until another member has its tables, and the same until it leads."""


def now_s() -> float:
    """Return the core's time: seconds that also pass, where the system can tell, while the machine is suspended. A
    lease lasts no longer because its holder slept."""
    return elapsed_ns() / 1e9


class ReplicaMember:
    """One life of a member."""

    def __init__(
        self,
        identity: MemberIdentity,
        store: MessageStore,
        flush: FlushService,
        tables: list[Table],
        registry: Registry,
        patience: Patience,
        owner: MemberOwner,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.identity = identity
        self._store = store
        self._flush = flush
        self._owner = owner
        self._loop = loop
        self._limits = identity.limits
        record = store.replica.state.record
        self._log = LogState(
            record.cluster_id,
            tuple(Epoch(*each) for each in record.epochs),
            record.complete,
            store.min_physical_offset,
            store.write_offset,
            store.flushed_offset,
            # A log without epochs is damaged: it has lost what was confirmed, and all of it is copied again.
            store.last_confirmed_offset if record.epochs or record.complete else 0,
            store.log_copy.piece_end,
            has_tables=lambda member: self._sender is not None and self._sender.is_equipped(member),
            has_all_tables=lambda: self._primary.has_all_tables,
            need_tables=lambda: self._sender.need() if self._sender is not None else None,
            tables_behind_s=lambda member: self._sender.behind_s(member) if self._sender is not None else 0.0,
        )
        self.replica = Replica(identity.member, self._log, self._limits, patience=patience)
        self.addresses: dict[str, str] = {}
        """Address of each member, as the registry has it."""
        self._added: dict[str, str] = {}
        """Address of the member that is being added."""
        self._changes: list[tuple[frozenset[str], Callable[[BrokerError | None], None]]] = []
        """(members that an operator asked for, caller that waits until the set has them)."""
        self._calls = RegistryCalls(registry, identity.member, self._view, owner.fatal, loop)
        self._links = AcceptedLinks(store.log_copy.read)
        self._tables = tables
        self._primary = FollowedPrimary(identity.access, TableCopy(tables, TABLE_BYTES_MAX), self, loop)
        self._sender: TableSender | None = None
        self._body, self._saying = memoryview(b""), 0
        """Bytes of the piece that the primary is sending, and the number of its connection."""
        self._ticker: asyncio.TimerHandle | None = None
        self._changing: asyncio.Task[None] | None = None
        self._leads_at = -1
        """Physical offset that must be confirmed before this member serves; -1: it does not lead."""
        self._preparing = self._serving = False
        self._draining = self._ended = False
        self.stepped_down = asyncio.Event()
        self._left = asyncio.Event()
        """Set when this member is not in sync."""
        store.confirmed_offset = self._log.confirmed

    def start(self) -> None:
        self._store.set_refusal = self._not_primary
        self._flush.on_disk = self._flushed
        self._flush.notice = self._notice
        self._calls.start()
        self._tick()

    async def stop(self) -> None:
        """End this life. A primary hands over to a member in sync; if none takes over, it gives its lease back. A
        follower leaves the members in sync, or the primary would wait for it until the lag limit."""
        if self._serving and not self._ended:
            await self._hand_over()
        elif not self._ended:
            await self._leave()
        if self._ticker is not None:
            self._ticker.cancel()
        if self.replica.role is Role.PRIMARY:
            self._end_leadership()
            self._calls.release_lease()
        self._ended = True
        if self._changing is not None:
            self._changing.cancel()
        await self._primary.stop()
        if self._sender is not None:
            await self._sender.stop()
        await self._calls.stop(STOP_S)

    async def _hand_over(self) -> None:
        rows = self.status().rows
        ready = (row.member for row in rows if row.member != self.identity.member and row.in_sync and row.connected)
        target = next(ready, None)
        if target is None:
            return
        saved = asyncio.Event()
        self.when_tables_are_saved(saved.set)
        for step in (saved, self.stepped_down):
            if step is self.stepped_down and self.switch(target, HAND_OVER_S) is not None:
                return
            try:
                async with asyncio.timeout(HAND_OVER_S):
                    await step.wait()
            except TimeoutError:
                log.warning("%s has not taken over within %g s", target, HAND_OVER_S)

    async def _leave(self) -> None:
        leaves = self.replica.stop(now_s())
        self._drain()
        if leaves:
            with suppress(TimeoutError):  # the primary takes this member out later, after the lag limit
                async with asyncio.timeout(LEAVE_S):
                    await self._left.wait()

    # ---- what the broker asks ----

    @property
    def serves(self) -> bool:
        """True if clients are served here: this member leads, and everything before its epoch is confirmed."""
        return self._serving

    @property
    def primary_address(self) -> str:
        """HOST:PORT of the primary, empty if none is known."""
        config = self.replica.config
        return self.addresses.get(config.primary, "") if config is not None else ""

    def refusal(self, *, may_follow: bool = False) -> NotPrimary | None:
        """Return the error for a request that only the primary may answer, or, with ``may_follow``, a follower in sync
        that hears it; None if this member may answer it now."""
        now = now_s()
        if self._serving and self.replica.may_answer(now):
            return None
        if may_follow and self.replica.follows(now) and self.identity.member in self._in_sync():
            return None
        return self._not_primary()

    def _in_sync(self) -> frozenset[str]:
        return self.replica.config.in_sync if self.replica.config is not None else frozenset()

    def _not_primary(self) -> NotPrimary:
        config = self.replica.config
        leads = config is None or config.primary == self.identity.member
        return self.identity.not_primary("" if leads else self.primary_address, self.replica.stop_reason)

    def _not_enough(self) -> NotEnoughReplicas:
        config = self.replica.config
        return self.identity.not_enough(config.min_in_sync if config is not None else 0)

    def appended(self) -> None:
        self._log.end = self._store.write_offset
        if self._leads_at >= 0:
            self.replica.written(self._store.write_offset, now_s())
            self._drain(is_usual=True)

    def when_tables_are_saved(self, call: Callable[[], None]) -> None:
        """Call ``call`` once all members in sync have the tables as they are now; not, if the leadership ends."""
        if self._sender is not None:
            self._sender.when_saved(call)

    def status(self) -> ReplicaStatus:
        replica, config, now = self.replica, self.replica.config, now_s()
        # A member that leads has overcome the refusal that it got as a follower.
        refusal = self._primary.refusal if replica.role is Role.FOLLOWER else ""
        answer = ReplicaStatusAnswer(
            set=self.identity.replica_set,
            member=self.identity.member,
            role=replica.role.value,
            epoch=config.epoch if config is not None else 0,
            primary=config.primary if config is not None else "",
            min_in_sync=config.min_in_sync if config is not None else 0,
            end=self._log.end,
            confirmed=self._log.confirmed,
            reason=replica.stop_reason or refusal or self._calls.problem,
        )
        return ReplicaStatus(answer, member_rows(replica, self.addresses, now), replica.follows(now))

    def switch(self, target: str, within_s: float) -> str | None:
        """Hand the leadership over. Return why not, None if it has begun."""
        reason = self.replica.switch(target, now_s(), within_s)
        self._drain()
        return reason

    def change_members(self, member: str, address: str) -> frozenset[str]:
        """Add a member with its address, or remove one without. Return the members to be. Raises
        ``ReplicationRefused``."""
        members, reason = self._members_with(member, address)
        reason = reason or self.replica.change_members(members) or ""
        if reason:
            raise ReplicationRefused(reason)
        self._added = {member: address} if address else {}
        return members

    def when_changed(self, members: frozenset[str], done: Callable[[BrokerError | None], None]) -> None:
        """Call ``done`` once the registry has these members, or with an error if the leadership ends before."""
        self._changes.append((members, done))
        self._drain()

    def _members_with(self, member: str, address: str) -> tuple[frozenset[str], str]:
        """Return the members after a change, and why it must not be; empty if it may."""
        config = self.replica.config
        if config is None:
            return frozenset(), "the registry's configuration is not known yet"
        if not address:
            is_there, there = member in config.members, ", ".join(sorted(config.members))
            return config.members - {member}, "" if is_there else f"{member!r} is not one of the members: {there}"
        at = self.addresses.get(member, address)
        return config.members | {member}, "" if at == address else f"{member} is a member at {at}; remove it first"

    def _answer_changes(self) -> None:
        if not self._changes:
            return
        done = [call for members, call in self._changes if self.replica.has_members(members)]
        self._changes = [each for each in self._changes if each[1] not in done]
        for call in done:
            call(None)

    # ---- followers of this member ----

    def accept(self, handle: FollowerHandle, hello: Hello) -> int:
        """Take a follower's first message; return the number of its connection."""
        number = self._links.add(handle, hello.member)
        # Its predecessor may have ended because the follower refused bytes that are damaged here.
        self._store.log_copy.begin_receiver()
        self._input(self.replica.received, number, hello)
        return number

    def reported(self, number: int, report: PositionReport, tables: int) -> None:
        link = self._links.get(number)
        if link is None:
            return
        if self._sender is not None:
            self._sender.reported(link, tables)
        if not self._ended:
            self.replica.received(number, report, now_s())
            self._drain(is_usual=True)

    def follower_lost(self, number: int) -> None:
        self._links.remove(number)
        self._input(self.replica.closed, number, False)

    # ---- the primary that this member follows ----

    def primary_connected(self, number: int) -> None:
        self._input(self.replica.connected, number)

    def primary_lost(self, number: int, refused: bool) -> None:
        """Note that there is no connection; ``refused``: the primary's host said that no process listens."""
        self._input(self.replica.closed, number, refused)

    def primary_alive(self, number: int) -> None:
        self.replica.alive(number, now_s())

    def primary_said(self, number: int, message: Message, body: memoryview) -> None:
        """Take a message of the primary; ``body``: the bytes of a piece, valid during the call."""
        self._body, self._saying = body, number
        self._input(self.replica.received, number, message)
        self._body = memoryview(b"")

    def withdraw_notice(self) -> None:
        self._flush.withdraw_notice()

    # ---- inputs of the core ----

    def _input(self, call: Callable[..., Any], *arguments: Any) -> None:
        if not self._ended:
            call(*arguments, now_s())
            self._drain()

    def _view(self, view: RegistryView) -> None:
        self.addresses = dict(view.addresses)
        self._input(self.replica.registry_state, view.state)
        if self.identity.member in self._in_sync():
            self._left.clear()
        else:
            self._left.set()
        if self._sender is not None:
            self._sender.saved()

    def _flushed(self, offset: int) -> None:
        if not self._ended:
            self.replica.flushed(offset, now_s())
            self._drain(is_usual=True)

    def _notice(self, end: int) -> Notice | None:
        """Return what the disk's thread shall tell the primary as soon as the log is on disk below ``end``."""
        made = None if self._ended else self.replica.report_of(end)
        return self._primary.notice(*made) if made is not None else None

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(self._limits.tick_s, self._tick)
        for number in self._links.that_take_bytes():
            self.replica.alive(number, now_s())
        begin = self._store.min_physical_offset
        if begin != self._log.begin and not self._log.busy:
            self.replica.deleted(begin)
        self._input(self.replica.tick)

    def _drain(self, *, is_usual: bool = False) -> None:
        """Carry out what the core asks for, in order. ``is_usual``: after something that happens for each message."""
        # An action may cause the next input at once; the loop below carries out what that adds.
        if self._draining:
            return
        self._draining = True
        try:
            actions = self.replica.actions
            while actions and not self._ended:
                self._do(actions.pop(0))
        finally:
            self._draining = False
        # While messages are accepted, the next tick is soon enough to notice that a follower is behind for too long.
        if not (is_usual and self._store.set_refusal is None):
            self._refuse_or_accept()
        self._answer_changes()

    def _refuse_or_accept(self) -> None:
        """Have the store refuse appends that could not be acknowledged."""
        replica = self.replica
        if not self._serving or not replica.accepts or replica.primary is None:
            self._store.set_refusal = self._not_primary
            return
        enough = replica.primary.current_members(now_s()) >= replica.primary.config.min_in_sync
        self._store.set_refusal = None if enough else self._not_enough

    # ---- actions ----

    def _do(self, action: Action) -> None:
        match action:
            case SendMessage(number, message):
                self._send(number, message)
            case Append(offset, _):
                self._append(offset)
            case Confirm(offset):
                self._store.confirm(offset)
                self._flush.acknowledge()
                self._serve_if_confirmed()
            case ReadRegistry():
                self._calls.read()
            case Propose(proposal):
                self._calls.propose(
                    proposal, {**self.addresses, **self._added}, partial(self._input, self.replica.proposal_answered)
                )
            case HoldLease(epoch, number):
                self._calls.hold_lease(epoch, number, partial(self._input, self.replica.lease_answered))
            case ReleaseLease():
                self._calls.release_lease()
            case Connect(number, member):
                self._primary.connect(number, self.addresses.get(member, ""))
            case Close(number):
                self._close(number)
            case Lead(epoch):
                self._lead(epoch)
            case StepDown(epoch):
                log.warning("%s leads epoch %d no longer", self.identity.member, epoch)
                self._end_leadership()
                self._calls.release_lease()
                self._end("the leadership ended")
            case Stop(reason):
                log.critical("%s takes no further part in its replica set: %s", self.identity.member, reason)
            case Cut() | Restart() | SaveState():
                self._changing = self._loop.create_task(self._change_disk(action))
                self._changing.add_done_callback(self._disk_changed)

    def _send(self, number: int, message: Message) -> None:
        if number < 0:
            self._links.send(number, message)
            if isinstance(message, Welcome) and self._sender is not None:
                self._sender.greet(number)
        elif isinstance(message, Hello):
            self._primary.greet(number, message, self._store.settings.commitlog_file_bytes)
        elif isinstance(message, PositionReport):
            self._primary.report(number, message)

    def _append(self, offset: int) -> None:
        try:
            self._store.log_copy.append(offset, self._body)
        except (LogCopyRefused, BrokerError) as error:
            log.error("a piece of the primary's log is not taken: %s", error)
            # Nothing of it was written. To the core it looks as if the connection had broken before the piece.
            self._log.end = offset
            self._primary.close(self._saying)
            self.replica.closed(self._saying, False, now_s())
        else:
            self._flush.wake()

    def _close(self, number: int) -> None:
        if number < 0:
            self._links.close(number)
        else:
            self._primary.close(number)

    def _lead(self, epoch: int) -> None:
        primary = self.replica.primary
        assert primary is not None
        log.warning("%s leads replica set %s in epoch %d", self.identity.member, self.identity.replica_set, epoch)
        self._leads_at = primary.epochs[-1].start
        self._sender = TableSender(self._tables, self._links, epoch, self._followers_to_have_tables, self._loop)
        self._serve_if_confirmed()

    def _followers_to_have_tables(self) -> frozenset[str] | None:
        primary = self.replica.primary
        return primary.followers_to_have(self.replica.proposals) if primary is not None else None

    def _serve_if_confirmed(self) -> None:
        if 0 <= self._leads_at <= self._store.confirmed_offset and not self._preparing:
            self._preparing = True
            self._owner.lead()

    def serve(self) -> None:
        """Serve clients from now on: the broker around is ready. No effect if the leadership has ended meanwhile."""
        if self._leads_at >= 0:
            self._serving = True
            self._refuse_or_accept()

    def _end_leadership(self) -> None:
        self._preparing = self._serving = False
        self._leads_at = -1
        self._store.set_refusal = self._not_primary
        error = self._not_primary()
        changes, self._changes = self._changes, []
        for _, call in changes:
            call(error)
        self._owner.step_down(error)
        self.stepped_down.set()

    def _end(self, reason: str) -> None:
        self._ended = True
        self._owner.reopen(reason)

    async def _change_disk(self, action: Cut | Restart | SaveState) -> None:
        replica, member = self._store.replica, self.identity.member
        match action:
            case SaveState(cluster_id, epochs, complete):
                if self.replica.role is Role.ELECTED:
                    # Or a table of the primary before would be written over what this member takes as the primary.
                    await self._primary.finish_tables()
                record = ReplicaRecord(cluster_id, member, epochs, complete)
                await write_when_room(partial(replica.state.save, record), self._may_wait)
                self._input(self.replica.disk_done)
            case Cut(to):
                await write_when_room(partial(replica.cut.request, to, self._store.write_offset), self._may_wait)
                self._end(f"the log is cut at {to:,}")
            case Restart(begin, cluster_id, epochs):
                record = ReplicaRecord(cluster_id, member, epochs, False)
                await write_when_room(partial(replica.restart.request, begin, record), self._may_wait)
                self._end(f"the log begins again at {begin:,}")

    def _may_wait(self) -> bool:
        """Return whether this member may wait for room on its disk. While it is elected, it would keep all others from
        leading."""
        return self.replica.role is Role.FOLLOWER

    def _disk_changed(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._owner.fatal("the state of the replica set", error)
