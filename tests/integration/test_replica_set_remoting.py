"""RocketMQ's clients and a replica set: only the primary serves them, and the others say so."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flintmq.protocol.remoting import codes
from tests.conftest import Brokers
from tests.etcd_server import EtcdServer
from tests.group_tools import until
from tests.processes import free_port
from tests.remoting_tools import RemotingSocket
from tests.replica_set import ReplicaSet


class RemotingSet(ReplicaSet):
    """A set whose members serve RocketMQ's clients, too."""

    def __init__(self, folder: Path, brokers: Brokers, etcd: EtcdServer) -> None:
        super().__init__(folder, brokers, etcd)
        self.ports = {member: free_port() for member in self.addresses}
        """Ports for RocketMQ's clients, by member."""

    def settings(self, member: str) -> dict[str, Any]:
        """Return the settings of a member."""
        listen = f"127.0.0.1:{self.ports[member]}"
        return {**super().settings(member), "remoting.listen": listen, "remoting.vip_channel": False}

    def connect(self, member: str) -> RemotingSocket:
        """Connect to a member as a RocketMQ client."""
        return RemotingSocket(("127.0.0.1", self.ports[member]))


@pytest.fixture(scope="module")
def set_of_file(tmp_path_factory: pytest.TempPathFactory, etcd: EtcdServer) -> Iterator[RemotingSet]:
    folder = tmp_path_factory.mktemp("set")
    brokers = Brokers(folder)
    replicas = RemotingSet(folder, brokers, etcd)
    replicas.begin()
    yield replicas
    brokers.stop_all()


@pytest.fixture
def replicas(set_of_file: RemotingSet) -> RemotingSet:
    """Return the set of the file, with its three members in sync."""
    set_of_file.restore()
    return set_of_file


def test_a_follower_refuses_requests_and_sends_askers_of_routes_to_the_next_name_server(
    replicas: RemotingSet, topic: str
) -> None:
    leader = replicas.leader()
    follower = replicas.others(leader)[0]
    with replicas.connect(leader) as client:
        assert client.produce(topic).code == codes.SUCCESS
        route = client.call(codes.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        assert f"127.0.0.1:{replicas.ports[leader]}" in bytes(route.body).decode()
    with replicas.connect(follower) as client:
        for answer in (client.produce(topic), client.call(codes.GET_MAX_OFFSET, {"topic": topic, "queueId": 0})):
            assert answer.code == codes.SERVICE_NOT_AVAILABLE
            assert replicas.addresses[leader] in answer.remark
        route = client.call(codes.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        assert route.code == codes.SERVICE_NOT_AVAILABLE
        assert client.is_closed()  # its client asks the next name server of its list


def test_after_a_switch_the_new_primary_serves_what_the_old_one_stored(replicas: RemotingSet, topic: str) -> None:
    first = replicas.leader()
    target = replicas.others(first)[0]
    with replicas.connect(first) as client:
        assert client.produce(topic, b"before").code == codes.SUCCESS
    replicas.switch(target)
    with replicas.connect(target) as client:
        assert [record.body for record in client.pull(topic)] == [b"before"]
        assert client.produce(topic, b"after").code == codes.SUCCESS

    def refused() -> bool:
        with replicas.connect(first) as client:
            return client.produce(topic).code == codes.SERVICE_NOT_AVAILABLE

    until(refused, "the refusal of the old primary, which opens its store again")


def test_what_was_recalled_at_one_primary_does_not_come_from_the_next(replicas: RemotingSet, topic: str) -> None:
    first = replicas.leader()
    deliver_ms = int(time.time() * 1000) + 6_000
    with replicas.connect(first) as client:
        for body in (b"kept", b"recalled"):
            answer = client.produce(topic, body, {"TIMER_DELIVER_MS": str(deliver_ms)})
            assert answer.code == codes.SUCCESS, answer.remark
        handle = answer.fields["recallHandle"]
        recall = client.call(codes.RECALL_MESSAGE, {"topic": topic, "recallHandle": handle})
        assert recall.code == codes.SUCCESS, recall.remark
    replicas.kill(first)
    with replicas.connect(replicas.leader()) as client:
        client.produce(topic, b"last", {"TIMER_DELIVER_MS": str(deliver_ms + 1_000)})
        bodies: list[bytes] = []
        while b"last" not in bodies:
            bodies += [record.body for record in client.pull(topic, offset=len(bodies), wait_ms=20_000)]
    assert bodies == [b"kept", b"last"]
