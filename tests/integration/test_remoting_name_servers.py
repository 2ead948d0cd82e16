"""A broker registers with real name servers of Apache RocketMQ, and takes that back. Skipped without Java and Maven."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flintmq.protocol.remoting import codes
from tests.conftest import BrokerFactory
from tests.group_tools import until
from tests.integration.rocketmq.harness import class_path
from tests.metrics_tools import Scrape
from tests.processes import free_port
from tests.remoting_tools import RemotingBroker, RemotingSocket

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

NameServers = Callable[[int], subprocess.Popen[bytes]]


@pytest.fixture(scope="module")
def classes() -> str:
    return class_path()


@pytest.fixture
def name_server(classes: str, tmp_path: Path) -> Iterator[NameServers]:
    """Return a function that starts a name server at a port and waits until it listens."""
    started: list[subprocess.Popen[bytes]] = []

    def start(port: int) -> subprocess.Popen[bytes]:
        home = tmp_path / f"name-server-{len(started)}"
        home.mkdir()
        (home / "settings").write_text(f"listenPort={port}\nbindAddress=127.0.0.1\nrocketmqHome={home}\n")
        command = ["java", "-Xmx128m", f"-Duser.home={home}", f"-Drocketmq.home.dir={home}", "-cp", classes]
        command += ["org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(home / "settings")]
        with (home / "output").open("wb") as output:
            started.append(subprocess.Popen(command, cwd=home, stdout=output, stderr=output))
        until(lambda: _listens(port), "the name server")
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), RemotingSocket(("127.0.0.1", port)):
        return True
    return False


def route(port: int, topic: str) -> dict[str, Any] | None:
    """Return a topic's route from a name server; None if it has none."""
    with RemotingSocket(("127.0.0.1", port)) as client:
        answer = client.call(codes.GET_ROUTEINFO_BY_TOPIC, {"topic": topic, "acceptStandardJsonOnly": True})
    if answer.code == codes.TOPIC_NOT_EXIST:
        return None
    assert answer.code == codes.SUCCESS, answer.remark
    found: dict[str, Any] = json.loads(bytes(answer.body))
    return found


def test_a_broker_is_found_by_a_name_server_while_it_runs(broker: BrokerFactory, name_server: NameServers) -> None:
    up, down = free_port(), free_port()
    first = name_server(up)
    gateway = RemotingBroker(broker, {"remoting.name_servers": f"127.0.0.1:{up};127.0.0.1:{down}"})
    host, port = gateway.address
    until(lambda: route(up, "TBW102") is not None)
    found = route(up, "TBW102")
    assert found is not None
    assert found["brokerDatas"][0]["brokerAddrs"] == {"0": f"{host}:{port}"}

    with gateway.connect() as producer:  # a topic made meanwhile has a route at once, not after half a minute
        assert producer.produce("made-later").code == codes.SUCCESS
    until(lambda: route(up, "made-later") is not None)

    first.kill()
    first.wait()
    name_server(up)
    until(lambda: route(up, "made-later") is not None)
    assert gateway.running.log.count("not registered with the name server") == 2, "once for each that was down"
    scrape = Scrape(gateway.running)
    assert scrape("flintmq_remoting_name_servers") == 2
    assert scrape("flintmq_remoting_name_servers_missing") == 1

    gateway.running.stop()
    until(lambda: route(up, "made-later") is None)
