"""The pages of the metrics endpoint on members of a replica set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flintmq.client import Message, Producer
from tests.conftest import Brokers
from tests.etcd_server import etcd_cluster
from tests.group_tools import until
from tests.metrics_tools import Scrape, page
from tests.replica_set import ReplicaSet

ROLES = ("follower", "elected", "primary", "stopped")


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[ReplicaSet]:
    """Yield a set of three members, which the test begins."""
    with etcd_cluster(tmp_path) as servers:
        brokers = Brokers(tmp_path)
        yield ReplicaSet(tmp_path, brokers, servers[0])
        brokers.stop_all()


def wait_for_readiness(replicas: ReplicaSet, member: str, status: int, text: str) -> None:
    """Wait until ``/readyz`` of a member has a status and a text that begins like this."""

    def is_so() -> bool:
        found = page(replicas.running[member], "/readyz")
        return found[0] == status and found[1].startswith(text)

    until(is_so, f"/readyz of {member} with {status} {text!r}")


def test_each_member_says_its_role_and_whether_it_could_take_over(replicas: ReplicaSet) -> None:
    replicas.begin()
    replicas.wait_in_sync("a", "b", "c")
    wait_for_readiness(replicas, "a", 200, "ready: primary\n")
    for member in "bc":
        wait_for_readiness(replicas, member, 200, "ready: follower in sync\n")
    with Producer(replicas.bootstrap) as producer:
        for _ in range(20):
            producer.send(Message("orders", b"x" * 100))
    replicas.wait_in_sync("a", "b", "c")

    primary, follower = Scrape(replicas.running["a"]), Scrape(replicas.running["b"])
    for scrape, role in ((primary, "primary"), (follower, "follower")):
        assert [scrape("flintmq_replica_role", role=each) for each in ROLES] == [each == role for each in ROLES]
        assert scrape("flintmq_replica_epoch") == 1
        assert scrape("flintmq_replica_members") == scrape("flintmq_replica_in_sync_members") == 3
        assert scrape("flintmq_replica_min_in_sync_members") == 2
        assert scrape("flintmq_writable") == (role == "primary")
    for member in "bc":
        assert primary("flintmq_replica_lag_bytes", member=member) == 0
        assert primary("flintmq_replica_lag_seconds", member=member) == 0
    assert primary("flintmq_replica_unconfirmed_bytes") == 0
    assert not follower.families["flintmq_replica_lag_bytes"].samples

    replicas.kill("c")
    replicas.wait_in_sync("a", "b")
    left = Scrape(replicas.running["a"])
    assert left("flintmq_replica_in_sync_members") == 2
    assert left("flintmq_replica_lag_seconds", member="c") == -1
    replicas.kill("a")
    replicas.kill("b")
    replicas.start("c")
    wait_for_readiness(replicas, "c", 503, "follower: it has no connection to the primary a")


def test_a_primary_that_reaches_too_few_members_is_not_ready(replicas: ReplicaSet) -> None:
    replicas.begin()
    replicas.wait_in_sync("a", "b", "c")
    replicas.kill("b")
    replicas.kill("c")
    wait_for_readiness(replicas, "a", 503, "the primary a of replica set")
