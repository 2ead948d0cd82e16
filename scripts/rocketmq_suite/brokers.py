"""The broker that the suites run against: FlintMQ, or Apache RocketMQ, to tell errors of a suite from FlintMQ's."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flintmq.testing import StartedBroker

from .java import java_command, need_programs

CLUSTER = "DefaultCluster"
BROKER = "broker-a"
START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0
POLL_SECONDS = 0.2
FLINTMQ_SETTINGS = (
    f"server.name={BROKER}",
    f"remoting.cluster={CLUSTER}",
    "store.commitlog_file_bytes=268435456",
    "transactions.timeout_ms=3000",
    "transactions.check_interval_ms=3000",
    "log.level=info",
)
ROCKETMQ_SETTINGS = {
    "brokerClusterName": CLUSTER,
    "brokerName": BROKER,
    "brokerIP1": "127.0.0.1",
    "mappedFileSizeCommitLog": 268435456,
    "enablePropertyFilter": "true",
    "enableCalcFilterBitMap": "true",
    "enableConsumeQueueExt": "true",
    "recallMessageEnable": "true",
    "maxTransferCountOnMessageInMemory": 1024,
    "maxTransferCountOnMessageInDisk": 1024,
    "enableNotifyAfterPopOrderLockRelease": "true",
    "appendAckAsync": "true",
    "appendCkAsync": "true",
    "transactionTimeOut": 3000,
    "transactionCheckInterval": 3000,
}


@dataclass(frozen=True)
class Target:
    """The addresses that RocketMQ's clients need. ``native``: the address of FlintMQ's protocol, or empty; ``pid``:
    process of the broker, or 0."""

    name_server: str
    address: str
    native: str = ""
    pid: int = 0


@contextlib.contextmanager
def flintmq(work: Path, options: Sequence[str] = ()) -> Iterator[Target]:
    """Start a FlintMQ broker with the gateway on a free port; ``options`` are further settings (``name=value``)."""
    address = f"127.0.0.1:{free_port()}"
    settings = [*FLINTMQ_SETTINGS, f"remoting.listen={address}", *options]
    arguments = ["--flush", "async", *(part for setting in settings for part in ("--set", setting))]
    with StartedBroker(work / "store", *arguments) as broker:
        yield Target(address, address, broker.address)


@contextlib.contextmanager
def encrypted_flintmq(work: Path) -> Iterator[Target]:
    """Start a FlintMQ broker that encrypts all connections, with a certificate of its own. Raises ``Unavailable``."""
    need_programs("openssl")
    work.mkdir(parents=True, exist_ok=True)
    certificate, key = work / "certificate.pem", work / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    with flintmq(work, [f"security.tls_certificate={certificate}", f"security.tls_key={key}"]) as target:
        yield target


@contextlib.contextmanager
def rocketmq(
    work: Path, classes: str, settings: Mapping[str, object] = ROCKETMQ_SETTINGS, options: Sequence[str] = ("-Xmx1g",)
) -> Iterator[Target]:
    """Start a name server and a broker of Apache RocketMQ. ``options``: of the Java process."""
    name_server, address = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    store = work / "rocketmq-store"
    settings = {**settings, "namesrvAddr": name_server, "storePathRootDir": store}
    settings |= {"storePathCommitLog": store / "commitlog"}
    settings |= {"listenPort": port_of(address), "haListenPort": free_port()}
    with (
        _started(work, classes, "namesrv.NamesrvStartup", {"listenPort": port_of(name_server)}, options),
        _started(work, classes, "broker.BrokerStartup", settings, options) as broker,
    ):
        wait_listening(name_server)
        wait_listening(address)
        yield Target(name_server, address, pid=broker.pid)


@contextlib.contextmanager
def _started(
    work: Path, classes: str, main: str, settings: Mapping[str, object], options: Sequence[str]
) -> Iterator[subprocess.Popen[str]]:
    properties = work / f"{main}.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    options = [f"-Drocketmq.home.dir={work}", "-Dtls.test.mode.enable=true", *options]
    command = java_command(
        classes, work / f"{main}-home", f"org.apache.rocketmq.{main}", ["-c", str(properties)], options
    )
    with (work / f"{main}.log").open("w") as log, process(command, log) as running:
        yield running


@contextlib.contextmanager
def process(command: Sequence[str], log: object) -> Iterator[subprocess.Popen[str]]:
    """Run a process that writes to the open file ``log``, and end it at the end."""
    running = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, text=True)  # type: ignore[call-overload]  # text files of both kinds
    try:
        yield running
    finally:
        running.terminate()
        try:
            running.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free now, and whose neighbours below are, which RocketMQ derives from it."""
    while True:
        with contextlib.ExitStack() as sockets:
            first = sockets.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            try:
                for below in (1, 2):
                    sockets.enter_context(socket.socket()).bind(("127.0.0.1", port - below))
            except OSError:
                continue
            return port


def wait_listening(address: str) -> None:
    """Wait until a process accepts connections at ``address``. Raises ``TimeoutError``."""
    for _ in until(START_SECONDS_MAX):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port_of(address)), timeout=1):
            return
    raise TimeoutError(f"no process listens on {address} after {START_SECONDS_MAX:.0f} s")


def until(seconds: float) -> Iterator[None]:
    """Yield at once and then in intervals, until this many seconds have passed."""
    pause = threading.Event()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield
        pause.wait(POLL_SECONDS)
