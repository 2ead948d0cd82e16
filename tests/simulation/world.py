"""A replica set in a simulated world: time, members, network and registry follow one seed, so every run repeats."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any

from flintmq.broker.replication.core.configuration import SetConfig
from flintmq.broker.replication.core.replica import Role
from flintmq.broker.replication.core.rules import Limits, Rules

from .disk import Disk, Record, Violation
from .judge import Judge
from .member import Member
from .network import Network
from .registry import Registry
from .tables import ACKNOWLEDGED, PROGRESS

CLUSTER = "one"


class World:
    """A world with members ``a``, ``b``, … of one replica set, all started."""

    def __init__(
        self,
        seed: int,
        *,
        members: int = 3,
        min_in_sync: int = 2,
        quick_takeover: bool = True,
        rules: Rules | None = None,
        tables: bool = False,
    ) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.tables = tables
        self.table_random = Random(f"tables {seed}")
        self._changes = count(1)
        self.limits = Limits(
            tick_s=0.1, window_bytes=40, piece_bytes=16, join_gap_bytes=12, quick_takeover=quick_takeover
        )
        self.rules = rules or Rules()
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._numbers = count()
        self._contents = count()
        self.judge = Judge(self)
        self.network = Network(self)
        names = "abcde"[:members]
        self.members = {name: Member(self, name, Disk(CLUSTER, complete=name == "a")) for name in names}
        config = SetConfig(CLUSTER, 0, "a", frozenset("a"), frozenset(names), min_in_sync)
        self.registry = Registry(self, config, self.limits.lease_s)
        for member in self.members.values():
            member.start()

    # ---- time ----

    def after(self, seconds: float, call: Callable[..., object], *arguments: Any) -> None:
        """Call a function later."""
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), call, arguments))

    def run(self, seconds: float, until: Callable[[], bool] | None = None) -> bool:
        """Let time pass, at most until a condition holds. Return whether it held."""
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, call, arguments = heapq.heappop(self._events)
            call(*arguments)
            if until is not None and until():
                return True
        self.now = end
        return False

    # ---- clients ----

    def new_record(self, start: int) -> Record:
        """Return a record that was never written before."""
        return Record(start, start + self.random.randint(1, 6), next(self._contents))

    def load(self, interval: float) -> None:
        """Let clients write and read at every member that takes them, for ever."""
        for member in self.members.values():
            if member.runs:
                member.produce()
                if self.random.random() < 0.2:
                    member.read()
        self.after(self.random.expovariate(1.0 / interval), self.load, interval)

    def new_change(self, epoch: int) -> tuple[int, int]:
        """Return a change of a table that was never made before."""
        return epoch, next(self._changes)

    def load_tables(self, interval: float) -> None:
        """Let clients change tables at every member that leads, for ever: progress most of the time."""
        for member in self.members.values():
            name = ACKNOWLEDGED if self.table_random.random() < 0.3 else PROGRESS
            member.change_table(name, self.table_random.choice("xyz"))
        self.after(self.table_random.expovariate(1.0 / interval), self.load_tables, interval)

    # ---- conditions ----

    def leader(self) -> Member | None:
        """Return the member that leads the newest epoch and takes messages."""
        leading = [
            member
            for member in self.members.values()
            if member.leads and member.replica is not None and member.replica.accepts
        ]
        return max(leading, key=lambda member: member.leads, default=None)

    def is_whole(self) -> bool:
        """Return whether every member follows one leader in sync, and has the same log."""
        config, leader = self.registry.config, self.leader()
        if leader is None or config.in_sync != config.members or config.members != self.members.keys():
            return False
        return all(
            member.replica is not None
            and member.replica.role in (Role.FOLLOWER, Role.PRIMARY)
            and member.disk.complete
            and member.disk.epochs[-1:] == leader.disk.epochs[-1:]
            and member.disk.end >= self.judge.safe_end
            for member in self.members.values()
        )

    def check_progress(self, seconds: float) -> None:
        """Check that the set acknowledges messages again within ``seconds``, and becomes whole."""
        end, changes = self.judge.safe_end, self.judge.changes

        def goes_on() -> bool:
            changed = self.judge.changes > changes or not self.tables
            return self.judge.safe_end > end and changed and self.is_whole()

        if not self.run(seconds, goes_on):
            state = {
                name: (member.leads, member.replica and member.replica.role.value, member.disk.end, member.disk.flushed)
                for name, member in self.members.items()
            }
            raise Violation(
                f"seed {self.seed}, after {self.now:.3f} s: no progress: acknowledged {end} to {self.judge.safe_end}, "
                f"changes of tables {changes} to {self.judge.changes}, "
                f"{self.registry.config}, {state}"
            )
