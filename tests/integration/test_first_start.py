"""A broker whose kernels are not compiled yet: it serves, and takes them over from the process that compiles them.

That process waits for a lock which the tests hold, and then finds the kernels of the tests' own cache in its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from flintmq.broker import kernels
from flintmq.broker.app.daemon import EXIT_REFUSED
from flintmq.broker.app.kernel_compiler import RECORDS_MAX
from flintmq.client import Consumer, Message, Producer
from flintmq.protocol.storage import arrays, reader
from flintmq.protocol.storage.arrays import jit
from flintmq.protocol.storage.arrays.kernel_caches import CACHE_VARIABLE
from flintmq.testing.started_broker import ANY_PORT, DAEMON, LISTENING, SMALL_FILES, broker_environment, serve_arguments
from tests.conftest import BrokerFactory, RunningBroker
from tests.group_tools import until
from tests.metrics_tools import Scrape
from tests.tools_runs import tool

pytestmark = pytest.mark.skipif(jit.INTERPRETED, reason="nothing is compiled")


class ColdCache:
    """An empty cache, in which nobody compiles until ``fill``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._caches = [jit.cache_folder(Path(of.__path__[0])) for of in (kernels, arrays, reader)]
        assert self._caches[0] is not None
        own = folder / self._caches[0].name
        own.mkdir(mode=0o700)
        self._lock = (own / kernels.LOCK).open("ab")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.environment = {CACHE_VARIABLE: str(folder)}

    def fill(self) -> None:
        """Let the process that compiles find everything, and begin."""
        list(kernels.warm())  # the tests' own cache has all kernels
        for cache in self._caches:
            assert cache is not None
            shutil.copytree(cache, self._folder / cache.name, dirs_exist_ok=True, ignore=lambda _, __: [kernels.LOCK])
        self.let()

    def let(self) -> None:
        """Let the process that compiles begin."""
        self._lock.close()


@pytest.fixture
def cold(tmp_path: Path) -> Iterator[ColdCache]:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    cache = ColdCache(folder)
    yield cache
    cache.let()


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found += map(int, (task / "children").read_text().split())
    return found


def descriptors(broker: RunningBroker) -> Counter[str]:
    """Return how many descriptors of each kind the broker has that are no files and no sockets."""
    found: Counter[str] = Counter()
    for link in Path(f"/proc/{broker.process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found[os.readlink(link)] += 1
    return Counter({name: count for name, count in found.items() if name.startswith("anon_inode:")})


class Load:
    """Messages with numbers in sequence, sent one by one and in batches until ``end``, beside the test."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._ends = threading.Event()
        self.sent = 0
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        with Producer(self._address) as producer:
            while not self._ends.is_set():
                producer.send(self._message(self.sent))
                self.sent += 1
                producer.send_many([self._message(self.sent + number) for number in range(5)])
                self.sent += 5

    def _message(self, number: int) -> Message:
        return Message("orders", b"%d" % number, keys=[f"k-{number}"], tags=f"t{number % 3}", properties={"p": "é"})

    def end(self) -> int:
        """End; return the number of messages, all of them acknowledged."""
        self._ends.set()
        self._thread.join()
        return self.sent


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_broker_serves_before_its_kernels_are_compiled_and_takes_them_over_under_load(
    broker: BrokerFactory, cold: ColdCache, flush: str
) -> None:
    running = broker("--flush", flush, environment=cold.environment, settings={"topics.default_queues": 1})
    assert any(line.startswith("kernels: first start: they are compiled for this machine") for line in running.output)
    assert Scrape(running)("flintmq_interpreted_kernels") > 20
    load = Load(running.address)
    until(lambda: load.sent > 50)
    cold.fill()
    until(lambda: "all kernels are compiled and in use" in running.log)
    assert Scrape(running)("flintmq_interpreted_kernels") == 0
    assert children(running.process.pid) == []
    seen = load.sent
    until(lambda: load.sent > seen + 200)
    taken_over = descriptors(running)
    count = load.end()
    with Consumer(running.address) as consumer:
        bodies = [message.body for message in consumer.iter("orders", from_="earliest", until="latest")]
        assert bodies == [b"%d" % number for number in range(count)]
        assert [found.body for found in consumer.query("orders", key="k-7")] == [b"7"]
    assert running.stop() == 0
    assert tool("verify", running.store).code == 0

    again = broker("--flush", flush, environment=cold.environment, store=running.store)
    assert children(again.process.pid) == []
    assert not any(line.startswith("kernels: ") for line in again.output)
    load = Load(again.address)
    until(lambda: load.sent > 200)
    assert descriptors(again) == taken_over, "a broker that took over works like one that found everything"
    load.end()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_process_that_compiles_ends_with_the_broker(broker: BrokerFactory, cold: ColdCache, number: int) -> None:
    running = broker(environment=cold.environment)
    (child,) = children(running.process.pid)
    running.stop(number)
    until(lambda: not Path(f"/proc/{child}").exists() or "zombie" in Path(f"/proc/{child}/status").read_text())
    assert "could not be compiled" not in running.log


def test_a_broker_serves_on_if_the_compilation_fails_and_says_so(broker: BrokerFactory, cold: ColdCache) -> None:
    running = broker(environment=cold.environment)
    (child,) = children(running.process.pid)
    os.kill(child, signal.SIGKILL)
    until(lambda: "the kernels could not be compiled (exit code -9)" in running.log)
    with Producer(running.address) as producer, Consumer(running.address) as consumer:
        producer.send(Message("orders", b"x"))
        assert [message.body for message in consumer.iter("orders", from_="earliest", until="latest")] == [b"x"]
    assert Scrape(running)("flintmq_interpreted_kernels") > 20


@contextlib.contextmanager
def waiting_for_kernels(store: Path, cold: ColdCache, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Start a broker with an empty cache, and yield it when it waits for its kernels."""
    with subprocess.Popen(
        [sys.executable, *DAEMON, *serve_arguments(store, ANY_PORT, *options, settings=SMALL_FILES)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=broker_environment(**cold.environment),
    ) as process:
        assert process.stdout is not None
        said = next(line for line in process.stdout if not line.startswith("starting, "))
        assert said.startswith("first start: compiling the kernels for this machine")
        yield process


@pytest.fixture
def long_log(broker: BrokerFactory) -> Path:
    """Return a store with too many records for interpreted kernels."""
    running = broker()
    with Producer(running.address) as producer:
        producer.send_many([Message("orders", b"x")] * (RECORDS_MAX + 1))
    assert running.stop() == 0
    return running.store


@pytest.mark.parametrize("store", ["long log", "new"])
def test_a_broker_with_a_long_log_or_the_option_waits_for_its_kernels(
    store: str, long_log: Path, tmp_path: Path, cold: ColdCache
) -> None:
    starting = (long_log, ()) if store == "long log" else (tmp_path / "new", ("--warm",))
    with waiting_for_kernels(starting[0], cold, *starting[1]) as process:
        cold.fill()
        assert process.stdout is not None
        banner = list(itertools.takewhile(lambda line: not LISTENING.search(line), process.stdout))
        process.terminate()
        assert process.wait() == 0
    assert banner[-1].startswith("metrics: ")
    assert not any(line.startswith("kernels: ") for line in banner)


def test_a_broker_with_a_long_log_does_not_start_without_its_kernels(long_log: Path, cold: ColdCache) -> None:
    with waiting_for_kernels(long_log, cold) as process:
        (child,) = children(process.pid)
        os.kill(child, signal.SIGKILL)
        _, errors = process.communicate()
    assert process.returncode == EXIT_REFUSED
    assert "the kernels could not be compiled (exit code -9)" in errors


@pytest.mark.long(seconds=90)
def test_the_compilation_beside_a_broker_makes_every_kernel(broker: BrokerFactory, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    running = broker(environment={CACHE_VARIABLE: str(cache)})
    load = Load(running.address)
    until(lambda: "all kernels are compiled and in use" in running.log, seconds=300)
    assert load.end()
    assert Scrape(running)("flintmq_interpreted_kernels") == 0
