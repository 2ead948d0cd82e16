"""Three brokers and three members of etcd, each on a host of its own, and the replica sets that run on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import Brokers
from tests.etcd_server import EtcdServer, running_cluster
from tests.forked import ForkServer
from tests.replica_set import ReplicaSet

from .mounts import LoopExt4, loop_ext4
from .network import Host, network

MEMBERS = "abc"
BROKER_PORT = 10911
DISK_BYTES = 4 << 30
"""Size of a member's disk, of which only what is written takes space."""


@dataclass(frozen=True)
class ReplicaHosts:
    """The hosts, and what runs on them between two replica sets: the members of etcd, and processes to fork brokers."""

    brokers: dict[str, Host]
    """Host of each broker, by its member's id."""
    etcd_hosts: tuple[Host, ...]
    etcd: tuple[EtcdServer, ...]
    forks: dict[str, ForkServer]

    def heal(self) -> None:
        """Let all hosts reach each other again."""
        for host in (*self.brokers.values(), *self.etcd_hosts):
            host.heal()


class SetOnHosts(ReplicaSet):
    """A replica set with each broker on its host.

    ``folder`` has the stores, unless each member has a disk of its own; its name is the set's.
    """

    def __init__(self, folder: Path, hosts: ReplicaHosts, disks: Mapping[str, LoopExt4] | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self.disks = disks or {}
        self._by_member = {member: Brokers(_made(folder / f"logs-{member}"), hosts.forks[member]) for member in MEMBERS}
        common = {
            "server.insecure": True,
            "metrics.listen": "off",
            "retention.headroom_bytes": 0,  # a full disk must not make retention delete what the ledger has
            "replication.etcd": ",".join(each.url for each in hosts.etcd),
        }
        super().__init__(folder, self._by_member["a"], hosts.etcd[0], MEMBERS, common)
        self.addresses = {member: f"{hosts.brokers[member].address}:{BROKER_PORT}" for member in MEMBERS}

    def store(self, member: str) -> Path:
        """Return the folder of a member's store."""
        return self.disks[member].point / "store" if self.disks else super().store(member)

    def brokers_of(self, member: str) -> Brokers:
        """Return what starts a member on its host."""
        return self._by_member[member]

    def kill_all(self) -> None:
        """Kill every member that runs."""
        for running in self.running.values():
            running.process.kill()
        for running in self.running.values():
            running.wait()
        self.running.clear()

    def stop_all(self) -> None:
        """Stop every member that runs in order; each must exit with 0."""
        for brokers in self._by_member.values():
            brokers.stop_all()
        self.running.clear()


@contextmanager
def member_disks(folder: Path) -> Iterator[dict[str, LoopExt4]]:
    """Mount an ext4 for each member, in ``folder``. Raises ``NotHere``."""
    with ExitStack() as stack:
        disks = {}
        for member in MEMBERS:
            disks[member] = stack.enter_context(loop_ext4(_made(folder / f"disk-{member}"), size_bytes=DISK_BYTES))
        yield disks


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@contextmanager
def replica_hosts(folder: Path) -> Iterator[ReplicaHosts]:
    """Create the hosts, and start etcd. Raises ``NotHere``."""
    numbers = range(len(MEMBERS))
    with ExitStack() as stack:
        hosts = stack.enter_context(network((*MEMBERS, *(f"m{number}" for number in numbers))))
        etcd_hosts = tuple(hosts[f"m{number}"] for number in numbers)
        servers = [EtcdServer(folder, host.name, address=host.address, prefix=host.prefix) for host in etcd_hosts]
        stack.enter_context(running_cluster(servers))
        forks = {member: ForkServer(hosts[member].prefix) for member in MEMBERS}
        for each in forks.values():
            stack.callback(each.close)
        yield ReplicaHosts({member: hosts[member] for member in MEMBERS}, etcd_hosts, tuple(servers), forks)
