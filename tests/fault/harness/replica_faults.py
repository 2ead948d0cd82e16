"""Faults of a replica set on hosts of its own: of processes, disks, the network, and the registry."""

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
from .real_disks import LEFT_BYTES
from .replica_hosts import ReplicaHosts, SetOnHosts
from .rounds import EXIT_FATAL

LEASE_S = LEASE_MS / 1000
DOWN_S = (0.0, 2 * LEASE_S)
"""Time for which a killed member stays away."""
BROKEN_S = (0.5, 4 * LEASE_S)
"""Time for which a network is broken: sometimes less than it takes to notice."""
HUNG_S = (1.25 * LEASE_S, 2.5 * LEASE_S)
"""Time for which a process hangs: longer than a lease."""
FLAPS, FLAP_S = 4, (0.2, 1.5 * LEASE_S)
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

    async def _kill(self, *members: str, emptied: bool = False, powerless: bool = False) -> None:
        """Kill members at the same time, and start them again one after the other.

        ``powerless``: as if their power failed, what they have not flushed is gone.
        """
        killed = {member: self._replicas.running.pop(member) for member in members}
        for member, running in killed.items():
            if powerless:
                self._replicas.disks[member].shut_down()
            running.process.kill()
        for member, running in killed.items():
            await asyncio.to_thread(running.wait)
            if emptied:
                await asyncio.to_thread(shutil.rmtree, self._replicas.store(member))
            await self._back(member, mounted=not powerless)

    async def _back(self, member: str, *, mounted: bool = True) -> None:
        await self._pass(DOWN_S)
        if not mounted:
            await asyncio.to_thread(self._replicas.disks[member].mount_again)
        await asyncio.to_thread(self._replicas.start, member)

    async def kill_primary(self) -> None:
        await self._kill(self._primary)

    async def kill_follower(self) -> None:
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

    # ---- disks ----

    async def cut_power_of_primary(self) -> None:
        await self._kill(self._primary, powerless=True)

    async def cut_power_of_all(self) -> None:
        """Cut the power of all members at once."""
        await self._kill(*self._source.sample([self._primary, *self._followers], 3), powerless=True)

    async def _fail_disk(self, member: str) -> None:
        """Let every write and sync of a member fail: it must end by itself."""
        running = self._replicas.running.pop(member)
        self._replicas.disks[member].shut_down()
        code = await asyncio.to_thread(running.wait)
        assert code == EXIT_FATAL, f"the disk of {member} failed, and it ended with {code}"
        await self._back(member, mounted=False)

    async def fail_disk_of_primary(self) -> None:
        """Let the primary's disk fail."""
        await self._fail_disk(self._primary)

    async def fail_disk_of_follower(self) -> None:
        """Let a follower's disk fail."""
        await self._fail_disk(self._followers[0])

    async def _fill(self, member: str) -> None:
        disk = self._replicas.disks[member]
        disk.take(leave_bytes=self._source.choice(LEFT_BYTES))
        await self._pass(BROKEN_S)
        disk.give_back()

    async def fill_primary(self) -> None:
        """Use up the space on the primary's disk for some time."""
        await self._fill(self._primary)

    async def fill_follower(self) -> None:
        """Use up the space on a follower's disk for some time."""
        await self._fill(self._followers[0])

    async def _freeze(self, member: str) -> None:
        with self._replicas.disks[member].frozen():
            await self._pass(HUNG_S)

    async def freeze_primary(self) -> None:
        """Let the primary's disk hang for some time."""
        await self._freeze(self._primary)

    async def freeze_follower(self) -> None:
        """Let a follower's disk hang for longer than it may stay behind."""
        await self._freeze(self._followers[0])

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

    async def flap(self) -> None:
        """Pull the primary's cable again and again, for less than a lease and for more."""
        for _ in range(FLAPS):
            self._host(self._primary).unplug()
            await self._pass(FLAP_S)
            self._hosts.heal()
            await self._pass(FLAP_S)

    # ---- the registry ----

    async def kill_etcd_leader(self) -> None:
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

    # ---- two at once ----

    async def process_and_network(self) -> None:
        """Let a process and the network, or the registry, fail at the same time."""
        processes = (self.kill_primary, self.kill_follower, self.empty_primary, self.hang_primary, self.hang_follower)
        networks = (
            self.unplug_primary,
            self.cut_primary_from_followers,
            self.cut_primary_from_etcd,
            self.cut_follower_from_primary,
            self.kill_etcd_leader,
            self.hang_etcd_majority,
        )
        await asyncio.gather(self._source.choice(processes)(), self._source.choice(networks)())


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
    "primary | everything, again and again": ReplicaFaults.flap,
    "etcd's leader killed": ReplicaFaults.kill_etcd_leader,
    "etcd's majority hung": ReplicaFaults.hang_etcd_majority,
    "process and network at once": ReplicaFaults.process_and_network,
}
"""The faults by the names that the table of a run has; ``|`` is a broken network."""
DISK_FAULTS: dict[str, Fault] = {
    "power of the primary cut": ReplicaFaults.cut_power_of_primary,
    "power of all cut": ReplicaFaults.cut_power_of_all,
    "disk of the primary fails": ReplicaFaults.fail_disk_of_primary,
    "disk of a follower fails": ReplicaFaults.fail_disk_of_follower,
    "disk of the primary hangs": ReplicaFaults.freeze_primary,
    "disk of a follower hangs": ReplicaFaults.freeze_follower,
    "disk of the primary full": ReplicaFaults.fill_primary,
    "disk of a follower full": ReplicaFaults.fill_follower,
}
"""Faults of sets whose members have disks of their own."""
