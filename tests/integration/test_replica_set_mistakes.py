"""Mistakes with a real replica set, and losses of its registry: each has a reason that says what to do."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from flintmq.client import Consumer, Message, Producer
from flintmq.protocol.commands import SWITCH_PRIMARY
from tests.conftest import Brokers, RunningBroker
from tests.etcd_server import EtcdServer
from tests.group_tools import until
from tests.processes import free_port
from tests.replica_set import ReplicaSet

TOPIC = "orders"


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    brokers = Brokers(tmp_path)
    yield brokers
    brokers.stop_all()


@pytest.fixture
def replicas(tmp_path: Path, brokers: Brokers, etcd: EtcdServer) -> ReplicaSet:
    """Return a set with three members in sync, and some messages."""
    replicas = ReplicaSet(tmp_path, brokers, etcd)
    replicas.begin()
    replicas.wait_in_sync("a", "b", "c")
    send(replicas, 0, 10)
    return replicas


def send(replicas: ReplicaSet, first: int, end: int) -> None:
    """Send messages, each with its number as body."""
    with Producer(replicas.bootstrap) as producer:
        for number in range(first, end):
            producer.send(Message(TOPIC, b"%d" % number))


def read(replicas: ReplicaSet) -> list[int]:
    """Return the numbers of all messages, sorted."""
    with Consumer(replicas.bootstrap) as consumer:
        return sorted(int(message.body) for message in consumer.iter(TOPIC, from_="earliest", until="latest"))


def has_line(running: RunningBroker, text: str) -> bool:
    """Return whether the log has the text."""
    return text in running.log


def wait_for_reason(replicas: ReplicaSet, member: str, role: str, text: str) -> None:
    """Wait until a member is in a role with a reason that has this text."""

    def says() -> bool:
        status = replicas.status(member)
        return status["role"] == role and text in status["reason"]

    until(says, text)


def test_a_second_broker_with_the_id_of_a_member_is_refused(
    replicas: ReplicaSet, brokers: Brokers, tmp_path: Path
) -> None:
    doubled = max({"a", "b", "c"} - {replicas.leader()})
    settings = replicas.settings(doubled)
    del settings["server.listen"]
    second = brokers.start("--listen", f"127.0.0.1:{free_port()}", store=tmp_path / "second", settings=settings)
    replicas.running["second"] = second
    wait_for_reason(replicas, "second", "follower", f"{doubled} follows already on another connection")
    until(partial(has_line, second, "give each broker an id of its own"), "the reason in the log")
    del replicas.running["second"]
    send(replicas, 10, 20)
    replicas.wait_in_sync("a", "b", "c")
    assert read(replicas) == list(range(20))


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
    replicas: ReplicaSet, etcd: EtcdServer, loss: str
) -> None:
    """``loss``: the configuration that etcd has in place of the newest one. With the newest one everything is there."""
    stored = StoredConfiguration(etcd, replicas)
    older = stored.read()
    replicas.call(replicas.leader(), SWITCH_PRIMARY, {"member": "b", "within_ms": 5_000})
    until(lambda: replicas.leader() == "b", "the switch")
    replicas.wait_in_sync("a", "b", "c")
    newest = stored.read()
    if loss == "nothing":
        stored.delete()
    else:
        stored.write(older)
    reason = "lost the set's configuration" if loss == "nothing" else "an old copy"
    for member in "abc":
        wait_for_reason(replicas, member, "stopped", reason)
        until(partial(has_line, replicas.running[member], "takes no further part in its replica set"), "the log")
    for member in "abc":
        assert replicas.running.pop(member).stop() == 0
    stored.write(newest)
    for member in "abc":
        replicas.start(member)
    replicas.wait_in_sync("a", "b", "c")
    send(replicas, 10, 20)
    assert read(replicas) == list(range(20))
