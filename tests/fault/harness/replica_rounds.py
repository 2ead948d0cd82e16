"""Rounds of a replica set: clients that work, a fault, and the judgement after all members are in sync again.

A campaign is one set and a series of rounds. Every random choice comes from the campaign's seed and the round's number;
how processes and packets interleave does not.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from flintmq.client import FlintError

from .ledger import Allowance, Finding, Ledger
from .load import Load
from .mounts import LoopExt4
from .replica_faults import DISK_FAULTS, FAULTS, ReplicaFaults
from .replica_hosts import MEMBERS, ReplicaHosts, SetOnHosts
from .rounds import PROGRESS_MESSAGES, PromiseBroken
from .tally import Tally
from .transactions import TransactionLoad

PROGRESS_S = 45.0
"""Time after which messages that have not been acknowledged never will be: longer than a client's patience."""
LOOKED_UP = 8
REST_S = 0.05
"""Pause of each producer between two bursts: keeps what each round has to read small."""


@dataclass
class ReplicaTally(Tally):
    """Totals of all rounds with one fault."""

    pauses_s: list[float] = field(default_factory=list)
    """For each round the longest time for which a producer waited for its messages."""


class ReplicaCampaign:
    """One replica set, its ledger, its clients and its rounds. ``folder`` and ``disks``: see ``SetOnHosts``."""

    def __init__(
        self, hosts: ReplicaHosts, folder: Path, seed: str, disks: Mapping[str, LoopExt4] | None = None
    ) -> None:
        self.replicas = SetOnHosts(folder, hosts, disks)
        self.ledger = Ledger()
        self._hosts = hosts
        self._seed = seed
        self._load = Load(self.replicas.bootstrap, self.ledger, random.Random(seed), sync=True, rest_s=REST_S)
        self._transactions = TransactionLoad(self.replicas.bootstrap, random.Random(seed))

    async def run(self, faults: list[str], tallies: dict[str, ReplicaTally], progress: Callable[[str], None]) -> None:
        """Run a round with each of these faults; ``progress`` is called with each that is over.

        Raises ``PromiseBroken``, or the error of a client or a server."""
        try:
            await asyncio.to_thread(self.replicas.begin)
            await asyncio.to_thread(self.replicas.wait_in_sync, *MEMBERS)
            async with self._load, self._transactions:
                await self._load.prepare()
                await self._transactions.prepare()
                for number, fault in enumerate(faults):
                    tally = tallies.setdefault(fault, ReplicaTally())
                    await self._counted(number, fault, tally, last=number == len(faults) - 1)
                    progress(fault)
            await asyncio.to_thread(self.replicas.stop_all)
        finally:
            self._hosts.heal()
            self.replicas.kill_all()
            self.replicas.stop_all()  # closes the pipes of those that were killed

    async def _counted(self, number: int, fault: str, tally: ReplicaTally, *, last: bool) -> None:
        """Run a round and count its result, even if it fails."""
        began, acknowledged, resent = time.monotonic(), self.ledger.acknowledged_in_all, self._load.resent
        tally.rounds += 1
        tally.failed += 1
        try:
            finding = await self._round(random.Random(f"{self._seed} {number}"), fault, last=last)
            tally.add(finding)
            if not finding.sound:
                raise PromiseBroken("; ".join(finding.details))
            tally.failed -= 1
        except (AssertionError, FlintError, OSError, TimeoutError, PromiseBroken) as error:
            raise PromiseBroken(f"round {number} ({fault}): {type(error).__name__}: {error}") from error
        finally:
            tally.pauses_s.append(self._load.slowest_s)
            tally.acknowledged += self.ledger.acknowledged_in_all - acknowledged
            tally.resent += self._load.resent - resent
            tally.seconds += time.monotonic() - began

    async def _round(self, source: random.Random, fault: str, *, last: bool) -> Finding:
        primary = await asyncio.to_thread(self.replicas.leader)
        self._load.begin()
        self._transactions.begin()
        await self._acknowledged()
        self._load.fault_happened()
        make = {**FAULTS, **DISK_FAULTS}[fault]
        self._load.disk_fails = self._transactions.disk_fails = fault in DISK_FAULTS
        await make(ReplicaFaults(self.replicas, self._hosts, source, primary))
        await self._acknowledged()
        await asyncio.to_thread(self.replicas.wait_in_sync, *MEMBERS, under_load=True)
        await self._transactions.finish()
        await self._load.finish()
        status = await asyncio.to_thread(self.replicas.wait_in_sync, *MEMBERS)
        finding = await self._judge(last=last)
        await asyncio.to_thread(self._compare_logs, status["confirmed"])
        return finding

    async def _acknowledged(self) -> None:
        """Wait until some more messages are acknowledged."""
        enough = self._load.acknowledged + PROGRESS_MESSAGES
        async with asyncio.timeout(PROGRESS_S):
            while self._load.acknowledged < enough:
                self._load.check_alive()
                await asyncio.sleep(0.005)

    async def _judge(self, *, last: bool) -> Finding:
        finding = self.ledger.judge(await self._load.look(), Allowance())
        await self._load.look_up(finding, LOOKED_UP, Allowance())
        await self._load.look_at_tables(finding, fell_back=False)
        await self._transactions.judge(finding)
        if last:
            await self._load.wait_for_delayed(finding, set())
        return finding

    def _compare_logs(self, confirmed: int) -> None:
        """Raise ``PromiseBroken`` unless all members have the same bytes below the confirmed offset."""
        if len({self.replicas.log_of(member, confirmed) for member in MEMBERS}) > 1:
            raise PromiseBroken(f"the logs of the members differ below {confirmed:,}")
