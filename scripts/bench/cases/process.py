"""The broker's process: its start, its memory, and the offline tools on its store."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

from flintmq.protocol.commands import GET_MAX_OFFSET
from flintmq.protocol.errors import TopicNotExist
from flintmq.protocol.storage.arrays.kernel_caches import CACHE_VARIABLE
from flintmq.testing.started_broker import broker_environment

from ..bench import Bench
from ..broker import Broker
from ..load import TOPIC, fill, fill_topics
from ..machine import cpu_seconds, many_files, resident_bytes, touch_memory
from ..measure import BenchFailed, Case, Measure, Sample, Samples
from ..raw import RawClient

# ---- start: of a broker with two million messages after kill −9, and of one that must rebuild its queues and index.

START_MESSAGES = 2_000_000
START_BODY_BYTES = 500
DERIVED = ("consumequeue", "index")


def _start_samples(bench: Bench) -> Samples:
    count = bench.count(START_MESSAGES)
    for _ in range(bench.runs):
        with bench.store() as store:
            with bench.broker_on(store) as broker:
                fill(broker.address, count, START_BODY_BYTES)
                broker.wait_until_caught_up()
                broker.kill()
            touch_memory(bench.touched_gib, bench.folder)
            after_kill, recovery = start_and_kill(store, count)
            for folder in DERIVED:
                shutil.rmtree(store / folder)
            touch_memory(bench.touched_gib, bench.folder)
            _, rebuild = start_and_kill(store, count)
            yield {"start": after_kill, "recovery": recovery, "rebuild": count / rebuild}


def start_and_kill(store: Path, count: int) -> tuple[float, float]:
    """Return the seconds until the port was open, and the part of them that opening the store took."""
    with Broker(store, "async") as broker:
        broker.check_stored(TOPIC, count)
        broker.kill()
        return broker.start_seconds, max(broker.recovery_seconds, 0.01)


START = Case(
    "start",
    "start on 2 M × 500 B",
    (
        Measure("start", "after kill −9, until the port is open", "s", 2.0),
        Measure("recovery", "after kill −9, in the store", "s"),
        Measure("rebuild", "rebuild of all queues and index", "msg/s", 1_500_000),
    ),
    _start_samples,
)

# ---- idle: start time and memory of an empty broker.


def _idle_samples(bench: Bench) -> Samples:
    _start_empty(bench)  # loads the broker's files and kernels into the page cache
    for _ in range(bench.runs):
        yield _start_empty(bench)


def _start_empty(bench: Bench) -> Sample:
    """Return the time of a start on an empty store, and the broker's memory after it."""
    with bench.store() as store, Broker(store, "sync") as broker:
        return {"start": broker.start_seconds, "memory": resident_bytes(broker.pid) / 1e6}


IDLE = Case(
    "idle",
    "an empty broker, kernels cached",
    (Measure("memory", "idle memory", "MB", 180), Measure("start", "start, until the port is open", "s", 1.5)),
    _idle_samples,
)

# ---- first-start: the same broker on a new machine, whose kernels are not compiled yet.

COMPILED = "all kernels are compiled and in use"
COMPILED_SECONDS_MAX = 300.0


def _first_start_samples(bench: Bench) -> Samples:
    for _ in range(bench.runs):
        with tempfile.TemporaryDirectory() as cache, mock.patch.dict(os.environ, {CACHE_VARIABLE: cache}):
            yield _first_start(bench)


class ColdBroker(Broker):
    """A broker that serves before its kernels are compiled."""

    first_arguments = ()


def _first_start(bench: Bench) -> Sample:
    """Return the time of a start, the broker's processor time by then, and the time until its kernels are compiled."""
    began = time.perf_counter()
    with bench.store() as store, ColdBroker(store, "sync") as broker:
        cpu = cpu_seconds(broker.pid)
        while COMPILED not in broker.output:
            if time.perf_counter() > began + COMPILED_SECONDS_MAX:
                raise BenchFailed(f"the kernels were not compiled within {COMPILED_SECONDS_MAX:.0f} s")
            time.sleep(0.1)
        return {"start": broker.start_seconds, "cpu": cpu, "compiled": time.perf_counter() - began}


FIRST_START = Case(
    "first-start",
    "an empty broker, kernels not compiled",
    (
        Measure("start", "start, until the port is open", "s", 5.0),
        Measure("cpu", "processor time of the broker by then", "s"),
        Measure("compiled", "until all kernels are compiled and in use", "s"),
    ),
    _first_start_samples,
)

# ---- footprint: memory of the broker per idle connection and per topic.

CONNECTIONS = 2_000
FOOTPRINT_TOPICS = 1_000
SETTLE_SECONDS = 4.0
"""Seconds after which the broker treats a connection as idle."""
LARGE_FRAME_BYTES = 512 * 1024
"""Size of a frame that each connection sends once before it is idle, which makes its receive buffer grow."""


def _footprint_samples(bench: Bench) -> Samples:
    for _ in range(bench.runs):
        sample: Sample = {}
        with bench.store() as store, Broker(store, "async") as broker:
            sample["silent"] = connection_kib(broker, bench.count(CONNECTIONS), used=False)
        with bench.store() as store, Broker(store, "async") as broker:
            sample["used"] = connection_kib(broker, bench.count(CONNECTIONS), used=True)
        with bench.store() as store, Broker(store, "async") as broker:
            sample["topic"] = topic_kib(broker, bench.count(FOOTPRINT_TOPICS))
        yield sample


def connection_kib(broker: Broker, count: int, *, used: bool) -> float:
    """Return the KiB per connection after HELLO; with ``used``, each has also sent a large frame."""
    with many_files(count + 100):
        with RawClient(broker.address) as client:
            client.runtime_info()
        before = resident_bytes(broker.pid)
        clients = []
        try:
            for _ in range(count):
                client = RawClient(broker.address)
                clients.append(client)
                if used:
                    send_large_frame(client)
            time.sleep(SETTLE_SECONDS)
            return (resident_bytes(broker.pid) - before) / 1024 / count
        finally:
            for client in clients:
                client.sock.close()


def send_large_frame(client: RawClient) -> None:
    """Return a frame that the broker must receive completely before it can refuse it."""
    try:
        client.call(GET_MAX_OFFSET, {"topic": "nowhere", "queue": 0}, bytes(LARGE_FRAME_BYTES))
    except TopicNotExist:
        return
    raise BenchFailed("a topic that nobody made is there")


def topic_kib(broker: Broker, count: int) -> float:
    """Return the KiB per topic with 4 queues and a message in each."""
    fill_topics(broker.address, 1)
    broker.wait_until_caught_up()
    before = resident_bytes(broker.pid)
    fill_topics(broker.address, count, first=1)
    broker.wait_until_caught_up()
    return (resident_bytes(broker.pid) - before) / 1024 / count


FOOTPRINT = Case(
    "footprint",
    "memory of what the broker holds",
    (
        Measure("silent", "an idle connection", "KiB", 80),
        Measure("used", "the same after a frame of 512 KiB, as the process shows it", "KiB"),
        Measure("topic", "a topic of 4 queues", "KiB", 64),
    ),
    _footprint_samples,
)

# ---- tools: the offline tools on a store of about 1 GiB whose files are in the page cache.

TOOLS_MESSAGES = 4_000_000
TOOL_SECONDS_MAX = 600
_REBUILT = re.compile(r"from ([\d,]+) records in ([\d.]+) s")


def _tools_samples(bench: Bench) -> Samples:
    """Yield one sample per run: the store is created once, and verified and rebuilt in each run."""
    count = bench.count(TOOLS_MESSAGES)
    with bench.store() as store:
        with bench.broker_on(store) as broker:
            fill(broker.address, count)
            broker.wait_until_caught_up()
        verify(store, count)  # loads the files into the page cache
        for _ in range(bench.runs):
            touch_memory(bench.touched_gib, bench.folder)
            figures = {"verify": verify(store, count), "rebuild": rebuild(store, count)}
            with bench.store() as folder:
                figures.update(back_up(store, folder, count))
            yield figures


def verify(store: Path, count: int) -> float:
    """Return the GB of log per second, checked together with queues and index."""
    summary = json.loads(_run("verify", store, "-o", "json").splitlines()[-1])
    if summary["records"] != count or summary["findings"]:
        raise BenchFailed(f"verify found {summary['records']:,} records of {count:,}, and {summary['findings']}")
    return float(summary["log_bytes"] / max(summary["seconds"], 1e-3) / 1e9)


def rebuild(store: Path, count: int) -> float:
    """Return messages per second until the result is on disk."""
    match = _REBUILT.search(output := _run("rebuild", store))
    if match is None or int(match[1].replace(",", "")) != count:
        raise BenchFailed(f"rebuild said {output!r}, {count:,} messages were stored")
    return count / max(float(match[2]), 0.01)


def back_up(store: Path, folder: Path, count: int) -> dict[str, float]:
    """Back the store up, back it up again without changes, and restore it; check that the copy equals the original."""
    began = time.perf_counter()
    _run("backup", store, folder / "backup")
    made = time.perf_counter()
    _run("backup", store, folder / "backup")
    again = time.perf_counter()
    _run("restore", folder / "backup", folder / "restored")
    restored = time.perf_counter()
    size = sum(path.stat().st_size for path in (folder / "backup" / "commitlog").iterdir())
    rebuild(folder / "restored", count)
    return {
        "backup": size / (made - began) / 1e9,
        "backup_again": again - made,
        "restore": size / (restored - again) / 1e9,
    }


def _run(*arguments: object) -> str:
    done = subprocess.run(
        [Path(sys.executable).with_name("flintmq-broker"), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=TOOL_SECONDS_MAX,
        env=broker_environment(),
        check=False,
    )
    if done.returncode:
        raise BenchFailed(f"{arguments[0]} ended with {done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}")
    return done.stdout


TOOLS = Case(
    "tools",
    "offline tools, 1 GiB of 100-byte messages",
    (
        Measure("verify", "verify, of the log", "GB/s", 1.0),
        Measure("rebuild", "rebuild queues and index", "msg/s", 1_500_000),
        Measure("backup", "backup, its process and all `fdatasync`s included", "GB/s"),
        Measure("backup_again", "another one on top of it, nothing new", "s"),
        Measure("restore", "restore, every byte checked", "GB/s"),
    ),
    _tools_samples,
)
