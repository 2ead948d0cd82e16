"""A driver of the core: one member's process with disk, clock, connections and clients. It can die at any action."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flintmq.broker.replication.core.configuration import RegistryState
from flintmq.broker.replication.core.messages import (
    Action,
    Append,
    Close,
    Confirm,
    Connect,
    Cut,
    Hello,
    HoldLease,
    Lead,
    LogPiece,
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
from flintmq.broker.replication.core.replica import Replica, Role
from flintmq.broker.replication.member.links import AcceptedLinks, TableSender

from .disk import Disk, Record, Step
from .network import Connection, Parcel
from .tables import ACKNOWLEDGED, PROGRESS, SYNCS, SimulatedHandle, SimulatedLoop, SimulatedPrimary, SimulatedTable

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
        self.sender: TableSender | None = None
        """Sender of this process's tables while it leads, in a world with tables."""
        self._table_work: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        """Work of the disk on tables, each with its answer."""
        self._paused_until = 0.0
        self._delayed: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._received: tuple[Record, ...] = ()
        self._flushing = False
        self._step: Step | None = None
        """Work that the disk has begun."""
        self.slow_step: tuple[type[Step], float] | None = None
        """A kind of step that takes the disk this many seconds."""
        self.lines_are_full = False
        """True while followers take no tables."""
        self.slow_tables = 0.0
        """Seconds that the disk takes longer for a table."""

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
            disk.cluster_id,
            disk.epochs,
            disk.complete,
            disk.begin,
            disk.end,
            disk.end,
            disk.confirmed,
            disk.piece_end,
            has_tables=self._has_tables,
            has_all_tables=lambda: not self.world.tables or self.primary.has_all_tables,
            need_tables=lambda: self.sender.need() if self.sender is not None else None,
            tables_behind_s=lambda member: self.sender.behind_s(member) if self.sender is not None else 0.0,
        )
        self.links = AcceptedLinks(lambda begin, end: bytearray())
        self._open_tables()
        self.replica = Replica(self.name, log, self.world.limits, self.world.rules)
        self._tick(self.life)

    def crash(self, *, power: bool) -> None:
        """End the process; with ``power`` the host too, and what was not flushed is lost."""
        if not self.runs:
            return
        connections, self.connections = self.connections, {}
        self.replica, self.leads = None, 0
        self.life += 1
        self._end_table_work()
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

    def enter(self, life: int, call: Callable[..., None], *arguments: Any) -> None:
        """Call a function of the process if it still is the one, after its pause."""
        if life != self.life or not self.runs:
            return
        if self.world.now < self._paused_until:
            self._delayed.append((self.enter, (life, call, *arguments)))
        else:
            call(*arguments)

    # ---- inputs ----

    def registry_state(self, life: int, state: RegistryState) -> None:
        """Take the registry's state from a watch."""
        self.enter(life, self._registry_state, state)

    def _registry_state(self, state: RegistryState) -> None:
        self._input("registry_state", state)
        if self.sender is not None:
            self.sender.saved()

    def received(self, life: int, number: int, parcel: Parcel) -> None:
        """Take what arrived on a connection."""
        self.enter(life, self._receive, number, parcel)

    def connected(self, life: int, number: int, connection: Connection) -> None:
        """Take an open connection."""
        if life != self.life or not self.runs:
            self.world.network.send(connection, self, Parcel(None))
            return
        self.connections[number] = connection
        self.primary.opened(number, connection)
        self.enter(life, lambda: self._input("connected", number))

    def closed(self, life: int, number: int, refused: bool) -> None:
        """Take the end of a connection."""
        self.enter(life, self._close, number, refused)

    def _close(self, number: int, refused: bool) -> None:
        self.connections.pop(number, None)
        self.links.remove(number)
        if not self.primary.take(number, Parcel(None)):
            self._input("closed", number, refused)

    def _receive(self, number: int, parcel: Parcel) -> None:
        if parcel.message is None:
            self._close(number, False)
            return
        self._received = parcel.records
        if self.primary.take(number, parcel):
            return
        link = self.links.get(number)
        if isinstance(parcel.message, PositionReport) and link is not None and self.sender is not None:
            self.sender.reported(link, parcel.tables)
        self._input("received", number, parcel.message)

    # ---- what the connection to the primary calls ----

    def primary_connected(self, number: int) -> None:
        """Not called: the network says it."""

    primary_alive = primary_connected

    def withdraw_notice(self) -> None:
        """Do nothing: the disk is always just sending the notice."""

    def primary_lost(self, number: int, refused: bool) -> None:
        """Take the end of the connection."""
        self._input("closed", number, refused)

    def primary_said(self, number: int, message: Message, body: memoryview) -> None:
        """Take a message."""
        self._input("received", number, message)

    # ---- connections ----

    def accept(self, opener: str) -> int:
        """Accept a connection; return its number."""
        handle = SimulatedHandle(self)
        handle.number = self.links.add(handle, opener)
        return handle.number

    def send(self, number: int, parcel: Parcel) -> None:
        """Send on a connection, if it is still there."""
        connection = self.connections.get(number)
        if connection is not None:
            self.world.network.send(connection, self, parcel)

    def hang_up(self, number: int) -> None:
        """Close a connection, if it is still there."""
        self.send(number, Parcel(None))
        self.connections.pop(number, None)

    # ---- tables ----

    def _open_tables(self) -> None:
        """Read the tables from the disk, as each opening of the store does."""
        self.sender = None
        self.loop = SimulatedLoop(self)  # type: ignore[abstract]  # the rest of a loop is not needed
        self.tables = {name: SimulatedTable(name, self) for name in (ACKNOWLEDGED, PROGRESS)}
        self.primary = SimulatedPrimary(self, list(self.tables.values()))

    def _has_tables(self, member: str) -> bool:
        return not self.world.tables or (self.sender is not None and self.sender.is_equipped(member))

    def _followers_to_have_tables(self) -> frozenset[str] | None:
        if self.replica is None or self.replica.primary is None:
            return None
        return self.replica.primary.followers_to_have(self.replica.proposals)

    def work_on_tables(self, work: Callable[[], Any], answer: Callable[[Any], None]) -> None:
        """Let the disk do something, and answer with what it returns."""
        job = (work, answer)
        self._table_work.append(job)
        seconds = self.world.table_random.expovariate(1.0 / (SYNCS * self.disk_seconds)) + self.slow_tables
        self.world.after(seconds, self._table_work_done, job)

    def _table_work_done(self, job: tuple[Callable[[], Any], Callable[[Any], None]]) -> None:
        if job in self._table_work:
            self._table_work.remove(job)
            work, answer = job
            self.enter(self.life, answer, work())

    def _end_table_work(self) -> None:
        """Let the disk do only a part of what it had begun."""
        work, self._table_work = self._table_work, []
        for each, _ in work:
            if self.world.table_random.random() < 0.5:
                each()

    def change_table(self, name: str, key: str) -> None:
        """Change a table, if clients may; acknowledge a change that is waited for."""
        self.enter(self.life, self._change_table, name, key)

    def _change_table(self, name: str, key: str) -> None:
        if self.sender is None:
            return
        table, sender, change = self.tables[name], self.sender, self.world.new_change(self.leads)
        table.change(key, change)

        def saved(_: object) -> None:
            if self.sender is sender and name == ACKNOWLEDGED:
                sender.when_saved(lambda: self.world.judge.changed(self, key, change))

        self.work_on_tables(table.save, saved)

    def _tick(self, life: int) -> None:
        if life == self.life and self.runs:
            self.enter(life, lambda: self._input("tick"))
            self.world.after(self.world.limits.tick_s, self._tick, life)

    def produce(self) -> None:
        """Store a record, if clients may: the process believes that it leads."""
        self.enter(self.life, self._produce)

    def _produce(self) -> None:
        replica = self.replica
        assert replica is not None
        if self.leads and replica.accepts:
            self.disk.append(self.world.new_record(self.disk.end))
            self._input("written", self.disk.end)
            self._flush()

    def read(self) -> None:
        """Answer a client that needs the one leader's answer, such as a pull with a lock."""
        self.enter(self.life, self._read)

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
        self.enter(self.life, lambda: self._input("switch", target, within=5.0))

    def change_members(self, members: frozenset[str]) -> None:
        """Change the set's members, as an operator asks."""
        self.enter(self.life, lambda: self._input("change_members", members, timed=False))

    def delete_oldest(self) -> None:
        """Delete confirmed records, as retention does."""
        self.enter(self.life, self._delete_oldest)

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
                self.links.remove(number)
                self.primary.close(number)
                self.hang_up(number)
            case SendMessage(number, Hello() as hello):
                self.primary.greet(number, hello, 0)
            case SendMessage(number, PositionReport() as report):
                self.primary.report(number, report)
            case SendMessage(number, message):
                connection = self.connections.get(number)
                if connection is not None:
                    records = self.disk.between(message.offset, message.end) if isinstance(message, LogPiece) else ()
                    if isinstance(message, Welcome):  # in reply to the member's history
                        opener = connection.opener
                        opener.member.replaced &= opener.life != opener.member.life
                    world.network.send(connection, self, Parcel(message, records))
                link = self.links.get(number)
                if isinstance(message, Welcome) and link is not None and self.sender is not None:
                    link.welcomed = True
                    self.sender.greet(number)
            case Append():
                self.disk.append(*self._received)
                self._flush()
            case SaveState() if world.tables and self.replica is not None and self.replica.role is Role.ELECTED:
                self.loop.create_task(self._save_after_tables(action))
            case Cut() | Restart() | SaveState():
                self._begin_step(action)
            case Lead(epoch):
                self.leads = epoch
                world.judge.leads(self, epoch)
                if world.tables:
                    tables = list(self.tables.values())
                    self.sender = TableSender(tables, self.links, epoch, self._followers_to_have_tables, self.loop)
            case StepDown(epoch):
                self.leads = 0
                world.registry.release(self.name, epoch)
                # The store is opened again.
                self._end_table_work()
                self._open_tables()
            case Confirm(offset):
                world.judge.confirmed(self, offset)
                if world.random.random() < 0.3:
                    self.disk.note_confirmed(offset)
            case Stop(reason):
                world.judge.stopped(self, reason)

    def _answer(self, life: int, name: str, *arguments: object) -> None:
        self.enter(life, lambda: self._input(name, *arguments))

    def _disk_delay(self) -> float:
        return self.world.random.expovariate(1.0 / self.disk_seconds)

    async def _save_after_tables(self, step: SaveState) -> None:
        await self.primary.finish_tables()
        self._begin_step(step)

    def _begin_step(self, step: Step) -> None:
        self.disk.generation += not isinstance(step, SaveState)
        self._step = step
        slow = self.slow_step is not None and isinstance(step, self.slow_step[0])
        seconds = self.slow_step[1] if slow and self.slow_step is not None else self._disk_delay()
        self.world.after(seconds, self._step_done, self.life)

    def _step_done(self, life: int) -> None:
        if life == self.life and self._step is not None:
            self.disk.do(self._step)
            self._step = None
            self._answer(life, "disk_done")

    def _flush(self) -> None:
        """Put the log on disk; one flush at a time, and another if records came meanwhile."""
        if not self._flushing:
            self._flushing = True
            end = self.disk.end
            made = self.replica.report_of(end) if self.replica is not None else None
            notice: Any = self.primary.notice(*made) if made is not None else None
            self.world.after(self._disk_delay(), self._flushed, self.life, self.disk, self.disk.generation, end, notice)

    def _flushed(self, life: int, disk: Disk, generation: int, end: int, notice: Callable[[], None] | None) -> None:
        if life != self.life or disk is not self.disk:
            return
        self._flushing = False
        if generation == disk.generation:
            disk.flushed = max(disk.flushed, end)
            if notice is not None:
                # Whatever this member has learned since, unless the connection has ended.
                self.enter(life, notice)
            self._answer(life, "flushed", end)
        if disk.flushed < disk.end:
            self._flush()
