"""A driver of the core: one member's process with disk, clock, connections and clients. It can die at any action."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flintmq.broker.replication.core.actions import (
    Action,
    Append,
    Close,
    Confirm,
    Connect,
    Cut,
    HoldLease,
    Lead,
    Propose,
    ReadRegistry,
    ReleaseLease,
    Restart,
    SaveState,
    SendMessage,
    StepDown,
    Stop,
)
from flintmq.broker.replication.core.configuration import RegistryState
from flintmq.broker.replication.core.log_state import LogState
from flintmq.broker.replication.core.messages import LogPiece, Welcome
from flintmq.broker.replication.core.replica import Replica

from .disk import Disk, Record, Step
from .network import Connection, Parcel

if TYPE_CHECKING:
    from .world import World


class Member:
    """One member. ``life`` counts its processes: what was meant for an earlier one is dropped."""

    def __init__(self, world: World, name: str, disk: Disk) -> None:
        self.name = name
        self.disk = disk
        self.world = world
        self.life = 0
        self.replica: Replica | None = None
        self.host_is_up = True
        self.connections: dict[int, Connection] = {}
        self.disk_seconds = 0.003
        """Mean time of a flush."""
        self.crash_chance = 0.0
        """Probability of a crash before an action."""
        self.leads = 0
        """Epoch that this process leads, 0 if none."""
        self.clock_rate = 1.0
        self.replaced = False
        """True if the disk was replaced since the member last said its history."""
        self._paused_until = 0.0
        self._delayed: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._received: tuple[Record, ...] = ()
        self._flushing = False
        self._step: Step | None = None
        """Work that the disk has begun."""
        self.slow_step: tuple[type[Step], float] | None = None
        """A kind of step that takes the disk this many seconds."""

    @property
    def runs(self) -> bool:
        """True if the process exists; it may be paused."""
        return self.replica is not None

    @property
    def clock(self) -> float:
        """Seconds of this member's monotonic clock."""
        return self.world.now * self.clock_rate

    # ---- life and death ----

    def start(self) -> None:
        """Start a process on what the disk has."""
        disk = self.disk
        self.life += 1
        self.host_is_up = True
        self._paused_until, self._delayed, self._flushing = 0.0, [], False
        disk.flushed = disk.end  # recovery puts the log on disk before anything else
        log = LogState(
            disk.cluster_id, disk.epochs, disk.complete, disk.begin, disk.end, disk.end, disk.confirmed, disk.piece_end
        )
        self.replica = Replica(self.name, log, self.world.limits, self.world.rules)
        self._tick(self.life)

    def crash(self, *, power: bool) -> None:
        """End the process; with ``power`` the host too, and what was not flushed is lost."""
        if not self.runs:
            return
        connections, self.connections = self.connections, {}
        self.replica, self.leads = None, 0
        self.life += 1
        self.disk.generation += 1
        if self._step is not None and self.world.random.random() < 0.5:
            self.disk.do(self._step)  # the step had begun: the next start continues it
        self._step = None
        if power:
            self.host_is_up = False
            self.disk.cut_power(self.world.random)
        else:
            for connection in connections.values():
                self.world.network.send(connection, self, Parcel(None))

    def replace_disk(self) -> None:
        """Lose the disk; the host gets an empty one."""
        self.crash(power=True)
        self.disk = Disk()
        self.replaced = True

    def pause(self, seconds: float) -> None:
        """Let the process stand still; what arrives waits."""
        self._paused_until = max(self._paused_until, self.world.now + seconds)
        self.world.after(seconds, self._resume)

    def _resume(self) -> None:
        if self.world.now < self._paused_until:
            return
        delayed, self._delayed = self._delayed, []
        for position, (call, arguments) in enumerate(delayed):
            if self.world.now < self._paused_until:  # paused again by what it did
                self._delayed += delayed[position:]
                return
            call(*arguments)

    def _enter(self, life: int, call: Callable[..., None], *arguments: Any) -> None:
        """Call a function of the process if it still is the one, after its pause."""
        if life != self.life or not self.runs:
            return
        if self.world.now < self._paused_until:
            self._delayed.append((self._enter, (life, call, *arguments)))
        else:
            call(*arguments)

    # ---- inputs ----

    def registry_state(self, life: int, state: RegistryState) -> None:
        """Take the registry's state from a watch."""
        self._enter(life, lambda: self._input("registry_state", state))

    def received(self, life: int, number: int, parcel: Parcel) -> None:
        """Take what arrived on a connection."""
        self._enter(life, self._receive, number, parcel)

    def connected(self, life: int, number: int, connection: Connection) -> None:
        """Take an open connection."""
        if life != self.life or not self.runs:
            self.world.network.send(connection, self, Parcel(None))
            return
        self.connections[number] = connection
        self._enter(life, lambda: self._input("connected", number))

    def closed(self, life: int, number: int, refused: bool) -> None:
        """Take the end of a connection."""
        self._enter(life, self._close, number, refused)

    def _close(self, number: int, refused: bool) -> None:
        self.connections.pop(number, None)
        self._input("closed", number, refused)

    def _receive(self, number: int, parcel: Parcel) -> None:
        if parcel.message is None:
            self._close(number, False)
            return
        self._received = parcel.records
        self._input("received", number, parcel.message)

    def _tick(self, life: int) -> None:
        if life == self.life and self.runs:
            self._enter(life, lambda: self._input("tick"))
            self.world.after(self.world.limits.tick_s, self._tick, life)

    def produce(self) -> None:
        """Store a record, if clients may: the process believes that it leads."""
        self._enter(self.life, self._produce)

    def _produce(self) -> None:
        replica = self.replica
        assert replica is not None
        if self.leads and replica.accepts:
            self.disk.append(self.world.new_record(self.disk.end))
            self._input("written", self.disk.end)
            self._flush()

    def read(self) -> None:
        """Answer a client that needs the one leader's answer, such as a pull with a lock."""
        self._enter(self.life, self._read)

    def _read(self) -> None:
        if self.may_answer:
            self.world.judge.answered(self, self.leads)

    @property
    def may_answer(self) -> bool:
        """True if an answer that only one member may give would leave now."""
        is_awake = self.world.now >= self._paused_until
        return is_awake and self.leads > 0 and self.replica is not None and self.replica.may_answer(self.clock)

    def switch(self, target: str) -> None:
        """Hand the leadership over, as an operator asks."""
        self._enter(self.life, lambda: self._input("switch", target, within=5.0))

    def change_members(self, members: frozenset[str]) -> None:
        """Change the set's members, as an operator asks."""
        self._enter(self.life, lambda: self._input("change_members", members, timed=False))

    def delete_oldest(self) -> None:
        """Delete confirmed records, as retention does."""
        self._enter(self.life, self._delete_oldest)

    def _delete_oldest(self) -> None:
        assert self.replica is not None
        confirmed = [record for record in self.disk.records if record.end <= self.replica.log.confirmed]
        if len(confirmed) > 5 and not self.replica.log.busy:
            self.disk.delete_oldest(len(confirmed) // 2)
            self._input("deleted", self.disk.begin, timed=False)

    def _input(self, name: str, *arguments: Any, timed: bool = True, **options: Any) -> None:
        replica, life = self.replica, self.life
        if replica is None:
            return
        getattr(replica, name)(*arguments, **({"now": self.clock} if timed else {}), **options)
        while replica.actions and self.life == life:
            if self.crash_chance and self.world.random.random() < self.crash_chance:
                self.crash(power=self.world.random.random() < 0.5)
                return
            self._do(replica.actions.pop(0))

    # ---- actions ----

    def _do(self, action: Action) -> None:
        world, life = self.world, self.life
        match action:
            case ReadRegistry():
                world.registry.read(self.name, lambda state: self._answer(life, "registry_state", state))
            case Propose(proposal):
                world.registry.propose(
                    self.name, proposal, lambda *found: self._answer(life, "proposal_answered", proposal.number, *found)
                )
            case HoldLease(epoch, number):
                world.registry.hold(self.name, epoch, lambda held: self._answer(life, "lease_answered", number, held))
            case ReleaseLease(epoch):
                world.registry.release(self.name, epoch)
            case Connect(number, member):
                world.network.connect(self, number, member)
            case Close(number):
                connection = self.connections.pop(number, None)
                if connection is not None:
                    world.network.send(connection, self, Parcel(None))
            case SendMessage(number, message):
                connection = self.connections.get(number)
                if connection is not None:
                    records = self.disk.between(message.offset, message.end) if isinstance(message, LogPiece) else ()
                    if isinstance(message, Welcome):  # in reply to the member's history
                        opener = connection.opener
                        opener.member.replaced &= opener.life != opener.member.life
                    world.network.send(connection, self, Parcel(message, records))
            case Append():
                self.disk.append(*self._received)
                self._flush()
            case Cut() | Restart() | SaveState():
                self.disk.generation += not isinstance(action, SaveState)
                self._step = action
                slow = self.slow_step is not None and isinstance(action, self.slow_step[0])
                seconds = self.slow_step[1] if slow and self.slow_step is not None else self._disk_delay()
                world.after(seconds, self._step_done, life)
            case Lead(epoch):
                self.leads = epoch
                world.judge.leads(self, epoch)
            case StepDown(epoch):
                self.leads = 0
                world.registry.release(self.name, epoch)
            case Confirm(offset):
                world.judge.confirmed(self, offset)
                if world.random.random() < 0.3:
                    self.disk.note_confirmed(offset)
            case Stop(reason):
                world.judge.stopped(self, reason)

    def _answer(self, life: int, name: str, *arguments: object) -> None:
        self._enter(life, lambda: self._input(name, *arguments))

    def _disk_delay(self) -> float:
        return self.world.random.expovariate(1.0 / self.disk_seconds)

    def _step_done(self, life: int) -> None:
        if life == self.life and self._step is not None:
            self.disk.do(self._step)
            self._step = None
            self._answer(life, "disk_done")

    def _flush(self) -> None:
        """Put the log on disk; one flush at a time, and another if records came meanwhile."""
        if not self._flushing:
            self._flushing = True
            self.world.after(
                self._disk_delay(), self._flushed, self.life, self.disk, self.disk.generation, self.disk.end
            )

    def _flushed(self, life: int, disk: Disk, generation: int, end: int) -> None:
        if life != self.life or disk is not self.disk:
            return
        self._flushing = False
        if generation == disk.generation:
            disk.flushed = max(disk.flushed, end)
            self._answer(life, "flushed", end)
        if disk.flushed < disk.end:
            self._flush()
