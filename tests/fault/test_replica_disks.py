"""A real replica set with disks that hang or damage the log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flintmq.client import Consumer, Message, Producer
from tests.conftest import Brokers
from tests.etcd_server import EtcdServer, etcd_cluster
from tests.fault.harness.strace import HANG, injection
from tests.replica_set import ReplicaSet
from tests.store_tools import overwrite

TOPIC = "orders"


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """Yield one etcd for all sets of this file."""
    with etcd_cluster(tmp_path_factory.mktemp("etcd")) as servers:
        yield servers[0]


@pytest.fixture
def replicas(tmp_path: Path, etcd: EtcdServer) -> Iterator[ReplicaSet]:
    """Yield a set with three members in sync."""
    brokers = Brokers(tmp_path)
    replicas = ReplicaSet(tmp_path, brokers, etcd)
    replicas.begin()
    replicas.wait_in_sync("a", "b", "c")
    yield replicas
    brokers.stop_all()


def send(replicas: ReplicaSet, first: int, end: int) -> None:
    """Send messages, each with its number as body."""
    with Producer(replicas.bootstrap) as producer:
        for number in range(first, end):
            producer.send(Message(TOPIC, b"%d" % number))


def read(replicas: ReplicaSet) -> list[int]:
    """Return the numbers of all messages, sorted."""
    with Consumer(replicas.bootstrap) as consumer:
        return sorted(int(message.body) for message in consumer.iter(TOPIC, from_="earliest", until="latest"))


@pytest.mark.parametrize("whose", ["primary", "follower"])
@pytest.mark.usefixtures("may_trace")
def test_a_set_acknowledges_without_a_member_whose_disk_hangs(replicas: ReplicaSet, tmp_path: Path, whose: str) -> None:
    send(replicas, 0, 10)
    first = replicas.leader()
    hung = first if whose == "primary" else max({"a", "b", "c"} - {first})
    others = sorted({"a", "b", "c"} - {hung})
    running = replicas.running.pop(hung)
    log = running.store / "commitlog" / f"{0:020d}"
    with injection(running.process.pid, tmp_path / "trace", "fdatasync", HANG, path=log):
        send(replicas, 10, 20)
        replicas.wait_in_sync(*others)
    replicas.running[hung] = running
    end = replicas.wait_in_sync("a", "b", "c")["confirmed"]
    assert read(replicas) == list(range(20))
    assert len({replicas.log_of(member, end) for member in "abc"}) == 1


def test_a_follower_whose_log_is_damaged_copies_it_again(replicas: ReplicaSet) -> None:
    send(replicas, 0, 100)
    leader = replicas.leader()
    end = replicas.wait_in_sync("a", "b", "c")["confirmed"]
    damaged = min({"a", "b", "c"} - {leader})
    assert replicas.running.pop(damaged).stop() == 0
    path = replicas.store(damaged) / "commitlog" / f"{0:020d}"
    byte = path.read_bytes()[end // 2]
    overwrite(path, end // 2, bytes([byte ^ 1]))
    send(replicas, 100, 110)
    replicas.start(damaged)
    end = replicas.wait_in_sync("a", "b", "c")["confirmed"]
    assert "this member copies the whole log from the primary again" in replicas.running[damaged].log
    assert len({replicas.log_of(member, end) for member in "abc"}) == 1
    replicas.kill(leader)
    assert read(replicas) == list(range(110))
