"""Fixtures that several files share: clients and connections of the shared broker, group members, event loops."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from flintmq.client import Admin, Consumer, Producer
from flintmq.protocol.commands import UPDATE_AND_CREATE_TOPIC
from tests.aio_tools import LOOPS, RunInLoop
from tests.cli_tools import Cli
from tests.client_drivers import Clients
from tests.conftest import Brokers, ConnectionFactory, RawConnection, RunningBroker
from tests.etcd_server import EtcdServer, etcd_cluster
from tests.group_tools import Members, RawMember
from tests.remoting_tools import RemotingBroker, RemotingSocket
from tests.replica_set import ReplicaSet


@pytest.fixture
def address(shared_broker: RunningBroker) -> str:
    return shared_broker.address


@pytest.fixture
def cli(tmp_path: Path, shared_broker: RunningBroker) -> Iterator[Cli]:
    """The command line, connected to the shared broker."""
    with Cli(tmp_path, shared_broker.address) as cli:
        yield cli


@pytest.fixture
def peer(shared_broker: RunningBroker, connect: ConnectionFactory) -> RawConnection:
    """Open a connection that has said HELLO."""
    return connect(shared_broker)


@pytest.fixture
def producer(clients: Clients, address: str) -> Iterator[Producer]:
    with clients.Producer(address) as producer:
        yield producer


@pytest.fixture
def consumer(clients: Clients, address: str) -> Iterator[Consumer]:
    with clients.Consumer(address) as consumer:
        yield consumer


@pytest.fixture
def admin(clients: Clients, address: str) -> Iterator[Admin]:
    with clients.Admin(address) as admin:
        yield admin


@pytest.fixture
def group(topic: str) -> str:
    """Return the name of a group that no other test uses."""
    return f"g-{topic}"


@pytest.fixture
def filled(peer: RawConnection, topic: str) -> str:
    """Create a topic of 4 queues with 3 messages in each."""
    peer.call(UPDATE_AND_CREATE_TOPIC, {"topic": topic}).raise_for_error()
    for queue in range(4):
        peer.produce(topic, b"0", b"1", b"2", queue=queue).raise_for_error()
    return topic


@pytest.fixture
def member(shared_broker: RunningBroker, connect: ConnectionFactory, group: str) -> Members:
    """Return a function ``member(name)`` that makes a member with its own connection."""
    return lambda name, **fields: RawMember(connect(shared_broker), group, name, **fields)


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker that a test may pause, because the tests of no other file use it."""
    brokers = Brokers(tmp_path_factory.mktemp("own"))
    yield brokers.start()
    brokers.stop_all()


@pytest.fixture(params=LOOPS)
def run_in_loop(request: pytest.FixtureRequest) -> RunInLoop:
    """Return a function that runs a coroutine in each kind of loop; nothing may be left in the loop or logged
    afterwards.
    """

    def run(main: Coroutine[Any, Any, None]) -> None:
        complaints: list[dict[str, Any]] = []

        async def watched() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
            await main
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
                runner.run(watched())
            gc.collect()
        assert complaints == []

    return run


# ---- RocketMQ's clients ----


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemotingBroker]:
    """Yield one broker with a gateway for the tests of a file, each of which uses topics and groups of its own."""
    brokers = Brokers(tmp_path_factory.mktemp("gateway"))
    yield RemotingBroker(brokers.start)
    brokers.stop_all()


@pytest.fixture
def remote(gateway: RemotingBroker) -> Iterator[RemotingSocket]:
    """Yield a connection to the gateway."""
    with gateway.connect() as remote:
        yield remote


# ---- replica sets ----


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """Yield one etcd for all tests, each of which uses a set that no other file has."""
    with etcd_cluster(tmp_path_factory.mktemp("etcd")) as servers:
        yield servers[0]


@pytest.fixture(scope="module")
def replica_settings() -> dict[str, Any]:
    """Return settings of the file's set."""
    return {}


@pytest.fixture(scope="module")
def _set_of_file(
    tmp_path_factory: pytest.TempPathFactory, etcd: EtcdServer, replica_settings: dict[str, Any]
) -> Iterator[ReplicaSet]:
    folder = tmp_path_factory.mktemp("set")
    brokers = Brokers(folder)
    replicas = ReplicaSet(folder, brokers, etcd, settings=replica_settings)
    replicas.begin()
    yield replicas
    brokers.stop_all()


@pytest.fixture
def replicas(_set_of_file: ReplicaSet) -> ReplicaSet:
    """Return the set of the file, with its three members in sync: those that a test has ended are started again."""
    _set_of_file.restore()
    return _set_of_file


@pytest.fixture
def new_set(tmp_path: Path, etcd: EtcdServer) -> Iterator[Callable[..., ReplicaSet]]:
    """Return what makes a set for one test, which begins it; it takes the further arguments of ``ReplicaSet``."""
    brokers = Brokers(tmp_path)
    yield lambda *members, **more: ReplicaSet(tmp_path, brokers, etcd, *members, **more)
    brokers.stop_all()
