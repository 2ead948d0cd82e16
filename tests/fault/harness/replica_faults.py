"""Faults of a replica set on hosts of its own: of processes, of the network, and of the registry."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from tests.replica_set import LEASE_MS

from .replica_hosts import ReplicaHosts, SetOnHosts

LEASE_S = LEASE_MS / 1000
DOWN_S = (0.0, 2 * LEASE_S)
"""Time for which a killed member stays away."""
BROKEN_S = (0.5, 4 * LEASE_S)
"""Time for which a network is broken: sometimes less than it takes to notice."""
HUNG_S = (1.25 * LEASE_S, 2.5 * LEASE_S)
"""Time for which a primary is stopped: longer than its lease."""


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

    async def _killed(self, member: str) -> None:
        await asyncio.to_thread(self._replicas.kill, member)
        await self._pass(DOWN_S)
        await asyncio.to_thread(self._replicas.start, member)

    async def kill_primary(self) -> None:
        """Kill the primary, and start it again."""
        await self._killed(self._primary)

    async def isolate_primary(self) -> None:
        """Pull the primary's cable for some time."""
        self._hosts.brokers[self._primary].unplug()
        await self._heal_after(BROKEN_S)

    async def _heal_after(self, seconds: tuple[float, float]) -> None:
        await self._pass(seconds)
        self._hosts.heal()


Fault = Callable[[ReplicaFaults], Awaitable[Any]]

FAULTS: dict[str, Fault] = {
    "primary killed": ReplicaFaults.kill_primary,
    "primary | everything": ReplicaFaults.isolate_primary,
}
"""The faults by the names that the table of a run has; ``|`` is a broken network."""
