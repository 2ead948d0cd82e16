"""Apache RocketMQ's Proxy before a FlintMQ broker serves the gRPC clients of RocketMQ 5."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import BrokerFactory
from tests.integration.rocketmq.harness import class_path
from tests.integration.rocketmq_proxy.proxy import FOLDER, SHORT_CASES, Row, prepare, run_cases, running_proxy
from tests.pop_tools import pull
from tests.remoting_tools import RemotingBroker

SETTINGS = {
    "server.name": "broker-a",
    "remoting.cluster": "DefaultCluster",
    "transactions.timeout_ms": 2_000,
    "transactions.check_interval_ms": 2_000,
}


@pytest.mark.long(seconds=90)
def test_the_grpc_client_works_through_the_proxy(broker: BrokerFactory, tmp_path: Path) -> None:
    classes = class_path(FOLDER)
    gateway = RemotingBroker(broker, SETTINGS)
    host, port = gateway.address
    with gateway.connect() as remote:
        prepare(remote)
    with running_proxy(classes, tmp_path / "proxy", f"{host}:{port}", "DefaultCluster") as proxy:
        rows = run_cases(classes, tmp_path / "client", proxy, SHORT_CASES)
    assert rows == [Row(case, True, "") for case in SHORT_CASES]
    with gateway.connect() as remote:
        (dead,) = pull(remote, "%DLQ%g-dead")
        assert dead.body == b"dead"
