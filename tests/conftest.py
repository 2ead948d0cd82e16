"""Fixtures: a real broker process, and a plain socket that speaks frames to it."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
import msgpack
import pytest
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from flintmq.protocol.commands import GET_BROKER_RUNTIME_INFO, HELLO, PRODUCE, PULL, Command
from flintmq.protocol.errors import PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY, SUCCESS, error_from_answer
from flintmq.protocol.frames import ONE_WAY, REQUEST, RESPONSE, Frame, FrameParser, encode_frame
from flintmq.testing import SMALL_FILES
from flintmq.testing.started_broker import DAEMON, LISTENING, broker_environment, serve_arguments
from tests.client_drivers import SYNC, Clients
from tests.client_drivers import aio_clients as clients_of_aio
from tests.forked import FORKS, ForkedProcess, ForkServer
from tests.object_server import ObjectServer, running_object_server
from tests.processes import (  # noqa: F401 - hooks
    free_port,
    pytest_collection_finish,
    pytest_collection_modifyitems,
    pytest_deselected,
    pytest_sessionfinish,
    pytest_terminal_summary,
    pytest_testnodedown,
    pytest_xdist_make_scheduler,
    suspend,
)

pytest_plugins = ["pytester"]  # runs pytest with the plug-in of flintmq.testing

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # If the tests run in the background, as by `nohup`, SIGINT is ignored and inherited: no tested process could be
    # interrupted.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The duration of an example depends on the machine. The test command tries the same examples each time, and those that
# tests name; scripts/fuzz tries new ones, twice as many. Neither reads or writes a database of examples.
hypothesis.settings.register_profile(
    "unhurried", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], database=None
)
hypothesis.settings.register_profile(
    "same", hypothesis.settings.get_profile("unhurried"), derandomize=True, max_examples=50
)
hypothesis.settings.register_profile("new", hypothesis.settings.get_profile("unhurried"), print_blob=True)
IS_FUZZING = "FLINTMQ_FUZZ" in os.environ  # set by scripts/fuzz
hypothesis.settings.load_profile("new" if IS_FUZZING else "same")
if not IS_FUZZING:
    # Hypothesis also tries constants of loaded modules, which depend on the tests that ran before.
    _NO_CONSTANTS = Constants()
    providers._get_local_constants = lambda: _NO_CONSTANTS

START_TIMEOUT_S = 100.0
PORT_TRIES = 3
STOP_TIMEOUT_S = 120.0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-transcripts", action="store_true", help="write tests/transcripts/*.txt anew")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Name the failed tests once more, in the last lines of a log whose reports may be long."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if not isinstance(reporter, pytest.TerminalReporter):
        return
    for kind in ("failed", "error"):
        for report in reporter.stats.get(kind, ()):
            reporter.write_line(f"{kind}: {report.nodeid}")


@dataclass
class RunningBroker:
    """A ``flintmq-broker serve`` process that has printed its address."""

    process: subprocess.Popen[str] | ForkedProcess
    store: Path
    host: str
    port: int
    output: list[str]
    """Lines of its standard output so far; the banner's is the last."""
    log_path: Path
    tls: ssl.SSLContext | None = None
    """TLS context for ``connect``; None: no TLS."""

    @property
    def address(self) -> str:
        """Return HOST:PORT, as clients expect it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def log(self) -> str:
        """Return its standard error so far."""
        return self.log_path.read_text()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, wait, and return the exit code."""
        self.process.send_signal(number)
        return self.wait()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Keep the process from running in the ``with`` block."""
        suspend(self.process.pid)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Send SIGKILL, as in a crash."""
        self.process.kill()
        self.wait()

    def wait(self) -> int:
        """Wait for the process to end; return the exit code."""
        return self.process.wait(STOP_TIMEOUT_S)


BrokerFactory = Callable[..., RunningBroker]


class Brokers:
    """Starts brokers, and stops all of them at the end. ``forks``: the fork server that starts them."""

    def __init__(self, folder: Path, forks: ForkServer = FORKS) -> None:
        self._folder = folder
        self._forks = forks
        self._started: list[RunningBroker] = []

    def start(
        self,
        *options: str,
        store: Path | None = None,
        settings: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None,
        program: Sequence[str] | None = None,
    ) -> RunningBroker:
        """Start a broker with small files on a free port, and wait for it. Without ``store`` each has its own.

        ``settings``: values by their names, or constants of the broker as ``MODULE:NAME`` (``set_constants``).
        ``program``: Python arguments in place of the daemon itself, for a daemon with a fault in it.

        The broker is forked from a process that has loaded the daemon (``tests/forked.py``); with an ``environment`` or
        a ``program`` it is started as users start it, which takes a second more.
        """
        for _ in range(PORT_TRIES - 1):
            try:
                return self._start(*options, store=store, settings=settings, environment=environment, program=program)
            except AssertionError as refusal:  # another test run took the port after it was found free
                if "--listen" in options or "cannot listen there" not in str(refusal):
                    raise
        return self._start(*options, store=store, settings=settings, environment=environment, program=program)

    def _start(
        self,
        *options: str,
        store: Path | None,
        settings: dict[str, Any] | None,
        environment: dict[str, str] | None,
        program: Sequence[str] | None,
    ) -> RunningBroker:
        number = len(self._started)
        store = store or self._folder / f"store-{number}"
        log_path = self._folder / f"broker-{number}.log"
        listen = f"127.0.0.1:{free_port()}"
        arguments = serve_arguments(store, listen, *options, settings={**SMALL_FILES, **(settings or {})})
        process: subprocess.Popen[str] | ForkedProcess
        with log_path.open("w") as log:
            if program is None and environment is None:
                process = self._forks.start(arguments, log.fileno())
            else:
                process = subprocess.Popen(
                    [sys.executable, *(program or DAEMON), *arguments],
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env=broker_environment(**(environment or {})),
                )
        running = _wait_for_port(process, store, log_path)
        self._started.append(running)
        return running

    def stop_all(self) -> None:
        """Stop the brokers that still run; each must exit with 0."""
        codes = []
        for running in self._started:
            if running.process.poll() is None:
                codes.append(running.stop())
            if running.process.stdout is not None:
                running.process.stdout.close()
        assert codes == [0] * len(codes), "\n".join(running.log for running in self._started)


@pytest.fixture(scope="session", autouse=True)
def forks() -> Iterator[None]:
    """Close the fork server, if there is one."""
    yield
    FORKS.close()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerFactory]:
    """Return ``broker(*options, store=None, settings=None, environment=None)``, which starts a broker: see
    ``Brokers.start``."""
    brokers = Brokers(tmp_path)
    yield brokers.start
    brokers.stop_all()


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """Start one broker for all tests that change nothing in it except messages in their own topic (``topic``)."""
    brokers = Brokers(tmp_path_factory.mktemp("shared"))
    yield brokers.start(program=DAEMON)
    brokers.stop_all()


_topic_numbers = itertools.count()


@pytest.fixture
def topic() -> str:
    """Return the name of a topic that no other test uses."""
    return f"topic-{next(_topic_numbers)}"


def _wait_for_port(process: subprocess.Popen[str] | ForkedProcess, store: Path, log_path: Path) -> RunningBroker:
    assert process.stdout is not None
    watchdog = threading.Timer(START_TIMEOUT_S, process.kill)
    watchdog.start()
    output: list[str] = []
    try:
        for line in process.stdout:
            output.append(line.rstrip("\n"))
            if match := LISTENING.search(line):
                host, _, port = match[1].rpartition(":")
                return RunningBroker(process, store, host.strip("[]"), int(port), output, log_path)
    finally:
        watchdog.cancel()
    process.wait()
    process.stdout.close()
    raise AssertionError(f"the broker did not start (exit {process.returncode}): {output}\n{log_path.read_text()}")


@pytest.fixture(scope="session")
def object_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    """Start one S3 server for all tests; each makes its own bucket."""
    with running_object_server(tmp_path_factory.mktemp("objects")) as server:
        yield server


# ---- frames over a plain socket ----


@dataclass
class Answer:
    """A response: its result, fields and body."""

    request_id: int
    code: int
    fields: dict[str, Any]
    body: bytes

    def raise_for_error(self) -> Answer:
        """Return this response; raise if it is an error."""
        if self.code not in (SUCCESS, PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY):
            raise error_from_answer(self.code, self.fields)
        return self


@dataclass
class RawConnection:
    """A socket to a broker that exposes everything: bytes, frames, and responses in their order of arrival."""

    sock: socket.socket
    parser: FrameParser = field(default_factory=FrameParser)
    ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    told: list[Answer] = field(default_factory=list)
    """Requests that the broker sent; the command is in ``code``."""

    def send_bytes(self, blob: bytes) -> None:
        """Send bytes unchanged."""
        self.sock.sendall(blob)

    def send(
        self, command: Command | int, fields: dict[str, Any] | None = None, body: bytes = b"", kind: int = REQUEST
    ) -> int:
        """Send one frame; return its request id."""
        request_id = next(self.ids)
        code = command if isinstance(command, int) else command.code
        self.send_bytes(encode_frame(kind, code, request_id, fields or {}, body))
        return request_id

    def send_one_way(self, command: Command | int, fields: dict[str, Any] | None = None, body: bytes = b"") -> None:
        """Send one frame that gets no response."""
        self.send(command, fields, body, kind=ONE_WAY)

    def receive(self) -> Answer:
        """Return the next response. Raises ``EOFError`` if the broker closed the connection instead."""
        while (frame := self._next_frame()).kind != RESPONSE:
            self.told.append(_answer(frame))
        return _answer(frame)

    def wait_until_told(self) -> Answer:
        """Return the broker's next request, or one that it sent meanwhile."""
        if not self.told:
            frame = self._next_frame()
            assert frame.kind != RESPONSE
            self.told.append(_answer(frame))
        return self.told.pop(0)

    def _next_frame(self) -> Frame:
        while (frame := self.parser.next_frame()) is None:
            if not (count := self.sock.recv_into(self.parser.writable())):
                raise EOFError("the broker closed the connection")
            self.parser.received(count)
        return frame

    def receive_for(self, request_id: int) -> Answer:
        """Return the next response, which must be that of ``request_id``. Raises the error of a connection that the
        broker turns away."""
        answer = self.receive()
        if not answer.request_id:
            answer.raise_for_error()
        assert answer.request_id == request_id, f"the answer to request {request_id} expected, got {answer}"
        return answer

    def call(self, command: Command | int, fields: dict[str, Any] | None = None, body: bytes = b"") -> Answer:
        """Send one frame and return its response, even if it is an error."""
        return self.receive_for(self.send(command, fields, body))

    def produce(self, topic: str, *messages: bytes, **fields: Any) -> Answer:
        """Produce bodies in the rows layout."""
        body = rows(*([message, {}] for message in messages))
        return self.call(PRODUCE, {"topic": topic, "count": len(messages), **fields}, body)

    def pull(self, topic: str, queue: int = 0, offset: int = 0, **fields: Any) -> Answer:
        """Pull from a queue."""
        return self.call(PULL, {"topic": topic, "queue": queue, "offset": offset, **fields})

    def runtime_info(self) -> dict[str, Any]:
        """Return how the broker is."""
        info: dict[str, Any] = msgpack.unpackb(self.call(GET_BROKER_RUNTIME_INFO).raise_for_error().body)
        return info

    def is_closed(self) -> bool:
        """Wait until the broker sends nothing more; return whether it closed the connection."""
        try:
            return not self.sock.recv(1)
        except ConnectionResetError:
            return True

    def close(self) -> None:
        """Close the socket."""
        self.sock.close()


def rows(*messages: object) -> bytes:
    """Return the body of a PRODUCE frame in the rows layout; a row may be one that no client would send."""
    return b"".join(msgpack.packb(message) for message in messages)


def _answer(frame: Frame) -> Answer:
    return Answer(frame.request_id, frame.code, frame.fields, bytes(frame.body))


ConnectionFactory = Callable[..., RawConnection]


@pytest.fixture
def connect() -> Iterator[ConnectionFactory]:
    """Return ``connect(broker, hello=True)``, which opens a connection and says HELLO unless told otherwise."""
    opened: list[RawConnection] = []

    def open_connection(running: RunningBroker, hello: bool = True, timeout: float = 120.0) -> RawConnection:
        sock = socket.create_connection((running.host, running.port), timeout=timeout)
        if running.tls is not None:
            sock = running.tls.wrap_socket(sock, server_hostname=running.host)
        connection = RawConnection(sock)
        opened.append(connection)
        if hello:
            connection.call(HELLO, {"protocol": 1, "client": "test"}).raise_for_error()
        return connection

    yield open_connection
    for connection in opened:
        connection.close()


# ---- clients ----


@pytest.fixture(scope="module")
def aio_clients() -> Iterator[Clients]:
    """Yield the asyncio clients under the sync names; see ``tests/client_drivers.py``."""
    with clients_of_aio() as clients:
        yield clients


@pytest.fixture(params=["sync", "aio"])
def clients(request: pytest.FixtureRequest) -> Clients:
    """Yield the clients of each driver in turn: ``clients.Producer``, ``clients.Consumer``, ``clients.Admin``."""
    if request.param == "sync":
        return SYNC
    found: Clients = request.getfixturevalue("aio_clients")
    return found
