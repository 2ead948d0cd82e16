"""Real etcd servers for tests, on loopback with ports chosen free, or on hosts of a test's network; each process is
ended by its id."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.processes import free_port, suspend
from tests.tls_tools import Certificate

ROOT = Path(__file__).parents[1]
INSTALLED = ROOT / ".venv" / "etcd" / "usr" / "bin" / "etcd"
"""Where scripts/lib/etcd.sh unpacks Debian's package."""
START_S = 120.0


def etcd_program() -> str:
    """Return the path of etcd, or skip the test. ``FLINTMQ_ETCD`` names another one than that of the set-up."""
    found = os.environ.get("FLINTMQ_ETCD") or (str(INSTALLED) if INSTALLED.exists() else shutil.which("etcd"))
    if not found:
        pytest.skip("needs etcd: run scripts/test, install Debian's etcd-server, or set FLINTMQ_ETCD to its path")
    return found


class EtcdServer:
    """One etcd process and its data. ``prefix``: words before its command, which start it on the host ``address``."""

    def __init__(
        self,
        folder: Path,
        name: str,
        tls: tuple[Certificate, str] | None = None,
        address: str = "127.0.0.1",
        prefix: Sequence[str] = (),
    ) -> None:
        self.name, self._folder, self._tls = name, folder / name, tls
        self._address, self._prefix = address, prefix
        self._client_port, self._peer_port = (port := free_port()), port + 1
        self.peer = f"{name}=http://{address}:{self._peer_port}"
        self.url = f"{'https' if tls else 'http'}://{address}:{self._client_port}"
        self._process: subprocess.Popen[bytes] | None = None
        self._cluster = self.peer

    def launch(self, cluster: str | None = None) -> None:
        """Start the process, without waiting for it. ``cluster``: the peers, at the first start."""
        self._cluster = cluster or self._cluster
        self._folder.mkdir(exist_ok=True)
        peer_url = self.peer.split("=")[1]
        options = {
            "name": self.name,
            "data-dir": self._folder / "data",
            "listen-client-urls": self.url,
            "advertise-client-urls": self.url,
            "listen-peer-urls": peer_url,
            "initial-advertise-peer-urls": peer_url,
            "initial-cluster": self._cluster,
            "log-level": "warn",
        }
        if self._tls is not None:
            certificate, ca = self._tls
            options |= {"cert-file": certificate.certificate, "key-file": certificate.key, "trusted-ca-file": ca}
        command = [*self._prefix, etcd_program(), *(f"--{name}={value}" for name, value in options.items())]
        if self._tls is not None:
            command.append("--client-cert-auth")
        with (self._folder / "log").open("ab") as log:
            environment = {"PATH": os.environ["PATH"], "GOMAXPROCS": "1"}
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def start(self) -> None:
        """Start the process again and wait until it serves."""
        self.launch()
        self.wait()

    def wait(self) -> None:
        """Wait until the server answers a linearizable read, or asks for a login or certificate."""
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            if self._serves():
                return
            time.sleep(0.05)
        raise AssertionError(f"etcd did not start:\n{(self._folder / 'log').read_text()[-3000:]}")

    def _serves(self) -> bool:
        try:
            if self._tls is not None:  # these tests need no more of it than its listener
                socket.create_connection((self._address, self._client_port), 1).close()
                return True
            self.post("/v3/kv/range", {"key": "AA=="}, expected=(200, 400, 401, 403))
        except (OSError, AssertionError, http.client.HTTPException):
            return False
        return True

    def post(self, path: str, body: dict[str, Any], token: str = "", expected: tuple[int, ...] = (200,)) -> Any:
        """Return the decoded body of the response to a POST."""
        connection = http.client.HTTPConnection(self._address, self._client_port, timeout=3)
        try:
            headers = {"Authorization": token} if token else {}
            connection.request("POST", path, json.dumps(body), headers)
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        assert response.status in expected, (response.status, content)
        return json.loads(content)

    def leads(self) -> bool:
        """Return whether this member is the leader of its cluster."""
        status = self.post("/v3/maintenance/status", {})
        return bool(status["leader"] == status["header"]["member_id"])

    def signal(self, number: int) -> None:
        """Send the process a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the process (SIGSTOP) for as long as the context lasts."""
        assert self._process is not None
        suspend(self._process.pid)
        try:
            yield
        finally:
            self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process with SIGKILL, if it runs, and wait for its end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def etcd_cluster(
    folder: Path, count: int = 1, tls: tuple[Certificate, str] | None = None
) -> Iterator[list[EtcdServer]]:
    """Run ``count`` members of one etcd cluster. ``tls``: certificate of the servers, and the CA of clients."""
    etcd_program()
    with running_cluster([EtcdServer(folder, f"m{number}", tls) for number in range(count)]) as servers:
        yield servers


@contextmanager
def running_cluster(servers: list[EtcdServer]) -> Iterator[list[EtcdServer]]:
    """Run these members as one new cluster."""
    try:
        for server in servers:
            server.launch(",".join(each.peer for each in servers))
        for server in servers:
            server.wait()
        yield servers
    finally:
        for server in servers:
            server.kill()
