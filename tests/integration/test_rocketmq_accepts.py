"""Apache RocketMQ itself opens a store that FlintMQ wrote, reads all of it, goes on writing, and hands it back.

Optional: skipped where there is no JDK or Maven, or where Maven cannot fetch RocketMQ's jars. Maven keeps them in its own
cache; nothing of them lies in this repository.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import pytest

from flintmq.broker.store import MessageStore, ProduceBatch, RecoveryReport, StoreLocked, StoreSettings
from flintmq.client.core.compression import decompress
from flintmq.protocol.ids import offset_id
from flintmq.protocol.layout import SysFlag
from flintmq.protocol.record import decode_record, encode_host, split_keys

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

FOLDER = Path(__file__).parent / "rocketmq"
FETCH_TIMEOUT_S = 240.0
COMMAND_TIMEOUT_S = 60.0
HEAP = ("-Xms64m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
SETTINGS = StoreSettings(
    commitlog_file_bytes=4 * 1024 * 1024,
    consumequeue_file_bytes=2_000,
    index_slots=500,
    index_entries=2_000,
    allocate_step_bytes=1024 * 1024,
)
"""The sizes of ``writer.py``."""
ROCKETMQ_SETTINGS = {
    "mappedFileSizeCommitLog": SETTINGS.commitlog_file_bytes,
    "mappedFileSizeConsumeQueue": SETTINGS.consumequeue_file_bytes,
    "maxHashSlotNum": SETTINGS.index_slots,
    "maxIndexNum": SETTINGS.index_entries,
    "maxMsgsNumBatch": 100_000,
    "flushDiskType": "SYNC_FLUSH",
    "haListenPort": 0,
}
"""RocketMQ's names for the same, and no port that could be taken."""

Message = dict[str, Any]
"""The fields of ``writer.Written``, from whichever side."""


# ---- RocketMQ, started by Maven's class path ----


@dataclass
class Java:
    """The class path of RocketMQ and of the compiled drivers."""

    class_path: str


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Java:
    for program, package in (("java", "a JDK"), ("javac", "a JDK"), ("mvn", "Maven")):
        if shutil.which(program) is None:
            pytest.skip(f"`{program}` is not on PATH; install {package} to see whether RocketMQ accepts the store")
    folder = tmp_path_factory.mktemp("rocketmq-classes")
    class_path = _fetch_jars(folder / "class-path") + ":" + str(folder)
    sources = [str(path) for path in sorted(FOLDER.glob("*.java"))]
    compiled = subprocess.run(
        ["javac", "-encoding", "UTF-8", "-nowarn", "-cp", class_path, "-d", str(folder), *sources],
        capture_output=True,
        text=True,
        check=False,
    )
    assert compiled.returncode == 0, compiled.stderr
    return Java(class_path)


def _fetch_jars(output: Path) -> str:
    """RocketMQ's jars as a class path; skips where Maven cannot get them."""
    command = ["mvn", "-q", "-B", "-f", str(FOLDER / "pom.xml"), "dependency:build-classpath"]
    command += [f"-Dmdep.outputFile={output}", "-Daether.connector.connectTimeout=10000"]
    try:
        fetched = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"Maven did not get RocketMQ's jars within {FETCH_TIMEOUT_S:.0f} s (no network?)")
    if fetched.returncode or not output.exists():
        said = [line for line in fetched.stdout.splitlines() if line.startswith("[ERROR]")]
        pytest.skip(f"Maven cannot get RocketMQ's jars (no network?): {said[0] if said else fetched.stderr[-300:]}")
    return output.read_text().strip()


class RocketMQRefused(Exception):
    """RocketMQ did not open the store; its own words."""


@dataclass
class RocketMQ:
    """A process with RocketMQ's classes that has the store open and answers commands."""

    process: subprocess.Popen[str]
    home: Path
    opened: dict[str, Any] = field(default_factory=dict)

    def answer(self) -> dict[str, Any]:
        """The next line it says."""
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
        """Do a command; its answer, which must be no error."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": command, **arguments}, default=str) + "\n")
        self.process.stdin.flush()
        answer = self.answer()
        assert "error" not in answer, answer["error"]
        return answer

    def close(self) -> None:
        """Stop in order: its store is closed as a broker's at its end."""
        self.call("close")
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(COMMAND_TIMEOUT_S) == 0

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()

    def read(self, **arguments: Any) -> tuple[dict[str, Any], list[Message]]:
        """What it answers to ``read``, and every message that it read."""
        to = self.home / "read.jsonl"
        answer = self.call("read", to=to, **arguments)
        return answer, [json.loads(line) for line in to.read_text().splitlines()]

    def find(self, keys: list[tuple[str, str]]) -> dict[tuple[str, str], list[int]]:
        """For each (topic, key) the physical offsets that its index gives."""
        asked, to = self.home / "keys.jsonl", self.home / "found.jsonl"
        asked.write_text("".join(json.dumps(key) + "\n" for key in keys))
        self.call("find", keys=asked, to=to)
        return dict(zip(keys, map(json.loads, to.read_text().splitlines()), strict=True))

    @property
    def log(self) -> str:
        """What RocketMQ logged about its store, and what it printed."""
        files = [*self.home.rglob("store.log"), *self.home.rglob("stderr")]
        return "\n".join(path.read_text(errors="replace") for path in files)


RocketMQFactory = Callable[..., RocketMQ]


@pytest.fixture
def rocketmq(java: Java, tmp_path: Path) -> Iterator[RocketMQFactory]:
    """``rocketmq(store, driver="StoreDriver", **settings)`` opens a store in RocketMQ."""
    started: list[RocketMQ] = []

    def start(store: Path, driver: str = "StoreDriver", **settings: Any) -> RocketMQ:
        home = tmp_path / f"rocketmq-{len(started)}"
        home.mkdir()
        lines = {"storePathRootDir": store, **ROCKETMQ_SETTINGS, **settings}
        (home / "settings").write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        command = ["java", *HEAP, f"-Duser.home={home}", "-Dfile.encoding=UTF-8", "-cp", java.class_path]
        with (home / "stderr").open("w") as errors:
            process = subprocess.Popen(
                [*command, driver, str(home / "settings")],
                cwd=home,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
            )
        running = RocketMQ(process, home)
        started.append(running)
        running.opened = running.answer()
        if "error" in running.opened:
            raise RocketMQRefused(running.opened["error"])
        return running

    yield start
    for running in started:
        running.kill()
        for stream in (running.process.stdin, running.process.stdout):
            if stream is not None:
                stream.close()


# ---- FlintMQ: the writing process, and what it reads back ----


@dataclass
class Writer:
    """A ``writer.py`` process and what it said so far."""

    process: subprocess.Popen[str]
    acknowledged: list[Message] = field(default_factory=list)
    opened: dict[str, Any] = field(default_factory=dict)
    end: int = -1

    def read_until(self, messages: float = float("inf")) -> None:
        """Take what it says until so many messages are acknowledged, or it ends."""
        assert self.process.stdout is not None
        while len(self.acknowledged) < messages and (line := self.process.stdout.readline()).endswith("\n"):
            said = json.loads(line)
            self.acknowledged += said.get("acknowledged", ())
            self.opened = said.get("opened", self.opened)
            self.end = said.get("closed", self.end)


WriterFactory = Callable[..., Writer]


@pytest.fixture
def writer() -> Iterator[WriterFactory]:
    """``writer(store, *options)`` starts a process that writes to a FlintMQ store; see ``writer.py``."""
    started: list[Writer] = []

    def start(store: Path, *options: object) -> Writer:
        command = [sys.executable, str(FOLDER / "writer.py"), str(store), *map(str, options)]
        started.append(Writer(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8")))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()
        if each.process.stdout is not None:
            each.process.stdout.close()


def write_and_close(writer: WriterFactory, store: Path, *options: object) -> Writer:
    """Write a store and stop in order."""
    running = writer(store, *options)
    running.read_until()
    assert running.process.wait() == 0
    assert running.end > 0
    return running


def read_flint(store: MessageStore) -> list[Message]:
    """Every message that FlintMQ's store gives, queue by queue."""
    return [
        message
        for topic in store.topics
        for queue, begin, _, _ in store.topic_stats(topic.name, False)
        for message in pull_all(store, topic.name, queue, begin)
    ]


def pull_all(store: MessageStore, topic: str, queue: int, offset: int) -> Iterator[Message]:
    while True:
        pulled = store.pull(topic, queue, offset, 1000, 1 << 20, None, False)
        yield from decode_all(pulled.body, pulled.count)
        if not pulled.count and pulled.next_offset <= offset:
            return
        offset = pulled.next_offset


def decode_all(body: bytearray, count: int) -> Iterator[Message]:
    at = 4 * count
    for k in range(count):
        yield shown(bytes(body[at : (at := at + int.from_bytes(body[4 * k : 4 * k + 4], "big"))]))


def shown(blob: bytes) -> Message:
    """A stored record as the other side shows it."""
    record = decode_record(blob)
    compressed = record.sys_flag & SysFlag.COMPRESSED
    body = decompress(record.body, record.sys_flag) if compressed else record.body
    return {
        "topic": record.topic,
        "queue": record.queue_id,
        "queue_offset": record.queue_offset,
        "physical_offset": record.physical_offset,
        "flag": record.flag,
        "born_ms": record.born_timestamp,
        "born_host": shown_host(record.born_host),
        "store_ms": record.store_timestamp,
        "store_host": shown_host(record.store_host),
        "properties": dict(record.properties),
        "body_sha1": hashlib.sha1(body).hexdigest(),
    }


def shown_host(host: tuple[str, int]) -> str:
    return f"{encode_host(*host)[:-4].hex()}:{host[1]}"
