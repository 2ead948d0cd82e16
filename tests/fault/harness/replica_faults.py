"""Faults of a replica set on hosts of its own: of processes, of the network, and of the registry."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any

from flintmq.protocol.commands import SWITCH_PRIMARY
from tests.replica_set import LEASE_MS

from .network import Host, cut
from .replica_hosts import ReplicaHosts, SetOnHosts

LEASE_S = LEASE_MS / 1000
DOWN_S = (0.0, 2 * LEASE_S)
"""Time for which a killed member stays away."""
BROKEN_S = (0.5, 4 * LEASE_S)
"""Time for which a network is broken: sometimes less than it takes to notice."""
HUNG_S = (1.25 * LEASE_S, 2.5 * LEASE_S)
"""Time for which a process hangs: longer than a lease."""
SWITCH_MS = 5_000


class ReplicaFaults:
    """The faults; each method makes one, keeps it for some time and ends it, while clients work.

    ``primary``: the member that leads when the fault begins.
    """

    def __init__(self, replicas: SetOnHosts, hosts: ReplicaHosts, source: random.Random, primary: str) -> None:
        self._replicas = replicas
        self._hosts = hosts
        self._source = source
        self._primary = primary
        self._followers = source.sample(sorted(replicas.addresses.keys() - {primary}), 2)

    async def _pass(self, seconds: tuple[float, float]) -> None:
        await asyncio.sleep(self._source.uniform(*seconds))

    # ---- processes ----

    async def _kill(self, *members: str, emptied: bool = False) -> None:
        """Kill members at the same time, and start them again one after the other."""
        killed = [self._replicas.running.pop(member) for member in members]
        for each in killed:
            each.process.kill()
        for each in killed:
            await asyncio.to_thread(each.wait)
        for member in members:
            if emptied:
                await asyncio.to_thread(shutil.rmtree, self._replicas.store(member))
            await self._pass(DOWN_S)
            await asyncio.to_thread(self._replicas.start, member)

    async def kill_primary(self) -> None:
        """Kill the primary."""
        await self._kill(self._primary)

    async def kill_follower(self) -> None:
        """Kill a follower."""
        await self._kill(self._followers[0])

    async def empty_primary(self) -> None:
        """Kill the primary and empty its disk: it copies everything again."""
        await self._kill(self._primary, emptied=True)

    async def kill_all(self) -> None:
        """Kill all members at once."""
        await self._kill(*self._source.sample([self._primary, *self._followers], 3))

    async def _hang(self, member: str) -> None:
        with self._replicas.running[member].paused():
            await self._pass(HUNG_S)

    async def hang_primary(self) -> None:
        """Stop the primary's process (SIGSTOP) for longer than its lease."""
        await self._hang(self._primary)

    async def hang_follower(self) -> None:
        """Stop a follower's process for longer than it may stay behind."""
        await self._hang(self._followers[0])

    async def restart_each(self) -> None:
        """Stop each member in order and start it again, the primary last, as an upgrade does."""
        for member in (*self._followers, self._primary):
            code = await asyncio.to_thread(self._replicas.running.pop(member).stop)
            assert code == 0, f"the orderly stop of {member} ended with {code}"
            await asyncio.to_thread(self._replicas.start, member)
            await asyncio.to_thread(self._replicas.wait_in_sync, *self._replicas.addresses, under_load=True)

    async def switch(self) -> None:
        """Hand the leadership over."""
        target = {"member": self._followers[0], "within_ms": SWITCH_MS}
        await asyncio.to_thread(self._replicas.call, self._primary, SWITCH_PRIMARY, target)

    # ---- the network ----

    def _host(self, member: str) -> Host:
        return self._hosts.brokers[member]

    async def _heal(self) -> None:
        await self._pass(BROKEN_S)
        self._hosts.heal()

    async def unplug_primary(self) -> None:
        """Pull the primary's cable."""
        self._host(self._primary).unplug()
        await self._heal()

    async def cut_primary_from_followers(self) -> None:
        """Keep the primary from the other brokers; etcd and clients reach it."""
        cut([self._host(self._primary)], map(self._host, self._followers))
        await self._heal()

    async def cut_primary_from_etcd(self) -> None:
        """Keep the primary from etcd; brokers and clients reach it."""
        cut([self._host(self._primary)], self._hosts.etcd_hosts)
        await self._heal()

    async def cut_follower_from_primary(self) -> None:
        """Keep a follower from the primary; etcd and the third member reach it."""
        cut([self._host(self._followers[0])], [self._host(self._primary)])
        await self._heal()

    async def cut_one_way(self) -> None:
        """Drop the packets from a follower to the primary, or those in the other direction."""
        deaf, dumb = self._source.sample([self._primary, self._followers[0]], 2)
        self._host(deaf).drop_from([self._host(dumb)])
        await self._heal()

    # ---- the registry ----

    async def kill_etcd_leader(self) -> None:
        """Kill the leader of etcd."""
        (leader,) = [server for server in self._hosts.etcd if server.leads()]
        await asyncio.to_thread(leader.kill)
        await self._pass(DOWN_S)
        await asyncio.to_thread(leader.start)

    async def hang_etcd_majority(self) -> None:
        """Stop two members of etcd: the registry answers nothing."""
        with ExitStack() as stack:
            for server in self._source.sample(self._hosts.etcd, 2):
                stack.enter_context(server.stopped())
            await self._pass(BROKEN_S)


Fault = Callable[[ReplicaFaults], Awaitable[Any]]

FAULTS: dict[str, Fault] = {
    "primary killed": ReplicaFaults.kill_primary,
    "follower killed": ReplicaFaults.kill_follower,
    "primary killed and emptied": ReplicaFaults.empty_primary,
    "all killed": ReplicaFaults.kill_all,
    "primary hung": ReplicaFaults.hang_primary,
    "follower hung": ReplicaFaults.hang_follower,
    "each restarted in order": ReplicaFaults.restart_each,
    "switched": ReplicaFaults.switch,
    "primary | everything": ReplicaFaults.unplug_primary,
    "primary | followers": ReplicaFaults.cut_primary_from_followers,
    "primary | etcd": ReplicaFaults.cut_primary_from_etcd,
    "follower | primary": ReplicaFaults.cut_follower_from_primary,
    "follower | primary, one way": ReplicaFaults.cut_one_way,
    "etcd's leader killed": ReplicaFaults.kill_etcd_leader,
    "etcd's majority hung": ReplicaFaults.hang_etcd_majority,
}
"""The faults by the names that the table of a run has; ``|`` is a broken network."""
