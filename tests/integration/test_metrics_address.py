"""Address of the metrics port: the default, a chosen one, one that is taken, and one beyond loopback."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from flintmq.broker.metrics.endpoint import listen_for_metrics
from tests.conftest import BrokerFactory, ConnectionFactory
from tests.integration.test_daemon import assert_refused, serve
from tests.metrics_tools import TIMEOUT_S, ask, metrics_port, page


def test_the_metrics_port_follows_the_brokers(broker: BrokerFactory) -> None:
    for _ in range(20):
        with socket.socket() as probe, socket.socket() as next_one:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
            try:
                next_one.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
        running = broker("--listen", f"127.0.0.1:{port}")
        assert metrics_port(running) == port + 1
        return
    pytest.fail("no two free ports were found")


def test_a_port_that_is_taken_is_given_way_to(broker: BrokerFactory) -> None:
    for _ in range(20):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1] - 1
            try:
                socket.create_server(("127.0.0.1", port)).close()
            except OSError:
                continue
            running = broker("--listen", f"127.0.0.1:{port}")
            assert metrics_port(running) != port + 1
            assert page(running, "/readyz") == (200, "ready\n")
            return
    pytest.fail("no two free ports were found")


def test_a_chosen_port_is_used(broker: BrokerFactory) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    running = broker(settings={"metrics.listen": f"127.0.0.1:{port}"})
    assert metrics_port(running) == port


def test_a_chosen_port_that_is_taken_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        store = tmp_path / "store"
        result = serve("--store", str(store), "--listen", "127.0.0.1:0", "--set", f"metrics.listen={listen}")
        assert_refused(result, 2, "metrics.listen", listen, "another process")
        assert not store.exists()


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"])
def test_metrics_beyond_loopback_are_refused_without_insecure(tmp_path: Path, listen: str) -> None:
    store = tmp_path / "store"
    result = serve("--store", str(store), "--listen", "127.0.0.1:0", "--set", f"metrics.listen={listen}")
    assert_refused(result, 2, "metrics.listen", "--insecure")
    assert not store.exists()


@pytest.mark.parametrize("options", [{"server.insecure": True}, {"metrics.insecure": True}])
def test_insecure_shows_metrics_beyond_loopback(broker: BrokerFactory, options: dict[str, bool]) -> None:
    running = broker(settings={"metrics.listen": "0.0.0.0:0", **options})
    (line,) = [line for line in running.output if line.startswith("metrics: ")]
    port = int(line.rpartition(":")[2].partition("/")[0])
    assert ask(port, "/healthz")[0].status == 200


def test_off_opens_no_port(broker: BrokerFactory, connect: ConnectionFactory) -> None:
    running = broker(settings={"metrics.listen": "off"})
    assert "metrics: off" in running.output
    connection = connect(running)
    assert connection.runtime_info()["metrics_address"] == ""
    inodes = {path.readlink().name for path in Path(f"/proc/{running.process.pid}/fd").iterdir()}
    listening = [
        line.split()
        for line in Path(f"/proc/{running.process.pid}/net/tcp").read_text().splitlines()[1:]
        if line.split()[3] == "0A"
    ]
    assert sum(f"socket:[{row[9]}]" in inodes for row in listening) == 1


def test_systemd_hears_of_the_start_and_the_stop(broker: BrokerFactory, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(TIMEOUT_S)
        manager.bind(str(tmp_path / "notify"))
        running = broker(environment={"NOTIFY_SOCKET": str(tmp_path / "notify")})
        said = b""
        while b"READY=1" not in said:
            said = manager.recv(4096)
        assert f"STATUS=listening on 127.0.0.1:{running.port}".encode() in said
        assert running.stop() == 0
        assert b"STOPPING=1" in manager.recv(4096)


def test_a_metrics_port_in_use_is_reported_with_the_setting_that_fixes_it(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        sockets = listen_for_metrics("", port - 1)
        try:
            assert sockets[0].getsockname()[1] != port
        finally:
            for each in sockets:
                each.close()
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert f"127.0.0.1:{port}" in record.getMessage()
    assert "set metrics.listen to fix it" in record.getMessage()
