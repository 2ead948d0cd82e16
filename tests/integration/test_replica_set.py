"""Replica sets of real brokers, with a real etcd."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flintmq.client import Admin, Consumer, FlintError, Message, Producer
from flintmq.protocol.commands import SWITCH_PRIMARY
from flintmq.protocol.errors import ReplicationRefused, TopicNotExist
from tests.cli_tools import Cli
from tests.client_drivers import Clients
from tests.conftest import Brokers, RunningBroker
from tests.etcd_server import EtcdServer, etcd_cluster
from tests.replica_set import ReplicaSet

TOPIC = "orders"


def send(replicas: ReplicaSet, first: int, end: int) -> None:
    """Send messages, each with its number as body and key."""
    with Producer(replicas.bootstrap) as producer:
        for number in range(first, end):
            producer.send(Message(TOPIC, b"%d" % number, keys=f"k{number}"))


def read(replicas: ReplicaSet) -> list[int]:
    """Return the numbers of all messages, in order."""
    with Consumer(replicas.bootstrap) as consumer:
        return sorted(int(bytes(m.body)) for m in consumer.iter(TOPIC, from_="earliest", until="latest"))


def test_if_the_primary_is_killed_another_member_serves_everything(replicas: ReplicaSet) -> None:
    replicas.begin()
    first = replicas.leader()
    send(replicas, 0, 100)
    replicas.kill(first)
    send(replicas, 100, 150)
    assert replicas.leader() != first
    assert read(replicas) == list(range(150))
    with Consumer(replicas.bootstrap) as consumer:
        assert [bytes(m.body) for m in consumer.query(TOPIC, "k42")] == [b"42"]
    replicas.start(first)
    end = replicas.wait_in_sync("a", "b", "c")["confirmed"]
    logs = {replicas.log_of(member, end) for member in "abc"}
    assert len(logs) == 1


def test_the_primary_that_is_stopped_in_order_hands_over(replicas: ReplicaSet) -> None:
    replicas.begin()
    replicas.wait_in_sync("a", "b", "c")
    first = replicas.leader()
    send(replicas, 0, 20)
    assert replicas.running.pop(first).stop() == 0
    send(replicas, 20, 40)
    assert read(replicas) == list(range(40))


def test_a_switch_loses_nothing_and_no_producer_sees_an_error(replicas: ReplicaSet) -> None:
    replicas.begin()
    replicas.wait_in_sync("a", "b", "c")
    first = replicas.leader()
    target = min({"a", "b", "c"} - {first})
    with Producer(replicas.bootstrap) as producer:
        producer.send(Message(TOPIC, b"0"))
        replicas.call(first, SWITCH_PRIMARY, {"member": target, "within_ms": 5_000})
        for number in range(1, 50):
            producer.send(Message(TOPIC, b"%d" % number))
    assert replicas.leader() == target
    assert read(replicas) == list(range(50))
    replicas.wait_in_sync("a", "b", "c")


def test_a_switch_to_a_member_that_does_not_exist_is_refused(replicas: ReplicaSet) -> None:
    replicas.begin()
    leader = replicas.leader()
    with pytest.raises(ReplicationRefused):
        replicas.call(leader, SWITCH_PRIMARY, {"member": "nobody", "within_ms": 1_000})


def test_an_operator_sees_and_changes_the_set(replicas: ReplicaSet, tmp_path: Path) -> None:
    replicas.begin()
    replicas.wait_in_sync("a", "b", "c")
    cli = Cli(tmp_path, replicas.bootstrap)
    first = replicas.leader()
    rows = cli.run("replica", "status", "-o", "json").rows
    assert [(row["member"], row["role"], row["in_sync"]) for row in rows] == [
        (member, "primary" if member == first else "follower", True) for member in "abc"
    ]
    target, third = sorted({"a", "b", "c"} - {first})
    assert f"{target} leads" in cli.run("replica", "switch", target).err
    assert replicas.leader() == target
    refused = cli.run("replica", "remove", target, "--yes")
    assert refused.code != 0
    assert "switch to another member first" in refused.err
    replicas.wait_in_sync("a", "b", "c")
    assert cli.run("replica", "remove", third, "--yes").code == 0
    replicas.kill(third)
    assert replicas.wait_in_sync(first, target)["rows"].keys() == {first, target}
    assert cli.run("replica", "add", third, replicas.addresses[third]).code == 0
    replicas.start(third)
    replicas.wait_in_sync("a", "b", "c")


@pytest.mark.long(seconds=15)
def test_the_demonstration_loses_nothing(etcd: EtcdServer) -> None:
    command = [sys.executable, "-P", "-m", "flintmq.scripts.examples.replica_set", "--kills", "1", "--seconds", "0.5"]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert [line for line in shown.stdout.splitlines() if line.split()[-1] == "0"] == [
        f"{what:<9} 0" for what in ("lost", "doubled", "disorder")
    ]


def test_a_broker_on_its_own_has_no_set(tmp_path: Path, shared_broker: RunningBroker) -> None:
    refused = Cli(tmp_path, shared_broker.address).run("replica", "status")
    assert refused.code != 0
    assert "replication.set" in refused.err


def test_topics_and_offsets_are_on_the_next_primary(replicas: ReplicaSet) -> None:
    replicas.begin()
    replicas.wait_in_sync("a", "b", "c")
    with Admin(replicas.bootstrap) as admin, Consumer(replicas.bootstrap) as consumer:
        admin.create_topic("kept", queues=3)
        admin.create_topic("gone", queues=1)
        admin.delete_topic("gone")
        send(replicas, 0, 10)
        consumer.commit("workers", TOPIC, {0: 1})
    # In order, because a group's offsets are not waited for.
    assert replicas.running.pop(replicas.leader()).stop() == 0
    with Admin(replicas.bootstrap) as admin, Consumer(replicas.bootstrap) as consumer:
        assert set(admin.topics()) >= {"kept", TOPIC}
        assert "gone" not in admin.topics()
        assert consumer.committed("workers", TOPIC) == {0: 1}
        with pytest.raises(TopicNotExist):
            consumer.max_offset("gone", 0)


def test_a_member_with_an_empty_store_copies_everything(replicas: ReplicaSet) -> None:
    replicas.begin()
    replicas.wait_in_sync("a", "b", "c")
    leader = replicas.leader()
    send(replicas, 0, 30)
    lost = max({"a", "b", "c"} - {leader})
    replicas.kill(lost)
    shutil.rmtree(replicas.store(lost))
    send(replicas, 30, 60)
    replicas.start(lost)
    end = replicas.wait_in_sync("a", "b", "c")["confirmed"]
    assert replicas.log_of(lost, end) == replicas.log_of(leader, end)


def test_a_primary_alone_refuses_messages_before_it_writes_them(replicas: ReplicaSet) -> None:
    replicas.begin()
    replicas.wait_in_sync("a", "b", "c")
    leader = replicas.leader()
    send(replicas, 0, 10)
    for other in sorted({"a", "b", "c"} - {leader}):
        replicas.kill(other)
    with Producer(replicas.addresses[leader], delivery_timeout=8.0) as producer, pytest.raises(FlintError):
        producer.send(Message(TOPIC, b"999"))
    for other in sorted({"a", "b", "c"} - {leader}):
        replicas.start(other)
    send(replicas, 10, 20)
    assert set(range(20)) <= set(read(replicas))


def test_a_paused_primary_acknowledges_nothing_after_another_leads(replicas: ReplicaSet) -> None:
    replicas.begin()
    replicas.wait_in_sync("a", "b", "c")
    first = replicas.leader()
    send(replicas, 0, 10)
    paused = replicas.running.pop(first)
    with paused.paused():
        send(replicas, 10, 20)
        assert replicas.leader() != first
    replicas.running[first] = paused
    replicas.wait_in_sync("a", "b", "c")
    assert read(replicas) == list(range(20))


def test_a_producer_leaves_a_primary_that_hangs(replicas: ReplicaSet, clients: Clients) -> None:
    replicas.begin()
    replicas.wait_in_sync("a", "b", "c")
    first = replicas.leader()
    with clients.Producer(replicas.bootstrap) as producer:
        producer.send(Message(TOPIC, b"0"))
        with replicas.running[first].paused():
            for number in range(1, 10):
                producer.send(Message(TOPIC, b"%d" % number))
    assert read(replicas) == list(range(10))


def test_members_wait_for_an_etcd_that_is_not_there_yet(tmp_path: Path) -> None:
    brokers = Brokers(tmp_path)
    with etcd_cluster(tmp_path) as (etcd,):
        replicas = ReplicaSet(tmp_path, brokers, etcd, "ab")
        replicas.begin()
        replicas.wait_in_sync("a", "b")
        send(replicas, 0, 5)
        for member in "ab":
            replicas.running.pop(member).stop()
        etcd.kill()
        for member in "ab":
            replicas.start(member)
        assert {replicas.status(member)["role"] for member in "ab"} == {"follower"}
        etcd.start()
        send(replicas, 5, 10)
        assert read(replicas) == list(range(10))
        brokers.stop_all()


def test_the_store_of_another_member_is_refused(replicas: ReplicaSet) -> None:
    replicas.begin()
    replicas.wait_in_sync("a", "b", "c")
    replicas.kill("b")
    with pytest.raises(AssertionError, match="is the store of member 'b'"):
        replicas.start("b", {"replication.member": "d"})


def test_no_other_set_begins_with_the_store_of_a_member(replicas: ReplicaSet) -> None:
    replicas.begin()
    replicas.wait_in_sync("a", "b", "c")
    send(replicas, 0, 5)
    with pytest.raises(subprocess.CalledProcessError) as raised:
        replicas.tool("replica", "init", "a=127.0.0.1:1", settings={"replication.set": "other"})
    assert "is open in another broker" in raised.value.stderr
    other = min({"a", "b", "c"} - {replicas.leader()})
    assert replicas.running.pop(other).stop() == 0
    with pytest.raises(subprocess.CalledProcessError) as raised:
        replicas.tool("replica", "init", f"{other}=127.0.0.1:1", member=other, settings={"replication.set": "other"})
    assert "belongs to the set" in raised.value.stderr
