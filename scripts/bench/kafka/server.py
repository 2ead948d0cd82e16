"""Kafka: the jars of its broker and of Spark's connector, a broker process on loopback, and aiokafka before it.

Maven keeps the jars in its own cache; their paths and the programs compiled against them are in the user's cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from lib.replica_servers import free_ports

from ..bench import Bench
from ..environment import clean_environment, install
from ..load import TOPIC
from ..measure import BenchFailed, Skipped

FOLDER = Path(__file__).parent
JDK_MIN = 17
FETCH_SECONDS_MAX = 300.0
COMPILE_SECONDS_MAX = 120.0
ALONE = "not asked for (--alone)"
"""Reason for the missing jars."""

_SOON_DONE = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Options for a Java process that runs only for seconds."""
_BROUGHT_BY_THE_CONNECTOR = "spark-sql-kafka-0-10_2.13,spark-token-provider-kafka-0-10_2.13,kafka-clients,commons-pool2"
"""Jars that Spark's own folder lacks; no other jar may precede Spark's on the class path."""
_BROKER, _CONNECTOR = "broker.class-path", "connector.class-path"


@dataclass(frozen=True, slots=True)
class Jars:
    """Class paths. ``broker``: of Kafka and of the programs here; ``connector``: additions to Spark's class path, empty
    without Spark."""

    broker: str
    connector: str

    @property
    def kafka_version(self) -> str:
        return _version(self.broker, "kafka-server")

    @property
    def connector_version(self) -> str:
        """Version of Spark's connector; the registry may not have the one for the newest Spark."""
        return _version(self.connector, "spark-sql-kafka-0-10_2.13")


def get_jars(spark_version: str | None) -> Jars:
    """Return the jars for Spark ``spark_version`` (None: only Kafka's); they are fetched and compiled once.

    Raises ``Skipped`` if they are unavailable.
    """
    _check_programs()
    sources = [FOLDER / "pom.xml", *sorted(FOLDER.glob("*.java"))]
    content = b"\0".join([(spark_version or "").encode(), *(source.read_bytes() for source in sources)])
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flintmq"
    made = cache / f"kafka-{hashlib.sha256(content).hexdigest()[:16]}"
    wanted = [_BROKER] if spark_version is None else [_BROKER, _CONNECTOR]
    if not _complete(made, wanted):
        shutil.rmtree(made, ignore_errors=True)
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            folder = Path(scratch) / "made"
            folder.mkdir()
            if said := _class_path("broker", folder / _BROKER):
                raise Skipped(f"Maven cannot get Kafka's jars; is there a network? {said}")
            if spark_version is not None:
                _fetch_connector(folder, spark_version)
            _compile(folder, sources[1:])
            folder.rename(made)
    broker, *connector = ((made / name).read_text() for name in wanted)
    return Jars(os.pathsep.join([str(made), broker]), "".join(connector))


def _check_programs() -> None:
    for program, package in (("java", "a JDK"), ("javac", "a JDK"), ("mvn", "Maven")):
        if shutil.which(program) is None:
            raise Skipped(f"`{program}` is not on PATH; install {package} to compare with Kafka")
    said = subprocess.run(["javac", "--version"], capture_output=True, text=True, check=False, timeout=60).stdout
    version = re.match(r"javac (\d+)", said)
    if version is None or int(version[1]) < JDK_MIN:
        raise Skipped(f"the JDK on PATH is older than {JDK_MIN} ({said.strip()}); install a newer one for Kafka")


def _complete(made: Path, wanted: list[str]) -> bool:
    paths = [made / name for name in wanted]
    return all(path.exists() and all(map(os.path.exists, path.read_text().split(os.pathsep))) for path in paths)


def _fetch_connector(folder: Path, spark_version: str) -> None:
    needed = f"-DincludeArtifactIds={_BROUGHT_BY_THE_CONNECTOR}"
    if _class_path("connector", folder / _CONNECTOR, f"-Dspark.version={spark_version}", needed) and (
        said := _class_path("pinned-connector", folder / _CONNECTOR)
    ):
        raise Skipped(f"Maven cannot get Spark's Kafka connector; is there a network? {said}")


def _class_path(profile: str, to: Path, *options: str) -> str:
    """Write a profile's class path to a file; return Maven's output if that fails."""
    command = ["mvn", "-q", "-B", "-f", str(FOLDER / "pom.xml"), "-P", profile, "dependency:build-classpath"]
    command += [f"-Dmdep.outputFile={to}", "-Daether.connector.connectTimeout=10000", *options]
    environment = {"MAVEN_OPTS": " ".join(_SOON_DONE), **os.environ}
    try:
        fetched = subprocess.run(
            command, capture_output=True, text=True, timeout=FETCH_SECONDS_MAX, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        return f"it was not done within {FETCH_SECONDS_MAX:.0f} s"
    if fetched.returncode == 0 and to.exists():
        return ""
    errors = [line.partition("[ERROR] ")[2] for line in fetched.stdout.splitlines() if "[ERROR]" in line]
    return errors[0] if errors else fetched.stderr[-300:] or f"it ended with {fetched.returncode}"


def _compile(folder: Path, sources: list[Path]) -> None:
    command = ["javac", *(f"-J{option}" for option in _SOON_DONE), "-proc:none", "-nowarn", "-encoding", "UTF-8"]
    command += ["-cp", (folder / _BROKER).read_text(), "-d", str(folder), *map(str, sources)]
    compiled = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMPILE_SECONDS_MAX)
    if compiled.returncode:
        raise Skipped(f"the programs that run and fill Kafka do not compile: {compiled.stderr[-500:]}")


def _version(class_path: str, artifact: str) -> str:
    found = re.search(rf"[/\\]{re.escape(artifact)}-(\d[^/\\]*)\.jar", class_path)
    return found[1] if found else "of unknown version"


# ---- A Kafka broker process, with its default heap and settings, and producers for it.

CLIENT_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 20.0

_CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
_BROKER_OPTIONS = """
    -Xms1G -Xmx1G -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:InitiatingHeapOccupancyPercent=35
    -XX:+ExplicitGCInvokesConcurrent
""".split()  # those of Kafka's own start script
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
        port, controller_port = free_ports(2)
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


# ---- aiokafka, in an environment of its own.

REQUIREMENT = "aiokafka==0.14.0"
KAFKA = "_kafka"
"""Suffix of the keys of Kafka's figures."""
RUN_SECONDS_MAX = 180.0

_PROGRAM = Path(__file__).parent / "aio_group.py"


class AioKafka:
    """Kafka's side of a case: a broker for each run, and programs that use it. ``reason``: why there is no Kafka."""

    def __init__(self, bench: Bench, jars: Jars | None, python: Path | None, reason: str) -> None:
        self._bench = bench
        self._jars = jars
        self._python = python
        self._reason = reason

    @contextmanager
    def broker(self, partitions: int) -> Iterator[Kafka | None]:
        """Yield a broker with the topic, or None if Kafka is unavailable."""
        if self._jars is None or self._python is None:
            yield None
            return
        with self._bench.store() as folder, Kafka(self._jars, folder / "kafka", TOPIC, partitions) as kafka:
            # Kafka creates internal topics for its first group, which takes seconds.
            self.run(kafka, "consume", "warm-up", 0, True)
            yield kafka

    def start(self, kafka: Kafka, command: str, *arguments: object) -> subprocess.Popen[str]:
        """Start a program of ``aio_group.py`` with the broker's topic."""
        assert self._python is not None
        return subprocess.Popen(
            [str(self._python), str(_PROGRAM), command, kafka.address, kafka.topic, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            env=clean_environment(),
        )

    def run(self, kafka: Kafka, command: str, *arguments: object) -> Any:
        """Return the output of such a program."""
        return finish(self.start(kafka, command, *arguments))

    def end(self) -> None:
        """Raise ``Skipped`` if Kafka's figures could not be measured. Call it after the last run."""
        if self._reason:
            raise Skipped(f"Kafka's figures: {self._reason}")


def finish(process: subprocess.Popen[str]) -> Any:
    """Return the last output of a program of ``aio_group.py``."""
    try:
        said = process.communicate(timeout=RUN_SECONDS_MAX)[0]
    except BaseException:
        process.kill()
        process.communicate()
        raise
    if process.returncode:
        raise BenchFailed(f"aiokafka's program ended with exit {process.returncode}; its error is above")
    return json.loads(said.splitlines()[-1])


@contextmanager
def aiokafka(bench: Bench) -> Iterator[AioKafka]:
    """Yield Kafka's side. If its jars or aiokafka are unavailable, it has no brokers and a reason."""
    with ExitStack() as stack:
        try:
            if bench.alone:
                raise Skipped(ALONE)
            jars = get_jars(None)
            python = install(stack.enter_context(bench.store()), REQUIREMENT)
        except Skipped as reason:
            yield AioKafka(bench, None, None, str(reason))
            return
        bench.note(f"Kafka {jars.kafka_version} with {REQUIREMENT}, both with their defaults")
        yield AioKafka(bench, jars, python, "")
