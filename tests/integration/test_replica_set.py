"""A replica set of real brokers, with a real etcd: failover, operators, mistakes, lost configurations, monitoring."""

from __future__ import annotations

import base64
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flintmq.broker.store.tables.checkpoint import StoreCheckpoint
from flintmq.broker.tools.offline import ReadOnlyFiles
from flintmq.client import Admin, Consumer, FlintError, Message, Producer
from flintmq.protocol.commands import SWITCH_PRIMARY
from flintmq.protocol.errors import ReplicationRefused, TopicNotExist
from tests.cli_tools import Cli
from tests.client_drivers import Clients
from tests.conftest import Brokers, RunningBroker
from tests.etcd_server import EtcdServer, etcd_cluster
from tests.group_tools import until
from tests.metrics_tools import Scrape, page
from tests.processes import free_port
from tests.replica_set import ReplicaSet
from tests.tools_runs import tool

ROLES = ("follower", "elected", "primary", "stopped")


# ---- failover


def test_if_the_primary_is_killed_another_member_serves_everything(replicas: ReplicaSet, topic: str) -> None:
    first = replicas.leader()
    replicas.send(topic, 0, 100)
    replicas.kill(first)
    replicas.send(topic, 100, 150)
    assert replicas.leader() != first
    assert replicas.read(topic) == list(range(150))
    with Consumer(replicas.bootstrap) as consumer:
        assert [bytes(m.body) for m in consumer.query(topic, "k42")] == [b"42"]
    replicas.start(first)
    end = replicas.wait_in_sync("a", "b", "c")["confirmed"]
    logs = {replicas.log_of(member, end) for member in "abc"}
    assert len(logs) == 1


def test_the_primary_that_is_stopped_in_order_hands_over(replicas: ReplicaSet, topic: str) -> None:
    replicas.send(topic, 0, 20)
    assert replicas.running.pop(replicas.leader()).stop() == 0
    replicas.send(topic, 20, 40)
    assert replicas.read(topic) == list(range(40))


def test_a_switch_loses_nothing_and_no_producer_sees_an_error(replicas: ReplicaSet, topic: str) -> None:
    first = replicas.leader()
    target = replicas.others(first)[0]
    with Producer(replicas.bootstrap) as producer:
        producer.send(Message(topic, b"0"))
        replicas.call(first, SWITCH_PRIMARY, {"member": target, "within_ms": 5_000})
        for number in range(1, 50):
            producer.send(Message(topic, b"%d" % number))
    assert replicas.leader() == target
    assert replicas.read(topic) == list(range(50))
    replicas.wait_in_sync("a", "b", "c")


def test_topics_and_offsets_are_on_the_next_primary(replicas: ReplicaSet, topic: str) -> None:
    kept, gone = f"{topic}-kept", f"{topic}-gone"
    with Admin(replicas.bootstrap) as admin, Consumer(replicas.bootstrap) as consumer:
        admin.create_topic(kept, queues=3)
        admin.create_topic(gone, queues=1)
        admin.delete_topic(gone)
        replicas.send(topic, 0, 10)
        consumer.commit("workers", topic, {0: 1})
    # In order, because a group's offsets are not waited for.
    assert replicas.running.pop(replicas.leader()).stop() == 0
    with Admin(replicas.bootstrap) as admin, Consumer(replicas.bootstrap) as consumer:
        assert set(admin.topics()) >= {kept, topic}
        assert gone not in admin.topics()
        assert consumer.committed("workers", topic) == {0: 1}
        with pytest.raises(TopicNotExist):
            consumer.max_offset(gone, 0)


def test_a_member_with_an_empty_store_copies_everything(replicas: ReplicaSet, topic: str) -> None:
    leader = replicas.leader()
    replicas.send(topic, 0, 30)
    lost = replicas.others(leader)[-1]
    replicas.kill(lost)
    shutil.rmtree(replicas.store(lost))
    replicas.send(topic, 30, 60)
    replicas.start(lost)
    end = replicas.wait_in_sync("a", "b", "c")["confirmed"]
    assert replicas.log_of(lost, end) == replicas.log_of(leader, end)


def test_a_primary_alone_refuses_messages_before_it_writes_them(replicas: ReplicaSet, topic: str) -> None:
    leader = replicas.leader()
    replicas.send(topic, 0, 10)
    for other in replicas.others(leader):
        replicas.kill(other)
    wait_for_readiness(replicas, leader, 503, f"the primary {leader} of replica set")
    with Producer(replicas.addresses[leader], delivery_timeout=8.0) as producer, pytest.raises(FlintError):
        producer.send(Message(topic, b"999"))
    for other in replicas.others(leader):
        replicas.start(other)
    replicas.send(topic, 10, 20)
    assert set(range(20)) <= set(replicas.read(topic))


def test_a_paused_primary_acknowledges_nothing_after_another_leads(replicas: ReplicaSet, topic: str) -> None:
    first = replicas.leader()
    replicas.send(topic, 0, 10)
    paused = replicas.running.pop(first)
    with paused.paused():
        replicas.send(topic, 10, 20)
        assert replicas.leader() != first
    replicas.running[first] = paused
    replicas.wait_in_sync("a", "b", "c")
    assert replicas.read(topic) == list(range(20))


def test_a_producer_leaves_a_primary_that_hangs(replicas: ReplicaSet, topic: str, clients: Clients) -> None:
    with clients.Producer(replicas.bootstrap) as producer:
        producer.send(Message(topic, b"0"))
        with replicas.running[replicas.leader()].paused():
            for number in range(1, 10):
                producer.send(Message(topic, b"%d" % number))
    assert replicas.read(topic) == list(range(10))


def test_members_wait_for_an_etcd_that_is_not_there_yet(tmp_path: Path) -> None:
    brokers = Brokers(tmp_path)
    with etcd_cluster(tmp_path) as (etcd,):
        replicas = ReplicaSet(tmp_path, brokers, etcd, "ab")
        replicas.begin()
        replicas.wait_in_sync("a", "b")
        replicas.send("orders", 0, 5)
        for member in "ab":
            replicas.running.pop(member).stop()
        etcd.kill()
        for member in "ab":
            replicas.start(member)
        assert {replicas.status(member)["role"] for member in "ab"} == {"follower"}
        etcd.start()
        replicas.send("orders", 5, 10)
        assert replicas.read("orders") == list(range(10))
        brokers.stop_all()


@pytest.mark.long(seconds=15)
def test_the_demonstration_loses_nothing(etcd: EtcdServer) -> None:
    command = [sys.executable, "-P", "-m", "flintmq.scripts.examples.replica_set", "--kills", "1", "--seconds", "0.5"]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert [line for line in shown.stdout.splitlines() if line.split()[-1] == "0"] == [
        f"{what:<9} 0" for what in ("lost", "doubled", "disorder")
    ]


# ---- operators


def test_an_operator_sees_and_changes_the_set(replicas: ReplicaSet, tmp_path: Path) -> None:
    cli = Cli(tmp_path, replicas.bootstrap)
    first = replicas.leader()
    rows = cli.run("replica", "status", "-o", "json").rows
    assert [(row["member"], row["role"], row["in_sync"]) for row in rows] == [
        (member, "primary" if member == first else "follower", True) for member in "abc"
    ]
    target, third = replicas.others(first)
    with pytest.raises(ReplicationRefused):
        replicas.call(first, SWITCH_PRIMARY, {"member": "nobody", "within_ms": 1_000})
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


def test_a_broker_on_its_own_has_no_set(tmp_path: Path, shared_broker: RunningBroker) -> None:
    refused = Cli(tmp_path, shared_broker.address).run("replica", "status")
    assert refused.code != 0
    assert "replication.set" in refused.err


def wait_for_checkpoint(store: Path, offset: int) -> None:
    """Wait until the checkpoint of a store says that its log is on disk and confirmed up to a physical offset."""
    until(lambda: noted_offset(store) >= offset, "the checkpoint")


def noted_offset(store: Path) -> int:
    """Return the physical offset up to which a store's checkpoint says that its log is on disk and confirmed."""
    checkpoint = StoreCheckpoint(ReadOnlyFiles(), store / "checkpoint")
    checkpoint.load()
    return min(checkpoint.mark.flushed_offset, checkpoint.confirmed_offset) if checkpoint.mark is not None else -1


@pytest.mark.parametrize("noted", [False, True], ids=["cut", "stop"])
def test_a_member_is_forced_to_lead_and_the_others_keep_what_it_lacks(
    new_set: Callable[..., ReplicaSet], noted: bool
) -> None:
    """``noted``: the others have on disk that what the forced member lacks was acknowledged."""
    replicas = new_set()
    replicas.begin()
    replicas.wait_in_sync("a", "b", "c")
    replicas.send("orders", 0, 10)
    forced_end = replicas.wait_in_sync("a", "b", "c")["end"]
    behind = replicas.others(replicas.leader())[-1]
    others = replicas.others(behind)
    replicas.kill(behind)
    replicas.wait_in_sync(*others)
    replicas.send("orders", 10, 20)
    if noted:
        end = replicas.wait_in_sync(*others)["end"]
        for other in others:
            wait_for_checkpoint(replicas.store(other), end)
    for other in others:
        replicas.kill(other)
    # On a slow machine a checkpoint may be written between the messages and the kill.
    keepers = {other for other in others if noted_offset(replicas.store(other)) > forced_end}
    assert keepers == set(others) or not noted

    def forced(*options: str) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.CompletedProcess([], 0, replicas.tool("replica", "force", *options, member=behind), "")
        except subprocess.CalledProcessError as error:
            return subprocess.CompletedProcess([], error.returncode, error.stdout, error.stderr)

    asked = forced()
    assert asked.returncode != 0
    assert "every acknowledged message that it lacks is lost" in asked.stdout
    assert all(other in asked.stdout for other in others)
    until(lambda: forced("--yes").returncode == 0, "the end of the lease")
    for member in "abc":
        replicas.start(member)
    for other in keepers:
        wait_for_reason(replicas, other, "keep this store")
        replicas.kill(other)
        replicas.store(other).rename(replicas.folder / f"{other}-kept")
        replicas.start(other)
    replicas.wait_in_sync("a", "b", "c")
    assert replicas.read("orders") == list(range(10))
    for other in others:
        assert other in keepers or any((replicas.store(other) / "flintmq" / "diverged").iterdir())


def test_a_backup_of_a_running_follower_has_the_log_of_the_primary(
    replicas: ReplicaSet, topic: str, tmp_path: Path
) -> None:
    with Producer(replicas.bootstrap) as producer:
        producer.send_bulk(topic, [b"%d" % number for number in range(3_000)])
    status = replicas.wait_in_sync("a", "b", "c")
    leader = replicas.leader()
    follower = replicas.others(leader)[0]
    wait_for_checkpoint(replicas.store(follower), status["confirmed"])
    made = tool("backup", replicas.store(follower), tmp_path / "backup")
    assert made.code == 0, made.errors
    done = tool("restore", tmp_path / "backup", tmp_path / "restored")
    assert done.code == 0, done.errors
    files = sorted(path for path in (tmp_path / "restored" / "commitlog").iterdir() if path.name.isdigit())
    restored = b"".join(path.read_bytes() for path in files)[: status["confirmed"]]
    assert restored == replicas.log_of(leader, status["confirmed"])
    brokers = Brokers(tmp_path / "restored-broker")
    (tmp_path / "restored-broker").mkdir()
    alone = brokers.start(store=tmp_path / "restored")
    with Consumer(alone.address) as consumer:
        assert len(list(consumer.iter(topic, from_="earliest", until="latest"))) == 3_000
    brokers.stop_all()

    # It is no longer a member, so the set does not assume that it has everything, and another set can begin with it.
    assert not list((tmp_path / "restored" / "flintmq").glob("replication*"))
    settings = {"store.path": tmp_path / "restored", "replication.set": "again"}
    begun = replicas.tool("replica", "init", f"a={replicas.addresses['a']}", settings=settings)
    assert "replica set again has 1 members" in begun


# ---- mistakes, and losses of the registry: each has a reason that says what to do


def test_the_store_of_another_member_is_refused(replicas: ReplicaSet) -> None:
    replicas.kill("b")
    with pytest.raises(AssertionError, match="is the store of member 'b'"):
        replicas.start("b", {"replication.member": "d"})


def test_no_other_set_begins_with_the_store_of_a_member(replicas: ReplicaSet) -> None:
    with pytest.raises(subprocess.CalledProcessError) as raised:
        replicas.tool("replica", "init", "a=127.0.0.1:1", settings={"replication.set": "other"})
    assert "is open in another broker" in raised.value.stderr
    other = replicas.others(replicas.leader())[0]
    assert replicas.running.pop(other).stop() == 0
    with pytest.raises(subprocess.CalledProcessError) as raised:
        replicas.tool("replica", "init", f"{other}=127.0.0.1:1", member=other, settings={"replication.set": "other"})
    assert "belongs to the set" in raised.value.stderr


def wait_for_reason(replicas: ReplicaSet, member: str, text: str, role: str = "") -> None:
    """Wait until a member is in a role, if one is given, with a reason that has this text."""

    def says() -> bool:
        status = replicas.status(member)
        return (not role or status["role"] == role) and text in status["reason"]

    until(says, text)


def wait_for_line(running: RunningBroker, text: str) -> None:
    until(lambda: text in running.log, f"{text!r} in the log")


def test_a_second_broker_with_the_id_of_a_member_is_refused(replicas: ReplicaSet, topic: str, tmp_path: Path) -> None:
    replicas.send(topic, 0, 10)
    doubled = replicas.others(replicas.leader())[-1]
    settings = replicas.settings(doubled)
    del settings["server.listen"]
    brokers = Brokers(tmp_path)
    second = brokers.start("--listen", f"127.0.0.1:{free_port()}", store=tmp_path / "second", settings=settings)
    replicas.running["second"] = second
    try:
        wait_for_reason(replicas, "second", f"{doubled} follows already on another connection", "follower")
        wait_for_line(second, "give each broker an id of its own")
    finally:
        del replicas.running["second"]
    replicas.send(topic, 10, 20)
    replicas.wait_in_sync("a", "b", "c")
    assert replicas.read(topic) == list(range(20))
    brokers.stop_all()


class StoredConfiguration:
    """The configuration of a set as etcd has it."""

    def __init__(self, etcd: EtcdServer, replicas: ReplicaSet) -> None:
        key = f"/flintmq/flintmq/{replicas.settings('a')['replication.set']}/config"
        self._etcd, self._key = etcd, base64.b64encode(key.encode()).decode()

    def read(self) -> str:
        """Return the value, in base64."""
        (found,) = self._etcd.post("/v3/kv/range", {"key": self._key})["kvs"]
        return str(found["value"])

    def write(self, value: str) -> None:
        """Replace the value."""
        self._etcd.post("/v3/kv/put", {"key": self._key, "value": value})

    def delete(self) -> None:
        """Delete the key."""
        self._etcd.post("/v3/kv/deleterange", {"key": self._key})


@pytest.mark.parametrize("loss", ["nothing", "an older one"])
def test_no_member_leads_by_a_registry_that_lost_the_configuration(
    replicas: ReplicaSet, topic: str, etcd: EtcdServer, loss: str
) -> None:
    """``loss``: the configuration that etcd has in place of the newest one. With the newest one everything is there."""
    stored = StoredConfiguration(etcd, replicas)
    replicas.send(topic, 0, 10)
    older = stored.read()
    replicas.switch(replicas.others(replicas.leader())[0])
    replicas.wait_in_sync("a", "b", "c")
    newest = stored.read()
    if loss == "nothing":
        stored.delete()
    else:
        stored.write(older)
    reason = "lost the set's configuration" if loss == "nothing" else "an old copy"
    for member in "abc":
        wait_for_reason(replicas, member, reason, "stopped")
        wait_for_line(replicas.running[member], "takes no further part in its replica set")
    for member in "abc":
        assert replicas.running.pop(member).stop() == 0
    stored.write(newest)
    for member in "abc":
        replicas.start(member)
    replicas.wait_in_sync("a", "b", "c")
    replicas.send(topic, 10, 20)
    assert replicas.read(topic) == list(range(20))


# ---- the pages of the metrics endpoint


def wait_for_readiness(replicas: ReplicaSet, member: str, status: int, text: str) -> None:
    """Wait until ``/readyz`` of a member has a status and a text that begins like this."""

    def is_so() -> bool:
        found = page(replicas.running[member], "/readyz")
        return found[0] == status and found[1].startswith(text)

    until(is_so, f"/readyz of {member} with {status} {text!r}")


def test_each_member_says_its_role_and_whether_it_could_take_over(replicas: ReplicaSet, topic: str) -> None:
    leader = replicas.leader()
    first, second = replicas.others(leader)
    wait_for_readiness(replicas, leader, 200, "ready: primary\n")
    for member in (first, second):
        wait_for_readiness(replicas, member, 200, "ready: follower in sync\n")
    replicas.send(topic, 0, 20)
    epoch = replicas.wait_in_sync("a", "b", "c")["epoch"]

    primary, follower = Scrape(replicas.running[leader]), Scrape(replicas.running[first])
    for scrape, role in ((primary, "primary"), (follower, "follower")):
        assert [scrape("flintmq_replica_role", role=each) for each in ROLES] == [each == role for each in ROLES]
        assert scrape("flintmq_replica_epoch") == epoch
        assert scrape("flintmq_replica_members") == scrape("flintmq_replica_in_sync_members") == 3
        assert scrape("flintmq_replica_min_in_sync_members") == 2
        assert scrape("flintmq_writable") == (role == "primary")
    for member in (first, second):
        assert primary("flintmq_replica_lag_bytes", member=member) == 0
        assert primary("flintmq_replica_lag_seconds", member=member) == 0
    assert primary("flintmq_replica_unconfirmed_bytes") == 0
    assert not follower.families["flintmq_replica_lag_bytes"].samples

    replicas.kill(second)
    replicas.wait_in_sync(leader, first)
    left = Scrape(replicas.running[leader])
    assert left("flintmq_replica_in_sync_members") == 2
    assert left("flintmq_replica_lag_seconds", member=second) == -1
    replicas.kill(leader)
    replicas.kill(first)
    replicas.start(second)
    wait_for_readiness(replicas, second, 503, f"follower: it has no connection to the primary {leader}")
