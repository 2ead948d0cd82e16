"""A replica set on hosts of its own, network namespaces, under the most important faults.

Skipped, with the machine's error, where there are no namespaces; ``scripts/soak/run --replica-rounds 200`` runs all
faults. ``FLINTMQ_SEED`` selects other moments.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from flintmq.client import Message
from tests.client_drivers import Clients
from tests.fault.harness.mounts import LoopExt4, NotHere
from tests.fault.harness.replica_hosts import MEMBERS, ReplicaHosts, SetOnHosts, member_disks, replica_hosts
from tests.fault.harness.replica_rounds import ReplicaCampaign, ReplicaTally

pytestmark = pytest.mark.long(seconds=135)

SEED = os.environ.get("FLINTMQ_SEED", "20261124")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaHosts]:
    """Create the hosts, with etcd running, for all tests of this file."""
    running = replica_hosts(tmp_path_factory.mktemp("hosts"))
    try:
        hosts = running.__enter__()
    except NotHere as refusal:
        pytest.skip(str(refusal))
    yield hosts
    running.__exit__(None, None, None)


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[dict[str, LoopExt4]]:
    """Mount a disk for each member."""
    with ExitStack() as stack:
        try:
            disks = stack.enter_context(member_disks(tmp_path))
        except NotHere as refusal:
            pytest.skip(str(refusal))
        yield disks


def run(hosts: ReplicaHosts, folder: Path, *faults: str, disks: dict[str, LoopExt4] | None = None) -> None:
    """Run a round with each fault; fail if one of them does."""
    print(f"seed {SEED}")  # noqa: T201 - printed to repeat a failure
    tallies: dict[str, ReplicaTally] = {}
    campaign = ReplicaCampaign(hosts, folder / folder.name, f"{SEED} {faults[0]}", disks)
    asyncio.run(campaign.run(list(faults), tallies, lambda fault: None))
    assert tallies.keys() == set(faults)
    assert all(tally.acknowledged for tally in tallies.values())
    assert campaign.ledger.seen


def test_a_set_keeps_every_promise_while_processes_fail(hosts: ReplicaHosts, tmp_path: Path) -> None:
    run(hosts, tmp_path, "primary killed", "primary hung", "primary killed and emptied")


def test_a_set_keeps_every_promise_while_networks_and_the_registry_fail(hosts: ReplicaHosts, tmp_path: Path) -> None:
    run(hosts, tmp_path, "primary | everything", "primary | followers", "etcd's leader killed")


def test_clients_leave_a_primary_whose_machine_is_gone(hosts: ReplicaHosts, tmp_path: Path, clients: Clients) -> None:
    replicas = SetOnHosts(tmp_path / tmp_path.name, hosts)
    try:
        replicas.begin()
        replicas.wait_in_sync(*MEMBERS)
        primary = hosts.brokers[replicas.leader()]
        with (
            clients.Admin(replicas.bootstrap) as admin,
            clients.Consumer(replicas.bootstrap, timeout=30) as consumer,
            clients.Producer(replicas.bootstrap, delivery_timeout=30) as producer,
        ):
            admin.create_topic("orders", queues=1)
            producer.send(Message("orders", b"before"))
            assert len(consumer.topic_stats("orders")) == 1
            primary.unplug()
            assert len(consumer.topic_stats("orders")) == 1
            producer.send(Message("orders", b"after"))
            bodies = [bytes(each.body) for each in consumer.iter("orders", from_="earliest", until="latest")]
            assert bodies == [b"before", b"after"]
    finally:
        hosts.heal()
        replicas.kill_all()
        replicas.stop_all()


def test_a_set_keeps_every_promise_while_disks_fail(
    hosts: ReplicaHosts, disks: dict[str, LoopExt4], tmp_path: Path
) -> None:
    run(hosts, tmp_path, "power of all cut", "disk of a follower full", disks=disks)
