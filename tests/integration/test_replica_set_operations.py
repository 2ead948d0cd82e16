"""Steps of an operator with a real replica set: force a member to lead, back up a follower."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from flintmq.broker.store.tables.checkpoint import StoreCheckpoint
from flintmq.broker.tools.offline import ReadOnlyFiles
from flintmq.client import Consumer, Producer
from tests.conftest import Brokers
from tests.group_tools import until
from tests.replica_set import ReplicaSet
from tests.tools_runs import tool

TOPIC = "orders"


def send(replicas: ReplicaSet, first: int, end: int) -> None:
    """Send messages, each with its number as body."""
    with Producer(replicas.bootstrap) as producer:
        producer.send_bulk(TOPIC, [b"%d" % number for number in range(first, end)])


def read(bootstrap: str) -> list[int]:
    """Return the numbers of all messages, sorted."""
    with Consumer(bootstrap) as consumer:
        return sorted(int(message.body) for message in consumer.iter(TOPIC, from_="earliest", until="latest"))


def log_of(store: Path, end: int) -> bytes:
    """Return a store's log up to a physical offset."""
    files = sorted(path for path in (store / "commitlog").iterdir() if path.name.isdigit())
    return b"".join(path.read_bytes() for path in files)[:end]


def wait_for_reason(replicas: ReplicaSet, member: str, text: str) -> None:
    """Wait until a member says why it does not follow."""

    until(lambda: text in replicas.status(member)["reason"], text)


def wait_for_checkpoint(store: Path, offset: int) -> None:
    """Wait until the checkpoint of a store says that its log is on disk and confirmed up to a physical offset."""

    until(lambda: noted_offset(store) >= offset, "the checkpoint")


def noted_offset(store: Path) -> int:
    """Return the physical offset up to which a store's checkpoint says that its log is on disk and confirmed."""
    checkpoint = StoreCheckpoint(ReadOnlyFiles(), store / "checkpoint")
    checkpoint.load()
    return min(checkpoint.mark.flushed_offset, checkpoint.confirmed_offset) if checkpoint.mark is not None else -1


@pytest.mark.parametrize("noted", [False, True], ids=["cut", "stop"])
def test_a_member_is_forced_to_lead_and_the_others_keep_what_it_lacks(replicas: ReplicaSet, noted: bool) -> None:
    """``noted``: the others have on disk that what the forced member lacks was acknowledged."""
    replicas.begin()
    replicas.wait_in_sync("a", "b", "c")
    send(replicas, 0, 10)
    forced_end = replicas.wait_in_sync("a", "b", "c")["end"]
    leader = replicas.leader()
    behind = max({"a", "b", "c"} - {leader})
    others = sorted({"a", "b", "c"} - {behind})
    replicas.kill(behind)
    replicas.wait_in_sync(*others)
    send(replicas, 10, 20)
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
    assert read(replicas.bootstrap) == list(range(10))
    for other in others:
        assert other in keepers or any((replicas.store(other) / "flintmq" / "diverged").iterdir())


def test_a_backup_of_a_running_follower_has_the_log_of_the_primary(replicas: ReplicaSet, tmp_path: Path) -> None:
    replicas.begin()
    replicas.wait_in_sync("a", "b", "c")
    send(replicas, 0, 3_000)
    status = replicas.wait_in_sync("a", "b", "c")
    leader = replicas.leader()
    follower = min({"a", "b", "c"} - {leader})
    wait_for_checkpoint(replicas.store(follower), status["confirmed"])
    made = tool("backup", replicas.store(follower), tmp_path / "backup")
    assert made.code == 0, made.errors
    done = tool("restore", tmp_path / "backup", tmp_path / "restored")
    assert done.code == 0, done.errors
    assert log_of(tmp_path / "restored", status["confirmed"]) == log_of(replicas.store(leader), status["confirmed"])
    brokers = Brokers(tmp_path / "restored-broker")
    (tmp_path / "restored-broker").mkdir()
    alone = brokers.start(store=tmp_path / "restored")
    assert read(alone.address) == list(range(3_000))
    brokers.stop_all()

    # It is no longer a member, so the set does not assume that it has everything, and another set can begin with it.
    assert not list((tmp_path / "restored" / "flintmq").glob("replication*"))
    settings = {"store.path": tmp_path / "restored", "replication.set": "again"}
    begun = replicas.tool("replica", "init", f"a={replicas.addresses['a']}", settings=settings)
    assert "replica set again has 1 members" in begun
