"""A Kafka broker process on loopback, with its default heap and settings, and producers for it."""

from __future__ import annotations

import re
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType

from ..measure import BenchFailed
from .jars import FOLDER, Jars

CLIENT_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 20.0

_CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
_BROKER_OPTIONS = (
    # The options of Kafka's own start script.
    "-Xms1G",
    "-Xmx1G",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)
_QUIET_CLIENT = ("-Dorg.apache.logging.log4j.level=WARN", "-Xmx512m")
_STARTS_MAX = 3
_POLL_SECONDS = 0.02
_PORT_IS_TAKEN = re.compile(r"BindException|Address already in use")


class Kafka:
    """A context manager that starts Kafka and creates ``topic`` with ``partitions``; then it listens on ``address``.

    ``settings``: more settings of the broker. Its files go to ``folder``. The process ends when its standard input
    closes, so it also ends if this one is killed.
    """

    def __init__(
        self, jars: Jars, folder: Path, topic: str, partitions: int, settings: Mapping[str, object] | None = None
    ) -> None:
        self.address = ""
        self.topic = topic
        self._jars = jars
        self._folder = folder
        self._partitions = partitions
        self._settings = settings or {}
        self._output = folder / "output"

    def __enter__(self) -> Kafka:
        for attempt in range(1, _STARTS_MAX + 1):
            self._start()
            try:
                self._create_topic()
                return self
            except BenchFailed as failure:
                self._stop()
                output = self._output.read_text(errors="replace")
                # Another process may take a free port before Kafka does.
                if attempt == _STARTS_MAX or not _PORT_IS_TAKEN.search(output):
                    raise BenchFailed(f"Kafka did not start: {failure}\nIt said:\n{output[-2000:]}") from None
            except BaseException:  # on Ctrl-C or a timeout of the case, leave no broker running
                self._stop()
                raise
        raise AssertionError("the last attempt returns or raises")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()

    @property
    def pid(self) -> int:
        """Process id of the broker."""
        return self._process.pid

    def fill(self, bodies: Iterable[bytes], count: int, body_bytes: int) -> None:
        """Send ``count`` messages with acknowledgement: ``bodies`` are blocks of bodies, keys are numbered."""
        with self._start_client("fill", count, body_bytes) as client:
            assert client.stdin is not None
            try:
                for block in bodies:
                    client.stdin.write(block)
            except BrokenPipeError:
                pass  # it failed; its output has the reason
            self._finish(client)

    def pace(self, count: int, body_bytes: int, per_second: int) -> subprocess.Popen[bytes]:
        """Start a process that sends ``count`` messages at ``per_second``; a body begins with the time in µs."""
        return self._start_client("pace", count, body_bytes, per_second)

    def _start(self) -> None:
        port, controller_port = _free_ports(2)
        self.address = f"127.0.0.1:{port}"
        log = self._folder / f"log-{port}"
        log.mkdir(parents=True)
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller_port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": log,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            **self._settings,
        }
        path = self._folder / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        options = [*_BROKER_OPTIONS, f"-Dlog4j2.configurationFile={FOLDER / 'log4j2.properties'}"]
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                ["java", *options, "-cp", self._jars.broker, "KafkaBroker", str(path), _CLUSTER],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # only the bench receives Ctrl-C; it then stops Kafka
            )

    def _stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _create_topic(self) -> None:
        """Wait until the broker has the topic; the client ends after its own timeout, or with the broker."""
        with self._start_client("create", self._partitions) as client:
            while client.poll() is None:
                if self._process.poll() is not None:
                    client.kill()
                    raise BenchFailed(f"it ended with {self._process.returncode}")
                time.sleep(_POLL_SECONDS)
            self._finish(client)

    def _start_client(self, command: str, *arguments: object) -> subprocess.Popen[bytes]:
        program = ["KafkaLoad", self.address, command, self.topic, *map(str, arguments)]
        return subprocess.Popen(
            ["java", *_QUIET_CLIENT, "-cp", self._jars.broker, *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def _finish(self, client: subprocess.Popen[bytes]) -> None:
        """Wait until a client has finished; raise ``BenchFailed`` with its output if it fails."""
        try:
            said = client.communicate(timeout=CLIENT_SECONDS_MAX)[0]
        except BaseException:
            client.kill()
            raise
        if client.returncode:
            raise BenchFailed(f"Kafka's client ended with {client.returncode}: {said.decode(errors='replace')[-2000:]}")


def _free_ports(count: int) -> list[int]:
    """Return free ports of loopback."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [sock.getsockname()[1] for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()
