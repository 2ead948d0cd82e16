"""Both sides of the test: processes with RocketMQ's classes, writer processes of FlintMQ, and what each reads."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flintmq.broker.store import KeySearch, MessageStore, PullSelection
from flintmq.client.core.compression import decompress
from flintmq.protocol.storage.layout import SysFlag
from flintmq.protocol.storage.record import decode_record
from tests.integration.rocketmq.writer import SETTINGS, shown_host

FOLDER = Path(__file__).parent
JDK_MIN = 11
FETCH_TIMEOUT_S = 240.0
COMMAND_TIMEOUT_S = 120.0
SOON_DONE = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Options of a Java process that lives for seconds."""
JAVA_OPTIONS = (*SOON_DONE, "-Xms64m", "-Xmx512m", "-Dfile.encoding=UTF-8")
ROCKETMQ_SETTINGS = {
    "mappedFileSizeCommitLog": SETTINGS.commitlog_file_bytes,
    "mappedFileSizeConsumeQueue": SETTINGS.consumequeue_file_bytes,
    "maxHashSlotNum": SETTINGS.index_slots,
    "maxIndexNum": SETTINGS.index_entries,
    "maxMsgsNumBatch": 100_000,
    "flushDiskType": "SYNC_FLUSH",
    "haListenPort": 0,
}
"""RocketMQ's names for the writer's settings, and no port that could be taken."""

Message = dict[str, Any]
"""The fields of ``writer.Written``, from whichever side."""
Key = tuple[str, str]
"""A topic and a key."""


def class_path(folder: Path = FOLDER, release: str = "") -> str:
    """Return the class path of RocketMQ's jars and the compiled drivers, or skip the test if they are not available.

    ``folder``: has the drivers, and the ``pom.xml`` that names the jars; ``release``: of RocketMQ, in place of its own.

    Maven keeps the jars in its own cache; the user's cache keeps the class path and the drivers.
    """
    for program, package in (("java", "a JDK"), ("javac", "a JDK"), ("mvn", "Maven")):
        if shutil.which(program) is None:
            pytest.skip(f"`{program}` is not on PATH; install {package} to see whether RocketMQ accepts the store")
    said = subprocess.run(["javac", "--version"], capture_output=True, text=True, check=False).stdout
    version = re.match(r"javac (\d+)", said)
    if version is None or int(version[1]) < JDK_MIN:
        pytest.skip(f"the JDK on PATH is older than {JDK_MIN} ({said.strip() or 'javac does not know --version'})")
    pom = folder / "pom.xml"
    sources = [pom, *sorted(folder.glob("*.java"))]
    parts = [*(source.read_bytes() for source in sources), *([release.encode()] if release else [])]
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flintmq"
    made = cache / f"rocketmq-{digest}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{made.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the test command runs two processes
        if not all(Path(jar).exists() for jar in _jars(made).split(os.pathsep)):
            shutil.rmtree(made, ignore_errors=True)
            with tempfile.TemporaryDirectory(dir=cache) as scratch:
                making = Path(scratch) / "made"
                making.mkdir()
                _fetch_jars(making, pom, release)
                _compile(making, sources[1:])
                making.rename(made)
    return f"{_jars(made)}{os.pathsep}{made}"


def _jars(folder: Path) -> str:
    path = folder / "class-path"
    return path.read_text().strip() if path.exists() else "missing"


def _fetch_jars(folder: Path, pom: Path, release: str) -> None:
    command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:build-classpath"]
    command += [f"-Dmdep.outputFile={folder / 'class-path'}", "-Daether.connector.connectTimeout=10000"]
    command += [f"-Drocketmq.version={release}"] if release else []
    environment = {"MAVEN_OPTS": " ".join(SOON_DONE), **os.environ}
    try:
        fetched = subprocess.run(
            command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"Maven did not get RocketMQ's jars within {FETCH_TIMEOUT_S:.0f} s; is there a network?")
    if fetched.returncode or _jars(folder) == "missing":
        said = [line for line in fetched.stdout.splitlines() if "[ERROR]" in line]
        reason = said[0].partition("[ERROR] ")[2] if said else fetched.stderr[-300:]
        pytest.skip(f"Maven cannot get RocketMQ's jars; is there a network? {reason}")


def _compile(folder: Path, sources: list[Path]) -> None:
    command = ["javac", *(f"-J{option}" for option in SOON_DONE), "-proc:none", "-nowarn", "-encoding", "UTF-8"]
    command += ["-cp", _jars(folder), "-d", str(folder), *map(str, sources)]
    compiled = subprocess.run(command, capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr


class RocketMQRefused(Exception):
    """RocketMQ did not open the store; the error has its own words."""


class JavaDriver:
    """A process with RocketMQ's classes that serves commands. ``driver``: its class; ``arguments`` go to it.

    ``properties``: further system properties, as ``NAME=VALUE``.
    """

    def __init__(self, classes: str, home: Path, driver: str, *arguments: str, properties: Iterable[str] = ()) -> None:
        home.mkdir(exist_ok=True)
        self.home = home
        options = [
            *JAVA_OPTIONS,
            *(f"-D{each}" for each in properties),
            f"-Duser.home={home}",
            f"-Djava.io.tmpdir={home}",
            "-cp",
            classes,
        ]
        with (home / "stderr").open("w") as errors:
            self.process = subprocess.Popen(
                ["java", *options, driver, *arguments],
                cwd=home,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
            )

    def answer(self) -> dict[str, Any]:
        """Return the next response, even if it is an error."""
        assert self.process.stdout is not None
        watchdog = threading.Timer(COMMAND_TIMEOUT_S, self.process.kill)
        watchdog.start()
        try:
            line = self.process.stdout.readline()
        finally:
            watchdog.cancel()
        assert line, f"RocketMQ ended or hung:\n{self.log[-5000:]}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def call(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Run a command and return its answer, which must not be an error."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": command, **arguments}, default=str) + "\n")
        self.process.stdin.flush()
        answer = self.answer()
        assert "error" not in answer, answer["error"]
        return answer

    def end(self) -> None:
        """Close the process's input, and wait until it has ended."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(COMMAND_TIMEOUT_S) == 0

    def kill(self) -> None:
        """Send SIGKILL, even if the process has ended."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None and not stream.closed:
                stream.close()

    @property
    def log(self) -> str:
        """Return RocketMQ's log about its store, and its output."""
        files = [*self.home.rglob("store.log"), self.home / "stderr"]
        return "\n".join(path.read_text(errors="replace") for path in files)


class RocketMQ(JavaDriver):
    """A process that has a store open.

    ``driver``: ``StoreDriver`` or ``BrokerDriver``; ``settings``: RocketMQ's, in addition to those that match the
    writer's.
    """

    def __init__(self, classes: str, home: Path, driver: str, store: Path, settings: dict[str, Any]) -> None:
        home.mkdir()
        lines = {"storePathRootDir": store, **ROCKETMQ_SETTINGS, **settings}
        (home / "settings").write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        super().__init__(classes, home, driver, str(home / "settings"))
        self.opened: dict[str, Any] = {}

    def wait_opened(self) -> None:
        """Wait until the store is open. Raises ``RocketMQRefused``."""
        self.opened = self.answer()
        if "error" in self.opened:
            raise RocketMQRefused(self.opened["error"])

    def read(self, **arguments: Any) -> tuple[dict[str, Any], list[Message]]:
        """Return the answer to ``read``, and every message that RocketMQ read."""
        to = self.home / "read.jsonl"
        answer = self.call("read", to=to, **arguments)
        return answer, read_lines(to)

    def wait_dispatched(self) -> None:
        """Wait until RocketMQ's reput thread has dispatched every appended message to queues and index."""
        deadline = time.monotonic() + COMMAND_TIMEOUT_S
        while (behind := self.call("dispatched")["behind"]) > 0:
            assert time.monotonic() < deadline, f"{behind} bytes of the log are not dispatched"

    def find(self, keys: Iterable[Key]) -> dict[Key, set[int]]:
        """Return the physical offsets that RocketMQ's index gives for each key, hash collisions included."""
        keys = list(keys)
        asked, to = self.home / "keys.jsonl", self.home / "found.jsonl"
        asked.write_text("".join(json.dumps(key) + "\n" for key in keys))
        self.call("find", keys=asked, to=to)
        return dict(zip(keys, map(set, read_lines(to)), strict=True))

    def close(self) -> None:
        """Stop the process in order, as a broker that ends."""
        self.call("close")
        self.end()


class Writer:
    """A ``writer.py`` process and its output so far."""

    def __init__(self, store: Path, *options: object) -> None:
        command = [sys.executable, str(FOLDER / "writer.py"), str(store), *map(str, options)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8")
        self.acknowledged: list[Message] = []
        self.opened: dict[str, Any] = {}
        """Report of its store's recovery."""
        self.end = -1
        """The log's end, once it has closed the store."""

    def read_until(self, messages: float = float("inf")) -> None:
        """Read its output until so many messages are acknowledged, or until it ends."""
        assert self.process.stdout is not None
        while len(self.acknowledged) < messages and (line := self.process.stdout.readline()).endswith("\n"):
            said = json.loads(line)
            self.acknowledged += said.get("acknowledged", ())
            self.opened = said.get("opened", self.opened)
            self.end = said.get("closed", self.end)

    def finish(self) -> None:
        """Wait until the process has stopped in order."""
        self.read_until()
        assert self.process.wait() == 0
        assert self.end > 0

    def kill(self) -> None:
        """Send SIGKILL at any moment, then read the acknowledgements that are in the pipe."""
        self.process.kill()
        self.read_until()
        self.process.wait()

    def close(self) -> None:
        """End the process and close its pipe."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


def read_lines(path: Path) -> list[Any]:
    """Read a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def lost_its_tail(store: Path, physical_offset: int) -> bool:
    """Return whether the kill tore the record behind its body. RocketMQ, which checks only the body, accepts it."""
    file_start = physical_offset - physical_offset % SETTINGS.commitlog_file_bytes
    log = (store / "commitlog" / f"{file_start:020d}").read_bytes()
    at = physical_offset - file_start
    (size,) = struct.unpack_from(">i", log, at)
    return bool(log[at + size - 1] == 0)


def read_flint(store: MessageStore) -> list[Message]:
    """Return every message that FlintMQ reads from the store, queue by queue."""
    return [
        message
        for topic in store.topics
        for queue, begin, _, _ in store.queue_reads.topic_stats(topic.name, hot=False)
        for message in _pull_all(store, topic.name, queue, begin)
    ]


def _pull_all(store: MessageStore, topic: str, queue: int, queue_offset: int) -> Iterator[Message]:
    while True:
        pulled = store.pulls.pull(topic, queue, queue_offset, PullSelection(1000, 1 << 20), hot=False)
        yield from decode_all(pulled.body, pulled.count)
        if pulled.next_offset <= queue_offset:
            return
        queue_offset = pulled.next_offset


def decode_all(body: bytearray, count: int) -> Iterator[Message]:
    """Decode the messages in the body of a pull or a query."""
    at = 4 * count
    for k in range(count):
        size = int.from_bytes(body[4 * k : 4 * k + 4], "big")
        yield _shown(bytes(body[at : at + size]))
        at += size


def _shown(blob: bytes) -> Message:
    record = decode_record(blob)
    compressed = record.sys_flag & SysFlag.COMPRESSED
    body = decompress(record.body, record.sys_flag) if compressed else record.body
    return {
        "topic": record.topic.decode(),
        "queue": record.queue_id,
        "queue_offset": record.queue_offset,
        "physical_offset": record.physical_offset,
        "flag": record.flag,
        "born_ms": record.born_timestamp,
        "born_host": shown_host(record.born_host),
        "store_ms": record.store_timestamp,
        "store_host": shown_host(record.store_host),
        "properties": record.property_map(),
        "body_sha1": hashlib.sha1(body).hexdigest(),
    }


def keys_of(messages: Iterable[Message]) -> dict[Key, set[int]]:
    """Return, for each topic and key (unique keys included), the physical offsets of the messages that have it."""
    found: dict[Key, set[int]] = {}
    for message in messages:
        properties = message["properties"]
        for key in [properties.get("UNIQ_KEY"), *properties.get("KEYS", "").split(" ")]:
            if key:
                found.setdefault((message["topic"], key), set()).add(message["physical_offset"])
    return found


def find_flint(store: MessageStore, keys: Iterable[Key]) -> dict[Key, set[int]]:
    """Return the physical offsets of the messages that FlintMQ's index gives for each key, from all pages."""
    found: dict[Key, set[int]] = {}
    for topic, key in keys:
        offsets = found[topic, key] = set()
        cursor = ""
        while True:
            page = store.query(KeySearch(topic, key, cursor=cursor), hot=False)
            offsets.update(message["physical_offset"] for message in decode_all(page.body, page.count))
            if not (cursor := page.cursor):
                break
    return found
